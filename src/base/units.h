#pragma once

#include <compare>

namespace meshwright {

/// A physical quantity in its SI base unit. Quantities of one kind add; ratios are plain numbers.
template <class Tag>
struct Quantity {
  double value = 0;

  constexpr Quantity() = default;
  constexpr explicit Quantity(double v) : value(v) {}
  friend constexpr auto operator<=>(Quantity, Quantity) = default;
  constexpr Quantity& operator+=(Quantity o) {
    value += o.value;
    return *this;
  }
  constexpr Quantity& operator-=(Quantity o) {
    value -= o.value;
    return *this;
  }
  constexpr Quantity& operator*=(double f) {
    value *= f;
    return *this;
  }
  friend constexpr Quantity operator+(Quantity a, Quantity b) {
    return Quantity(a.value + b.value);
  }
  friend constexpr Quantity operator-(Quantity a, Quantity b) {
    return Quantity(a.value - b.value);
  }
  friend constexpr Quantity operator*(Quantity a, double f) { return Quantity(a.value * f); }
  friend constexpr Quantity operator*(double f, Quantity a) { return Quantity(a.value * f); }
  friend constexpr Quantity operator/(Quantity a, double f) { return Quantity(a.value / f); }
  friend constexpr double operator/(Quantity a, Quantity b) { return a.value / b.value; }
};

using Seconds = Quantity<struct SecondsTag>;
using Bytes = Quantity<struct BytesTag>;
using Flops = Quantity<struct FlopsTag>;  ///< Floating-point operations (an amount, not a rate).
using BytesPerSecond = Quantity<struct BandwidthTag>;
using FlopsPerSecond = Quantity<struct FlopRateTag>;

constexpr Seconds operator/(Bytes b, BytesPerSecond r) { return Seconds(b.value / r.value); }
constexpr Seconds operator/(Flops f, FlopsPerSecond r) { return Seconds(f.value / r.value); }

}  // namespace meshwright
