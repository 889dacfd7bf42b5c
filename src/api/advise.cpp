#include "api/advise.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>

#include "base/error.h"
#include "base/format.h"
#include "report/plan_report.h"
#include "search/judge.h"
#include "search/layout_search.h"

namespace meshwright {
namespace {

constexpr int kMaxDevices = 1 << 17;

// Ctrl-C, or the time that advice may take.
class Patience {
 public:
  explicit Patience(const SearchControl& control)
      : stop_(control.stop),
        limit_(control.time_limit_seconds > 0 ? control.time_limit_seconds : kSeconds),
        start_(std::chrono::steady_clock::now()) {}

  double left() const {
    if (stop_ != nullptr && stop_->load()) return 0;
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
    return std::max(limit_ - elapsed.count(), 0.0);
  }
  bool over() const { return left() <= 0; }
  const std::atomic<bool>* stop() const { return stop_; }

 private:
  static constexpr double kSeconds = 20;
  const std::atomic<bool>* stop_;
  double limit_;
  std::chrono::steady_clock::time_point start_;
};

// The first plan that fits, or nothing.
std::optional<Judged> first_fit(const Problem& problem, const Patience& patience) {
  SearchControl quick;
  quick.top = 1;
  quick.stop = patience.stop();
  quick.time_limit_seconds = std::clamp(patience.left(), 0.01, 3.0);
  const SearchResult r = search_layouts(problem, quick);
  if (r.ranking.empty() || !r.ranking[0].fits) return std::nullopt;
  return r.ranking[0];
}

// Smallest number of hosts (or devices of the only host) on which something fits.
std::string smallest_that_fits(const Loaded& loaded, const Patience& patience) {
  const Cluster& cluster = loaded.cluster;
  if (!cluster.homogeneous()) return "";
  const int per_host =
      cluster.device_count() / std::max<int>(static_cast<int>(cluster.hosts.size()), 1);
  const auto fits = [&](int hosts) {
    const Cluster larger = with_hosts(cluster, hosts);
    Problem problem{
        loaded.model.graph,      loaded.segments,           larger,
        loaded.request.training, loaded.model.global_batch, loaded.request.cost_model,
        loaded.request.engine,   loaded.request.objective,  loaded.request.restrictions};
    problem.profile = loaded.profile;
    problem.restrictions.devices = 0;
    return first_fit(problem, patience);
  };
  int low = static_cast<int>(cluster.hosts.size());  // Known not to fit.
  int high = low;
  std::optional<Judged> best;
  while (!best && high * 2 * per_host <= kMaxDevices && high < low * 64 && !patience.over()) {
    high *= 2;
    best = fits(high);
    if (!best) low = high;
  }
  if (!best && patience.over()) {
    return fmt::format("more than {} of these devices (time ran out before the number was found)",
                       low * per_host);
  }
  if (!best) {
    return fmt::format("no number of these devices up to {} fits", high * per_host);
  }
  while (high - low > 1 && !patience.over()) {
    const int middle = (low + high) / 2;
    if (const auto found = fits(middle))
      best = found, high = middle;
    else
      low = middle;
  }
  return fmt::format("{} of these devices ({} hosts) fit it: {}", high * per_host, high,
                     to_string(best->plan.degrees));
}

}  // namespace

Cluster with_hosts(const Cluster& cluster, int hosts) {
  const int per_host = cluster.device_count() / static_cast<int>(cluster.hosts.size());
  Cluster result;
  result.name = fmt::format("{} hosts of {}", hosts, cluster.name);
  result.kinds = cluster.kinds;
  result.host_memory = cluster.host_memory;
  result.domains.push_back({.name = "room", .level = "room", .device_count = hosts * per_host});
  // The subtree of the first host: every domain that holds only its devices.
  std::vector<int> subtree;
  for (std::size_t i = 1; i < cluster.domains.size(); ++i) {
    const Domain& d = cluster.domains[i];
    if (d.first_device + d.device_count <= per_host) subtree.push_back(static_cast<int>(i));
  }
  const bool one_host = cluster.hosts.size() == 1;
  result.device_domain.resize(static_cast<std::size_t>(hosts * per_host));
  for (int h = 0; h < hosts; ++h) {
    result.hosts.push_back(fmt::format("host{}", h));
    int host_domain = 0;
    if (one_host) {
      // A single host has no uplink of its own in the tree; assume the device link.
      const Domain& device = cluster.domains[static_cast<std::size_t>(cluster.device_domain[0])];
      host_domain = static_cast<int>(result.domains.size());
      result.domains.push_back({.name = result.hosts.back(),
                                .level = "host",
                                .link = device.link,
                                .parent = 0,
                                .first_device = h * per_host,
                                .device_count = per_host,
                                .uplink = device.uplink,
                                .latency = Seconds(5e-6)});
    }
    std::vector<int> moved(cluster.domains.size(), host_domain);
    for (int i : subtree) {
      Domain d = cluster.domains[static_cast<std::size_t>(i)];
      d.name = fmt::format("{}.{}", d.name, h);
      const bool top = std::find(subtree.begin(), subtree.end(), d.parent) == subtree.end();
      d.parent = top ? host_domain : moved[static_cast<std::size_t>(d.parent)];
      d.first_device += h * per_host;
      moved[static_cast<std::size_t>(i)] = static_cast<int>(result.domains.size());
      result.domains.push_back(std::move(d));
    }
    for (int k = 0; k < per_host; ++k) {
      result.device_kind.push_back(cluster.device_kind[static_cast<std::size_t>(k)]);
      result.device_host.push_back(h);
      result.device_domain[static_cast<std::size_t>(h * per_host + k)] =
          moved[static_cast<std::size_t>(cluster.device_domain[static_cast<std::size_t>(k)])];
    }
  }
  return result;
}

std::string advise(const Loaded& loaded, const SearchResult& result, const SearchControl& control) {
  const Patience patience(control);
  const Problem problem = loaded.problem();
  const Judged& closest = result.ranking[0];
  const auto stage = static_cast<std::size_t>(closest.fullest_stage);
  const MemoryBreakdown& memory = closest.timeline.memory[stage];
  const Bytes usable = usable_memory(problem, closest.plan.stages[stage]);
  std::string text = fmt::format(
      "Nothing fits: of {} legal layouts none stays within {} per device ({:.0f} % of its "
      "memory).\n"
      "closest  {}: stage {} needs {}; the largest part is {}\n\n",
      result.legal, format_bytes(usable), 100 * problem.restrictions.max_memory,
      to_string(closest.plan.degrees), stage, format_bytes(memory.total()),
      largest_memory_term(memory));
  text += memory_table(problem, closest) + "\nwhat would fit:\n";

  // Lift one restriction at a time.
  struct Relaxation {
    std::string_view what;
    std::function<bool(Restrictions&)> apply;  // False: not restricted.
  };
  const auto lift = [](Allowed Restrictions::* field) {
    return [field](Restrictions& r) {
      const bool restricted = (r.*field).min > 1 || (r.*field).max < (std::int64_t{1} << 40);
      r.*field = {};
      return restricted;
    };
  };
  const Relaxation relaxations[] = {
      {"recomputation allowed",
       [](Restrictions& r) {
         const bool restricted = !r.recompute.empty();
         r.recompute.clear();
         return restricted;
       }},
      {"any state sharding",
       [](Restrictions& r) {
         const bool restricted = !r.state.empty();
         r.state.clear();
         return restricted;
       }},
      {"another micro-batch", lift(&Restrictions::micro_batch)},
      {"another pp", lift(&Restrictions::pp)},
      {"another tp", lift(&Restrictions::tp)},
      {"another dp", lift(&Restrictions::dp)},
      {"another cp", lift(&Restrictions::cp)},
      {"another ep", lift(&Restrictions::ep)},
      {"98 % of device memory",
       [](Restrictions& r) {
         const bool restricted = r.max_memory < 0.98;
         r.max_memory = 0.98;
         return restricted;
       }},
  };
  bool any = false;
  for (const Relaxation& relaxation : relaxations) {
    if (patience.over()) return text + "  (stopped here)\n";
    Problem relaxed = loaded.problem();
    if (!relaxation.apply(relaxed.restrictions)) continue;
    if (const auto found = first_fit(relaxed, patience)) {
      text += fmt::format("  {}: {} ({} per step)\n", relaxation.what,
                          to_string(found->plan.degrees), format_seconds(found->step()));
      any = true;
    }
  }
  if (std::string hosts = smallest_that_fits(loaded, patience); !hosts.empty())
    text += "  " + hosts + "\n";
  // Shorter sequences, by halves.
  for (std::int64_t seq = loaded.model.seq / 2; seq >= 128 && !patience.over(); seq /= 2) {
    Request request = loaded.request;
    request.import.seq = seq;
    try {
      const Loaded shorter = load(request);
      if (first_fit(shorter.problem(), patience)) {
        text += fmt::format("  sequences of {} instead of {} tokens\n", seq, loaded.model.seq);
        any = true;
        break;
      }
    } catch (const Error&) {
      break;
    }
  }
  if (!any)
    text +=
        "  on these devices no single change of recomputation, state sharding or sequence length "
        "is enough\n";
  return text;
}

std::string explain_illegal(const Problem& problem, const Restrictions& r) {
  const ModelFacts facts = model_facts(problem.graph, problem.segments);
  const int devices = r.devices != 0 ? r.devices : problem.cluster.device_count();
  // The pinned values, everything else at 1, with dp taking the rest.
  Degrees d;
  const auto take = [](const Allowed& a) {
    return static_cast<int>(std::min<std::int64_t>(a.min, 1 << 24));
  };
  d.pp = take(r.pp);
  d.tp = take(r.tp);
  d.cp = take(r.cp);
  d.ep = take(r.ep);
  d.etp = take(r.etp);
  d.vpp = take(r.vpp);
  d.sp = d.tp > 1 && r.sp.value_or(true);
  d.micro_batch = r.micro_batch.min;
  const std::int64_t rest = std::int64_t{d.pp} * d.tp * d.cp;
  d.dp = r.dp.min > 1 || rest > devices
             ? take(r.dp)
             : static_cast<int>(std::max<std::int64_t>(devices / rest, 1));
  std::string text;
  if (devices % rest != 0 && rest <= devices) {
    text += fmt::format("pp*tp*cp = {} does not divide the {} devices; ", rest, devices);
  }
  if (r.dp.pinned() && rest * d.dp != devices) {
    text += fmt::format(
        "pp*tp*cp*dp = {} is not the {} devices of the cluster (--devices uses fewer); ",
        rest * d.dp, devices);
  }
  for (const Violation& v : check_degrees(facts, devices, problem.global_batch, d,
                                          problem.restrictions.schedule.value_or(""))) {
    text += v.hint.empty() ? v.message + "; " : fmt::format("{} ({}); ", v.message, v.hint);
  }
  if (text.empty()) text = "no combination of the allowed degrees obeys every rule; ";
  text.resize(text.size() - 2);
  return text;
}

}  // namespace meshwright
