#include <string>
#include <unordered_map>

#include "plan/lower.h"
#include "plan/segment_lowerer.h"

namespace meshwright {

struct SegmentLowering::Impl {
  Impl(const Graph& graph, const std::vector<Segment>& segments,
       std::shared_ptr<const Overrides> overrides_given)
      : overrides(std::move(overrides_given)),
        tables(graph, segments, overrides.get()),
        types(graph) {}

  std::shared_ptr<const Overrides> overrides;
  GraphTables tables;
  MicroBatchTables types;
  std::vector<std::vector<ValueId>> crossing;  // per segment: activations alive after it
  std::vector<int> boundary_class;
  int boundary_classes = 0;
};

SegmentLowering::SegmentLowering(const Graph& graph, const std::vector<Segment>& segments,
                                 std::shared_ptr<const Overrides> overrides)
    : impl_(new Impl{graph, segments, std::move(overrides)}) {
  const GraphTables& t = impl_->tables;
  impl_->crossing.resize(segments.size());
  for (std::size_t v = 0; v < graph.values.size(); ++v) {
    const Value& value = graph.values[v];
    if (!value.producer.valid() || t.uses[v].empty()) continue;
    const int from = t.segment_of_op[value.producer.index()];
    int to = from;
    for (const GraphTables::Use& use : t.uses[v]) {
      to = std::max(to, t.segment_of_op[static_cast<std::size_t>(use.op)]);
    }
    for (int s = from; s < to; ++s) {
      impl_->crossing[static_cast<std::size_t>(s)].push_back(ValueId(static_cast<std::int64_t>(v)));
    }
  }
  const auto override_of = [&](int op) {
    return t.overrides == nullptr || t.overrides->rule_of_op.empty()
               ? std::string()
               : std::to_string(t.overrides->rule_of_op[static_cast<std::size_t>(op)]);
  };
  std::unordered_map<std::string, int> classes;
  for (const auto& values : impl_->crossing) {
    std::string key;
    for (ValueId id : values) {
      key += override_of(graph.value(id).producer.value) + "/" +
             override_of(t.uses[id.index()][0].op) + "/";
      key += to_string(graph.value(id).type) + graph.op(graph.value(id).producer).kind + ">" +
             graph.ops[static_cast<std::size_t>(t.uses[id.index()][0].op)].kind + ";";
    }
    impl_->boundary_class.push_back(
        classes.try_emplace(key, static_cast<int>(classes.size())).first->second);
  }
  impl_->boundary_classes = static_cast<int>(classes.size());
}

SegmentLowering::~SegmentLowering() = default;

SegmentProgram SegmentLowering::lower(int segment, const Stage& stage, const Training& training,
                                      std::int64_t samples, bool split_backward) {
  return SegmentLowerer(impl_->tables, impl_->types, stage, training, samples, split_backward)
      .run(segment);
}

const GraphTables& SegmentLowering::tables() const { return impl_->tables; }
void SegmentLowering::set_whole_gradients(std::vector<ValueId> values) {
  impl_->tables.whole_gradients = std::move(values);
}
MicroBatchTables& SegmentLowering::types() { return impl_->types; }

int SegmentLowering::boundary_class(int segment) const {
  return impl_->boundary_class[static_cast<std::size_t>(segment)];
}
int SegmentLowering::boundary_class_count() const { return impl_->boundary_classes; }

Bytes SegmentLowering::boundary_bytes(int segment, const Stage& stage, const Training& training,
                                      std::int64_t samples) {
  SegmentLowerer lowerer(impl_->tables, impl_->types, stage, training, samples);
  Bytes total;
  for (ValueId id : impl_->crossing[static_cast<std::size_t>(segment)]) {
    total += lowerer.resting_bytes(id);
  }
  return total;
}

}  // namespace meshwright
