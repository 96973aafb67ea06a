#ifndef TESSERA_MODELS_CONFIG_CONFIG_CHECKS_H_
#define TESSERA_MODELS_CONFIG_CONFIG_CHECKS_H_

// Defaults and checks of single fields, shared by the architectures.

#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "models/config/config.pb.h"

namespace tessera {

// Bound of extents, so that the product of any two fits 64 bits.
inline constexpr int64_t kMaxExtent = int64_t{1} << 30;

inline absl::Status CheckExtent(const char* field, int64_t value) {
  if (value >= 1 && value <= kMaxExtent) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, ": it must be between 1 and ", kMaxExtent));
}

inline absl::Status CheckDivides(const char* divisor_field, int64_t divisor, const char* field,
                                 int64_t value) {
  if (divisor > 0 && value % divisor == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, ": ", divisor_field, " (", divisor, ") must divide it"));
}

inline absl::Status CheckPositive(const char* field, double value) {
  // Not NaN, not infinite, and no zero in kernels, which may take a subnormal number for one.
  if (value < 1e30 && static_cast<float>(value) >= std::numeric_limits<float>::min()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, ": it must be at least ", "1.2e-38, and below 1e30"));
}

inline absl::Status CheckProbability(const char* field, double value) {
  if (value >= 0 && value < 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, ": it must be at least 0 and below 1"));
}

inline absl::Status NotForArchitecture(const char* field, const char* architecture) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is set, but ", architecture, " has no such thing"));
}

// Returns whether norms and linear layers have the biases that their architecture knows.
inline bool HasBiases(const ModelConfig& config) {
  return !config.has_use_biases() || config.use_biases();
}

// Sets unset fields whose defaults are the same in all architectures.
void FillCommonDefaults(ModelConfig& config);

// Checks the fields that all architectures have and that no default can replace.
absl::Status CheckCommonFields(const ModelConfig& config);

// Returns the rows of the token embedding in memory, over all ranks: a multiple of
// make_vocab_size_divisible_by and of the number of virtual tensor shards. Precondition: a resolved
// config.
int64_t PaddedVocabSize(const ModelConfig& config, int64_t shards = 1);

}  // namespace tessera

#endif  // TESSERA_MODELS_CONFIG_CONFIG_CHECKS_H_
