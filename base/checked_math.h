#ifndef TESSERA_BASE_CHECKED_MATH_H_
#define TESSERA_BASE_CHECKED_MATH_H_

#include <concepts>
#include <optional>
#include <type_traits>
#include <utility>

namespace tessera {

// Compute with numbers from a file. Return nullopt if the result does not fit T.
template <std::integral T>
std::optional<T> CheckedAdd(T a, std::type_identity_t<T> b) {
  T result;
  if (__builtin_add_overflow(a, b, &result)) return std::nullopt;
  return result;
}

template <std::integral T>
std::optional<T> CheckedMultiply(T a, std::type_identity_t<T> b) {
  T result;
  if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
  return result;
}

template <std::integral To, std::integral From>
std::optional<To> CheckedCast(From value) {
  if (!std::in_range<To>(value)) return std::nullopt;
  return static_cast<To>(value);
}

// Returns a / b rounded up, and `a` rounded up or down to a multiple. Preconditions: a >= 0, b > 0;
// for RoundUp() the result fits T.
template <std::integral T>
constexpr T CeilDivide(T a, std::type_identity_t<T> b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

template <std::integral T>
constexpr T RoundUp(T a, std::type_identity_t<T> multiple) {
  return CeilDivide(a, multiple) * multiple;
}

template <std::integral T>
constexpr T RoundDown(T a, std::type_identity_t<T> multiple) {
  return a / multiple * multiple;
}

}  // namespace tessera

#endif  // TESSERA_BASE_CHECKED_MATH_H_
