#include "rank/run_rank.h"

#include <ATen/Functions.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "api/request.h"
#include "base/error.h"
#include "base/files.h"
#include "base/format.h"
#include "engine/collectives.h"
#include "engine/gloo_comm.h"
#include "engine/nccl_comm.h"
#include "engine/run_store.h"
#include "engine/watchdog.h"
#include "plan/lower.h"
#include "plan/traffic.h"
#include "rank/compare_runs.h"
#include "rank/reporter.h"
#include "rank/state_io.h"
#include "rank/timeline.h"
#include "run/heartbeat.h"

namespace meshwright {
namespace {

using Clock = std::chrono::steady_clock;

// For ranks to come, and to read the plan.
constexpr std::chrono::milliseconds kPatience = std::chrono::minutes(5);
// To tell those that are there already that this rank will not come.
constexpr std::chrono::milliseconds kFarewell = std::chrono::seconds(5);

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The rank whose failure_text this is.
std::optional<int> failed_rank(std::string_view text) {
  int rank = -1;
  if (!text.starts_with("rank ")) return std::nullopt;
  const auto [end, fault] = std::from_chars(text.data() + 5, text.data() + text.size(), rank);
  const std::string_view rest(end, text.data() + text.size());
  if (fault != std::errc() || !(rest.starts_with(": ") || rest.starts_with(" failed: "))) {
    return std::nullopt;
  }
  return rank;
}

class RankRun {
 public:
  RankRun(const Job& job, const Rendezvous& rendezvous)
      : job_(job),
        rendezvous_(rendezvous),
        heartbeat_(rendezvous.rank),
        reporter_(heartbeat_, job.profile.empty() ? nullptr : &timeline_, rendezvous.rank) {}

  int run() {
    try {
      return guarded();
    } catch (const PeerLost& e) {
      throw PeerLost(e.peer, fail(e.what(), 1, e.peer));
    } catch (const Error& e) {
      // Another rank's failure that its peers pass on is no error of this one's.
      if (const auto failed = failed_rank(e.what()); failed && *failed != rendezvous_.rank) {
        throw PeerLost(*failed, fail(e.what(), 1, failed));
      }
      fail(e.what(), 2, {});
      throw;
    } catch (const std::exception& e) {
      fail(e.what(), 70, {});
      throw;
    }
  }

 private:
  // Returns why the run ends.
  std::string fail(std::string message, int code, std::optional<int> lost) {
    heartbeat_.fail(message, code, lost.value_or(-1));
    if (comm_) comm_->abort(message);
    if (!watchdog_) return message;
    const std::string here = reporter_.where();
    message = watchdog_->fail(message, lost);
    return fmt::format("{} (this rank was in {})", message, here);
  }

  void print(const std::string& line) const {
    if (rendezvous_.rank != 0) return;
    // The supervisor may have left a line there that says where the ranks are.
    static const bool terminal = ::isatty(STDOUT_FILENO) == 1;
    std::fputs(((terminal ? "\r\033[K" : "") + line).c_str(), stdout);
    if (std::fflush(stdout) != 0) throw Error("standard output cannot be written");
  }

  int guarded() {
    one_thread_per_rank();
    agree();
    const Plan& plan = file_->plan;
    connect();
    const Graph& graph = file_->loaded.model.graph;
    ExecutorSettings settings;
    settings.numerics = parse_numerics(job_.dtype);
    if (job_.device == "cuda") settings.numerics.device = at::Device(at::kCUDA, 0);
    settings.optimizer = {job_.learning_rate, job_.momentum, job_.beta1,
                          job_.beta2,         job_.epsilon,  job_.weight_decay};
    settings.clip_norm = job_.clip_norm;
    settings.seed = job_.seed;
    std::optional<CheckpointReader> resumed;
    std::int64_t first = 0;
    if (!job_.resume.empty()) {
      resumed.emplace(job_.resume);
      first = resumed->info().step;
      settings.seed = check_resumed(*resumed, graph);
    }
    std::shared_ptr<TokenFile> tokens;
    if (job_.data != "synthetic") {
      tokens = std::make_shared<TokenFile>(read_token_file(job_.data));
    }
    const Program& program = program_.emplace(lower(plan, graph, file_->loaded.segments));
    const Feeds feeds(graph, settings.seed, plan.global_batch, tokens);
    Executor executor(program, plan, graph, file_->loaded.segments, *comm_, feeds, settings,
                      &reporter_);
    if (resumed) read_state(*resumed, executor, graph);
    const std::string id = resumed ? resumed->info().run : shared_run_id();
    print(header(plan, graph, first));
    const RunFacts facts{settings.seed, plan.training.optimizer, job_.dtype, plan.global_batch};
    const CheckpointInfo info{0, id, graph_fingerprint(graph), job_.plan, facts_to_text(facts)};

    try_checkpoints(info, first);

    std::int64_t done = first, saved = first;
    std::vector<double> losses;
    for (; done < job_.steps && heartbeat_.begin_step(done); ++done) {
      const auto start = Clock::now();
      timeline_.step(done);
      const StepResult r = executor.step(done);
      seconds_.push_back(seconds_since(start));
      losses.push_back(r.loss);
      if (!std::isfinite(r.loss) || !std::isfinite(r.gradient_norm)) {
        throw not_finite(done, r, saved);
      }
      print_step(done, r);
      const bool due = job_.checkpoint_every > 0 && (done + 1) % job_.checkpoint_every == 0;
      if (due && done + 1 < job_.steps) save(executor, graph, info, saved = done + 1);
    }
    if (done > saved || done == first) save(executor, graph, info, done);
    print(summary(executor, done - first));
    int code = 0;
    if (done < job_.steps) {
      print(fmt::format("stopped after step {} of {}\n", done, job_.steps));
    } else if (job_.verify) {
      RunPlace place;
      place.phase = "comparison with one device";
      const auto tell = [&](std::int64_t step) {
        place.step = step;
        reporter_.begin(place);
      };
      const Comparison c = compare_runs(*comm_, executor, plan, graph, feeds, settings,
                                        resumed ? &*resumed : nullptr, first, losses, tell);
      print(to_string(c, job_.tolerance));
      code = c.within(job_.tolerance) ? 0 : 1;
      if (code != 0 && job_.dtype != "float64" && plan.training.optimizer != "sgd") {
        print(
            fmt::format("note: {} divides by the root of the second moment, which amplifies "
                        "rounding; --dtype float64 tells rounding from a fault\n",
                        plan.training.optimizer));
      }
    }
    if (!job_.profile.empty()) {
      write_timeline(job_.profile, timeline_, *comm_, *file_);
      print(fmt::format("timeline of the last step written to {}\n", job_.profile));
    }
    barrier();
    heartbeat_.finish();
    if (watchdog_) watchdog_->finish();
    return code;
  }

  void check_ranks(const Plan& plan) const {
    const int devices = rank_count(plan);
    if (devices == rendezvous_.size) return;
    throw Error(
        fmt::format("the plan is for {} devices, but {} ranks run it", devices, rendezvous_.size),
        job_.plan,
        fmt::format("start {} ranks, or plan for {} devices", devices, rendezvous_.size));
  }

  // Reads the plan. A rank that cannot, or that has another one, is told of by all.
  void agree() {
    std::string digest;
    std::optional<Error> fault;
    try {
      file_ = read_plan_file(job_.plan);
      check_ranks(file_->plan);
      digest = fmt::format("{:016x}", draw_key(0, read_file(job_.plan, std::uint64_t{1} << 30)));
    } catch (const Error& e) {
      fault = e;
      digest = "none that can be run";
    }
    Rendezvous r = rendezvous_;
    const auto message = std::chrono::duration<double>(job_.timeout_seconds);
    r.message_timeout = std::chrono::duration_cast<std::chrono::milliseconds>(message);
    r.timeout =
        std::clamp(r.message_timeout, std::chrono::milliseconds(1), fault ? kFarewell : kPatience);
    try {
      store_.emplace(r);
      store_->barrier("start", r.timeout);
      store_->agree("plan", digest, r.timeout);
      store_->agree("settings", settings_text(), r.timeout);
    } catch (const Error&) {
      if (!fault) throw;
    }
    if (fault) throw Error(*fault);
  }

  // Those that are not as ever.
  std::string settings_text() const {
    Job usual;
    usual.plan = job_.plan;  // Where the file lies may differ from host to host.
    const Json defaults = job_to_json(usual);
    const Json ours = job_to_json(job_);
    std::string text;
    for (const auto& [key, value] : ours.items()) {
      if (value == defaults.at(key) || key == "predicted_step_seconds") continue;
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", key, value.dump());
    }
    return text;
  }

  void connect() {
    if (!heartbeat_.supervised()) watchdog_.emplace(*store_, [this] { return reporter_.where(); });
    comm_ = job_.device == "cuda" ? nccl_comm(*store_) : gloo_comm(*store_);
  }

  std::string shared_run_id() {
    if (rendezvous_.rank == 0) store_->set("run id", draw_run_id());
    return store_->wait("run id", kPatience);
  }

  // The seed of the run that goes on.
  std::uint64_t check_resumed(const CheckpointReader& reader, const Graph& graph) const {
    const std::string where = reader.path().string();
    const RunFacts facts = facts_from_text(reader.info().extra, where);
    const Plan& plan = file_->plan;
    if (reader.info().step >= job_.steps) {
      throw Error(fmt::format("it is of step {}, and the run is to end at step {}",
                              reader.info().step, job_.steps),
                  where, "ask for more --steps");
    }
    if (facts.optimizer != plan.training.optimizer) {
      throw Error(fmt::format("it holds the state of {}, the plan trains with {}", facts.optimizer,
                              plan.training.optimizer),
                  where);
    }
    if (facts.dtype != job_.dtype) {
      throw Error(fmt::format("it was written with --dtype {}, not {}", facts.dtype, job_.dtype),
                  where);
    }
    if (facts.global_batch != plan.global_batch) {
      throw Error(fmt::format("its steps are of {} samples, the plan's of {}", facts.global_batch,
                              plan.global_batch),
                  where);
    }
    // The same parameters, whatever plan or transform made the graph.
    std::size_t parameters = 0;
    for (const Value& v : graph.values) {
      if (v.kind != ValueKind::kParameter) continue;
      ++parameters;
      if (!reader.holds(v.name, "parameter")) {
        throw Error(fmt::format("it has no parameter {}: it is of another model", v.name), where);
      }
    }
    return facts.seed;
  }

  void barrier() { numbers_of_all(*comm_, std::array{0.0}); }

  // That nothing can be written shall not come to light after hours.
  void try_checkpoints(CheckpointInfo info, std::int64_t step) {
    if (job_.checkpoint_directory.empty()) return;
    info.step = step;
    // By one rank: a second one could remove the folder that a third is about to use.
    if (rendezvous_.rank == 0) {
      const CheckpointWriter probe(job_.checkpoint_directory, info, 0, rendezvous_.size);
    }
    barrier();
    if (::access(job_.checkpoint_directory.c_str(), W_OK) != 0) {
      throw Error(std::strerror(errno), job_.checkpoint_directory,
                  "checkpoints go to a directory that all ranks can write");
    }
    barrier();
  }

  Error not_finite(std::int64_t step, const StepResult& r, std::int64_t saved) const {
    const bool loss = !std::isfinite(r.loss);
    const std::string hint = "a smaller --lr, or --clip, may help";
    return Error(fmt::format("the {} of step {} is {}", loss ? "loss" : "gradient's norm", step + 1,
                             loss ? r.loss : r.gradient_norm),
                 {},
                 saved > 0 && !job_.checkpoint_directory.empty()
                     ? fmt::format("the last checkpoint is of step {}; {}", saved, hint)
                     : hint);
  }

  void save(Executor& executor, const Graph& graph, CheckpointInfo info, std::int64_t step) {
    if (job_.checkpoint_directory.empty()) return;
    RunPlace place;
    place.step = step - 1;  // Counted from 0.
    place.phase = "checkpoint";
    reporter_.begin(place);
    info.step = step;
    {
      CheckpointWriter writer(job_.checkpoint_directory, info, rendezvous_.rank, rendezvous_.size);
      write_state(writer, executor, graph);
      writer.close();
    }
    barrier();
    if (rendezvous_.rank == 0) {
      const auto path = complete_checkpoint(job_.checkpoint_directory, step, rendezvous_.size, 2);
      print(fmt::format("checkpoint {}\n", path.string()));
    }
    barrier();
  }

  std::string header(const Plan& plan, const Graph& graph, std::int64_t first) const {
    std::string text =
        fmt::format("{} on {} ranks ({}), {}, {}: {}\n", file_->loaded.model_name, rendezvous_.size,
                    job_.device, job_.dtype, plan.training.optimizer, to_string(plan.degrees));
    text += fmt::format("{} parameters; {} samples a step, {} micro-batches; data: {}\n",
                        format_count(parameter_count(graph)), plan.global_batch, plan.micro_batches,
                        job_.data);
    if (first > 0) text += fmt::format("goes on after step {} of {}\n", first, job_.resume);
    const int planned = plan.training.parameter_bytes();
    const int used = job_.dtype == "float64" ? 8 : job_.dtype == "float32" ? 4 : 2;
    if (planned != used) {
      text += fmt::format("note: the plan and its prediction are for {}\n",
                          dtype_name(plan.training.dtype));
    }
    return text;
  }

  double tokens_per_step() const {
    return static_cast<double>(file_->plan.global_batch) *
           static_cast<double>(std::max<std::int64_t>(1, file_->loaded.model.seq));
  }

  void print_step(std::int64_t step, const StepResult& r) const {
    if (job_.print_every == 0 || (step + 1) % job_.print_every != 0) return;
    std::string line = fmt::format("step {}/{}  loss {:.{}f}", step + 1, job_.steps, r.loss,
                                   job_.dtype == "float64" ? 12 : 6);
    if (job_.clip_norm > 0) line += fmt::format("  gradient norm {:.4f}", r.gradient_norm);
    print(line + fmt::format("  {}  {:.0f} tokens/s\n", format_seconds(Seconds(seconds_.back())),
                             tokens_per_step() / seconds_.back()));
  }

  std::string summary(Executor& executor, std::int64_t steps) {
    // All ranks go through it: bytes are of all.
    const std::vector<double> own = {static_cast<double>(executor.bytes_sent())};
    const auto bytes = numbers_of_all(*comm_, own);
    if (steps == 0) return "no step was run\n";
    // The first step pays for what is set up once.
    std::vector<double> times(seconds_.begin() + (seconds_.size() > 1 ? 1 : 0), seconds_.end());
    std::sort(times.begin(), times.end());
    const double median = times[times.size() / 2];
    std::string text =
        fmt::format("median step {} of {}, {:.0f} tokens/s", format_seconds(Seconds(median)),
                    times.size(), tokens_per_step() / median);
    if (job_.predicted_step_seconds > 0) {
      text +=
          fmt::format("; predicted {} on {} ({:+.0f} % of measured)",
                      format_seconds(Seconds(job_.predicted_step_seconds)),
                      file_->loaded.cluster.name, 100 * (job_.predicted_step_seconds / median - 1));
    }
    std::vector<double> sent;
    for (const std::vector<double>& b : bytes) {
      sent.push_back(b[0] / static_cast<double>(steps));
    }
    const auto [least, most] = std::minmax_element(sent.begin(), sent.end());
    text += fmt::format("\nsent per step and rank: {}", format_bytes(Bytes(*least)));
    if (*most != *least) text += fmt::format(" to {}", format_bytes(Bytes(*most)));
    // The program counts in the plan's element type.
    if (executor.element_bytes() != file_->plan.training.parameter_bytes()) return text + "\n";
    const std::vector<double> said = said_of_ranks();
    if (sent == said) return text + ", exactly what the program says\n";
    const auto [first, last] = std::minmax_element(said.begin(), said.end());
    return text + fmt::format("; the program says {} to {}\n", format_bytes(Bytes(*first)),
                              format_bytes(Bytes(*last)));
  }

  // Bytes per step that the program says each rank sends.
  std::vector<double> said_of_ranks() const {
    std::vector<double> said(static_cast<std::size_t>(rendezvous_.size));
    const std::vector<double> lanes = sent_bytes(*program_, file_->plan);
    for (std::size_t l = 0; l < lanes.size(); ++l) {
      const Mesh& mesh = program_->lanes[l].mesh;
      for (int i = 0; i < mesh.device_count(); ++i) {
        said[device_at(mesh, mesh_coordinates(mesh, i)).index()] = lanes[l];
      }
    }
    return said;
  }

  const Job& job_;
  const Rendezvous& rendezvous_;
  Heartbeat heartbeat_;
  RunTimeline timeline_;
  Reporter reporter_;
  std::optional<PlanFile> file_;
  std::optional<Program> program_;
  std::optional<RunStore> store_;
  std::unique_ptr<Comm> comm_;
  std::optional<Watchdog> watchdog_;
  std::vector<double> seconds_;
};

}  // namespace

int run_rank(const Job& job, const Rendezvous& rendezvous) {
  return RankRun(job, rendezvous).run();
}

}  // namespace meshwright
