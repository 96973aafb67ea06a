#ifndef TESSERA_CHECKPOINT_CONVERT_PICKLE_BUDGET_H_
#define TESSERA_CHECKPOINT_CONVERT_PICKLE_BUDGET_H_

#include <cstdint>

#include "absl/status/status.h"
#include "checkpoint/convert/pickle/value.h"

namespace tessera::ckpt::pickle {

// Bounds what is made of a pickle by its size in the file. Two bytes refer to an object or a text
// that is there already, so that a small pickle can stand for any number of long names or lists:
// whatever copies texts, or walks over objects, takes the bytes that it needs from a budget first.
class Budget {
 public:
  explicit Budget(const Pickle& contents)
      : bytes_left_(kRatio * contents.size_bytes() + kAllowanceBytes) {}

  // False once nothing is left. An object that is only looked at costs kVisitBytes.
  bool Has(uint64_t bytes) {
    if (bytes > bytes_left_) return false;
    bytes_left_ -= bytes;
    return true;
  }

  // The same as an error.
  absl::Status Take(uint64_t bytes) {
    if (Has(bytes)) return absl::OkStatus();
    return absl::DataLossError(
        "objects and names that it refers to again and again stand for many times its size");
  }

  static constexpr uint64_t kVisitBytes = 8;
  // Most objects take more bytes in the file than in memory; small files need an allowance.
  static constexpr uint64_t kRatio = 8;
  static constexpr uint64_t kAllowanceBytes = uint64_t{8} << 20;

 private:
  uint64_t bytes_left_;
};

}  // namespace tessera::ckpt::pickle

#endif  // TESSERA_CHECKPOINT_CONVERT_PICKLE_BUDGET_H_
