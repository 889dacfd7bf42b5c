#include "rank/profile_rank.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <deque>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "api/request.h"
#include "base/error.h"
#include "base/files.h"
#include "cost/profile.h"
#include "engine/collectives.h"
#include "engine/gloo_comm.h"
#include "engine/measure.h"
#include "engine/optimizer.h"
#include "engine/run_store.h"
#include "plan/lower.h"
#include "plan/signature.h"
#include "run/heartbeat.h"

namespace meshwright {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kMeasureTag = 7;
// Sizes this close count as measured.
constexpr double kSameSize = 0.02;

int devices_of(const Plan& plan) {
  int devices = 0;
  for (const Stage& s : plan.stages) {
    for (int i = 0; i < s.mesh.device_count(); ++i) {
      devices = std::max(devices, device_at(s.mesh, mesh_coordinates(s.mesh, i)).value + 1);
    }
  }
  return devices;
}

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

class RankProfile {
 public:
  RankProfile(const ProfileJob& job, const Rendezvous& rendezvous)
      : job_(job), rendezvous_(rendezvous), heartbeat_(rendezvous.rank) {}

  int run() {
    try {
      return guarded();
    } catch (const PeerLost& e) {
      fail(e.what(), 1, e.peer);
      throw;
    } catch (const Error& e) {
      fail(e.what(), 2, -1);
      throw;
    } catch (const std::exception& e) {
      fail(e.what(), 70, -1);
      throw;
    }
  }

 private:
  void fail(const std::string& message, int code, int lost) {
    heartbeat_.fail(message, code, lost);
    if (comm_) comm_->abort(message);
  }

  int guarded() {
    one_thread_per_rank();
    settings_.numerics = parse_numerics(job_.dtype);
    settings_.repeat = job_.repeat;
    if (rendezvous_.size > 1) meet();
    load_table();
    start_ = saved_ = Clock::now();
    for (const std::string& path : job_.plans) {
      if (!going_) break;
      profile_plan(path);
    }
    save(true);
    if (rendezvous_.rank == 0) {
      std::fputs(fmt::format("{}{} measured, {} known before; {} in all in {}{}\n",
                             ::isatty(1) ? "\r\033[K" : "", fresh_, known_,
                             table_.kernels.size() + points(), job_.output,
                             going_ ? "" : ": stopped early, start again to go on")
                     .c_str(),
                 stdout);
    }
    if (comm_) control({});
    heartbeat_.finish();
    return 0;
  }

  std::size_t points() const {
    std::size_t count = 0;
    for (const auto& [signature, curve] : table_.curves) count += curve.size();
    return count;
  }

  void meet() {
    store_.emplace(rendezvous_);
    const auto patience = std::chrono::seconds(60);
    store_->barrier("start", patience);
    std::string settings = job_.dtype + " " + std::to_string(job_.repeat);
    for (const std::string& path : job_.plans) {
      settings += fmt::format(" {:016x}", draw_key(0, read_file(path, std::uint64_t{1} << 30)));
    }
    store_->agree("what is measured", settings, patience);
    store_->agree("device", processor_name(), patience);
    comm_ = gloo_comm(*store_);
  }

  // Rank 0 has the table; the others measure what it lacks.
  void load_table() {
    std::string text;
    if (rendezvous_.rank == 0) {
      std::error_code fault;
      if (std::filesystem::exists(job_.output, fault)) {
        table_ = read_profile(job_.output);
        const auto same = [&](const std::string& has, const std::string& is, const char* what) {
          if (has == is) return;
          throw Error(fmt::format("it was measured {} {}, this would be {}", what, has, is),
                      job_.output, "give another file with -o");
        };
        same(table_.device, processor_name(), "on");
        same(table_.dtype, job_.dtype, "with --dtype");
        same(std::to_string(table_.threads), "1", "with threads");
      } else {
        table_.device = processor_name();
        table_.dtype = job_.dtype;
      }
      table_.host = host_name();
      table_.date = fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr)));
      text = profile_to_json(table_).dump();
      if (comm_) store_->set("table", text);
    } else {
      text = store_->wait("table", std::chrono::seconds(60));
      table_ = profile_from_json(parse_json(text, "table of rank 0"), "table of rank 0");
    }
  }

  // What all ranks found of one thing: the middle one of those that took part. Says whether to go
  // on. All ranks come here equally often.
  Timing control(const Timing& mine, bool communication = false) {
    Timing result = mine;
    bool over = job_.budget_seconds > 0 &&
                std::chrono::duration<double>(Clock::now() - start_).count() > job_.budget_seconds;
    if (comm_) {
      const std::vector<double> own = {mine.seconds, mine.spread, static_cast<double>(mine.repeats),
                                       over ? 1.0 : 0.0};
      const auto numbers = numbers_of_all(*comm_, own);
      std::vector<Timing> timings;
      for (const std::vector<double>& v : numbers) {
        if (v[2] > 0) timings.push_back({v[0], v[1], static_cast<int>(v[2])});
      }
      over = numbers[0][3] > 0;
      std::sort(timings.begin(), timings.end(),
                [](const Timing& a, const Timing& b) { return a.seconds < b.seconds; });
      // A collective is over when its last member is.
      if (!timings.empty()) {
        result = communication ? timings.back() : timings[timings.size() / 2];
      }
    }
    going_ = heartbeat_.begin_step(steps_++) && !over && going_;
    return result;
  }

  void found(const std::string& signature) {
    ++fresh_;
    if (rendezvous_.rank != 0) return;
    if (::isatty(1)) {
      std::fputs(fmt::format("\r\033[K{} measured: {:.100}", fresh_, signature).c_str(), stdout);
      std::fflush(stdout);
    }
    save(false);
  }

  void save(bool last) {
    if (rendezvous_.rank != 0) return;
    const auto now = Clock::now();
    if (!last && now - saved_ < std::chrono::seconds(2)) return;
    write_file(job_.output, profile_to_json(table_).dump(1) + "\n", true);
    saved_ = now;
  }

  void profile_plan(const std::string& path) {
    const PlanFile file = read_plan_file(path);
    const Plan& plan = file.plan;
    const int bytes = plan.training.parameter_bytes();
    const int here = settings_.numerics.precise == at::kDouble                ? 8
                     : settings_.numerics.type_of(DType::kBf16) == at::kFloat ? 4
                                                                              : 2;
    if (bytes != here) {
      throw Error(
          fmt::format("elements of the plan's {} have {} bytes, those of --dtype {} have {}",
                      dtype_name(plan.training.dtype), bytes, job_.dtype, here),
          path, "plan with --precision f32 for float32, bf16 for bfloat16");
    }
    const Graph& graph = file.loaded.model.graph;
    Program program = lower(plan, graph, file.loaded.segments);
    const std::int64_t samples = plan.global_batch / plan.micro_batches;
    MicroBatchTables tables(graph);
    Signer signer(graph);
    const Feeds feeds(graph, 0, plan.global_batch);
    settings_.gradient_dtype = plan.training.gradient_dtype;
    const bool communicates = comm_ != nullptr && devices_of(plan) <= comm_->size();
    std::vector<bool> seen(program.segments.size(), false);
    for (const ChunkProgram& chunk : program.chunks) {
      for (int s : chunk.segments) {
        const auto i = static_cast<std::size_t>(s);
        if (seen[i] || !going_) continue;
        seen[i] = true;
        const Mesh& mesh = plan.stages[static_cast<std::size_t>(chunk.stage)].mesh;
        operators(program.segments[i], graph, tables, signer, feeds, samples, mesh);
        if (communicates) collectives(program.segments[i], signer, tables, file, samples, mesh);
      }
    }
    for (std::size_t s = 0; s < program.stages.size() && going_; ++s) {
      count_updates(program.stages[s], program.segments);
      for (const Instr& instr : program.stages[s].step) {
        if (!going_) break;
        if (instr.kind == InstrKind::kOptimizer) optimizer(instr, plan);
        if (instr.kind != InstrKind::kCollective || !communicates) continue;
        if (instr.peer_offset != 0) {
          // Each gives what the other adds: as long as a message of all of it.
          message(instr.bytes.value, plan.stages[s].mesh, instr.peer_offset, file);
        } else if (instr.tie < 0) {
          step_collective(instr, program, s, tables, file, samples);
        }
      }
    }
    if (communicates) transfers(program, file);
  }

  void operators(const SegmentProgram& segment, const Graph& graph, MicroBatchTables& tables,
                 Signer& signer, const Feeds& feeds, std::int64_t samples, const Mesh& mesh) {
    std::map<const Instr*, std::string> wanted;
    std::map<std::string, const Instr*> first;
    for (const auto* list : {&segment.forward, &segment.backward, &segment.weight}) {
      for (const Instr& instr : *list) {
        const std::string signature = signer.of(instr, segment, mesh, samples);
        if (signature.empty()) continue;
        if (table_.kernels.contains(signature)) {
          ++known_;
        } else if (first.try_emplace(signature, &instr).second) {
          wanted[&instr] = signature;
        }
      }
    }
    if (wanted.empty()) return;
    const std::vector<int> coordinates = mesh_coordinates(mesh, 0);
    const PreparedSegment prepared =
        prepare_segment(segment, graph, tables, samples, mesh, coordinates);
    measure_segment(
        prepared, graph, tables, samples, feeds, settings_,
        [&](const Instr& instr) {
          const auto it = wanted.find(&instr);
          if (it == wanted.end()) return false;
          heartbeat_.where({-1, "measures", -1, -1, -1, {}, it->second});
          return true;
        },
        [&](const Instr& instr, const Timing& mine) {
          const Timing t = control(mine);
          const std::string& signature = wanted.at(&instr);
          table_.kernels[signature] = measured_kernel(instr, measurement(t));
          found(signature);
          return going_;
        });
  }

  static Measurement measurement(const Timing& t) {
    return {Seconds(t.seconds), Seconds(t.spread), std::max(t.repeats, 1)};
  }

  bool knows(const std::string& curve, double bytes) {
    const auto it = table_.curves.find(curve);
    if (it == table_.curves.end()) return false;
    const auto near = it->second.lower_bound(bytes * (1 - kSameSize));
    const bool known = near != it->second.end() && near->first <= bytes * (1 + kSameSize);
    known_ += known;
    return known;
  }

  // `take_part`: whether this rank has work to do; it is the same number of calls on all that have.
  // Of `messages` messages of `bytes` each.
  void measure_curve(const std::string& signature, double bytes, int messages, bool take_part,
                     bool communication, const std::function<void()>& work) {
    heartbeat_.where({-1, "measures", -1, -1, -1, {}, signature});
    const at::NoGradGuard no_grad;
    // How often follows from the slowest rank's first time, so that all do it equally often.
    Timing t;
    if (take_part) {
      work();
      t = time_work(3, 1e9, work);
    }
    Timing all = control(t, true);
    if (!going_) return;
    const double most = settings_.seconds / std::max(all.seconds, 1e-9);
    const int repeat = static_cast<int>(std::clamp(most, 3.0, 1.0 * settings_.repeat));
    if (take_part) t = time_work(repeat, 1e9, work);
    all = control(t, communication);
    all.seconds /= messages;
    all.spread /= messages;
    table_.curves[signature][bytes] = measurement(all);
    found(fmt::format("{} {:.0f} bytes", signature, bytes));
  }

  void optimizer(const Instr& instr, const Plan& plan) {
    const Training& training = plan.training;
    const double bytes = instr.bytes.value / instr.messages;
    const auto elements =
        static_cast<std::int64_t>(bytes / (training.gradient_bytes() + training.parameter_bytes() +
                                           2.0 * training.optimizer_bytes()));
    const std::string signature = optimizer_signature(training.optimizer);
    if (elements < 1 || knows(signature, bytes)) return;
    const at::Tensor rest =
        at::zeros({elements}, settings_.numerics.type_of(training.dtype)).normal_(0, 1);
    const at::Tensor gradient =
        at::zeros({elements}, settings_.numerics.type_of(training.gradient_dtype)).normal_(0, 1);
    OptimizerState state = start_state(training.optimizer, rest, settings_.numerics.precise);
    measure_curve(signature, bytes, 1, true, false, [&] {
      update(training.optimizer, {}, 0, gradient, 1, state);
      (void)state.master.to(rest.scalar_type(), false, true);
    });
  }

  at::Tensor drawn(const LocalBuffer& b, DType dtype) const {
    at::Tensor t = new_tensor(b, settings_.numerics.type_of(dtype), settings_.numerics);
    if (at::isFloatingType(t.scalar_type())) t.normal_(0, 1);
    return t;
  }

  void collectives(const SegmentProgram& segment, Signer& signer, MicroBatchTables& tables,
                   const PlanFile& file, std::int64_t samples, const Mesh& mesh) {
    const auto here = coordinates_of(mesh, DeviceId(comm_->rank()));
    for (const auto* list : {&segment.forward, &segment.backward, &segment.weight}) {
      for (const Instr& instr : *list) {
        if (!going_) return;
        if (instr.kind != InstrKind::kCollective || instr.peer_offset != 0) continue;
        const int messages = signer.messages(instr);
        const std::string signature = communication_signature(
            instr.collective, comm_mesh(file.loaded.cluster, mesh, instr.group));
        const double bytes = instr.bytes.value / messages;
        if (bytes < 1 || mesh.size(instr.group) < 2 || knows(signature, bytes)) continue;
        if (instr.in_count == 0) {
          own_sum(signature, bytes, mesh, here, instr.group.mask());
          continue;
        }
        Parts parts;
        for (std::size_t k = 0; here && k < instr.in_count; ++k) {
          const Buffer& in = segment.buffers[static_cast<std::size_t>(segment.in(instr)[k])];
          const Buffer& out = segment.buffers[static_cast<std::size_t>(segment.out(instr)[k])];
          const TensorType& type = tables.type(in.value, samples);
          parts.add(
              local_collective(instr, in.kind != BufferKind::kValue, type, in, out, mesh, *here),
              drawn(local_buffer(type, in, mesh, *here), type.dtype),
              local_buffer(type, out, mesh, *here).shape());
        }
        measure_curve(signature, bytes, 1, here.has_value(), true, [&] { run(parts); });
      }
    }
  }

  // What an operator sums by itself.
  void own_sum(const std::string& signature, double bytes, const Mesh& mesh,
               const std::optional<std::vector<int>>& here, std::uint32_t axes) {
    std::vector<int> ranks;
    at::Tensor data;
    if (here) {
      for (const auto& other : group_of(mesh, *here, axes)) {
        ranks.push_back(device_at(mesh, other).value);
      }
      const at::ScalarType type = settings_.numerics.precise;
      const auto size = static_cast<double>(c10::elementSize(type));
      data = at::zeros({std::max<std::int64_t>(1, static_cast<std::int64_t>(bytes / size))}, type);
    }
    measure_curve(signature, bytes, 1, here.has_value(), true,
                  [&] { all_reduce(*comm_, ranks, data, false, kMeasureTag); });
  }

  // The operands of a collective.
  struct Parts {
    std::deque<LocalCollective> collectives;
    std::vector<CollectiveOperand> operands;
    void add(LocalCollective collective, at::Tensor in, std::vector<std::int64_t> shape) {
      collectives.push_back(std::move(collective));
      operands.push_back({&collectives.back(), std::move(in), std::move(shape)});
    }
  };
  void run(const Parts& parts) { run_collectives(*comm_, parts.operands, kMeasureTag); }

  void step_collective(const Instr& instr, const Program& program, std::size_t s,
                       MicroBatchTables& tables, const PlanFile& file, std::int64_t samples) {
    const Mesh& mesh = file.plan.stages[s].mesh;
    const StageProgram& stage = program.stages[s];
    const std::string signature = communication_signature(
        instr.collective, comm_mesh(file.loaded.cluster, mesh, instr.group));
    const double bytes = instr.bytes.value;
    if (bytes < 1 || mesh.size(instr.group) < 2 || knows(signature, bytes)) return;
    const auto here = coordinates_of(mesh, DeviceId(comm_->rank()));
    Parts parts;
    for (std::size_t k = 0; here && k < instr.in_count; ++k) {
      const Buffer& in = step_buffer(stage, program.segments, stage.in(instr)[k]);
      const Buffer& out = step_buffer(stage, program.segments, stage.out(instr)[k]);
      const TensorType& type = tables.type(in.value, samples);
      const Training& training = file.plan.training;
      const DType dtype =
          instr.purpose == Purpose::kGradient ? training.gradient_dtype : training.dtype;
      const LocalCollective collective = local_collective(instr, false, type, in, out, mesh, *here);
      const int copies = step_copies(stage, program.segments, stage.in(instr)[k]);
      for (int c = 0; c < copies; ++c) {
        parts.add(collective, drawn(local_buffer(type, in, mesh, *here), dtype),
                  local_buffer(type, out, mesh, *here).shape());
      }
    }
    measure_curve(signature, bytes, 1, here.has_value(), true, [&] { run(parts); });
  }

  // Back and forth between stages that lie on devices apart.
  void transfers(const Program& program, const PlanFile& file) {
    const auto mesh_of = [&](int chunk) -> const Mesh& {
      const int stage = program.chunks[static_cast<std::size_t>(chunk)].stage;
      return file.plan.stages[static_cast<std::size_t>(stage)].mesh;
    };
    for (const Transfer& t : program.transfers) {
      if (!going_) return;
      const Mesh& from = mesh_of(t.from_chunk);
      const Mesh& to = mesh_of(t.to_chunk);
      const int offset = to.first_device - from.first_device;
      if (from.device_count() != to.device_count() || offset == 0) continue;
      message(t.bytes.value, from, offset, file);
    }
  }

  // From every device of a mesh to the one `offset` after it.
  void message(double bytes, const Mesh& from, int offset, const PlanFile& file) {
    const std::string signature = communication_signature(
        CollectiveKind::kBroadcast, peer_mesh(file.loaded.cluster, from, offset));
    if (bytes < 1 || knows(signature, bytes)) return;
    const int me = comm_->rank();
    const bool gives = coordinates_of(from, DeviceId(me)).has_value();
    const bool takes = coordinates_of(from, DeviceId(me - offset)).has_value();
    const int peer = gives ? me + offset : me - offset;
    at::Tensor data = at::zeros({static_cast<std::int64_t>(bytes)}, at::kByte);
    measure_curve(signature, bytes, 2, gives != takes, true, [&] {
      if (gives) comm_->send(data, peer, kMeasureTag)->wait();
      comm_->receive(data, peer, kMeasureTag)->wait();
      if (takes) comm_->send(data, peer, kMeasureTag)->wait();
    });
  }

  const ProfileJob& job_;
  const Rendezvous& rendezvous_;
  Heartbeat heartbeat_;
  std::optional<RunStore> store_;
  std::unique_ptr<Comm> comm_;
  MeasureSettings settings_;
  ProfileTable table_;
  bool going_ = true;
  std::int64_t steps_ = 0;
  int fresh_ = 0, known_ = 0;
  Clock::time_point start_, saved_;
};

}  // namespace

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  while (std::getline(info, line)) {
    if (!line.starts_with("model name")) continue;
    const auto colon = line.find(':');
    const auto begin = line.find_first_not_of(' ', colon + 1);
    if (colon != std::string::npos && begin != std::string::npos) return line.substr(begin);
  }
  return "cpu";
}

int profile_rank(const ProfileJob& job, const Rendezvous& rendezvous) {
  return RankProfile(job, rendezvous).run();
}

}  // namespace meshwright
