#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "ops/gradient_flow.h"
#include "plan/program.h"
#include "verify/stand_in.h"

// Private to the evaluation of programs.

namespace meshwright {

using Data = std::vector<Number>;

/// What one device holds of a tensor: flat positions in the whole tensor, in local order.
struct Region {
  Box box;
  Box core;  ///< Without rows of neighbours.
  std::vector<std::int64_t> elements;
  bool flat = false;
};

/// A tensor on all devices of a stage.
struct Spread {
  std::shared_ptr<const std::vector<Region>> regions;
  std::vector<Data> data;
};

inline bool same_regions(const Spread& a, const Spread& b) {
  if (a.regions->size() != b.regions->size()) return false;
  for (std::size_t i = 0; i < a.regions->size(); ++i) {
    if ((*a.regions)[i].elements != (*b.regions)[i].elements) return false;
  }
  return true;
}

/// Plan and graph, and what one device computes.
struct Evaluation {
  Evaluation(const Plan& p, const Graph& g, const std::vector<Segment>& s, std::uint64_t random)
      : plan(p),
        graph(g),
        segments(s),
        samples(p.global_batch / p.micro_batches),
        tables(g),
        stand_in(g, tables, samples, random),
        seed(random),
        trained(requires_gradient(g)),
        unread(g.values.size(), true) {
    for (const Op& op : g.ops) {
      for (ValueId id : op.inputs) unread[id.index()] = false;
    }
  }

  const TensorType& type(ValueId id) { return tables.type(id, samples); }
  // Given numbers: inputs differ by micro-batch, parameters and constants do not.
  Number given(ValueId id, std::int64_t micro_batch, std::int64_t element) const {
    const bool input = graph.value(id).kind == ValueKind::kInput;
    return random_number(seed + static_cast<std::uint64_t>(id.value) * 7919,
                         static_cast<std::uint64_t>(input ? micro_batch + 1 : 0),
                         static_cast<std::uint64_t>(element));
  }
  Number loss_gradient(ValueId id, std::int64_t element) const {
    return random_number(seed + static_cast<std::uint64_t>(id.value), 77777,
                         static_cast<std::uint64_t>(element));
  }
  static Number updated(Number parameter, Number gradient) {
    return plus(times(parameter, 48271), times(gradient, 69621));
  }
  void run_reference();

  const Plan& plan;
  const Graph& graph;
  const std::vector<Segment>& segments;
  std::int64_t samples;
  MicroBatchTables tables;
  StandIn stand_in;
  std::uint64_t seed;
  std::vector<bool> trained;  // Per value: has a gradient.
  std::vector<bool> unread;
  std::map<std::int32_t, Data> parameters;                       // After the step.
  std::map<std::pair<std::int32_t, std::int64_t>, Data> losses;  // By value and micro-batch.
};

/// All devices of a program: executes its passes, messages and step as an engine does, told nothing
/// of what is meant. What was never filled, or was freed, holds rubbish.
class Machine {
 public:
  Machine(Evaluation& impl, const Program& program) : e_(impl), p_(program) {}

  std::string run() {
    if (!play()) return "hangs in the passes";
    if (!run_steps()) return "hangs in the step";
    return compare();
  }

 private:
  struct Run {
    std::vector<Spread> buffers;
  };
  struct Message {
    int transfer = 0;
    std::int64_t micro_batch = 0;
    std::vector<Spread> items;
  };
  using Key = std::tuple<int, int, std::int32_t, std::int64_t>;  // stage, replica, value, micro.

  const Mesh& mesh(int stage) const { return e_.plan.stages[static_cast<std::size_t>(stage)].mesh; }
  Number rubbish() { return random_number(e_.seed, 4242, ++rubbish_); }
  void spoil(Spread& spread) {
    for (Data& d : spread.data) {
      for (Number& n : d) n = rubbish();
    }
  }
  std::shared_ptr<const std::vector<Region>> regions(int stage, const Buffer& buffer,
                                                     ValueId value);
  Spread make(int stage, const Buffer& buffer, ValueId value) {
    Spread s{regions(stage, buffer, value), {}};
    for (const Region& r : *s.regions) s.data.emplace_back(r.elements.size());
    spoil(s);
    return s;
  }
  template <typename F>
  void fill(Spread& s, F&& number) {
    for (std::size_t i = 0; i < s.data.size(); ++i) {
      const Region& r = (*s.regions)[i];
      for (std::size_t k = 0; k < r.elements.size(); ++k) s.data[i][k] = number(r.elements[k]);
    }
  }
  // Element by element from a device's own, or any of the listed devices'.
  void assemble(const Spread& from, std::span<const std::size_t> sources, std::size_t to,
                Spread& out);
  std::vector<std::size_t> group(int stage, std::size_t device, std::uint32_t mask) const;
  void communicate(int stage, const Instr& instr, bool value, const Spread& in, Spread& out);
  void slice(const Spread& in, Spread& out) {
    for (std::size_t d = 0; d < in.data.size(); ++d) {
      const std::size_t own[] = {d};
      assemble(in, own, d, out);
    }
  }
  static bool add(const Spread& in, Spread& out) {
    bool fits = true;
    for (std::size_t d = 0; d < in.data.size(); ++d) {
      if (in.data[d].size() != out.data[d].size()) {
        fits = false;
        continue;
      }
      for (std::size_t k = 0; k < in.data[d].size(); ++k) {
        out.data[d][k] = plus(out.data[d][k], in.data[d][k]);
      }
    }
    return fits;
  }

  const std::map<std::int32_t, ValueId>& names(int program, int segment);
  void pass(Phase phase, int chunk, std::int64_t micro_batch);
  void run_list(const std::vector<Instr>& list, int which, int chunk, std::size_t position,
                std::int64_t m, Run& run);
  void compute(const Instr& instr, bool backward, int chunk, std::size_t position, Run& run);
  Spread& accumulated(int stage, ValueId value, const Buffer& buffer);
  bool play();
  bool step_item(int lane);
  std::shared_ptr<const Message> pack(const ScheduleItem& item);
  void unpack(const ScheduleItem& item, const Message* message);
  bool run_steps();
  std::string compare();

  Evaluation& e_;
  const Program& p_;
  std::uint64_t rubbish_ = 0;
  std::map<std::pair<int, int>, std::map<std::int32_t, ValueId>> names_;
  std::map<std::tuple<int, std::size_t, std::int64_t>, Run> runs_;
  std::map<Key, std::vector<Spread>> values_;
  std::map<Key, Spread> gradients_;
  std::map<std::pair<int, std::int32_t>, Spread> sums_;        // By stage and parameter.
  std::map<std::pair<int, std::int32_t>, Spread> parameters_;  // After the step.
  std::map<std::tuple<int, std::int32_t, std::int64_t>, Spread> losses_;
  struct Sent {
    std::pair<int, std::int64_t> id;
    std::shared_ptr<const Message> message;
  };
  struct Wanted {
    std::pair<int, std::int64_t> id;
  };
  std::map<std::pair<int, int>, std::vector<Sent>> sent_;  // By sending and receiving lane.
  std::map<std::pair<int, int>, std::vector<Wanted>> received_;
  std::set<std::pair<int, std::int64_t>> unpacked_;
  std::vector<std::vector<int>> lanes_;  // Per stage.
  std::vector<std::size_t> at_;
};

}  // namespace meshwright
