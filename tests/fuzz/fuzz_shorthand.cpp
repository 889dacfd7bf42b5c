#include <string>

#include "cluster/cluster.h"
#include "cluster/shorthand.h"
#include "fuzz.h"

namespace meshwright {

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return answers(data, size, [](std::string_view text) {
    const Cluster cluster = parse_shorthand(text);
    MW_CHECK(cluster.device_count() > 0, "a cluster without devices");
    // Each part is a few runs of equal hosts, so a large cluster prints as briefly as a small one.
    const std::string printed = print_cluster(cluster);
    if (cluster.device_count() > 20000) return;
    MW_CHECK(print_cluster(parse_cluster_yaml(printed, "printed")) == printed,
             "a cluster does not survive printing");
  });
}

}  // namespace meshwright
