#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <queue>
#include <tuple>

#include "base/error.h"
#include "base/path_pattern.h"
#include "base/spelling.h"
#include "plan/segments.h"
#include "plan/transform.h"
#include "plan/transforms/split_choice.h"

namespace meshwright {
namespace {

// nnScaler's co-shard (Lin et al. 2024, OSDI, section 3.1): the selected operators are split along
// a factor, and the parts run one after the other on the *same* device, so that only one part's
// intermediate results live at a time (with recomputation also in the backward pass). It is a split
// over devices turned into time: no communication, the same work, smaller kernels.
//
// Split operators of one layer that hand split values to each other form a region. A region is
// written part by part (depth first). Parameters with the factor become one parameter per part;
// what enters a region is sliced; partial sums are added up as they come; split results are joined
// only where an operator outside of the region reads them. Linear in the size of the graph, times
// the parts.

// Of operands of rope, [batch, seq, ..., head_dim].
constexpr int kPositionDim = 1;

class CoShard {
 public:
  CoShard(const Graph& graph, std::vector<SplitChoice> choices, int parts)
      : graph_(graph),
        choices_(std::move(choices)),
        parts_(parts),
        writer_(graph),
        region_(graph.ops.size()),
        whole_(graph.values.size()),
        split_(graph.values.size()),
        read_whole_(graph.values.size()) {}

  Graph run() {
    join_regions();
    check_regions();
    write_values();
    for (const std::size_t region : order_regions()) write_region(members_[region]);
    return writer_.finish();
  }

 private:
  const Op& op(std::size_t o) const { return graph_.ops[o]; }
  std::string part_name(std::string_view name, int part) const {
    return fmt::format("{}@co{}", name, part);
  }

  // The dim along which `id` comes in parts from its producer, or -1.
  int produced_dim(ValueId id) const {
    const OpId producer = graph_.value(id).producer;
    if (!producer.valid() || !choices_[producer.index()].split()) return -1;
    const std::vector<ValueId>& results = op(producer.index()).outputs;
    const auto at = std::ranges::find(results, id) - results.begin();
    return choices_[producer.index()].output_dims[static_cast<std::size_t>(at)];
  }

  // Whether operand `i` of operator `o` is handed over part by part. Not between layers: the parts
  // of a layer stay together.
  bool handed_over(std::size_t o, std::size_t i) const {
    if (!choices_[o].split() || choices_[o].input_dims[i] < 0) return false;
    const ValueId id = op(o).inputs[i];
    if (produced_dim(id) != choices_[o].input_dims[i]) return false;
    const std::string_view name = op(o).name;
    const std::string_view before = op(graph_.value(id).producer.index()).name;
    return layer_path(name) == layer_path(before) && round_path(name) == round_path(before);
  }

  std::size_t root(std::size_t o) {
    while (region_[o] != o) o = region_[o] = region_[region_[o]];
    return o;
  }

  // Regions are named by their first operator; an operator that stays whole is one of its own.
  void join_regions() {
    std::iota(region_.begin(), region_.end(), std::size_t{0});
    for (std::size_t o = 0; o < graph_.ops.size(); ++o) {
      for (std::size_t i = 0; i < op(o).inputs.size(); ++i) {
        if (!handed_over(o, i)) continue;
        const std::size_t here = root(o);
        const std::size_t there = root(graph_.value(op(o).inputs[i]).producer.index());
        region_[std::max(here, there)] = std::min(here, there);
      }
    }
    for (std::size_t o = 0; o < graph_.ops.size(); ++o) members_[root(o)].push_back(o);
  }

  void check_regions() {
    std::vector<bool> read(graph_.values.size());
    for (std::size_t o = 0; o < graph_.ops.size(); ++o) {
      for (std::size_t i = 0; i < op(o).inputs.size(); ++i) {
        const ValueId id = op(o).inputs[i];
        read[id.index()] = true;
        if (handed_over(o, i)) continue;
        read_whole_[id.index()] = true;
        const OpId producer = graph_.value(id).producer;
        if (producer.valid() && root(producer.index()) == root(o)) {
          throw Error(fmt::format("the operator needs the whole of '{}', of which its region has "
                                  "one part at a time",
                                  graph_.value(id).name),
                      op(o).name, "leave the operator out of the selection");
        }
      }
    }
    // Results of the model that nobody reads are joined too.
    for (std::size_t v = 0; v < read.size(); ++v) read_whole_[v] = read_whole_[v] || !read[v];
  }

  // Parameters that are split: one per part, in the place of the whole.
  void write_values() {
    std::vector<int> dims(graph_.values.size(), -1);
    std::vector<std::int32_t> whole_reader(graph_.values.size(), -1);
    for (std::size_t o = 0; o < graph_.ops.size(); ++o) {
      for (std::size_t i = 0; i < op(o).inputs.size(); ++i) {
        const std::size_t v = op(o).inputs[i].index();
        if (graph_.values[v].kind != ValueKind::kParameter) continue;
        const int d = choices_[o].split() ? choices_[o].input_dims[i] : -1;
        if (d < 0) {
          whole_reader[v] = static_cast<std::int32_t>(o);
        } else if (dims[v] < 0 || dims[v] == d) {
          dims[v] = d;
        } else {
          throw Error(fmt::format("parameter '{}' would be split along two of its dimensions",
                                  graph_.values[v].name),
                      op(o).name, "leave the operator out of the selection");
        }
      }
    }
    for (std::size_t v = 0; v < graph_.values.size(); ++v) {
      const Value& value = graph_.values[v];
      if (value.kind == ValueKind::kActivation) continue;
      if (dims[v] < 0) {
        whole_[v] = writer_.add_value(value.name, value.type, value.kind);
        continue;
      }
      if (whole_reader[v] >= 0) {
        throw Error(fmt::format("parameter '{}' is split, but {} reads it whole", value.name,
                                op(static_cast<std::size_t>(whole_reader[v])).name),
                    {}, "select all of its readers, or none");
      }
      TensorType type = value.type;
      type.dims[static_cast<std::size_t>(dims[v])].size /= parts_;
      for (int part = 0; part < parts_; ++part) {
        split_[v].push_back(writer_.add_value(part_name(value.name, part), type, value.kind));
      }
    }
  }

  // Regions in an order in which every operand stands before its use: that of the graph where
  // possible. A region waits for all that it reads.
  std::vector<std::size_t> order_regions() {
    std::map<std::size_t, std::size_t> waiting;  // Region -> operands still to come.
    std::vector<std::vector<std::size_t>> readers(graph_.ops.size());
    for (std::size_t o = 0; o < graph_.ops.size(); ++o) {
      std::size_t& count = waiting[root(o)];
      for (const ValueId id : op(o).inputs) {
        const OpId producer = graph_.value(id).producer;
        if (!producer.valid() || root(producer.index()) == root(o)) continue;
        readers[root(producer.index())].push_back(root(o));
        ++count;
      }
    }
    std::priority_queue<std::size_t, std::vector<std::size_t>, std::greater<>> ready;
    for (const auto& [region, count] : waiting) {
      if (count == 0) ready.push(region);
    }
    std::vector<std::size_t> order;
    while (!ready.empty()) {
      order.push_back(ready.top());
      ready.pop();
      for (const std::size_t reader : readers[order.back()]) {
        if (--waiting[reader] == 0) ready.push(reader);
      }
    }
    if (order.size() < waiting.size()) refuse_cycle(waiting);
    return order;
  }

  [[noreturn]] void refuse_cycle(const std::map<std::size_t, std::size_t>& waiting) {
    for (const auto& [region, count] : waiting) {
      if (count == 0 || members_[region].size() > 1) continue;
      throw Error("the operator stands between selected operators that are split together",
                  op(region).name, "select it too, or fewer of the others");
    }
    throw Error("the selected operators read each other's whole results in a circle", {},
                "select fewer operators");
  }

  void write_region(const std::vector<std::size_t>& members) {
    if (!choices_[members[0]].split()) {
      for (const std::size_t o : members) write_whole(o);
      return;
    }
    for (int part = 0; part < parts_; ++part) {
      slices_.clear();
      for (const std::size_t o : members) write_part(o, part);
    }
    for (const std::size_t o : members) {
      for (std::size_t i = 0; i < op(o).outputs.size(); ++i) join(o, i);
    }
  }

  void write_whole(std::size_t o) {
    std::vector<ValueId> inputs;
    for (const ValueId id : op(o).inputs) inputs.push_back(whole_[id.index()]);
    const std::vector<ValueId> results =
        writer_.add_op(op(o).kind, op(o).name, std::move(inputs), op(o).attrs, result_names(o));
    for (std::size_t i = 0; i < results.size(); ++i) whole_[op(o).outputs[i].index()] = results[i];
  }

  std::vector<std::string> result_names(std::size_t o) const {
    std::vector<std::string> names;
    for (const ValueId id : op(o).outputs) names.push_back(graph_.value(id).name);
    return names;
  }

  ValueId operand(std::size_t o, std::size_t i, int part) {
    const std::size_t v = op(o).inputs[i].index();
    const int d = choices_[o].input_dims[i];
    if (d < 0) return whole_[v];
    const Value& value = graph_.values[v];
    if (value.kind == ValueKind::kParameter || handed_over(o, i)) {
      return split_[v][static_cast<std::size_t>(part)];
    }
    const auto [it, fresh] = slices_.try_emplace({v, d});
    if (fresh) {
      const auto dim = static_cast<std::size_t>(d);
      const std::int64_t size = value.type.dims[dim].size / parts_;
      it->second = writer_.slice(fmt::format("{}.slice{}", part_name(op(o).name, part), i),
                                 whole_[v], dim, part * size, size);
    }
    return it->second;
  }

  void write_part(std::size_t o, int part) {
    const SplitChoice& choice = choices_[o];
    std::vector<ValueId> inputs;
    for (std::size_t i = 0; i < op(o).inputs.size(); ++i) {
      // A bias beside a summed factor is added once.
      if (choice.summed && part > 0 && choice.input_dims[i] < 0) continue;
      inputs.push_back(operand(o, i, part));
    }
    Attrs attrs = op(o).attrs;
    if (op(o).kind == "rope" && choice.input_dims[0] == kPositionDim) {
      const std::int64_t length = writer_.type(inputs[0]).dims[kPositionDim].size;
      attrs["offset"] = attr_int(attrs, "offset", 0) + part * length;
    }
    std::vector<std::string> names = result_names(o);
    for (std::string& name : names) name = part_name(name, part);
    const std::vector<ValueId> results =
        writer_.add_op(op(o).kind, part_name(op(o).name, part), std::move(inputs), std::move(attrs),
                       std::move(names));
    for (std::size_t i = 0; i < results.size(); ++i) {
      const std::size_t v = op(o).outputs[i].index();
      if (choice.output_dims[i] >= 0) {
        split_[v].push_back(results[i]);
      } else {
        whole_[v] = part == 0 ? results[i] : add_up(o, i, part, results[i]);
      }
    }
  }

  ValueId add_up(std::size_t o, std::size_t i, int part, ValueId term) {
    const Value& value = graph_.value(op(o).outputs[i]);
    const bool last = part + 1 == parts_;
    const std::string name = fmt::format("{}.sum", part_name(op(o).name, part));
    return writer_.add_op(
        "add", last ? op(o).name : name, {whole_[op(o).outputs[i].index()], term}, {},
        {last ? value.name : fmt::format("{}.sum", part_name(value.name, part))})[0];
  }

  void join(std::size_t o, std::size_t i) {
    const ValueId id = op(o).outputs[i];
    const int d = choices_[o].output_dims[i];
    if (d < 0 || !read_whole_[id.index()]) return;
    const Value& value = graph_.value(id);
    const std::string name =
        op(o).outputs.size() == 1 ? op(o).name : fmt::format("{}.result{}", op(o).name, i);
    const ValueId joined = writer_.add_op("concat", name, split_[id.index()],
                                          {{"dim", std::int64_t{d}}}, {value.name})[0];
    if (writer_.type(joined).dims[static_cast<std::size_t>(d)].size !=
        value.type.dims[static_cast<std::size_t>(d)].size) {
      throw Error(fmt::format("{} parts of '{}' do not add up to the whole, {}", parts_, value.name,
                              to_string(value.type)),
                  op(o).name);
    }
    whole_[id.index()] = joined;
  }

  const Graph& graph_;
  const std::vector<SplitChoice> choices_;
  const int parts_;
  GraphWriter writer_;
  std::vector<std::size_t> region_;                          // Union-find parent per operator.
  std::map<std::size_t, std::vector<std::size_t>> members_;  // Region -> operators, in order.
  std::vector<ValueId> whole_;                               // Per value of the source graph.
  std::vector<std::vector<ValueId>> split_;
  std::vector<bool> read_whole_;
  std::map<std::pair<std::size_t, int>, ValueId> slices_;  // Of the part being written.
};

Graph apply(const Graph& graph, const TransformRequest& request) {
  if (request.factor.empty()) {
    throw Error("co_shard needs a factor", {}, "for example \"heads\", \"ffn\" or \"batch\"");
  }
  std::vector<bool> selected(graph.ops.size(), true);
  if (!request.match.empty()) {
    for (std::size_t o = 0; o < selected.size(); ++o) {
      selected[o] = path_matches(request.match, graph.ops[o].name);
    }
    if (std::ranges::count(selected, true) == 0) {
      throw Error(fmt::format("no operator matches {}", in_quotes(request.match)));
    }
  }
  std::vector<SplitChoice> choices = choose_splits(graph, selected, request.factor, request.parts);
  if (request.parts == 1) return graph;
  return CoShard(graph, std::move(choices), request.parts).run();
}

}  // namespace

bool has_co_shards(const Graph& graph) {
  return std::ranges::any_of(graph.ops, [](const Op& op) {
    const std::size_t at = op.name.find("@co");
    return at != std::string::npos && at + 3 < op.name.size() && op.name[at + 3] >= '0' &&
           op.name[at + 3] <= '9';
  });
}

const Transform kCoShard = {
    .name = "co_shard",
    .summary = "splits matched operators along a factor; the parts run in turn on one device",
    .apply = apply,
};

}  // namespace meshwright
