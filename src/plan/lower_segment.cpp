#include <string>
#include <unordered_map>

#include "plan/lower.h"
#include "plan/segment_lowerer.h"

namespace meshwright {

struct SegmentLowering::Impl {
  const Graph& graph;
  const std::vector<Segment>& segments;
  MicroBatchTables tables;
  Consumers consumers;
  std::vector<std::vector<ValueId>> crossing;  // per segment: activations alive after it
  std::vector<int> boundary_class;
  int boundary_classes = 0;
};

SegmentLowering::SegmentLowering(const Graph& graph, const std::vector<Segment>& segments)
    : impl_(new Impl{graph, segments, MicroBatchTables(graph), {}, {}, {}, 0}) {
  std::vector<int> segment_of_op(graph.ops.size());
  for (std::size_t i = 0; i < segments.size(); ++i) {
    for (int op = segments[i].first_op; op < segments[i].last_op; ++op) {
      segment_of_op[static_cast<std::size_t>(op)] = static_cast<int>(i);
    }
  }
  impl_->consumers.resize(graph.values.size());
  for (std::size_t op = 0; op < graph.ops.size(); ++op) {
    for (std::size_t k = 0; k < graph.ops[op].inputs.size(); ++k) {
      impl_->consumers[graph.ops[op].inputs[k].index()].emplace_back(static_cast<int>(op),
                                                                     static_cast<int>(k));
    }
  }
  impl_->crossing.resize(segments.size());
  for (std::size_t v = 0; v < graph.values.size(); ++v) {
    const Value& value = graph.values[v];
    if (!value.producer.valid() || impl_->consumers[v].empty()) continue;
    const int from = segment_of_op[value.producer.index()];
    int to = from;
    for (const auto& [op, k] : impl_->consumers[v]) {
      to = std::max(to, segment_of_op[static_cast<std::size_t>(op)]);
    }
    for (int s = from; s < to; ++s) {
      impl_->crossing[static_cast<std::size_t>(s)].push_back(ValueId(static_cast<std::int64_t>(v)));
    }
  }
  std::unordered_map<std::string, int> classes;
  for (const auto& values : impl_->crossing) {
    std::string key;
    for (ValueId id : values) {
      key += to_string(graph.value(id).type) + graph.op(graph.value(id).producer).kind + ">" +
             graph.ops[static_cast<std::size_t>(impl_->consumers[id.index()][0].first)].kind + ";";
    }
    impl_->boundary_class.push_back(
        classes.try_emplace(key, static_cast<int>(classes.size())).first->second);
  }
  impl_->boundary_classes = static_cast<int>(classes.size());
}

SegmentLowering::~SegmentLowering() = default;

SegmentProgram SegmentLowering::lower(int segment, const Stage& stage, const Training& training,
                                      std::int64_t samples) {
  return SegmentLowerer(impl_->graph, impl_->consumers, impl_->tables, stage, training, samples)
      .run(impl_->segments[static_cast<std::size_t>(segment)]);
}

int SegmentLowering::boundary_class(int segment) const {
  return impl_->boundary_class[static_cast<std::size_t>(segment)];
}
int SegmentLowering::boundary_class_count() const { return impl_->boundary_classes; }

Bytes SegmentLowering::boundary_bytes(int segment, const Stage& stage, const Training& training,
                                      std::int64_t samples) {
  SegmentLowerer lowerer(impl_->graph, impl_->consumers, impl_->tables, stage, training, samples);
  Bytes total;
  for (ValueId id : impl_->crossing[static_cast<std::size_t>(segment)]) {
    total += lowerer.resting_bytes(id);
  }
  return total;
}

}  // namespace meshwright
