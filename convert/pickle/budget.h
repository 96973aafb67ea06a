#ifndef TESSERA_CONVERT_PICKLE_BUDGET_H_
#define TESSERA_CONVERT_PICKLE_BUDGET_H_

#include <cstdint>

#include "absl/status/status.h"
#include "convert/pickle/value.h"

namespace tessera::ckpt::pickle {

// Bounds what is made of a pickle by its size in the file. Two bytes refer to an object or a text
// that is there already, so that a small pickle can stand for any number of long names or lists:
// whatever copies texts, or walks over objects, takes the bytes that it needs from a budget first.
class Budget {
 public:
  explicit Budget(const Pickle& contents) : Budget(contents.size_bytes()) {}
  // For several pickles whose places are listed in a file of this size.
  explicit Budget(uint64_t input_bytes) : bytes_left_(kRatio * input_bytes + kAllowanceBytes) {}

  void AddInput(uint64_t input_bytes) { bytes_left_ += kRatio * input_bytes; }

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
  // A tensor takes three times its bytes in the file, and a second name of one ten times.
  static constexpr uint64_t kRatio = 16;
  static constexpr uint64_t kAllowanceBytes = uint64_t{256} << 10;

 private:
  uint64_t bytes_left_;
};

}  // namespace tessera::ckpt::pickle

#endif  // TESSERA_CONVERT_PICKLE_BUDGET_H_
