#include "compute/comm/testing/oracle.h"

#include <glog/logging.h>

#include <cstring>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 31)) * 0x7fb5d329728ea185;
  x = (x ^ (x >> 27)) * 0x81dadef4bc2dd44d;
  return x ^ (x >> 33);
}

// Calls visit(T()) with the element type.
template <typename Visit>
auto WithElement(CommType type, const Visit& visit) {
  switch (type) {
    case CommType::kF32:
      return visit(float());
    case CommType::kBF16:
      return visit(BFloat16());
    case CommType::kF64:
      return visit(double());
    case CommType::kI32:
      return visit(int32_t());
    case CommType::kI64:
      return visit(int64_t());
    case CommType::kBytes:
      return visit(char());
  }
  LOG(FATAL) << "unknown type";
}

template <typename T>
T Value(int rank, int64_t i, int salt) {
  const uint64_t bits = Mix(Mix(static_cast<uint64_t>(rank) * 1000003 + salt) + i);
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(bits);  // sums wrap around
  } else {
    const double value = static_cast<double>(static_cast<int64_t>(bits) >> 32) * 1e-7;
    return static_cast<T>(static_cast<std::conditional_t<sizeof(T) == 2, float, T>>(value));
  }
}

template <typename T>
struct Sum {
  using A = T;
};
template <>
struct Sum<BFloat16> {
  using A = float;
};

template <typename A>
A Pair(ReduceOp op, A a, A b) {
  if (op == ReduceOp::kMax) return a > b ? a : b;
  if constexpr (std::is_integral_v<A>) {
    return static_cast<A>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  } else {
    return a + b;
  }
}

template <typename T>
typename Sum<T>::A Subtree(ReduceOp op, int begin, int end, int64_t i, int salt) {
  using A = typename Sum<T>::A;
  if (end - begin == 1) return static_cast<A>(Value<T>(begin, i, salt));
  int half = 1;
  while (half * 2 < end - begin) half *= 2;
  return Pair<A>(op, Subtree<T>(op, begin, begin + half, i, salt),
                 Subtree<T>(op, begin + half, end, i, salt));
}

}  // namespace

TestArray Contribution(CommType type, int64_t elements, int rank, int salt) {
  TestArray array(type, elements);
  WithElement(type, [&](auto element) {
    using T = decltype(element);
    for (int64_t i = 0; i < elements; ++i) {
      const T value = Value<T>(rank, i, salt);
      std::memcpy(array.bytes.data() + i * sizeof(T), &value, sizeof(T));
    }
  });
  return array;
}

TestArray Reduced(CommType type, int64_t elements, int ranks, ReduceOp op, int salt) {
  CHECK(type != CommType::kBytes);
  TestArray array(type, elements);
  WithElement(type, [&](auto element) {
    using T = decltype(element);
    for (int64_t i = 0; i < elements; ++i) {
      const T value = static_cast<T>(Subtree<T>(op, 0, ranks, i, salt));
      std::memcpy(array.bytes.data() + i * sizeof(T), &value, sizeof(T));
    }
  });
  return array;
}

absl::Status ExpectSame(std::string_view what, const TestArray& expected, const TestArray& found) {
  if (expected.bytes == found.bytes) return absl::OkStatus();
  size_t at = 0;
  while (at < found.bytes.size() && expected.bytes[at] == found.bytes[at]) ++at;
  return absl::InternalError(
      absl::StrCat(std::string(what), ": ", std::string(CommTypeName(found.type)), " element ",
                   at / ElementSize(found.type), " of ", found.elements, " differs"));
}

absl::Status ExpectEqual(std::string_view what, int64_t expected, int64_t found) {
  if (expected == found) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(std::string(what), ": expected ", expected, ", found ", found));
}

}  // namespace tessera
