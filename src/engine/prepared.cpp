#include "engine/prepared.h"

#include <fmt/format.h>

#include "base/error.h"

namespace meshwright {
namespace {

class Preparer {
 public:
  Preparer(const SegmentProgram& program, const Graph& graph, MicroBatchTables& tables,
           std::int64_t samples, const Mesh& mesh, std::span<const int> coordinates)
      : p_(program),
        graph_(graph),
        tables_(tables),
        samples_(samples),
        mesh_(mesh),
        coordinates_(coordinates),
        versions_(program.buffers.size()) {}

  PreparedSegment run() {
    s_.program = &p_;
    for (const Buffer& b : p_.buffers) {
      const TensorType& type = tables_.type(b.value, samples_);
      s_.buffers.push_back(local_buffer(type, b, mesh_, coordinates_));
      s_.types.push_back(type.dtype);
    }
    int which = 0;
    for (const std::vector<Instr>* list : {&p_.forward, &p_.backward, &p_.weight}) {
      for (const Instr& instr : *list) prepare(instr, which);
      ++which;
    }
    for (auto& [op, runs] : runs_) {
      if (runs.adjoints.empty() || at(runs.adjoints[0]).direct) continue;
      bool kept = true;
      for (const Place& a : runs.adjoints) kept &= !at(a).rerun;
      for (const Place& a : runs.adjoints) at(a).rerun = !kept;
      at(runs.adjoints.back()).last = true;
      at(runs.forward).keep = kept;
    }
    return std::move(s_);
  }

 private:
  struct Place {
    int list = 0;
    std::size_t index = 0;
  };
  // The latest forward computation of an operator, and its adjoints since.
  struct Runs {
    Place forward;
    std::vector<std::int32_t> in, out;
    std::vector<int> versions;
    std::vector<Place> adjoints;
  };

  PreparedInstr& at(const Place& p) { return s_.lists[p.list][p.index]; }
  const Buffer& buffer(std::int32_t b) const { return p_.buffers[static_cast<std::size_t>(b)]; }
  const LocalBuffer& local(std::int32_t b) const { return s_.buffers[static_cast<std::size_t>(b)]; }
  int& version(std::int32_t b) { return versions_[static_cast<std::size_t>(b)]; }

  void prepare(const Instr& instr, int which) {
    PreparedInstr& prepared = s_.lists[which].emplace_back();
    prepared.instr = &instr;
    const Place place{which, s_.lists[which].size() - 1};
    const auto in = p_.in(instr);
    const auto out = p_.out(instr);
    if (instr.kind == InstrKind::kCompute && instr.op.valid()) {
      prepared.adjoint = which != kForwardList && instr.purpose == Purpose::kBackward;
      if (prepared.adjoint) {
        prepare_adjoint(instr, place);
      } else {
        Runs& runs = runs_[instr.op.value];
        runs = {place, {in.begin(), in.end()}, {out.begin(), out.end()}, {}, {}};
        for (std::int32_t b : in) runs.versions.push_back(b < 0 ? 0 : version(b));
        prepare_kernel(instr, prepared, runs.in, runs.out);
      }
    } else if (instr.kind == InstrKind::kCollective) {
      for (std::size_t i = 0; i < in.size(); ++i) {
        const Buffer& b = buffer(in[i]);
        prepared.collectives.push_back(local_collective(instr, b.kind != BufferKind::kValue,
                                                        tables_.type(b.value, samples_), b,
                                                        buffer(out[i]), mesh_, coordinates_));
      }
    }
    for (std::int32_t b : out) {
      if (b >= 0) ++version(b);
    }
    if (instr.kind == InstrKind::kFree) {
      for (std::int32_t b : in) ++version(b);
    }
  }

  void prepare_adjoint(const Instr& instr, const Place& place) {
    const auto it = runs_.find(instr.op.value);
    if (it == runs_.end()) throw InternalError("a backward computation without its forward one");
    Runs& runs = it->second;
    PreparedInstr& prepared = at(place);
    const Op& op = graph_.op(instr.op);
    const auto in = p_.in(instr);
    prepared.forward_in = runs.in;
    // Where it is given other operands than the latest forward run had, its record does not serve.
    std::vector<std::int32_t> operands = runs.in;
    for (std::size_t k = 0; k < op.inputs.size(); ++k) {
      const std::int32_t b = in[op.outputs.size() + k];
      if (b < 0) continue;
      prepared.rerun |= b != runs.in[k] || version(b) != runs.versions[k];
      operands[k] = b;
    }
    runs.adjoints.push_back(place);
    prepared.direct = find_op(op.kind).backward_kernel != nullptr;
    prepare_kernel(instr, prepared, operands, runs.out);
  }

  void prepare_kernel(const Instr& instr, PreparedInstr& prepared,
                      const std::vector<std::int32_t>& in, const std::vector<std::int32_t>& out) {
    const Op& op = graph_.op(instr.op);
    const OpDef& def = find_op(op.kind);
    std::vector<TensorType> inputs, outputs;
    std::vector<Box> input_boxes, output_boxes;
    for (ValueId id : op.inputs) inputs.push_back(tables_.type(id, samples_));
    for (ValueId id : op.outputs) outputs.push_back(tables_.type(id, samples_));
    for (std::int32_t b : in) input_boxes.push_back(local(b).box);
    for (std::size_t j = 0; j < out.size(); ++j) {
      output_boxes.push_back(local(out[j]).box);
      prepared.result_types.push_back(outputs[j].dtype);
    }
    const Rule& rule = tables_.rule(instr.op.value, def, samples_);
    std::uint32_t summed = 0;
    for (std::size_t k = 0; k < in.size(); ++k) {
      const RuleTensor& tensor = rule.inputs[k];
      for (std::size_t d = 0; !tensor.opaque && d < tensor.dims.size(); ++d) {
        for (int f : tensor.dims[d].factors) {
          if (rule.factors[static_cast<std::size_t>(f)].kind != FactorKind::kSum) continue;
          summed |= buffer(in[k]).form.dims[d].mask();
        }
      }
    }
    int me = 0;
    const std::vector<int> mine(coordinates_.begin(), coordinates_.end());
    for (const auto& other : group_of(mesh_, coordinates_, summed)) {
      if (other == mine) me = static_cast<int>(prepared.group.size());
      prepared.group.push_back(device_at(mesh_, other).value);
    }
    const KernelContext context{op.attrs,    inputs,       outputs,
                                input_boxes, output_boxes, static_cast<int>(prepared.group.size()),
                                me};
    try {
      if (prepared.direct) {
        std::vector<bool> wanted;
        for (std::int32_t b : p_.out(instr)) wanted.push_back(b >= 0);
        prepared.kernel = def.backward_kernel(context, wanted);
        // Gradients have the types of what they are of.
        prepared.result_types.clear();
        for (const TensorType& t : inputs) prepared.result_types.push_back(t.dtype);
      } else {
        prepared.kernel = kernel_of(def, context);
      }
    } catch (const Error& e) {
      throw e.within(op.name);
    }
  }

  const SegmentProgram& p_;
  const Graph& graph_;
  MicroBatchTables& tables_;
  std::int64_t samples_;
  const Mesh& mesh_;
  std::span<const int> coordinates_;
  PreparedSegment s_;
  std::vector<int> versions_;
  std::map<int, Runs> runs_;
};

}  // namespace

PreparedSegment prepare_segment(const SegmentProgram& program, const Graph& graph,
                                MicroBatchTables& tables, std::int64_t samples, const Mesh& mesh,
                                std::span<const int> coordinates) {
  return Preparer(program, graph, tables, samples, mesh, coordinates).run();
}

}  // namespace meshwright
