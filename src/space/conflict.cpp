#include "space/conflict.h"

#include <algorithm>

namespace meshwright {
namespace {

std::vector<int> listed(const std::vector<char>& active) {
  std::vector<int> list;
  for (std::size_t i = 0; i < active.size(); ++i) {
    if (active[i] != 0) list.push_back(static_cast<int>(i));
  }
  return list;
}

// The next subset of the same size in lexicographic order; false after the last.
bool next_subset(std::vector<int>& subset, int count) {
  const int k = static_cast<int>(subset.size());
  for (int i = k; i-- > 0;) {
    if (subset[static_cast<std::size_t>(i)] >= count - (k - i)) continue;
    ++subset[static_cast<std::size_t>(i)];
    for (int j = i + 1; j < k; ++j) {
      subset[static_cast<std::size_t>(j)] = subset[static_cast<std::size_t>(j) - 1] + 1;
    }
    return true;
  }
  return false;
}

}  // namespace

Conflict smallest_conflict(int count, const std::function<bool(const std::vector<char>&)>& possible,
                           int budget) {
  Conflict result;
  std::vector<char> active(static_cast<std::size_t>(count), 1);
  const auto ask = [&](const std::vector<char>& rules) {
    ++result.asked;
    return possible(rules);
  };
  for (int i = 0; i < count && result.asked < budget; ++i) {
    active[static_cast<std::size_t>(i)] = 0;
    if (ask(active)) active[static_cast<std::size_t>(i)] = 1;
  }
  result.rules = listed(active);
  if (result.asked < count) return result;
  // An irreducible set of one or no rule is a smallest one.
  for (int size = 1; size < static_cast<int>(result.rules.size()); ++size) {
    std::vector<int> subset;
    for (int i = 0; i < size; ++i) subset.push_back(i);
    do {
      if (result.asked >= budget) return result;
      std::vector<char> rules(static_cast<std::size_t>(count), 0);
      for (int i : subset) rules[static_cast<std::size_t>(i)] = 1;
      if (!ask(rules)) {
        result.rules = subset;
        result.smallest = true;
        return result;
      }
    } while (next_subset(subset, count));
  }
  result.smallest = true;
  return result;
}

}  // namespace meshwright
