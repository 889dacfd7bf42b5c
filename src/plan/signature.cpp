#include "plan/signature.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "mesh/region.h"
#include "ops/op_def.h"

namespace meshwright {
namespace {

struct AttrText {
  std::string operator()(bool v) const { return v ? "true" : "false"; }
  std::string operator()(std::int64_t v) const { return fmt::format("{}", v); }
  std::string operator()(double v) const { return fmt::format("{}", v); }
  std::string operator()(const std::string& v) const { return v; }
  std::string operator()(const std::vector<std::int64_t>& v) const {
    return fmt::format("[{}]", fmt::join(v, ","));
  }
};

std::string_view pass_of(const Instr& instr) {
  return instr.purpose == Purpose::kBackward ? "backward" : "forward";
}

// The work of a kind that names no operator.
std::string_view engine_work(const Instr& instr) {
  switch (instr.kind) {
    case InstrKind::kSlice:
      return "slice";
    case InstrKind::kAdd:
      return "add";
    case InstrKind::kAccumulate:
      return "accumulate";
    default:
      return {};
  }
}

}  // namespace

std::string Signer::of(const Instr& instr, const SegmentProgram& program, const Mesh& mesh,
                       std::int64_t samples) {
  std::string text;
  if (instr.kind == InstrKind::kCompute && instr.op.valid()) {
    const Op& op = graph_.op(instr.op);
    text = op.kind;
    std::string attrs;
    for (const auto& [name, value] : op.attrs) {
      attrs +=
          fmt::format("{}{}={}", attrs.empty() ? "" : ", ", name, std::visit(AttrText{}, value));
    }
    if (!attrs.empty()) text += "(" + attrs + ")";
    text += fmt::format(" {}", pass_of(instr));
  } else {
    text = engine_work(instr);
    if (text.empty() || instr.in_count + instr.out_count == 0) return {};
    if (instr.kind == InstrKind::kAccumulate) {
      text += fmt::format(" {}", dtype_name(instr.dtype));
    }
  }
  const std::vector<int> first = mesh_coordinates(mesh, 0);
  const auto add = [&](std::int32_t b) {
    if (b < 0) {
      text += " -";
      return;
    }
    const Buffer& buffer = program.buffers[static_cast<std::size_t>(b)];
    const TensorType& type = tables_.type(buffer.value, samples);
    const Box box = box_of(type, buffer.form, mesh, first);
    std::vector<std::int64_t> sizes;
    std::int64_t elements = 1;
    for (std::size_t d = 0; d < box.size(); ++d) {
      Interval i = box[d];
      if (!i.empty() && buffer.halo.dim == static_cast<int>(d)) {
        i.begin = std::max<std::int64_t>(i.begin - buffer.halo.before, 0);
        i.end = std::min(i.end + buffer.halo.after, type.dims[d].size);
      }
      sizes.push_back(i.empty() ? 0 : i.size());
      elements *= sizes.back();
    }
    if (!buffer.flat.empty()) {
      const std::int64_t parts = mesh.size(buffer.flat);
      sizes = {(elements + parts - 1) / parts};
    }
    text += fmt::format(" {}[{}]", dtype_name(type.dtype), fmt::join(sizes, ","));
  };
  for (std::int32_t b : program.in(instr)) add(b);
  text += " ->";
  for (std::int32_t b : program.out(instr)) add(b);
  return text;
}

std::string communication_signature(CollectiveKind kind, const CommMesh& comm) {
  std::string text =
      fmt::format("{} of {}:", kind == CollectiveKind::kBroadcast ? "send" : collective_name(kind),
                  comm.group_size);
  for (const CommMesh::Level& level : comm.levels) {
    text += fmt::format(" {} x {} {} ({}, {:.3g})", level.members_inside, level.groups_inside,
                        level.name, level.link, level.share);
  }
  return text;
}

std::string optimizer_signature(std::string_view optimizer) {
  return fmt::format("optimizer {}", optimizer);
}

const Buffer& step_buffer(const StageProgram& stage, const std::vector<SegmentProgram>& segments,
                          const StageProgram::Operand& operand) {
  const auto& own = segments[static_cast<std::size_t>(operand.segment)].buffers;
  const auto b = static_cast<std::size_t>(operand.buffer);
  return b < own.size() ? own[b] : stage.buffers.at(operand.segment)[b - own.size()];
}

int step_copies(const StageProgram& stage, const std::vector<SegmentProgram>& segments,
                const StageProgram::Operand& operand) {
  const ValueId value = step_buffer(stage, segments, operand).value;
  const auto copies = stage.copies.find(operand.segment);
  if (copies == stage.copies.end()) return 1;
  const auto& parameters = segments[static_cast<std::size_t>(operand.segment)].parameters;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    if (parameters[p].value == value) return copies->second[p];
  }
  return 1;
}

void count_updates(StageProgram& stage, const std::vector<SegmentProgram>& segments) {
  for (Instr& instr : stage.step) {
    if (instr.kind != InstrKind::kOptimizer) continue;
    int updates = 0;
    for (const StageProgram::Operand& o : stage.in(instr)) {
      updates += step_copies(stage, segments, o);
    }
    instr.messages = std::max(updates, 1);
  }
}

int Signer::messages(const Instr& instr) const {
  if (instr.kind != InstrKind::kCollective || instr.in_count > 0 || !instr.op.valid()) return 1;
  return std::max(find_op(graph_.op(instr.op).kind).own_sums, 1);
}

}  // namespace meshwright
