#include "report/plan_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>

#include "base/format.h"
#include "ops/graph_work.h"
#include "report/text_table.h"
#include "search/judge.h"

namespace meshwright {
namespace {

struct MemoryTerm {
  std::string_view name;
  Bytes MemoryBreakdown::* field;
};
constexpr MemoryTerm kMemoryTerms[] = {
    {"weights", &MemoryBreakdown::parameters},  {"gradients", &MemoryBreakdown::gradients},
    {"optimizer", &MemoryBreakdown::optimizer}, {"activations", &MemoryBreakdown::activations},
    {"transient", &MemoryBreakdown::transient}, {"comm buffers", &MemoryBreakdown::communication},
    {"context", &MemoryBreakdown::context},     {"fragmentation", &MemoryBreakdown::fragmentation},
};

std::string gib(Bytes bytes) { return fmt::format("{:.1f}", bytes.value / (1 << 30)); }

// The stages that devices have of their own: those of the lanes.
std::span<const Stage> own_stages(const Judged& judged) {
  return std::span(judged.plan.stages).first(judged.timeline.stages.size());
}

int plan_devices(const Judged& judged) {
  int devices = 0;
  for (const Stage& s : own_stages(judged)) devices += s.mesh.device_count();
  return devices;
}

}  // namespace

ModelSummary summarize(const Graph& graph, std::string name) {
  ModelSummary model{std::move(name), parameter_count(graph), tokens_per_step(graph), "tokens",
                     model_flops(graph)};
  double batch = 0;
  for (const Value& value : graph.values) {
    for (const Dim& dim : value.type.dims) {
      if (value.kind == ValueKind::kInput && dim.name == "batch") {
        batch = std::max(batch, static_cast<double>(dim.size));
      }
    }
  }
  if (model.tokens_per_step <= batch) model.unit = "samples";
  return model;
}

double mfu(const Problem& problem, const ModelSummary& model, const Judged& judged) {
  double peak = 0;
  for (const Stage& stage : own_stages(judged)) {
    // All devices of a stage run at its mesh's pace, yet the peak is what was bought.
    AxisList all;
    for (int a = 0; a < static_cast<int>(stage.mesh.axes.size()); ++a) all.push_back(a);
    if (problem.cluster.homogeneous()) {
      const DeviceKind& kind = problem.cluster.kinds[0];
      const double rate = std::max({kind.bf16.value, kind.fp16.value, kind.fp32.value});
      peak += stage.mesh.device_count() * rate;
      continue;
    }
    for (DeviceId device : stage.mesh.group(all)) {
      const DeviceKind& kind = problem.cluster.kind(device);
      peak += std::max({kind.bf16.value, kind.fp16.value, kind.fp32.value});
    }
  }
  return model.flops_per_step.value / (judged.step().value * peak);
}

std::string largest_memory_term(const MemoryBreakdown& memory) {
  const MemoryTerm* largest = &kMemoryTerms[0];
  for (const MemoryTerm& t : kMemoryTerms) {
    if (memory.*t.field > memory.*largest->field) largest = &t;
  }
  return fmt::format("{} ({})", largest->name, format_bytes(memory.*largest->field));
}

std::string cut_text(const Problem& problem, const Plan& plan) {
  std::string text;
  const auto layers = [&](const Chunk& c) {
    int count = 0;
    for (int i = c.first_segment; i < c.last_segment; ++i) {
      count += problem.segments[static_cast<std::size_t>(i)].is_layer;
    }
    return count;
  };
  // "20 x4" for runs of equal chunks.
  for (std::size_t i = 0; i < plan.chunks.size();) {
    std::size_t j = i;
    while (j < plan.chunks.size() && layers(plan.chunks[j]) == layers(plan.chunks[i])) ++j;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", layers(plan.chunks[i]));
    if (j - i > 1) text += fmt::format(" x{}", j - i);
    i = j;
  }
  return text;
}

std::string time_table(const Judged& judged) {
  const Timeline& t = judged.timeline;
  const auto busiest = static_cast<std::size_t>(t.bottleneck());
  const double stages = static_cast<double>(t.stages.size());
  std::vector<std::vector<std::string>> rows;
  const auto row = [&](std::string_view name, Seconds mean, Seconds busy) {
    if (mean.value < 1e-6 * t.step.value && busy.value < 1e-6 * t.step.value) return;
    std::vector<std::string> cells = {std::string(name), format_seconds(mean),
                                      fmt::format("{:.1f} %", 100 * (mean / t.step))};
    if (t.stages.size() > 1) {
      cells.push_back(format_seconds(busy));
      cells.push_back(fmt::format("{:.1f} %", 100 * (busy / t.step)));
    }
    rows.push_back(std::move(cells));
  };
  for (int p = 0; p < kPurposeCount; ++p) {
    const auto i = static_cast<std::size_t>(p);
    Seconds mean;
    for (const StageTime& s : t.stages) mean += s.spent[i] / stages;
    constexpr std::array<std::string_view, kPurposeCount> kNames = {"forward compute",
                                                                    "backward compute",
                                                                    "recompute",
                                                                    "tensor parallel comm",
                                                                    "context parallel comm",
                                                                    "expert parallel comm",
                                                                    "parameter gather",
                                                                    "gradient reduction",
                                                                    "pipeline comm",
                                                                    "optimizer"};
    row(kNames[i], mean, t.stages[busiest].spent[i]);
  }
  Seconds host, bubble;
  for (const StageTime& s : t.stages) {
    host += s.host / stages;
    bubble += s.bubble / stages;
  }
  row("host overhead", host, t.stages[busiest].host);
  row("bubble and waiting", bubble, t.stages[busiest].bubble);
  std::vector<std::string> headings = {"time per step", t.stages.size() > 1 ? "mean" : "seconds",
                                       ""};
  if (t.stages.size() > 1) {
    headings.push_back(fmt::format("busiest (stage {})", busiest));
    headings.push_back("");
  }
  return text_table(headings, rows);
}

std::string memory_table(const Problem& problem, const Judged& judged) {
  std::vector<std::string> headings = {"GiB per device"};
  for (const MemoryTerm& t : kMemoryTerms) headings.emplace_back(t.name);
  headings.insert(headings.end(), {"total", "limit", "margin"});
  std::vector<std::vector<std::string>> rows;
  const auto& memory = judged.timeline.memory;
  const std::size_t n = memory.size();
  for (std::size_t s = 0; s < n; ++s) {
    // Of many stages: the first, the last, the fullest.
    if (n > 8 && s != 0 && s + 1 != n && static_cast<int>(s) != judged.fullest_stage) continue;
    const Bytes usable = usable_memory(problem, judged.plan.stages[s]);
    std::vector<std::string> row = {fmt::format("stage {}", s)};
    for (const MemoryTerm& t : kMemoryTerms) row.push_back(gib(memory[s].*t.field));
    row.push_back(gib(memory[s].total()));
    row.push_back(gib(usable));
    row.push_back(fmt::format("{:+.1f} %", 100 * (1 - memory[s].total() / usable)));
    rows.push_back(std::move(row));
  }
  return text_table(headings, rows);
}

std::string plan_text(const Problem& problem, const ModelSummary& model, const Judged& judged) {
  const Plan& plan = judged.plan;
  const double tokens = model.tokens_per_step / judged.step().value;
  const int devices = plan_devices(judged);
  std::string text;
  text += fmt::format("layout   {}\n", to_string(plan.degrees));
  text += fmt::format(
      "         {} schedule, {} micro-batches of {} per replica; layers per chunk: {}\n",
      plan.schedule, plan.micro_batches, plan.degrees.micro_batch, cut_text(problem, plan));
  text += fmt::format("step     {}   {} {}/s   {} {}/s/device   MFU {:.1f} %\n",
                      format_seconds(judged.step()), format_count(tokens), model.unit,
                      tokens / devices < 10 ? fmt::format("{:.2f}", tokens / devices)
                                            : fmt::format("{:.0f}", tokens / devices),
                      model.unit, 100 * mfu(problem, model, judged));
  double dollars = 0;
  for (const Stage& stage : own_stages(judged)) {
    dollars += stage.mesh.device_count() *
               problem.cluster.kind(DeviceId(stage.mesh.first_device)).dollars_per_hour;
  }
  if (dollars > 0) {
    text += fmt::format("cost     ${:.2f} per million {} at ${:.0f} per hour\n",
                        dollars / 3600 / tokens * 1e6, model.unit, dollars);
  }
  const auto fullest = static_cast<std::size_t>(judged.fullest_stage);
  const double used =
      judged.timeline.memory[fullest].total() /
      (usable_memory(problem, plan.stages[fullest]) / problem.restrictions.max_memory);
  text += fmt::format(
      "memory   {} of device memory on stage {}{}\n", fmt::format("{:.0f} %", 100 * used), fullest,
      judged.fits && used > 0.90 ? "   (above 90 %: the allocator may still fail)" : "");
  return text + "\n" + time_table(judged) + "\n" + memory_table(problem, judged);
}

std::string search_text(const Problem& problem, const ModelSummary& model,
                        const SearchResult& result) {
  std::string text = plan_text(problem, model, result.ranking[0]);
  if (result.ranking.size() > 1) {
    std::vector<std::vector<std::string>> rows;
    for (std::size_t i = 1; i < result.ranking.size(); ++i) {
      const Judged& j = result.ranking[i];
      rows.push_back({to_string(j.plan.degrees), format_seconds(j.step()),
                      fmt::format("{:+.1f} %", 100 * (j.step() / result.ranking[0].step() - 1)),
                      j.lost_because});
    }
    text += "\n" + text_table({"runners-up", "step", "", "lost because"}, rows, 2,
                              {true, false, false, true});
  }
  return text;
}

}  // namespace meshwright
