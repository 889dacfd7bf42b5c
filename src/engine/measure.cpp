#include "engine/measure.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>

#include "base/error.h"

namespace meshwright {
namespace {

using Clock = std::chrono::steady_clock;

struct Record {
  std::vector<at::Tensor> inputs, outputs;
};

class SegmentMeasure {
 public:
  SegmentMeasure(const PreparedSegment& segment, const Graph& graph, MicroBatchTables& tables,
                 std::int64_t samples, const Feeds& feeds, const MeasureSettings& settings)
      : s_(segment),
        p_(*segment.program),
        graph_(graph),
        tables_(tables),
        samples_(samples),
        feeds_(feeds),
        settings_(settings),
        buffers_(segment.buffers.size()) {}

  /// Makes the operands ready; what it returns does the work on them, as often as it is called.
  std::function<void()> ready(const PreparedInstr& i) {
    const Instr& instr = *i.instr;
    const auto in = p_.in(instr);
    const auto out = p_.out(instr);
    switch (instr.kind) {
      case InstrKind::kCompute:
        if (!instr.op.valid()) return {};
        return i.adjoint ? adjoint(i) : forward(i);
      case InstrKind::kSlice:
        for (std::int32_t b : in) filled(b);
        return [this, in, out] {
          for (std::size_t k = 0; k < in.size(); ++k) {
            slot(out[k]) = slice_buffer(slot(in[k]), local(in[k]), local(out[k]));
          }
        };
      case InstrKind::kAdd:
        for (std::int32_t b : in) filled(b);
        return [this, in, out] {
          at::Tensor sum = slot(in[0]);
          for (std::size_t k = 1; k < in.size(); ++k) sum = sum.add(slot(in[k]));
          slot(out[0]) = sum;
        };
      case InstrKind::kAccumulate: {
        const at::ScalarType type = settings_.numerics.type_of(settings_.gradient_dtype);
        for (std::size_t k = 0; k < in.size(); ++k) slot(out[k]) = filled(in[k]).to(type).clone();
        return [this, in, out, type] {
          for (std::size_t k = 0; k < in.size(); ++k) slot(out[k]).add_(slot(in[k]).to(type));
        };
      }
      case InstrKind::kFree:
        for (std::int32_t b : in) slot(b).reset();
        return {};
      case InstrKind::kCollective:
      case InstrKind::kOptimizer:
        return {};  // What comes of it is drawn when it is read.
    }
    return {};
  }

 private:
  at::Tensor& slot(std::int32_t b) { return buffers_[static_cast<std::size_t>(b)]; }
  const LocalBuffer& local(std::int32_t b) const { return s_.buffers[static_cast<std::size_t>(b)]; }

  at::Tensor& filled(std::int32_t b) {
    at::Tensor& t = slot(b);
    if (t.defined()) return t;
    const Buffer& described = p_.buffers[static_cast<std::size_t>(b)];
    const Value& value = graph_.value(described.value);
    if (described.kind == BufferKind::kValue && value.kind != ValueKind::kActivation) {
      t = fed_tensor(feeds_, described.value, tables_.type(described.value, samples_), local(b), 0,
                     0, settings_.numerics);
      return t;
    }
    t = new_tensor(local(b), settings_.numerics.type_of(s_.types[static_cast<std::size_t>(b)]),
                   settings_.numerics);
    if (at::isFloatingType(t.scalar_type())) t.normal_(0, 0.5);
    return t;
  }

  std::vector<at::Tensor> call(const PreparedInstr& i, std::span<const at::Tensor> operands) {
    KernelServices services;
    services.draw = {1, 0};
    return call_kernel(i.kernel, operands, i.result_types, settings_.numerics, services);
  }

  std::function<void()> forward(const PreparedInstr& i) {
    for (std::int32_t b : p_.in(*i.instr)) filled(b);
    return [this, &i] {
      const auto out = p_.out(*i.instr);
      Record record;
      for (std::int32_t b : p_.in(*i.instr)) record.inputs.push_back(leaf(slot(b), i.keep));
      at::AutoGradMode mode(i.keep);
      record.outputs = call(i, record.inputs);
      for (std::size_t j = 0; j < out.size(); ++j) slot(out[j]) = record.outputs[j].detach();
      if (i.keep) records_[i.instr->op.value] = std::move(record);
    };
  }

  static at::Tensor leaf(const at::Tensor& t, bool records) {
    const bool floats = t.defined() && at::isFloatingType(t.scalar_type());
    return records && floats ? t.detach().set_requires_grad(true) : t;
  }

  void put(std::int32_t b, const at::Tensor& gradient) {
    slot(b) = gradient.defined() ? gradient.detach() : at::Tensor();
  }

  std::function<void()> adjoint(const PreparedInstr& i) {
    const Op& op = graph_.op(i.instr->op);
    const auto in = p_.in(*i.instr);
    for (std::int32_t b : in) {
      if (b >= 0) filled(b);
    }
    if (i.direct) {
      return [this, &i, in] {
        const auto out = p_.out(*i.instr);
        std::vector<at::Tensor> operands;
        for (std::int32_t b : in) operands.push_back(b < 0 ? at::Tensor() : slot(b));
        const std::vector<at::Tensor> found = call(i, operands);
        for (std::size_t k = 0; k < out.size(); ++k) {
          if (out[k] >= 0) put(out[k], found[k]);
        }
      };
    }
    if (!i.rerun && !records_.contains(i.instr->op.value)) return {};
    std::vector<at::Tensor> operands;
    for (std::size_t k = 0; i.rerun && k < op.inputs.size(); ++k) {
      const std::int32_t given = in[op.outputs.size() + k];
      operands.push_back(leaf(filled(given >= 0 ? given : i.forward_in[k]), true));
    }
    return [this, &i, &op, in, operands] {
      Record again;
      if (i.rerun) {
        at::AutoGradMode mode(true);
        again = {operands, call(i, operands)};
      }
      const Record& record = i.rerun ? again : records_.at(i.instr->op.value);
      const auto out = p_.out(*i.instr);
      torch::autograd::variable_list outputs, inputs, given;
      for (std::size_t j = 0; j < op.outputs.size(); ++j) {
        if (in[j] < 0 || !record.outputs[j].requires_grad()) continue;
        outputs.push_back(record.outputs[j]);
        given.push_back(slot(in[j]).to(record.outputs[j].scalar_type()));
      }
      std::vector<std::int32_t> wanted;
      for (std::size_t k = 0; k < out.size(); ++k) {
        if (out[k] < 0) continue;
        wanted.push_back(out[k]);
        inputs.push_back(record.inputs[k]);
      }
      if (outputs.empty() || inputs.empty()) return;
      const auto found = torch::autograd::grad(outputs, inputs, given, !i.rerun, false, true);
      for (std::size_t k = 0; k < wanted.size(); ++k) put(wanted[k], found[k]);
    };
  }

  const PreparedSegment& s_;
  const SegmentProgram& p_;
  const Graph& graph_;
  MicroBatchTables& tables_;
  std::int64_t samples_;
  const Feeds& feeds_;
  const MeasureSettings& settings_;
  std::vector<at::Tensor> buffers_;
  std::map<int, Record> records_;
};

}  // namespace

Timing time_work(int repeat, double seconds, const std::function<void()>& work) {
  work();
  std::vector<double> times;
  const auto start = Clock::now();
  auto before = start;
  while (std::ssize(times) < repeat) {
    work();
    const auto now = Clock::now();
    times.push_back(std::chrono::duration<double>(now - before).count());
    before = now;
    if (times.size() >= 3 && std::chrono::duration<double>(now - start).count() > seconds) break;
  }
  std::sort(times.begin(), times.end());
  const std::size_t n = times.size();
  return {times[n / 2], times[n - 1 - n / 4] - times[n / 4], static_cast<int>(n)};
}

bool measure_segment(const PreparedSegment& segment, const Graph& graph, MicroBatchTables& tables,
                     std::int64_t samples, const Feeds& feeds, const MeasureSettings& settings,
                     const std::function<bool(const Instr&)>& wanted,
                     const std::function<bool(const Instr&, const Timing&)>& measured) {
  SegmentMeasure m(segment, graph, tables, samples, feeds, settings);
  at::AutoGradMode off(false);
  for (const auto& list : segment.lists) {
    for (const PreparedInstr& i : list) {
      const std::function<void()> work = m.ready(i);
      if (!work) continue;
      if (!wanted(*i.instr)) {
        work();
        continue;
      }
      const Timing timing = time_work(settings.repeat, settings.seconds, work);
      if (!measured(*i.instr, timing)) return false;
    }
  }
  return true;
}

}  // namespace meshwright
