#ifndef TESSERA_COMPUTE_COMM_TESTING_ORACLE_H_
#define TESSERA_COMPUTE_COMM_TESTING_ORACLE_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "compute/comm/communicator.h"

namespace tessera {

inline constexpr CommType kReducibleTypes[] = {CommType::kF32, CommType::kBF16, CommType::kF64,
                                               CommType::kI32, CommType::kI64};

// Elements of any type, zero until filled.
struct TestArray {
  TestArray(CommType type, int64_t elements)
      : type(type), elements(elements), bytes(elements * ElementSize(type)) {}
  Buffer buffer() { return Buffer(bytes.data(), type, elements); }
  // Elements [begin, begin + count).
  Buffer piece(int64_t begin, int64_t count) {
    return Buffer(bytes.data() + begin * ElementSize(type), type, count);
  }
  CommType type;
  int64_t elements;
  std::vector<char> bytes;
};

// The contribution of rank `rank`: a pure function of its arguments. Sums of contributions need
// rounding.
TestArray Contribution(CommType type, int64_t elements, int rank, int salt = 0);

// The reduction of all ranks' contributions, element by element in the order that ReduceOp
// promises.
TestArray Reduced(CommType type, int64_t elements, int ranks, ReduceOp op, int salt = 0);

// An error that names `what` and the first element that differs.
absl::Status ExpectSame(std::string_view what, const TestArray& expected, const TestArray& found);
absl::Status ExpectEqual(std::string_view what, int64_t expected, int64_t found);

}  // namespace tessera

#endif  // TESSERA_COMPUTE_COMM_TESTING_ORACLE_H_
