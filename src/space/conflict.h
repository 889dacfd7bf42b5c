#pragma once

#include <functional>
#include <vector>

namespace meshwright {

/// A set of rules that cannot all hold.
struct Conflict {
  std::vector<int> rules;  ///< Ascending; empty = even no rule at all leaves nothing.
  bool smallest = false;   ///< No smaller set conflicts; otherwise only: none can be left out.
  int asked = 0;           ///< How often `possible` was asked.
};

/// Finds a conflict among `count` rules of which `possible(all)` is false. `possible` says whether
/// some plan obeys the rules whose entry is not 0; fewer rules never leave fewer plans. At most
/// `budget` questions: when they run out, what is known is returned (then perhaps with rules too
/// many).
///
/// Deletion filtering (Chinneck and Dravnieks 1991) leaves out one rule after the other and keeps
/// those without which something is possible: an irreducible set after `count` questions. All
/// smaller sets are then tried in order of size.
Conflict smallest_conflict(int count, const std::function<bool(const std::vector<char>&)>& possible,
                           int budget);

}  // namespace meshwright
