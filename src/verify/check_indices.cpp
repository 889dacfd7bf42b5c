// That a program refers only to what is there: everything after this may index freely.
#include <fmt/format.h>

#include "base/error.h"
#include "verify/program_replay.h"

namespace meshwright {
namespace {

void require(bool condition, std::string message, std::string where) {
  if (!condition) throw Error(std::move(message), std::move(where));
}

bool in_range(std::int64_t i, std::size_t size) {
  return i >= 0 && i < static_cast<std::int64_t>(size);
}

void check_buffer(const Buffer& b, const Graph& graph, std::size_t axes, const std::string& where) {
  require(in_range(b.value.value, graph.values.size()), "a buffer of a value that does not exist",
          where);
  require(b.form.rank <= graph.value(b.value).type.rank(),
          "a form of more dims than the tensor has", where);
  std::uint32_t mask = b.form.partial | b.flat.mask();
  for (int d = 0; d < b.form.rank; ++d) mask |= b.form.dims[static_cast<std::size_t>(d)].mask();
  require(mask >> axes == 0, "a form names an axis that the mesh lacks", where);
}

void check_segment(const SegmentProgram& p, const Graph& graph,
                   const std::vector<Segment>& segments, std::size_t axes, int index) {
  const std::string where = fmt::format("segment program {}", index);
  require(in_range(p.segment, segments.size()), "stands for a segment that does not exist", where);
  for (const Buffer& b : p.buffers) check_buffer(b, graph, axes, where);
  for (const auto* list : {&p.forward, &p.backward, &p.weight}) {
    for (const Instr& i : *list) {
      require(std::uint64_t{i.operands} + i.in_count + i.out_count <= p.operands.size(),
              "an instruction's operands are out of range", where);
      require(i.group.mask() >> axes == 0, "an instruction names an axis that the mesh lacks",
              where);
      require(!i.op.valid() || in_range(i.op.value, graph.ops.size()),
              "an instruction of an operator that does not exist", where);
    }
  }
  for (std::int32_t b : p.operands) {
    require(b == -1 || in_range(b, p.buffers.size()), "an operand that does not exist", where);
  }
  for (const auto* list : {&p.arguments, &p.results, &p.gradient_arguments, &p.gradient_results}) {
    for (std::int32_t b : *list) {
      require(in_range(b, p.buffers.size()), "an argument or result that does not exist", where);
    }
  }
  for (const ParameterShard& s : p.parameters) {
    require(in_range(s.value.value, graph.values.size()), "a parameter that does not exist", where);
    require(in_range(s.buffer, p.buffers.size()) &&
                p.buffers[static_cast<std::size_t>(s.buffer)].value == s.value,
            "a parameter without a buffer", where);
    require(s.accumulated == -1 ||
                (in_range(s.accumulated, p.buffers.size()) &&
                 p.buffers[static_cast<std::size_t>(s.accumulated)].value == s.value),
            "a parameter's gradient is not in its buffer", where);
  }
}

void check_stage(const StageProgram& stage, const Program& program, const Graph& graph,
                 std::size_t axes, std::size_t index) {
  const std::string where = fmt::format("step of stage {}", index);
  for (const auto& [segment, buffers] : stage.buffers) {
    require(in_range(segment, program.segments.size()), "buffers of no segment", where);
    for (const Buffer& b : buffers) check_buffer(b, graph, axes, where);
  }
  for (const auto& [segment, counts] : stage.copies) {
    require(
        in_range(segment, program.segments.size()) &&
            counts.size() == program.segments[static_cast<std::size_t>(segment)].parameters.size(),
        "copies of parameters that do not exist", where);
  }
  for (const StageProgram::Operand& o : stage.operands) {
    require(in_range(o.segment, program.segments.size()), "an operand of no segment", where);
    std::size_t count = program.segments[static_cast<std::size_t>(o.segment)].buffers.size();
    if (const auto it = stage.buffers.find(o.segment); it != stage.buffers.end()) {
      count += it->second.size();
    }
    require(in_range(o.buffer, count), "an operand that does not exist", where);
  }
  for (const Instr& i : stage.step) {
    require(std::uint64_t{i.operands} + i.in_count + i.out_count <= stage.operands.size(),
            "an instruction's operands are out of range", where);
    require(i.group.mask() >> axes == 0, "an instruction names an axis that the mesh lacks", where);
    require(i.tie < static_cast<int>(program.ties.size()), "a tie that does not exist", where);
  }
}

}  // namespace

void check_program_indices(const Program& program, const Plan& plan, const Graph& graph,
                           const std::vector<Segment>& segments) {
  require(program.micro_batches >= 1 && program.micro_batches == plan.micro_batches &&
              plan.global_batch >= plan.micro_batches,
          "the program runs another number of micro-batches than the plan", "program");
  require(program.chunks.size() == plan.chunks.size() &&
              program.stages.size() == plan.stages.size() && !plan.stages.empty(),
          "the program has other chunks or stages than the plan", "program");
  std::vector<int> mesh_of(program.segments.size(), -1);
  for (std::size_t c = 0; c < plan.chunks.size(); ++c) {
    const ChunkProgram& chunk = program.chunks[c];
    const std::string where = fmt::format("chunk {}", c);
    require(in_range(plan.chunks[c].stage, plan.stages.size()) &&
                chunk.stage == plan.chunks[c].stage &&
                chunk.first_segment == plan.chunks[c].first_segment,
            "the chunk lies elsewhere than in the plan", where);
    require(chunk.first_segment >= 0 &&
                chunk.first_segment + static_cast<std::int64_t>(chunk.segments.size()) <=
                    static_cast<std::int64_t>(segments.size()),
            "the chunk runs segments that do not exist", where);
    for (int i : chunk.segments) {
      require(in_range(i, program.segments.size()), "a segment program that does not exist", where);
      int& mesh = mesh_of[static_cast<std::size_t>(i)];
      if (mesh >= 0 && plan.stages[static_cast<std::size_t>(mesh)].mesh.axes ==
                           plan.stages[static_cast<std::size_t>(chunk.stage)].mesh.axes) {
        continue;
      }
      mesh = chunk.stage;
      check_segment(program.segments[static_cast<std::size_t>(i)], graph, segments,
                    plan.stages[static_cast<std::size_t>(chunk.stage)].mesh.axes.size(), i);
    }
  }
  for (std::size_t i = 0; i < mesh_of.size(); ++i) {
    if (mesh_of[i] < 0) {
      check_segment(program.segments[i], graph, segments, plan.stages[0].mesh.axes.size(),
                    static_cast<int>(i));
    }
  }
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    check_stage(program.stages[s], program, graph, plan.stages[s].mesh.axes.size(), s);
  }
  for (std::size_t t = 0; t < program.transfers.size(); ++t) {
    const Transfer& transfer = program.transfers[t];
    const std::string where = fmt::format("transfer {}", t);
    require(in_range(transfer.from_chunk, plan.chunks.size()) &&
                in_range(transfer.to_chunk, plan.chunks.size()),
            "a transfer of a chunk that does not exist", where);
    for (const Transfer::Item& item : transfer.items) {
      const auto axes = [&](int chunk) {
        const int stage = plan.chunks[static_cast<std::size_t>(chunk)].stage;
        return plan.stages[static_cast<std::size_t>(stage)].mesh.axes.size();
      };
      check_buffer({item.value, BufferKind::kValue, item.from, {}}, graph,
                   axes(transfer.from_chunk), where);
      check_buffer({item.value, BufferKind::kValue, item.to, {}}, graph, axes(transfer.to_chunk),
                   where);
    }
  }
  for (const Tie& tie : program.ties) {
    for (int s : tie.stages) require(in_range(s, plan.stages.size()), "no such stage", "tie");
    for (ValueId v : tie.values) {
      require(in_range(v.value, graph.values.size()), "no such parameter", "tie");
    }
  }
  std::vector<bool> run(plan.stages.size());
  for (std::size_t l = 0; l < program.lanes.size(); ++l) {
    const std::string where = fmt::format("lane {}", l);
    for (int s : program.lanes[l].stages) {
      require(in_range(s, plan.stages.size()), "a stage that does not exist", where);
      run[static_cast<std::size_t>(s)] = true;
    }
    for (const ScheduleItem& item : program.lanes[l].order) {
      require(in_range(item.micro_batch, static_cast<std::size_t>(program.micro_batches)),
              "a micro-batch that does not exist", where);
      require(
          in_range(item.chunk, is_pass(item.phase) ? plan.chunks.size() : program.transfers.size()),
          "a chunk or transfer that does not exist", where);
    }
  }
  for (std::size_t s = 0; s < run.size(); ++s) {
    require(run[s], "no lane runs it", fmt::format("stage {}", s));
  }
}

}  // namespace meshwright
