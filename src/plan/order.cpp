// Order rules over a schedule. Passes, what they need of one another and the rules make a graph; a
// topological order of it that takes, of the passes that may run next, the one that started first
// under the schedule (replayed in units of time) changes nothing when no rule asks for it. A rule
// over all micro-batches passes through a node of its own. Linear but for the queue; circles are
// looked for from the rules, since without them there is none.
#include "plan/order.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <queue>

#include "base/error.h"

namespace meshwright {
namespace {

// Circles are looked for from this many passes of rules at most, and in this many nodes.
constexpr std::size_t kMaxSearches = 256;
constexpr std::size_t kMaxSearchedNodes = std::size_t{1} << 28;

// Rules times micro-batches.
constexpr std::int64_t kMaxRuledPasses = std::int64_t{1} << 22;

std::string place(std::size_t rule) { return fmt::format("order/{}", rule); }

class RuledOrder {
 public:
  RuledOrder(const std::vector<OrderRule>& rules, Program& program)
      : rules_(rules),
        program_(program),
        covered_(lanes_of_stages(program.lanes)),
        chunks_(program.chunks.size()),
        micro_(static_cast<std::size_t>(program.micro_batches)),
        exists_(3 * chunks_ * micro_, 0) {}

  void run();

 private:
  std::size_t node(Phase phase, int chunk, int micro_batch) const {
    return (static_cast<std::size_t>(phase) * chunks_ + static_cast<std::size_t>(chunk)) * micro_ +
           static_cast<std::size_t>(micro_batch);
  }
  ScheduleItem pass(std::size_t node) const {
    return {static_cast<Phase>(node / micro_ / chunks_), static_cast<int>(node / micro_ % chunks_),
            static_cast<int>(node % micro_)};
  }
  bool is_node_of_rule(std::size_t n) const { return n >= exists_.size(); }
  void edge(std::size_t from, std::size_t to) {
    if (!is_node_of_rule(from) && exists_[from] == 0) return;
    if (!is_node_of_rule(to) && exists_[to] == 0) return;
    edges_.emplace_back(static_cast<std::uint32_t>(from), static_cast<std::uint32_t>(to));
  }
  void rank_passes();
  void add_needs();
  void add_rules();
  void index_edges();
  std::vector<std::size_t> sorted();
  [[noreturn]] void fail(const std::vector<int>& blocked);

  const std::vector<OrderRule>& rules_;
  Program& program_;
  const std::vector<std::vector<int>> covered_;
  const std::size_t chunks_;
  const std::size_t micro_;
  std::vector<char> exists_;
  std::vector<std::int32_t> rank_;  // Per node: when it started; those of rules at once.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> edges_;
  std::vector<std::size_t> first_;  // Of a node's edges, sorted.
  std::size_t nodes_ = 0;
  std::vector<std::size_t> starts_;  // Where a circle may go through: later ends of rules.
  std::vector<std::size_t> rule_of_start_;
};

void RuledOrder::rank_passes() {
  const auto starts = unit_starts(program_);
  rank_.assign(exists_.size() + rules_.size(), -1);
  nodes_ = rank_.size();
  for (std::size_t l = 0; l < program_.lanes.size(); ++l) {
    const auto& order = program_.lanes[l].order;
    for (std::size_t k = 0; k < order.size(); ++k) {
      const std::size_t n = node(order[k].phase, order[k].chunk, order[k].micro_batch);
      exists_[n] = 1;
      rank_[n] = starts[l][k];
    }
  }
}

void RuledOrder::add_needs() {
  const auto each = [&](Phase a, int from, Phase b, int to) {
    for (std::size_t m = 0; m < micro_; ++m) {
      edge(node(a, from, static_cast<int>(m)), node(b, to, static_cast<int>(m)));
    }
  };
  for (const Transfer& t : program_.transfers) {
    const Phase phase = t.gradient ? Phase::kBackward : Phase::kForward;
    each(phase, t.from_chunk, phase, t.to_chunk);
  }
  std::vector<int> of_lane(program_.lanes.size(), -1);  // The chunk before.
  for (std::size_t c = 0; c < chunks_; ++c) {
    const int chunk = static_cast<int>(c);
    each(Phase::kForward, chunk, Phase::kBackward, chunk);
    each(Phase::kBackward, chunk, Phase::kWeight, chunk);
    for (int lane : covered_[static_cast<std::size_t>(program_.chunks[c].stage)]) {
      int& before = of_lane[static_cast<std::size_t>(lane)];
      if (before >= 0) {
        // Of another replica: no micro-batch runs both.
        each(Phase::kForward, before, Phase::kForward, chunk);
        each(Phase::kBackward, chunk, Phase::kBackward, before);
      }
      before = chunk;
    }
  }
}

void RuledOrder::add_rules() {
  const auto passes = [&](const PassSet& set) {
    std::vector<std::size_t> list;
    for (std::size_t m = 0; m < micro_; ++m) {
      if (set.micro_batch >= 0 && static_cast<std::size_t>(set.micro_batch) != m) continue;
      const std::size_t n = node(set.phase, set.chunk, static_cast<int>(m));
      if (exists_[n] != 0) list.push_back(n);
    }
    return list;
  };
  for (std::size_t r = 0; r < rules_.size(); ++r) {
    const PassSet& before = rules_[r].before;
    const PassSet& after = rules_[r].after;
    const std::vector<std::size_t> first = passes(before);
    const std::vector<std::size_t> then = passes(after);
    if (first.empty() || then.empty()) {
      const PassSet& missing = first.empty() ? before : after;
      throw Error(fmt::format("chunk {} has no {} pass{}", missing.chunk, phase_name(missing.phase),
                              missing.micro_batch >= 0
                                  ? fmt::format(" of micro-batch {}", missing.micro_batch)
                                  : ""),
                  place(r));
    }
    if (before.micro_batch == PassSet::kEach) {
      for (std::size_t n : first) {
        const auto m = static_cast<int>(n % micro_);
        const std::size_t to = node(after.phase, after.chunk, m);
        edge(n, to);
        starts_.push_back(to);
        rule_of_start_.push_back(r);
      }
      continue;
    }
    const std::size_t middle = exists_.size() + r;
    for (std::size_t n : first) edge(n, middle);
    for (std::size_t n : then) edge(middle, n);
    starts_.push_back(middle);
    rule_of_start_.push_back(r);
  }
}

void RuledOrder::index_edges() {
  std::sort(edges_.begin(), edges_.end());
  edges_.erase(std::unique(edges_.begin(), edges_.end()), edges_.end());
  first_.assign(nodes_ + 1, 0);
  for (const auto& [from, to] : edges_) ++first_[from + 1];
  for (std::size_t n = 0; n < nodes_; ++n) first_[n + 1] += first_[n];
}

std::vector<std::size_t> RuledOrder::sorted() {
  std::vector<int> needs(nodes_, 0);
  for (const auto& [from, to] : edges_) ++needs[to];
  using Entry = std::pair<std::int32_t, std::size_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> may_run;
  std::size_t count = 0;
  for (std::size_t n = 0; n < nodes_; ++n) {
    if (!is_node_of_rule(n) && exists_[n] == 0) continue;
    ++count;
    if (needs[n] == 0) may_run.emplace(rank_[n], n);
  }
  std::vector<std::size_t> order;
  while (!may_run.empty()) {
    const std::size_t n = may_run.top().second;
    may_run.pop();
    order.push_back(n);
    for (std::size_t e = first_[n]; e < first_[n + 1]; ++e) {
      const std::size_t to = edges_[e].second;
      if (--needs[to] == 0) may_run.emplace(rank_[to], to);
    }
  }
  if (order.size() < count) fail(needs);
  return order;
}

// The shortest circle through a rule, breadth first among the passes that could not run.
void RuledOrder::fail(const std::vector<int>& blocked) {
  std::vector<std::size_t> best;
  std::size_t rule = 0;
  std::size_t searches = 0;
  const std::size_t most =
      std::min(kMaxSearches, std::max<std::size_t>(kMaxSearchedNodes / nodes_, 1));
  for (std::size_t s = 0; s < starts_.size() && (searches < most || best.empty()); ++s) {
    if (blocked[starts_[s]] == 0) continue;
    ++searches;
    std::vector<std::int64_t> from(nodes_, -1);
    std::deque<std::size_t> queue = {starts_[s]};
    std::size_t last = SIZE_MAX;
    while (!queue.empty() && last == SIZE_MAX) {
      const std::size_t n = queue.front();
      queue.pop_front();
      for (std::size_t e = first_[n]; e < first_[n + 1]; ++e) {
        const std::size_t to = edges_[e].second;
        if (to == starts_[s]) {
          last = n;
          break;
        }
        if (blocked[to] == 0 || from[to] >= 0) continue;
        from[to] = static_cast<std::int64_t>(n);
        queue.push_back(to);
      }
    }
    if (last == SIZE_MAX) continue;  // Behind a circle, not on one.
    std::vector<std::size_t> circle;
    for (std::size_t n = last;; n = static_cast<std::size_t>(from[n])) {
      if (!is_node_of_rule(n)) circle.push_back(n);
      if (n == starts_[s]) break;
    }
    std::reverse(circle.begin(), circle.end());
    if (best.empty() || circle.size() < best.size()) best = circle, rule = rule_of_start_[s];
  }
  MW_CHECK(!best.empty(), "a circle of passes without a rule in it");
  std::string text;
  best.push_back(best.front());
  for (std::size_t i = 0; i < best.size(); ++i) {
    if (best.size() > 12 && i == 6) {
      text += fmt::format(", then {} more", best.size() - 12);
      i = best.size() - 6;
    }
    const ScheduleItem p = pass(best[i]);
    text += fmt::format("{}{} of chunk {}, micro-batch {}", i == 0 ? "" : ", before ",
                        phase_name(p.phase), p.chunk, p.micro_batch);
  }
  throw Error("the order has a circle: " + text, place(rule),
              "drop or turn one of the rules of this circle");
}

void RuledOrder::run() {
  rank_passes();
  add_needs();
  add_rules();
  index_edges();
  const std::vector<std::size_t> order = sorted();
  for (Lane& lane : program_.lanes) lane.order.clear();
  for (std::size_t n : order) {
    if (is_node_of_rule(n)) continue;
    const ScheduleItem item = pass(n);
    const int stage = program_.chunks[static_cast<std::size_t>(item.chunk)].stage;
    for (int lane : covered_[static_cast<std::size_t>(stage)]) {
      program_.lanes[static_cast<std::size_t>(lane)].order.push_back(item);
    }
  }
}

}  // namespace

void op_order(Plan& plan, const PassSet& before, const PassSet& after) {
  plan.order.push_back({before, after});
}

void check_rules(const std::vector<OrderRule>& rules, const Plan& plan,
                 const ScheduleShape& shape) {
  const Schedule& schedule = find_schedule(plan.schedule);
  if (std::ssize(rules) > kMaxRuledPasses / std::max<std::int64_t>(plan.micro_batches, 1)) {
    throw Error(fmt::format("{} rules over {} micro-batches are more than {} together",
                            rules.size(), plan.micro_batches, kMaxRuledPasses),
                "order");
  }
  for (std::size_t r = 0; r < rules.size(); ++r) {
    const OrderRule& rule = rules[r];
    for (const PassSet* set : {&rule.before, &rule.after}) {
      if (!is_pass(set->phase)) throw Error("orders passes only", place(r));
      if (set->chunk < 0 || set->chunk >= std::ssize(plan.chunks)) {
        throw Error(fmt::format("there is no chunk {} among {}", set->chunk, plan.chunks.size()),
                    place(r));
      }
      if (set->phase == Phase::kWeight && !schedule.splits_backward) {
        throw Error(fmt::format("{} has no weight passes", schedule.name), place(r));
      }
      if (set->micro_batch < PassSet::kEach || set->micro_batch >= plan.micro_batches) {
        throw Error(fmt::format("there is no micro-batch {} among {}", set->micro_batch,
                                plan.micro_batches),
                    place(r));
      }
    }
    if ((rule.before.micro_batch == PassSet::kEach) != (rule.after.micro_batch == PassSet::kEach)) {
      throw Error("\"each\" stands for one micro-batch on both sides", place(r),
                  "use \"each\" twice, or \"all\"");
    }
    const auto lane_of = [&](int chunk) { return schedule.stage_of(shape, chunk); };
    const int a = lane_of(rule.before.chunk);
    const int b = lane_of(rule.after.chunk);
    if (a != b && a != kEverywhere && b != kEverywhere) {
      throw Error(fmt::format("chunks {} and {} run on different devices (stages {} and {})",
                              rule.before.chunk, rule.after.chunk, a, b),
                  place(r), "order passes of one stage; others have the order of their messages");
    }
  }
}

void apply_rules(const std::vector<OrderRule>& rules, Program& program) {
  RuledOrder(rules, program).run();
}

}  // namespace meshwright
