#include <fmt/format.h>

#include <vector>

#include "base/format.h"
#include "cluster/cluster.h"
#include "cluster/subtree.h"

namespace meshwright {
namespace {

std::string bandwidth(BytesPerSecond value) {
  return fmt::format("{} GB/s ({} Gb/s)", fmt::format("{:.5g}", value.value / 1e9),
                     fmt::format("{:.6g}", value.value * 8 / 1e9));
}

std::string plural(long long count, std::string_view noun) {
  return fmt::format("{} {}{}", format_integer(count), noun, count == 1 ? "" : "s");
}

class Drawing {
 public:
  explicit Drawing(const Cluster& cluster)
      : cluster_(cluster),
        children_(child_lists(cluster)),
        class_of_(subtree_classes(cluster, children_, [](std::size_t) { return std::string(); })) {}

  void draw(int index, int count, int depth) {
    // A tree in which nothing repeats is cut short: the drawing is for reading.
    if (lines_ == kMaxLines) text_ += "  ...\n";
    if (++lines_ > kMaxLines) return;
    const Domain& domain = cluster_.domains[static_cast<std::size_t>(index)];
    const auto& children = children_[static_cast<std::size_t>(index)];
    std::string what = domain.level;
    if (children.empty()) {
      what = cluster_.kind(DeviceId(domain.first_device)).name;
    }
    text_ += fmt::format("{}{}{}", std::string(static_cast<std::size_t>(2 * depth), ' '),
                         count > 1 ? format_integer(count) + " x " : "", what);
    if (!children.empty()) text_ += fmt::format(" ({})", plural(domain.device_count, "device"));
    if (domain.parent >= 0) {
      text_ += fmt::format(": {} {}", domain.link, bandwidth(domain.uplink));
      if (domain.lane.value > 0) {
        text_ += fmt::format(", one device at most {}", bandwidth(domain.lane));
      }
      text_ += fmt::format(", +{}", format_seconds(domain.latency));
    }
    if (domain.pair_limit.value > 0) {
      text_ += fmt::format("; {} between two", bandwidth(domain.pair_limit));
    }
    text_ += '\n';
    for (std::size_t i = 0; i < children.size();) {
      const auto same = [&](std::size_t j) {
        return class_of_[static_cast<std::size_t>(children[j])] ==
               class_of_[static_cast<std::size_t>(children[i])];
      };
      std::size_t end = i + 1;
      while (end < children.size() && same(end)) ++end;
      draw(children[i], static_cast<int>(end - i), depth + 1);
      i = end;
    }
  }

  std::string take() { return std::move(text_); }

 private:
  static constexpr int kMaxLines = 100;
  const Cluster& cluster_;
  std::vector<std::vector<int>> children_;
  std::vector<int> class_of_;
  std::string text_;
  int lines_ = 0;
};

std::string describe_kind(const DeviceKind& kind, long long count) {
  std::string text = fmt::format("{} {}: {} at {:.5g} GB/s, fp32 {:.4g}", format_integer(count),
                                 kind.name, format_bytes(kind.memory),
                                 kind.memory_bandwidth.value / 1e9, kind.fp32.value / 1e12);
  const std::pair<std::string_view, FlopsPerSecond> rates[] = {{"fp64", kind.fp64},
                                                               {"tf32", kind.tf32},
                                                               {"bf16", kind.bf16},
                                                               {"fp16", kind.fp16},
                                                               {"fp8", kind.fp8}};
  for (const auto& [name, rate] : rates) {
    if (rate.value > 0) text += fmt::format(", {} {:.4g}", name, rate.value / 1e12);
  }
  return text + " TFLOP/s\n";
}

}  // namespace

std::string describe(const Cluster& cluster) {
  std::string text =
      fmt::format("{}: {} in {}", cluster.name, plural(cluster.device_count(), "device"),
                  plural(static_cast<long long>(cluster.hosts.size()), "host"));
  if (cluster.host_memory.value > 0) {
    text += fmt::format(", {} of RAM each", format_bytes(cluster.host_memory));
  }
  text += '\n';
  Drawing drawing(cluster);
  drawing.draw(0, 1, 0);
  text += drawing.take();
  std::vector<long long> counts(cluster.kinds.size());
  for (const int kind : cluster.device_kind) ++counts[static_cast<std::size_t>(kind)];
  for (std::size_t i = 0; i < counts.size(); ++i) {
    text += describe_kind(cluster.kinds[i], counts[i]);
  }
  return text;
}

}  // namespace meshwright
