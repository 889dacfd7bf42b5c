#include "rank/timeline.h"

#include <ATen/Functions.h>
#include <fmt/format.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/json.h"
#include "search/judge.h"

namespace meshwright {
namespace {

constexpr int kTag = 8;

Json event(const std::string& name, std::string_view category, int pid, int tid, double start,
           double end, int micro_batch) {
  Json json = {
      {"name", name},      {"cat", category},           {"ph", "X"}, {"pid", pid}, {"tid", tid},
      {"ts", start * 1e6}, {"dur", (end - start) * 1e6}};
  if (micro_batch >= 0) json["args"] = {{"micro_batch", micro_batch}};
  return json;
}

Json label(std::string_view what, int pid, int tid, const std::string& name) {
  return {{"name", what}, {"ph", "M"}, {"pid", pid}, {"tid", tid}, {"args", {{"name", name}}}};
}

std::string events_text(const RunTimeline& timeline, int rank) {
  Json list = Json::array();
  list.push_back(label("thread_name", 0, rank, fmt::format("rank {}", rank)));
  for (const RunTimeline::Event& e : timeline.events()) {
    list.push_back(event(e.name, purpose_name(e.purpose), 0, rank, e.start, e.end, e.micro_batch));
  }
  return list.dump();
}

}  // namespace

std::string_view describe(const Instr& instr) {
  return instr.kind == InstrKind::kCollective ? collective_name(instr.collective)
                                              : instr_kind_name(instr.kind);
}

std::string place_text(const RunPlace& p, std::string_view kind, std::string_view op) {
  if (std::string_view(p.phase) == "start") return "start";
  std::string text = fmt::format("step {}, {}", p.step + 1, p.phase);
  if (p.chunk >= 0) text += fmt::format(" of chunk {}", p.chunk);
  if (p.micro_batch >= 0) text += fmt::format(", micro-batch {}", p.micro_batch);
  if (p.instruction >= 0) text += fmt::format(", instruction {}", p.instruction);
  if (!kind.empty()) text += fmt::format(": {} {}", kind, op);
  return text;
}

double RunTimeline::now() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

void RunTimeline::begin(const RunPlace&) { begun_ = now(); }

void RunTimeline::end(const RunPlace& p) {
  if (p.instr != nullptr && p.instr->kind == InstrKind::kFree) return;
  std::string name(p.instr == nullptr ? std::string_view(p.phase) : describe(*p.instr));
  if (p.op != nullptr) name += " " + *p.op;
  const Purpose purpose = p.instr == nullptr ? Purpose::kPipeline : p.instr->purpose;
  events_.push_back({std::move(name), purpose, p.micro_batch, begun_, now()});
}

void write_timeline(const std::string& path, const RunTimeline& timeline, Comm& comm,
                    const PlanFile& file) {
  const std::string mine = events_text(timeline, comm.rank());
  if (comm.rank() != 0) {
    at::Tensor size = at::full({1}, static_cast<double>(mine.size()), at::kDouble);
    comm.send(size, 0, kTag)->wait();
    at::Tensor bytes = at::empty({static_cast<std::int64_t>(mine.size())}, at::kByte);
    std::memcpy(bytes.data_ptr(), mine.data(), mine.size());
    comm.send(bytes, 0, kTag)->wait();
    return;
  }
  Json events = Json::parse(mine);
  events.push_back(label("process_name", 0, 0, "measured"));
  events.push_back(label("process_name", 1, 0, "predicted"));
  for (int r = 1; r < comm.size(); ++r) {
    at::Tensor size = at::empty({1}, at::kDouble);
    comm.receive(size, r, kTag)->wait();
    at::Tensor bytes = at::empty({static_cast<std::int64_t>(size.item<double>())}, at::kByte);
    comm.receive(bytes, r, kTag)->wait();
    const char* text = static_cast<const char*>(bytes.data_ptr());
    for (Json& e : Json::parse(text, text + bytes.numel())) events.push_back(std::move(e));
  }
  const Judged judged = judge(file.loaded.problem(), file.plan, true);
  for (std::size_t lane = 0; lane < judged.timeline.events.size(); ++lane) {
    const int tid = static_cast<int>(lane);
    events.push_back(label("thread_name", 1, tid, fmt::format("lane {}", lane)));
    for (const Event& e : judged.timeline.events[lane]) {
      events.push_back(event(fmt::format("{} {}", phase_name(e.item.phase), e.item.chunk),
                             phase_name(e.item.phase), 1, tid, e.start.value, e.end.value,
                             e.item.micro_batch));
    }
  }
  write_file(path, Json{{"traceEvents", std::move(events)}}.dump(), true);
}

}  // namespace meshwright
