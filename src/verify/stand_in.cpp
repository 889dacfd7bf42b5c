#include "verify/stand_in.h"

#include <algorithm>
#include <array>

namespace meshwright {
namespace {

constexpr Interval kUnknown{0, -1};

std::uint64_t scramble(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

}  // namespace

Number random_number(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  return static_cast<Number>(scramble(scramble(scramble(a) ^ b) ^ c) % kPrime);
}

bool StandIn::fix(const Rule& rule, const RuleTensor& tensor, const TensorType& type,
                  const Box& box, std::vector<Interval>& factors) const {
  for (std::size_t d = 0; d < box.size(); ++d) {
    const bool named = !tensor.opaque && d < tensor.dims.size() && !tensor.dims[d].factors.empty();
    if (!named) {
      if (box[d].begin != 0 || box[d].end != type.dims[d].size) return false;
      continue;
    }
    if (tensor.dims[d].scaled) continue;
    Interval rest = box[d];
    if (rest.empty()) rest = {0, 0};
    bool cut = true;
    const std::vector<int>& list = tensor.dims[d].factors;
    for (std::size_t i = 0; i < list.size(); ++i) {
      std::int64_t inner = 1;
      for (std::size_t k = i + 1; k < list.size(); ++k) {
        inner *= rule.factors[static_cast<std::size_t>(list[k])].size;
      }
      Interval mine{0, rule.factors[static_cast<std::size_t>(list[i])].size};
      if (cut && rest.begin % inner == 0 && rest.end % inner == 0) {
        mine = {rest.begin / inner, rest.end / inner};
        cut = false;
      } else if (cut) {
        const std::int64_t row = rest.begin / inner;
        if (rest.end > (row + 1) * inner) return false;
        mine = {row, row + 1};
        rest = {rest.begin - row * inner, rest.end - row * inner};
      }
      Interval& known = factors[static_cast<std::size_t>(list[i])];
      if (known == kUnknown) known = mine;
      if (!(known == mine)) return false;
    }
  }
  return true;
}

// What no part tells is whole; what must not be split is not.
bool StandIn::complete(int op, const Rule& rule, std::vector<Interval>& factors) const {
  const bool attention = graph_.ops[static_cast<std::size_t>(op)].kind == "attention";
  for (std::size_t f = 0; f < factors.size(); ++f) {
    const Interval whole{0, rule.factors[f].size};
    if (factors[f] == kUnknown) factors[f] = whole;
    if (factors[f] == whole) continue;
    const FactorKind kind = rule.factors[f].kind;
    bool query = false;
    for (const RuleDim& dim : rule.outputs[0].dims) {
      query |= std::find(dim.factors.begin(), dim.factors.end(), static_cast<int>(f)) !=
               dim.factors.end();
    }
    if (kind == FactorKind::kFrozen && !(attention && query)) {
      return false;
    }
  }
  return true;
}

std::vector<Interval> StandIn::windows(int op, const Rule& rule) {
  const Op& o = graph_.ops[static_cast<std::size_t>(op)];
  const OpDef& def = find_op(o.kind);
  std::vector<Interval> list(rule.factors.size(), Interval{0, 1});
  if (def.halo == nullptr) return list;
  std::vector<TensorType> inputs, outputs;
  for (ValueId id : o.inputs) inputs.push_back(type(id));
  for (ValueId id : o.outputs) outputs.push_back(type(id));
  for (std::size_t f = 0; f < list.size(); ++f) {
    if (rule.factors[f].kind != FactorKind::kHalo) continue;
    if (const auto w = def.halo({o.attrs, inputs, outputs}, rule.factors[f].id)) {
      list[f] = {-w->before, w->after + 1};
    }
  }
  return list;
}

bool StandIn::accumulate(int op, std::size_t output, const Rule& rule,
                         const std::vector<Interval>& factors, std::span<const Entry> entries) {
  // Loop variables: the factors, then the dimensions that are no product of factors.
  constexpr std::size_t kMaxEntries = kMaxTensors;
  struct Variable {
    Interval range;
    std::int64_t size = 1;
    std::array<std::int64_t, kMaxEntries> step{};  // Of each entry's offset.
    std::int64_t key = 0;
    std::int64_t value = 0;
    int couples = -1;  // Runs along with this factor, at a size of its own.
    int beside = -1;   // Counts rows beside this factor's.
  };
  std::vector<Variable> loops(factors.size());
  for (std::size_t f = 0; f < factors.size(); ++f) {
    loops[f].range = factors[f];
    loops[f].size = rule.factors[f].size;
  }
  const std::vector<Interval> reach = windows(op, rule);
  std::array<std::int64_t, kMaxEntries> offset{};
  for (std::size_t e = 0; e < entries.size() && e < kMaxEntries; ++e) {
    const Entry& entry = entries[e];
    std::int64_t stride = 1;
    for (std::size_t d = entry.type->dims.size(); d-- > 0;) {
      const std::int64_t size = entry.type->dims[d].size;
      const Interval held = entry.box != nullptr ? (*entry.box)[d] : Interval{0, size};
      offset[e] -= held.begin * stride;
      const bool named = !entry.rule->opaque && d < entry.rule->dims.size() &&
                         !entry.rule->dims[d].factors.empty();
      if (named && !entry.rule->dims[d].scaled) {
        std::int64_t inner = 1;
        const std::vector<int>& list = entry.rule->dims[d].factors;
        for (std::size_t i = list.size(); i-- > 0;) {
          loops[static_cast<std::size_t>(list[i])].step[e] += stride * inner;
          inner *= rule.factors[static_cast<std::size_t>(list[i])].size;
        }
        const auto f = static_cast<std::size_t>(list[0]);
        if (list.size() == 1 && reach[f].size() > 1) {
          // Every row that the windows reach must be there.
          const Interval rows{std::max<std::int64_t>(factors[f].begin + reach[f].begin, 0),
                              std::min(factors[f].end + reach[f].end - 1, size)};
          const bool there = rows.begin >= held.begin && rows.end <= held.end;
          if (entry.box != nullptr && !factors[f].empty() && !there) return false;
          Variable v;
          v.range = reach[f];
          v.size = reach[f].size();
          v.step[e] = stride;
          v.beside = list[0];
          loops.push_back(v);
        }
      } else {
        Variable v;
        v.range = held;
        v.size = size;
        v.step[e] = stride;
        if (named) v.couples = entry.rule->dims[d].factors[0];
        loops.push_back(v);
      }
      stride *= held.empty() ? 0 : held.size();
    }
  }
  std::int64_t radix = 1;
  for (Variable& v : loops) {
    if (v.range.empty()) return true;
    v.key = radix;
    radix *= v.size;
    v.value = v.range.begin;
  }
  const std::uint64_t stem = seed_ * 1000003 + static_cast<std::uint64_t>(op) * 16 + output;
  std::int64_t key = 0;
  for (const Variable& v : loops) {
    key += v.value * v.key;
    for (std::size_t e = 0; e < entries.size(); ++e) offset[e] += v.value * v.step[e];
  }
  for (;;) {
    bool coupled = true;
    for (const Variable& v : loops) {
      if (v.beside >= 0) {
        const Variable& row = loops[static_cast<std::size_t>(v.beside)];
        coupled &= row.value + v.value >= 0 && row.value + v.value < row.size;
      }
      if (v.couples < 0) continue;
      const Variable& f = loops[static_cast<std::size_t>(v.couples)];
      coupled &= v.size <= f.size ? f.value * v.size / f.size == v.value
                                  : v.value * f.size / v.size == f.value;
    }
    if (coupled) {
      Number product = random_number(stem, static_cast<std::uint64_t>(key), 7);
      for (std::size_t e = 0; e < entries.size(); ++e) {
        if (entries[e].factor != nullptr) product = times(product, entries[e].factor[offset[e]]);
      }
      for (std::size_t e = 0; e < entries.size(); ++e) {
        if (entries[e].target != nullptr) {
          entries[e].target[offset[e]] = plus(entries[e].target[offset[e]], product);
        }
      }
    }
    std::size_t n = loops.size();
    while (n > 0) {
      Variable& v = loops[n - 1];
      const std::int64_t move = v.value + 1 < v.range.end ? 1 : v.range.begin - v.value;
      v.value += move;
      key += move * v.key;
      for (std::size_t e = 0; e < entries.size(); ++e) offset[e] += move * v.step[e];
      if (move == 1) break;
      --n;
    }
    if (n == 0) return true;
  }
}

bool StandIn::forward(int op, std::span<const Part> inputs, std::size_t output, const Box& box,
                      std::vector<Number>& result) {
  const Rule& r = rule(op);
  const Op& o = graph_.ops[static_cast<std::size_t>(op)];
  std::vector<Interval> factors(r.factors.size(), kUnknown);
  std::vector<Entry> entries;
  if (inputs.size() >= kMaxTensors) return false;
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    if (inputs[k].data == nullptr) return false;
    if (!fix(r, r.inputs[k], type(o.inputs[k]), *inputs[k].core, factors)) return false;
    entries.push_back(
        {&r.inputs[k], &type(o.inputs[k]), inputs[k].box, inputs[k].data->data(), nullptr});
  }
  if (!fix(r, r.outputs[output], type(o.outputs[output]), box, factors)) return false;
  if (!complete(op, r, factors)) return false;
  entries.push_back({&r.outputs[output], &type(o.outputs[output]), &box, nullptr, result.data()});
  return accumulate(op, output, r, factors, entries);
}

bool StandIn::backward(int op, std::span<const Part> gradients, std::span<const Part> inputs,
                       std::span<const Part> outputs, std::size_t operand, const Box& box,
                       const Box& core, std::vector<Number>& result) {
  const Rule& r = rule(op);
  const Op& o = graph_.ops[static_cast<std::size_t>(op)];
  std::vector<TensorType> input_types, output_types;
  for (ValueId id : o.inputs) input_types.push_back(type(id));
  for (ValueId id : o.outputs) output_types.push_back(type(id));
  const GradientNeeds needs =
      gradient_needs(graph_, o, r, {o.attrs, input_types, output_types}, operand);
  std::vector<Interval> factors(r.factors.size(), kUnknown);
  for (std::size_t j = 0; j < outputs.size(); ++j) {
    for (const Part* p : {&gradients[j], &outputs[j]}) {
      if (p->data == nullptr) continue;
      if (!fix(r, r.outputs[j], output_types[j], *p->core, factors)) return false;
    }
  }
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    if (inputs[k].data == nullptr) continue;
    if (!fix(r, r.inputs[k], input_types[k], *inputs[k].core, factors)) return false;
  }
  if (!fix(r, r.inputs[operand], input_types[operand], core, factors)) return false;
  if (!complete(op, r, factors)) return false;
  for (int m : needs.operands) {
    if (inputs[static_cast<std::size_t>(m)].data == nullptr) return false;
  }
  for (int j : needs.results) {
    if (outputs[static_cast<std::size_t>(j)].data == nullptr) return false;
  }
  for (std::size_t j = 0; j < outputs.size(); ++j) {
    if (gradients[j].data == nullptr) continue;
    std::vector<Entry> entries;
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      const bool needed = std::find(needs.operands.begin(), needs.operands.end(),
                                    static_cast<int>(k)) != needs.operands.end();
      entries.push_back({&r.inputs[k], &input_types[k], k == operand ? &box : inputs[k].box,
                         needed ? inputs[k].data->data() : nullptr,
                         k == operand ? result.data() : nullptr});
    }
    std::vector<Number> incoming = *gradients[j].data;
    const bool kept = std::find(needs.results.begin(), needs.results.end(), static_cast<int>(j)) !=
                      needs.results.end();
    if (kept) {
      if (*outputs[j].box != *gradients[j].box) return false;
      for (std::size_t i = 0; i < incoming.size(); ++i) {
        incoming[i] = times(incoming[i], (*outputs[j].data)[i]);
      }
    }
    entries.push_back(
        {&r.outputs[j], &output_types[j], gradients[j].box, incoming.data(), nullptr});
    if (!accumulate(op, j, r, factors, entries)) return false;
  }
  return true;
}

}  // namespace meshwright
