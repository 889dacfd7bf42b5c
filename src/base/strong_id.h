#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace meshwright {

/// An index that cannot be mixed with an index of another kind.
template <class Tag>
struct StrongId {
  std::int32_t value = -1;

  constexpr StrongId() = default;
  constexpr explicit StrongId(std::int64_t v) : value(static_cast<std::int32_t>(v)) {}
  constexpr bool valid() const { return value >= 0; }
  constexpr std::size_t index() const { return static_cast<std::size_t>(value); }
  friend constexpr auto operator<=>(StrongId, StrongId) = default;
};

using OpId = StrongId<struct OpTag>;
using ValueId = StrongId<struct ValueTag>;
using DeviceId = StrongId<struct DeviceTag>;

}  // namespace meshwright

template <class Tag>
struct std::hash<meshwright::StrongId<Tag>> {
  std::size_t operator()(meshwright::StrongId<Tag> id) const noexcept {
    return std::hash<std::int32_t>{}(id.value);
  }
};
