#include "api/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>

#include "base/error.h"
#include "base/files.h"
#include "cluster/cluster.h"
#include "plan/check.h"
#include "plan/lower.h"
#include "search/problem.h"
#include "sim/simulate.h"

namespace meshwright {
namespace {

constexpr std::uint64_t kMaxFile = std::uint64_t{64} << 20;

// Runs `work(i)` for every i below `count` on a few threads; the first exception is thrown on.
void each(std::size_t count, const std::function<void(std::size_t)>& work,
          const PreparedRuns::Progress& progress) {
  std::atomic<std::size_t> next{0};
  std::size_t done = 0;
  std::mutex mutex;
  std::exception_ptr failure;
  const auto loop = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        next = count;
      }
      if (progress) {
        const std::lock_guard lock(mutex);
        progress(++done, count);
      }
    }
  };
  std::vector<std::thread> threads;
  const unsigned others = std::clamp(std::thread::hardware_concurrency(), 1u, 8u) - 1;
  for (unsigned t = 0; t < others; ++t) threads.emplace_back(loop);
  loop();
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

// A model of one shape, built once.
struct SharedModel {
  Model model;
  std::vector<Segment> segments;
  ModelFacts facts;
  std::unique_ptr<SegmentLowering> lowering;  // Keeps tables: one thread at a time.
  std::mutex mutex;
};

using ModelKey = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                            std::int64_t, std::int64_t, std::int64_t, std::int64_t, bool, bool,
                            std::int64_t, int, std::string, bool>;

ModelKey key_of(const MeasuredRun& run) {
  const GptSizes& z = run.sizes;
  const ImportOptions& o = run.import;
  return {z.layers,
          z.hidden,
          z.heads,
          z.kv_heads,
          z.ffn,
          z.vocab,
          z.experts,
          z.top_k,
          z.expert_ffn,
          z.gated,
          z.tied,
          o.seq,
          static_cast<int>(o.dtype),
          o.attention,
          o.dropout};
}

// The engine's plan: like make_plan, but also with chunks that hold only the embedding or only the
// output layer.
Plan plan_of(const MeasuredRun& run, const SharedModel& shared) {
  const Degrees& d = run.degrees;
  Plan plan;
  plan.training = run.training;
  plan.degrees = d;
  plan.global_batch = run.import.global_batch;
  plan.micro_batches = plan.global_batch / (d.dp * d.micro_batch);
  plan.schedule = d.vpp > 1 ? "interleaved" : "1f1b";
  for (int s = 0; s < d.pp; ++s) {
    plan.stages.push_back(make_stage(d, shared.facts.all_kv_heads, s));
  }
  const auto& segments = shared.segments;
  const auto first_layer =
      std::find_if(segments.begin(), segments.end(), [](const Segment& s) { return s.is_layer; });
  int next = static_cast<int>(first_layer - segments.begin());
  int begin = 0;
  for (std::size_t c = 0; c < run.layers.size(); ++c) {
    next += run.layers[c];
    const int end = c + 1 == run.layers.size() ? static_cast<int>(segments.size()) : next;
    plan.chunks.push_back({static_cast<int>(c) % d.pp, begin, end});
    begin = end;
  }
  return plan;
}

struct PreparedRun {
  std::shared_ptr<const Cluster> cluster;
  Plan plan;
  Program program;
  int layer_program = -1;  // For runs of one layer alone.
};

Bytes measured_kind(const MemoryBreakdown& m, MemoryMeasure measure) {
  switch (measure) {
    case MemoryMeasure::kAllocated:
      return m.total() - m.context - m.fragmentation;
    case MemoryMeasure::kReserved:
      return m.total() - m.context;
    case MemoryMeasure::kDevice:
      break;
  }
  return m.total();
}

}  // namespace

struct PreparedRuns::Impl {
  std::vector<MeasuredRun> runs;
  std::vector<SkippedRow> skipped;
  std::vector<PreparedRun> prepared;
  std::vector<int> group;

  Prediction predict(std::size_t i, std::vector<Efficiency> efficiency) const;
};

PreparedRuns::PreparedRuns(MeasuredRuns measured, const Progress& progress)
    : impl_(std::make_unique<Impl>()) {
  impl_->skipped = std::move(measured.skipped);
  std::map<ModelKey, std::unique_ptr<SharedModel>> models;
  std::map<std::string, std::shared_ptr<const Cluster>> clusters;
  std::vector<SharedModel*> model_of;
  std::map<std::tuple<std::string, std::string, std::string, int, std::int64_t, std::int64_t>, int>
      groups;
  for (MeasuredRun& run : measured.runs) {
    std::string reason;
    SharedModel* shared = nullptr;
    std::shared_ptr<const Cluster> cluster;
    try {
      std::unique_ptr<SharedModel>& slot = models[key_of(run)];
      if (!slot) {
        slot = std::make_unique<SharedModel>();
        slot->model = gpt_model(run.sizes, run.import);
        slot->segments = find_segments(slot->model.graph);
        slot->facts = model_facts(slot->model.graph, slot->segments);
        slot->lowering = std::make_unique<SegmentLowering>(slot->model.graph, slot->segments);
      }
      shared = slot.get();
      std::shared_ptr<const Cluster>& known = clusters[run.cluster];
      if (!known) known = std::make_shared<Cluster>(read_cluster(run.cluster));
      cluster = known;
      for (const Violation& v : check_degrees(shared->facts, cluster->device_count(),
                                              run.import.global_batch, run.degrees)) {
        // Chunks without layers are legal here (plan_of).
        if (v.rule != "P13") reason = "not legal for the planner: " + v.rule;
      }
    } catch (const Error& e) {
      reason = "not built: " + e.message();
    }
    if (!reason.empty()) {
      impl_->skipped.push_back({run.place, run.source, reason});
      continue;
    }
    const auto [it, fresh] = groups.try_emplace(
        {run.source, run.model, run.gpu, run.gpus, run.import.global_batch, run.import.seq},
        static_cast<int>(groups.size()));
    impl_->group.push_back(it->second);
    impl_->prepared.push_back({std::move(cluster), {}, {}, -1});
    impl_->runs.push_back(std::move(run));
    model_of.push_back(shared);
  }
  each(
      impl_->runs.size(),
      [&](std::size_t i) {
        const MeasuredRun& run = impl_->runs[i];
        SharedModel& shared = *model_of[i];
        const std::lock_guard lock(shared.mutex);
        PreparedRun& p = impl_->prepared[i];
        p.plan = plan_of(run, shared);
        p.program = lower(p.plan, *shared.lowering, shared.segments);
        if (run.one_layer) {
          for (std::size_t s = 0; s < shared.segments.size(); ++s) {
            if (shared.segments[s].is_layer) p.layer_program = p.program.chunks[0].segments[s];
          }
        }
      },
      progress);
}

PreparedRuns::~PreparedRuns() = default;
PreparedRuns::PreparedRuns(PreparedRuns&&) noexcept = default;

const std::vector<MeasuredRun>& PreparedRuns::runs() const { return impl_->runs; }
const std::vector<SkippedRow>& PreparedRuns::skipped() const { return impl_->skipped; }
const std::vector<int>& PreparedRuns::group() const { return impl_->group; }

const std::string& PreparedRuns::architecture(std::size_t i) const {
  return impl_->prepared[i].cluster->kinds[0].architecture;
}

bool PreparedRuns::uses_link(std::size_t i, std::string_view link) const {
  const std::vector<Domain>& domains = impl_->prepared[i].cluster->domains;
  return std::any_of(domains.begin(), domains.end(),
                     [&](const Domain& d) { return d.parent >= 0 && d.link == link; });
}

Prediction PreparedRuns::Impl::predict(std::size_t i, std::vector<Efficiency> efficiency) const {
  const MeasuredRun& run = runs[i];
  const PreparedRun& p = prepared[i];
  Pricer pricer(*p.cluster, kAnalytic, std::move(efficiency));
  const Timeline timeline = simulate(p.program, p.plan, pricer);
  Prediction result;
  result.step = timeline.step;
  if (p.layer_program >= 0) {
    const Mesh& mesh = p.plan.stages[0].mesh;
    const SegmentProgram& layer = p.program.segments[static_cast<std::size_t>(p.layer_program)];
    result.step =
        pricer.block(layer.forward, mesh).serial + pricer.block(layer.backward, mesh).serial;
  }
  for (const MemoryBreakdown& m : timeline.memory) {
    if (m.total() > result.memory.total()) result.memory = m;
    const Bytes peak = measured_kind(m, run.measure);
    result.peak = run.peak_of_last_stage ? peak : std::max(result.peak, peak);
  }
  result.capacity = pricer.slowest_kind(p.plan.stages[0].mesh).memory;
  return result;
}

std::vector<Prediction> PreparedRuns::predict(const Json& efficiency, std::string_view engine,
                                              const std::vector<std::size_t>& which) const {
  // Numbers per (device kind, engine), read once.
  std::map<std::pair<std::string, std::string>, Efficiency> numbers;
  const auto engine_of = [&](const MeasuredRun& run) {
    return engine == "auto" ? run.engine : std::string(engine);
  };
  const std::size_t count = which.empty() ? impl_->runs.size() : which.size();
  const auto index = [&](std::size_t k) { return which.empty() ? k : which[k]; };
  for (std::size_t k = 0; k < count; ++k) {
    for (const DeviceKind& kind : impl_->prepared[index(k)].cluster->kinds) {
      const auto [it, fresh] = numbers.try_emplace({kind.name, engine_of(impl_->runs[index(k)])});
      if (fresh) it->second = efficiency_for(efficiency, kind, it->first.second);
    }
  }
  std::vector<Prediction> result(count);
  each(count,
       [&](std::size_t k) {
         std::vector<Efficiency> kinds;
         for (const DeviceKind& kind : impl_->prepared[index(k)].cluster->kinds) {
           kinds.push_back(numbers.at({kind.name, engine_of(impl_->runs[index(k)])}));
         }
         result[k] = impl_->predict(index(k), std::move(kinds));
       },
       {});
  return result;
}

int SourceReport::skipped_rows() const {
  int rows = 0;
  for (const auto& [reason, count] : skipped) rows += count;
  return rows;
}

ValidationReport compare(const PreparedRuns& prepared, const std::vector<Prediction>& predictions,
                         const std::vector<std::size_t>& which) {
  // What a plan may use of a device's memory, as the planner has it.
  const double kHeadroom = Restrictions{}.max_memory;
  struct Collected {
    std::vector<MeasuredPair> times, peaks;
    std::map<int, std::vector<GroupEntry>> groups;
  };
  std::map<std::string, SourceReport> reports;
  std::map<std::string, Collected> collected;
  ValidationReport report;
  for (std::size_t k = 0; k < predictions.size(); ++k) {
    const std::size_t i = which.empty() ? k : which[k];
    const MeasuredRun& run = prepared.runs()[i];
    const Prediction& p = predictions[k];
    SourceReport& source = reports[run.source];
    Collected& pairs = collected[run.source];
    ++source.used;
    if (run.step) {
      const MeasuredPair pair{run.step->value, p.step.value};
      pairs.times.push_back(pair);
      pairs.groups[prepared.group()[i]].push_back(
          {pair, p.memory.total() <= p.capacity * kHeadroom});
    }
    if (run.peak) pairs.peaks.push_back({run.peak->value, p.peak.value});
    source.confusion.add(run.out_of_memory, p.fits());
    report.rows.push_back({run.place, run.source, run.model, to_string(run.degrees), run.gpus,
                           run.step, run.peak, run.out_of_memory, p});
  }
  for (const SkippedRow& row : prepared.skipped()) {
    ++reports[row.source].skipped[row.reason];
    report.skipped.push_back(row);
  }
  int timed = 0, grouped = 0, weighed = 0, labelled = 0;
  for (auto& [name, source] : reports) {
    source.source = name;
    const Collected& pairs = collected[name];
    source.timed = static_cast<int>(pairs.times.size());
    source.mape = mean_absolute_error(pairs.times);
    source.median = median_error(pairs.times);
    for (const auto& [id, group] : pairs.groups) {
      if (group.size() < 2) continue;
      const RankCount ranks = count_ranks(pairs_of(group));
      source.ranks.agree += ranks.agree;
      source.ranks.differ += ranks.differ;
      const double r = regret(group);
      source.regret_mean += r;
      source.regret_max = std::max(source.regret_max, r);
      ++source.groups;
    }
    if (source.groups > 0) source.regret_mean /= source.groups;
    source.weighed = static_cast<int>(pairs.peaks.size());
    source.memory_mape = mean_absolute_error(pairs.peaks);
    source.memory_median = median_error(pairs.peaks);
    if (source.timed > 0) report.mape += source.mape, ++timed;
    if (source.groups > 0) {
      report.regret_mean += source.regret_mean;
      report.tau += source.ranks.tau();
      report.regret_max = std::max(report.regret_max, source.regret_max);
      ++grouped;
    }
    if (source.weighed > 0) report.memory_mape += source.memory_mape, ++weighed;
    if (source.confusion.has_both()) {
      report.balanced_accuracy += source.confusion.balanced_accuracy();
      ++labelled;
    }
    report.sources.push_back(source);
  }
  if (timed > 0) report.mape /= timed;
  if (grouped > 0) report.regret_mean /= grouped, report.tau /= grouped;
  if (weighed > 0) report.memory_mape /= weighed;
  if (labelled > 0) report.balanced_accuracy /= labelled;
  return report;
}

MeasuredRuns read_measured_files(const std::vector<std::filesystem::path>& files) {
  MeasuredRuns all;
  std::set<std::string> seen;
  for (const std::filesystem::path& file : files) {
    MeasuredRuns some = read_measured_runs(read_file(file, kMaxFile), file.filename().string());
    // Tables that are extracts of others repeat rows; inside one table a repeated row is a second
    // measurement.
    std::vector<std::string> added;
    for (MeasuredRun& run : some.runs) {
      std::string key = fmt::format(
          "{}|{}|{}|{}|{}|{}|{}|{}|{}|{}", run.source, run.model, run.cluster, run.import.seq,
          run.import.global_batch, to_string(run.degrees), run.import.attention,
          run.step ? run.step->value : 0, run.peak ? run.peak->value : 0, run.out_of_memory);
      if (seen.contains(key)) {
        all.skipped.push_back({run.place, run.source, "in an earlier table too"});
        continue;
      }
      added.push_back(std::move(key));
      all.runs.push_back(std::move(run));
    }
    seen.insert(added.begin(), added.end());
    all.skipped.insert(all.skipped.end(), some.skipped.begin(), some.skipped.end());
  }
  return all;
}

ValidationReport validate(const std::vector<std::filesystem::path>& files, std::string_view engine,
                          const PreparedRuns::Progress& progress) {
  const PreparedRuns prepared(read_measured_files(files), progress);
  return compare(prepared, prepared.predict(shipped_efficiency(), engine));
}

}  // namespace meshwright
