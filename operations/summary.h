#ifndef TESSERA_OPERATIONS_SUMMARY_H_
#define TESSERA_OPERATIONS_SUMMARY_H_

// Texts about a manifest that several commands print.

#include <cstdint>
#include <string>

#include "checkpoint/include/manifest.pb.h"

namespace tessera::ckpt {

// Returns the bytes of the tensor's elements.
uint64_t TensorBytes(const LogicalTensor& tensor);

// Returns "dp4_zero2_tp2_pp2"; "-" if no topology was recorded.
std::string TopologyText(const TopologyProto& topology);

// Returns "2024-05-01 12:00:00 UTC"; "-" for 0.
std::string TimeText(int64_t unix_ms);

// Returns 32 hexadecimal digits.
std::string DigestText(const Digest& digest);

// Returns six digits; "inf", "-inf" and "nan" as such.
std::string NumberText(double value);

}  // namespace tessera::ckpt

#endif  // TESSERA_OPERATIONS_SUMMARY_H_
