#include "plan/print_program.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/format.h"
#include "plan/traffic.h"

namespace meshwright {
namespace {

std::string axes_text(const AxisList& axes, const Mesh& mesh) {
  std::string text;
  for (int axis : axes) {
    text += (text.empty() ? "" : "+") + mesh.axes[static_cast<std::size_t>(axis)].name;
  }
  return text;
}

std::string form_text(const Buffer& buffer, const Graph& graph, const Mesh& mesh) {
  const TensorType& type = graph.value(buffer.value).type;
  std::string text = to_string(buffer.form, type, mesh);
  if (!buffer.flat.empty()) text += fmt::format(" shard({})", axes_text(buffer.flat, mesh));
  if (buffer.halo.dim >= 0) {
    text +=
        fmt::format(" halo({} -{}+{})", type.dims[static_cast<std::size_t>(buffer.halo.dim)].name,
                    buffer.halo.before, buffer.halo.after);
  }
  return text;
}

std::string buffer_text(const Buffer& buffer, const Graph& graph, const Mesh& mesh) {
  constexpr std::string_view kPrefix[] = {"", "d ", "sum d "};
  return fmt::format("{}{} {}", kPrefix[static_cast<std::size_t>(buffer.kind)],
                     graph.value(buffer.value).name, form_text(buffer, graph, mesh));
}

void append_list(std::string& text, std::string_view name, const std::vector<Instr>& list,
                 const SegmentProgram& segment, const Graph& graph, const Mesh& mesh) {
  if (list.empty()) return;
  text += fmt::format("  {}\n", name);
  for (std::size_t i = 0; i < list.size(); ++i) {
    text += fmt::format("    {:>3} {}\n", i, instr_text(list[i], segment, graph, mesh));
  }
}

std::string item_text(const ScheduleItem& item) {
  constexpr std::string_view kLetters[] = {"F", "B", "W", "send", "sent", "recv", "have"};
  return fmt::format("{}{}.{}", kLetters[static_cast<std::size_t>(item.phase)], item.chunk,
                     item.micro_batch);
}

}  // namespace

std::string instr_text(const Instr& instr, const SegmentProgram& segment, const Graph& graph,
                       const Mesh& mesh) {
  const auto in = segment.in(instr);
  const auto out = segment.out(instr);
  const auto buffer = [&](std::int32_t b) -> const Buffer& {
    return segment.buffers[static_cast<std::size_t>(b)];
  };
  const auto moves = [&] {
    std::string text;
    constexpr std::size_t kShown = 2;
    for (std::size_t i = 0; i < std::min(in.size(), kShown); ++i) {
      text += fmt::format("{}{} -> {}", i == 0 ? "" : ", ", buffer_text(buffer(in[i]), graph, mesh),
                          form_text(buffer(out[i]), graph, mesh));
    }
    if (in.size() > kShown) text += fmt::format(", and {} more", in.size() - kShown);
    return text;
  };
  switch (instr.kind) {
    case InstrKind::kCompute: {
      std::string results;
      for (std::int32_t b : out) {
        if (b >= 0) results += (results.empty() ? "" : ", ") + buffer_text(buffer(b), graph, mesh);
      }
      return fmt::format(
          "{:<14} {} -> {}{}", purpose_name(instr.purpose), graph.op(instr.op).name, results,
          instr.flops.value > 0 ? fmt::format("  {:.3g} GFLOP", instr.flops.value / 1e9) : "");
    }
    case InstrKind::kCollective:
      return fmt::format("{:<14} {} {}  {}", collective_name(instr.collective),
                         axes_text(instr.group, mesh), moves(), format_bytes(instr.bytes));
    case InstrKind::kFree: {
      std::string names;
      for (std::int32_t b : in) {
        names += (names.empty() ? "" : ", ") + buffer_text(buffer(b), graph, mesh);
      }
      return fmt::format("{:<14} {}", "free", names);
    }
    case InstrKind::kAdd:
      return fmt::format("{:<14} {} x {}", "add", in.size(),
                         buffer_text(buffer(out[0]), graph, mesh));
    case InstrKind::kSlice:
    case InstrKind::kAccumulate:
    case InstrKind::kOptimizer:
      return fmt::format("{:<14} {}", instr_kind_name(instr.kind), moves());
  }
  return {};
}

std::string print_program(const Program& program, const Plan& plan, const Graph& graph,
                          const std::vector<Segment>& segments, int order_items) {
  std::string text =
      fmt::format("{} stages, {} chunks, {} distinct segments, {} transfers, {} micro-batches\n",
                  program.stages.size(), program.chunks.size(), program.segments.size(),
                  program.transfers.size(), program.micro_batches);
  std::vector<int> copies(program.segments.size());
  std::vector<int> stage_of(program.segments.size());
  for (const ChunkProgram& chunk : program.chunks) {
    for (int s : chunk.segments) {
      ++copies[static_cast<std::size_t>(s)];
      stage_of[static_cast<std::size_t>(s)] = chunk.stage;
    }
  }
  for (std::size_t s = 0; s < program.segments.size(); ++s) {
    const SegmentProgram& p = program.segments[s];
    const Mesh& mesh = plan.stages[static_cast<std::size_t>(stage_of[s])].mesh;
    text +=
        fmt::format("\nsegment {} {}{}\n", s, segments[static_cast<std::size_t>(p.segment)].name,
                    copies[s] > 1 ? fmt::format(", {} like it", copies[s]) : "");
    append_list(text, "forward", p.forward, p, graph, mesh);
    append_list(text, "backward", p.backward, p, graph, mesh);
    append_list(text, "weight", p.weight, p, graph, mesh);
  }
  if (!program.transfers.empty()) text += "\ntransfers\n";
  for (std::size_t t = 0; t < program.transfers.size(); ++t) {
    const Transfer& transfer = program.transfers[t];
    std::string names;
    for (const Transfer::Item& item : transfer.items) {
      names += (names.empty() ? "" : ", ") + graph.value(item.value).name;
    }
    text +=
        fmt::format("  {:>3} chunk {} -> {}  {}{}{}  {}\n", t, transfer.from_chunk,
                    transfer.to_chunk, transfer.gradient ? "d " : "", names,
                    transfer.aligned ? "" : " (general exchange)", format_bytes(transfer.bytes));
  }
  text +=
      "\norders: F, B, W chunk.micro-batch; send, sent (waited for), recv, have (waited for) "
      "transfer.micro-batch\n";
  const std::vector<double> sent = sent_bytes(program, plan);
  for (std::size_t l = 0; l < program.lanes.size(); ++l) {
    const auto& order = program.lanes[l].order;
    std::string line;
    for (std::size_t i = 0; i < std::min(order.size(), static_cast<std::size_t>(order_items));
         ++i) {
      line += " " + item_text(order[i]);
    }
    if (order.size() > static_cast<std::size_t>(order_items))
      line += fmt::format(" … {} in all", order.size());
    text += fmt::format("  lane {}:{}; {:.0f} bytes sent per device and step\n", l, line, sent[l]);
  }
  text += "\nsteps\n";
  for (std::size_t s = 0; s < program.stages.size(); ++s) {
    const Mesh& mesh = plan.stages[s].mesh;
    for (const Instr& i : program.stages[s].step) {
      const std::string what =
          i.kind == InstrKind::kCollective
              ? fmt::format("{} {}", collective_name(i.collective),
                            i.tie >= 0 ? std::string("between stages") : axes_text(i.group, mesh))
              : std::string(instr_kind_name(i.kind));
      text += fmt::format("  stage {}: {:<14} {} ({} tensors)  {}\n", s, purpose_name(i.purpose),
                          what, i.in_count, format_bytes(i.bytes));
    }
  }
  return text;
}

}  // namespace meshwright
