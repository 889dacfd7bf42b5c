// Exhaustive search over degrees with a pipeline cut inside.
//
// Idea: all layers of one kind cost the same under one layout, so each class of segments is lowered
// and priced once per (tp, cp, ep, etp, micro-batch, recompute, state sharding); every pipeline
// depth and number of virtual stages is then an exact chain cut (pipeline_cut.h) over these numbers
// and a closed formula for the step time. Layouts whose compute alone exceeds the best estimate are
// pruned; the best few by estimate are lowered and simulated by the shared judge, which alone
// decides. (Calculon, Isaev et al. 2023, searches the same space exhaustively for uniform cuts.)
// Complexity: layouts * (classes + segments * log(precision)). Loses on models with many different
// layers and on strategies that no role assignment expresses.
#include "search/layout_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/format.h"
#include "plan/schedule.h"
#include "search/judge.h"
#include "search/layout_estimate.h"
#include "search/round_plan.h"
#include "search/round_search.h"

namespace meshwright {
namespace {

// Layouts that cannot come within this factor of the best are not priced in full.
constexpr double kWorthPricing = 1.25;

// The best few layouts are tried in both orders of ranks.
constexpr std::size_t kOrdersTried = 8;

// When a search may stop before it has seen everything.
enum class Enough { kAll, kLegal, kFitting };

class LayoutSearch {
 public:
  LayoutSearch(const Problem& problem, const SearchControl& control, Enough enough = Enough::kAll)
      : problem_(problem),
        control_(control),
        enough_(enough),
        estimator_(problem),
        facts_(estimator_.facts()),
        ruled_(problem.space &&
               std::any_of(problem.space->space.rules.begin(), problem.space->space.rules.end(),
                           [](const SpaceRule& r) { return r.limits_splits(); })),
        start_(std::chrono::steady_clock::now()) {}

  SearchResult run();
  /// Whether what is enough was found, or time ran out.
  bool any();

 private:
  void enumerate(int devices);
  void visit(Degrees d);
  bool promising(Degrees d, const std::vector<StateSharding>& states,
                 const std::vector<Recompute>& recomputes);
  void consider(const Degrees& d);
  bool out_of_time();
  void report();
  void select(SearchResult& result);
  std::vector<std::int64_t> micro_batches(int dp) const;
  // Empty = what the degrees imply.
  std::string_view schedule() const {
    const auto& wanted = problem_.restrictions.schedule;
    return wanted ? std::string_view(*wanted) : std::string_view();
  }

  const Problem& problem_;
  const SearchControl& control_;
  const Enough enough_;
  LayoutEstimator estimator_;
  const ModelFacts& facts_;
  // Rules about splits may leave only what would be left out as never the best.
  const bool ruled_;
  std::chrono::steady_clock::time_point start_;
  std::vector<Estimate> fitting_;
  std::vector<Estimate> overflowing_;  // The closest to fitting.
  double best_ = std::numeric_limits<double>::infinity();
  std::string best_layout_;
  double lower_bound_ = std::numeric_limits<double>::infinity();
  std::int64_t legal_ = 0;
  std::map<std::string, std::int64_t> forbidden_;
  std::int64_t visited_ = 0;
  bool interrupted_ = false;
};

bool LayoutSearch::out_of_time() {
  if (interrupted_) return true;
  if (control_.stop != nullptr && control_.stop->load()) interrupted_ = true;
  if (control_.time_limit_seconds > 0) {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
    if (elapsed.count() > control_.time_limit_seconds) interrupted_ = true;
  }
  return interrupted_;
}

void LayoutSearch::report() {
  if (control_.progress && visited_ % 512 == 0) {
    control_.progress({visited_, 0, Seconds(std::isfinite(best_) ? best_ : 0), best_layout_});
  }
}

std::vector<std::int64_t> LayoutSearch::micro_batches(int dp) const {
  const Allowed& allowed = problem_.restrictions.micro_batch;
  std::vector<std::int64_t> sizes;
  if (problem_.global_batch % dp != 0) return sizes;
  for (std::int64_t d : divisors(problem_.global_batch / dp)) {
    if (!allowed.contains(d)) continue;
    // Above 128 samples kernels are as efficient as they get, and memory only grows.
    if (d > 128 && !allowed.listed()) break;
    sizes.push_back(d);
  }
  return sizes;
}

void LayoutSearch::consider(const Degrees& d) {
  ++visited_;
  report();
  if (!degrees_legal(facts_, problem_.cluster.device_count(), problem_.global_batch, d, schedule()))
    return;
  if (const std::string_view rule = estimator_.broken_rule(d); !rule.empty()) {
    ++forbidden_[std::string(rule)];
    return;
  }
  ++legal_;
  if (enough_ == Enough::kLegal) {
    // Every pin must leave a cut.
    if (std::isfinite(estimator_.estimate(d).overflow)) interrupted_ = true;
    return;
  }
  Estimate e = estimator_.bound(d);
  if (e.overflow <= 0) lower_bound_ = std::min(lower_bound_, e.seconds);
  const bool for_memory = problem_.objective == Objective::kMemory;
  if (!for_memory && e.seconds > kWorthPricing * best_) return;
  const double least_memory = e.overflow;
  if (e.overflow <= 0) e = estimator_.estimate(d);
  e.least_memory = least_memory;
  if (!std::isfinite(e.overflow)) return;
  if (e.overflow <= 0) {
    if (e.seconds < best_) {
      best_ = e.seconds;
      best_layout_ = to_string(d);
    }
    fitting_.push_back(std::move(e));
    if (enough_ == Enough::kFitting) interrupted_ = true;
  } else if (fitting_.empty()) {
    overflowing_.push_back(std::move(e));
    if (overflowing_.size() > 4096) {
      std::nth_element(overflowing_.begin(), overflowing_.begin() + 64, overflowing_.end(),
                       [](const auto& a, const auto& b) { return a.overflow < b.overflow; });
      overflowing_.resize(64);
    }
  }
}

// Whether a mesh shape can still matter: experts multiply the shapes, so each is first tried with
// the least memory (smallest micro-batch, most recomputation and sharding) and the least time (no
// recomputation).
bool LayoutSearch::promising(Degrees d, const std::vector<StateSharding>& states,
                             const std::vector<Recompute>& recomputes) {
  const std::vector<std::int64_t> sizes = micro_batches(d.dp);
  if (sizes.empty()) return false;
  d.zero = states.back();
  d.micro_batch = sizes.front();
  d.recompute = recomputes.back();
  if (!degrees_legal(facts_, problem_.cluster.device_count(), problem_.global_batch, d))
    return false;
  if (!estimator_.broken_rule(d).empty()) return true;  // `consider` counts it.
  if (estimator_.bound(d).overflow > 0 && !fitting_.empty()) return false;
  d.recompute = recomputes.front();
  d.zero = states.front();
  double fastest = std::numeric_limits<double>::infinity();
  for (std::int64_t mbs : sizes) {
    if (mbs > 4 && mbs != sizes.front()) break;
    d.micro_batch = mbs;
    fastest = std::min(fastest, estimator_.bound(d).seconds);
  }
  return fastest < kWorthPricing * 1.2 * best_;
}

// Completes degrees whose mesh shape is fixed: micro-batch, recompute, state, virtual stages, rank
// order.
void LayoutSearch::visit(Degrees d) {
  const Restrictions& r = problem_.restrictions;
  const auto states = [&] {
    if (!r.state.empty()) return r.state;
    if (d.dp * d.cp == 1) return std::vector{StateSharding::kNone};
    std::vector<StateSharding> list;
    if (ruled_ || enough_ != Enough::kAll) list.push_back(StateSharding::kNone);
    list.insert(list.end(), {StateSharding::kZero1, StateSharding::kZero3});
    return list;
  }();
  const auto recomputes =
      r.recompute.empty() ? std::vector{Recompute::kNone, Recompute::kSelective, Recompute::kFull}
                          : r.recompute;
  if (facts_.experts > 0 && problem_.objective != Objective::kMemory &&
      !promising(d, states, recomputes))
    return;
  const int host = static_cast<int>(problem_.cluster.device_count() /
                                    std::max<std::size_t>(problem_.cluster.hosts.size(), 1));
  for (std::int64_t mbs : micro_batches(d.dp)) {
    d.micro_batch = mbs;
    const std::int64_t m = problem_.global_batch / (d.dp * mbs);
    for (StateSharding state : states) {
      d.zero = state;
      // Hybrid: one copy of the state per host.
      std::vector<int> groups = {0};
      const int inside = host / (d.tp > 0 ? d.tp : 1);
      if (state == StateSharding::kZero3 && inside > 1 && inside < d.dp * d.cp &&
          d.dp * d.cp % inside == 0 && inside % d.cp == 0) {
        groups.push_back(inside);
      }
      if (r.hybrid == true) groups.erase(groups.begin());
      if (r.hybrid == false) groups.resize(1);
      for (int group : groups) {
        d.zero_group = group;
        for (Recompute recompute : recomputes) {
          d.recompute = recompute;
          for (int vpp = 1; vpp <= (d.pp == 1 ? 1 : 16); ++vpp) {
            if (!r.vpp.contains(vpp)) continue;
            if (d.pp * vpp > std::max(facts_.layers, 1)) break;
            const bool interleaved = !r.schedule || *r.schedule == kInterleaved.name;
            if (vpp > 1 && interleaved && (m % d.pp != 0 || m <= 1)) break;
            d.vpp = vpp;
            consider(d);
          }
          d.vpp = 1;
        }
      }
    }
    if (out_of_time()) return;
  }
}

void LayoutSearch::enumerate(int devices) {
  const Restrictions& r = problem_.restrictions;
  const auto fast_domain = [&] {
    // Tensor parallelism beyond twice the fastest domain never pays; leave it out unless asked for.
    const Cluster& c = problem_.cluster;
    const int leaf = c.device_domain[0];
    const int parent = c.domains[static_cast<std::size_t>(leaf)].parent;
    return parent < 0 ? 1 : std::max(c.domains[static_cast<std::size_t>(parent)].device_count, 1);
  }();
  for (std::int64_t tp : divisors(devices)) {
    if (!r.tp.contains(tp) || (tp > 2 * std::max(fast_domain, 8) && !r.tp.listed())) continue;
    if (facts_.heads > 0 && facts_.heads % tp != 0) continue;
    for (std::int64_t cp : divisors(devices / tp)) {
      if (!r.cp.contains(cp)) continue;
      // Fewer than 512 positions per device leave attention nothing to hide the ring behind; leave
      // them out unless asked for.
      if (cp > 1 && r.cp.contains(1) && !r.cp.listed() && !ruled_ && facts_.seq / cp < 512) break;
      for (std::int64_t pp : divisors(devices / (tp * cp))) {
        if (!r.pp.contains(pp) || pp > std::max(facts_.layers, 1)) continue;
        const std::int64_t dp = devices / (tp * cp * pp);
        if (!r.dp.contains(dp) || problem_.global_batch % dp != 0) continue;
        Degrees d;
        d.tp = static_cast<int>(tp);
        d.cp = static_cast<int>(cp);
        d.pp = static_cast<int>(pp);
        d.dp = static_cast<int>(dp);
        d.sp = tp > 1 && r.sp.value_or(true);
        if (facts_.experts == 0) {
          if (r.ep.contains(1) && r.etp.contains(1)) visit(d);
          if (out_of_time()) return;
          continue;
        }
        for (std::int64_t ep : divisors(facts_.experts)) {
          if (!r.ep.contains(ep) || (tp * cp * dp) % ep != 0) continue;
          for (std::int64_t etp : divisors(tp)) {
            if (!r.etp.contains(etp)) continue;
            // Either experts are split like the dense part or not at all; in between only when
            // asked.
            if (etp != 1 && etp != tp && !r.etp.listed()) continue;
            d.ep = static_cast<int>(ep);
            d.etp = static_cast<int>(etp);
            visit(d);
            if (out_of_time()) return;
          }
        }
      }
    }
  }
}

void LayoutSearch::select(SearchResult& result) {
  const bool fits = !fitting_.empty();
  std::vector<Estimate>& pool = fits ? fitting_ : overflowing_;
  const auto better = [&](const Estimate& a, const Estimate& b) {
    const bool for_memory = problem_.objective == Objective::kMemory;
    const double x = !fits ? a.overflow : for_memory ? a.least_memory : a.seconds;
    const double y = !fits ? b.overflow : for_memory ? b.least_memory : b.seconds;
    if (x != y) return x < y;
    return to_string(a.degrees) < to_string(b.degrees);
  };
  // Simulate the best few. Keep some variety: at most a few per (pp, tp, cp), so that runners-up
  // differ.
  std::sort(pool.begin(), pool.end(), better);
  std::map<std::vector<int>, int> per_shape;
  const std::size_t wanted = static_cast<std::size_t>(std::max(control_.top * 4, 24));
  std::vector<Judged> judged;
  double slowest_of_interest = std::numeric_limits<double>::infinity();
  std::optional<Error> refused;
  std::size_t enough = 0;  // Judged plans of the kind that is wanted.
  for (Estimate& e : pool) {
    if (enough >= wanted || result.simulated >= 500 || (interrupted_ && enough >= 1)) break;
    const bool cut_missing = static_cast<int>(e.cuts.size()) != e.degrees.pp * e.degrees.vpp - 1;
    if (cut_missing || e.degrees.vpp > 1) e = estimator_.estimate(e.degrees, /*balance=*/true);
    if (!std::isfinite(e.overflow)) continue;
    if (++per_shape[{e.degrees.pp, e.degrees.tp, e.degrees.cp, e.degrees.ep}] > 4) continue;
    if (fits && problem_.objective != Objective::kMemory && e.seconds > slowest_of_interest) break;
    Plan plan = plan_of(problem_, e.degrees, e.cuts);
    // A plan may be unlike any that can run: stages that share a parameter and hold it differently.
    try {
      judged.push_back(judge(problem_, std::move(plan)));
    } catch (const Error& error) {
      if (!refused) refused = error;
      continue;
    }
    ++result.simulated;
    enough += !fits || judged.back().fits;
    if (fits && judged.back().fits)
      slowest_of_interest = std::min(slowest_of_interest, e.seconds * 2);
    // The other order of ranks: pipeline neighbours closer than replicas. It matters only between
    // hosts.
    if (fits && enough <= kOrdersTried && e.degrees.pp > 1 && e.degrees.dp > 1 &&
        problem_.cluster.hosts.size() > 1) {
      Degrees other = e.degrees;
      other.pp_inside_dp = !other.pp_inside_dp;
      Plan turned = plan_of(problem_, other, e.cuts);
      judged.push_back(judge(problem_, std::move(turned)));
      ++result.simulated;
    }
  }
  if (judged.empty() && refused) throw *refused;
  rank(problem_, judged, control_.top);
  // What the estimate took for too large may fit when judged.
  const auto fitting = std::ranges::count_if(judged, [](const Judged& j) { return j.fits; });
  result.fitting = std::max<std::int64_t>(result.fitting, fitting);
  result.ranking = std::move(judged);
}

bool LayoutSearch::any() {
  const int all = problem_.cluster.device_count();
  const int wanted = problem_.restrictions.devices;
  for (int devices = wanted == 0 ? all : wanted; devices >= 1 && !interrupted_; --devices) {
    enumerate(devices);
    if (wanted != 0) break;
  }
  return interrupted_;
}

SearchResult LayoutSearch::run() {
  SearchResult result;
  const int all = problem_.cluster.device_count();
  int devices = problem_.restrictions.devices == 0 ? all : problem_.restrictions.devices;
  for (; devices >= 1 && legal_ == 0 && !interrupted_; --devices) {
    enumerate(devices);
    if (legal_ > 0 && devices < all && problem_.restrictions.devices == 0) {
      result.note =
          fmt::format("{} of {} devices are used: no legal layout uses more", devices, all);
    }
    if (problem_.restrictions.devices != 0) break;
  }
  result.legal = legal_;
  result.forbidden.assign(forbidden_.begin(), forbidden_.end());
  if (std::isfinite(lower_bound_)) result.lower_bound = Seconds(lower_bound_);
  result.fitting = static_cast<std::int64_t>(fitting_.size());
  select(result);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
  result.elapsed_seconds = elapsed.count();
  result.status = status_of(result.ranking, interrupted_);
  return result;
}

}  // namespace

Plan plan_of(const Problem& problem, const Degrees& degrees, const std::vector<int>& cuts) {
  Plan plan =
      make_plan(problem.graph, problem.segments, problem.cluster, problem.training,
                problem.global_batch, degrees, cuts, problem.restrictions.schedule.value_or(""));
  if (problem.space) {
    plan.overrides = problem.space->overrides;
    plan.order = orders_of(problem.space->order, plan, problem.graph, problem.segments);
  }
  return plan;
}

Judged judge_degrees(const Problem& problem, const Degrees& degrees) {
  LayoutEstimator search(problem);
  const std::string schedule = problem.restrictions.schedule.value_or("");
  const auto violations = check_degrees(search.facts(), problem.cluster.device_count(),
                                        problem.global_batch, degrees, schedule);
  if (!violations.empty())
    throw Error(violations[0].message, violations[0].rule, violations[0].hint);
  const Estimate e = search.estimate(degrees, /*balance=*/true);
  if (!std::isfinite(e.overflow)) {
    throw Error(fmt::format("{} layers cannot be cut into {} chunks", search.facts().layers,
                            degrees.pp * degrees.vpp));
  }
  return judge(problem, plan_of(problem, degrees, e.cuts));
}

namespace {

bool rounds(const Problem& problem) {
  const auto& schedule = problem.restrictions.schedule;
  if (!schedule || !made_of_rounds(find_schedule(*schedule))) return false;
  if (!problem.space) return true;
  for (const SpaceRule& r : problem.space->space.rules) {
    if (!r.limits_splits() && !r.recompute) continue;
    throw Error(fmt::format("rule {}: how operators are split and recomputed follows from the "
                            "degrees under {}",
                            r.name, *schedule),
                r.place, "leave it out, or use another schedule");
  }
  return true;
}

// One problem per schedule that the space allows.
std::vector<Problem> by_schedule(const Problem& problem) {
  if (!problem.space || problem.space->schedules.empty()) return {problem};
  std::vector<Problem> problems;
  for (const std::string& name : problem.space->schedules) {
    if (problem.restrictions.schedule && *problem.restrictions.schedule != name) continue;
    Problem part = problem;
    part.restrictions.schedule = name;
    const Schedule& schedule = find_schedule(name);
    Allowed& vpp = part.restrictions.vpp;
    vpp.min = std::max<std::int64_t>(vpp.min, schedule.vpp_min);
    // Where chunks follow from the model's rounds there is nothing to choose.
    if (schedule.vpp_max > 0) vpp.max = std::min<std::int64_t>(vpp.max, schedule.vpp_max);
    if (vpp.min <= vpp.max) problems.push_back(std::move(part));
  }
  return problems;
}

}  // namespace

SearchResult search_layouts(const Problem& problem, const SearchControl& control) {
  if (problem.space && !problem.space->contradictions.empty()) return {};
  SearchResult result;
  std::map<std::string, std::int64_t> forbidden;
  for (const Problem& part : by_schedule(problem)) {
    SearchResult r =
        rounds(part) ? search_rounds(part, control) : LayoutSearch(part, control).run();
    for (const auto& [rule, count] : r.forbidden) forbidden[rule] += count;
    const bool better =
        result.ranking.empty() ||
        (!r.ranking.empty() && ranks_before(problem, r.ranking[0], result.ranking[0]));
    if (better) {
      result.status = r.status;
      result.note = r.note;
    }
    if (r.lower_bound.value > 0 &&
        (result.lower_bound.value == 0 || r.lower_bound < result.lower_bound)) {
      result.lower_bound = r.lower_bound;
    }
    result.legal += r.legal;
    result.fitting += r.fitting;
    result.simulated += r.simulated;
    result.elapsed_seconds += r.elapsed_seconds;
    std::move(r.ranking.begin(), r.ranking.end(), std::back_inserter(result.ranking));
  }
  rank(problem, result.ranking, control.top);
  result.forbidden.assign(forbidden.begin(), forbidden.end());
  if (problem.space && !result.ranking.empty()) {
    for (const SpaceOrder& order : problem.space->space.order) {
      const Plan& best = result.ranking[0].plan;
      if (!orders_of({order.rule}, best, problem.graph, problem.segments).empty()) continue;
      result.note +=
          fmt::format("{}order {} says nothing about the best plan, which lacks such passes",
                      result.note.empty() ? "" : "; ", order.name);
    }
  }
  return result;
}

bool any_layout(const Problem& problem, bool fitting, double time_limit_seconds) {
  if (problem.space && !problem.space->contradictions.empty()) return false;
  SearchControl control;
  control.time_limit_seconds = time_limit_seconds;
  const std::vector<Problem> parts = by_schedule(problem);
  return std::any_of(parts.begin(), parts.end(), [&](const Problem& part) {
    if (rounds(part)) {
      const SearchResult r = search_rounds(part, control);
      return !r.ranking.empty() && (!fitting || r.ranking[0].fits);
    }
    return LayoutSearch(part, control, fitting ? Enough::kFitting : Enough::kLegal).any();
  });
}

}  // namespace meshwright
