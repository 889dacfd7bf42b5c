#include <string>

#include "cluster/cluster.h"
#include "fuzz.h"

namespace meshwright {

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return answers(data, size, [](std::string_view text) {
    const Cluster cluster = parse_cluster_yaml(text, "input");
    const std::string printed = print_cluster(cluster);
    // Thousands of hosts with names of their own print as more than a file may hold.
    if (printed.size() > (1u << 20)) return;
    MW_CHECK(print_cluster(parse_cluster_yaml(printed, "printed")) == printed,
             "a cluster does not survive printing");
    describe(cluster);
    list_cluster(cluster);
  });
}

}  // namespace meshwright
