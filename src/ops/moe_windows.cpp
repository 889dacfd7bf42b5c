#include "ops/moe_windows.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace meshwright {

ExpertRows expert_rows(KernelBuilder& k, Slot probs, const Box& box, const Interval& rows,
                       std::int64_t seq, std::int64_t all_rows) {
  const Interval tokens = box[1];
  if (seq > std::int64_t{1} << 31) {
    throw Error(fmt::format("{} tokens per sample are more than 2^31", seq));
  }
  const auto window_begin = [&](std::int64_t row) { return row * seq / all_rows; };
  if (tokens.begin != window_begin(rows.begin) || tokens.end != window_begin(rows.end)) {
    throw Error(fmt::format("tokens {}..{} are not those of the experts' rows {}..{}, {}..{}",
                            tokens.begin, tokens.end, rows.begin, rows.end,
                            window_begin(rows.begin), window_begin(rows.end)),
                {},
                fmt::format("split {} tokens and {} rows into a number of parts that divides {}",
                            seq, all_rows, std::gcd(seq, all_rows)));
  }
  const auto scalar = [&](std::string_view name, Slot x, std::int64_t value) {
    return k.call(name, {x, value});
  };
  const auto column = [&](Slot x) { return scalar("aten::unsqueeze", x, -1); };
  const std::int64_t widest = (seq + all_rows - 1) / all_rows;
  const auto edges = [&](std::int64_t shift) {  // Of the windows, [rows, 1].
    const Slot row = indices(k, {rows.begin + shift, rows.end + shift});
    const Slot whole = k.call("aten::div.Scalar_mode", {scalar("aten::mul.Scalar", row, seq),
                                                        all_rows, std::string("floor")});
    return column(scalar("aten::sub.Scalar", whole, tokens.begin));
  };
  const Slot begin = edges(0);
  const Slot order = indices(k, {0, widest});
  const Slot place = k.call("aten::add.Tensor", {begin, order});
  const Slot beyond = k.call("aten::ge.Tensor", {place, edges(1)});
  const Slot inside =
      scalar("aten::clamp_max", place, std::max<std::int64_t>(tokens.size() - 1, 0));
  // Whether each token of each window wants the expert: [b, rows, widest, e].
  const std::vector<std::int64_t> windows = {box[0].size(), rows.size(), widest, box[2].size()};
  Slot wants = scalar("aten::ne.Scalar", k.call("aten::detach", {probs}), 0);
  wants = k.call("aten::index_select",
                 {wants, std::int64_t{1},
                  k.call("aten::reshape", {inside, std::vector{rows.size() * widest}})});
  wants = k.call("aten::reshape", {wants, windows});
  wants = k.call("aten::masked_fill.Scalar", {wants, column(beyond), std::int64_t{0}});
  const Slot key = k.call("aten::where.ScalarOther", {wants, column(order), widest});
  const Slot first = k.call("aten::amin", {key, std::vector<std::int64_t>{2}});
  const Slot none = scalar("aten::ge.Scalar", first, widest);
  const Slot token = k.call("aten::add.Tensor", {first, begin});
  return {k.call("aten::masked_fill.Scalar", {token, none, std::int64_t{0}}), none};
}

}  // namespace meshwright
