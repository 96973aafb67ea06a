#ifndef TESSERA_OPERATIONS_SUMMARY_H_
#define TESSERA_OPERATIONS_SUMMARY_H_

// Text about a manifest that several commands print.

#include <cstdint>
#include <string>

#include "checkpoint/include/manifest.pb.h"

namespace tessera::ckpt {

// Bytes of all data files.
uint64_t DataBytes(const Manifest& manifest);

// Bytes of the tensor's elements.
uint64_t TensorBytes(const LogicalTensor& tensor);

// "dp4_zero2_tp2_pp2"; "-" where none was recorded.
std::string TopologyText(const TopologyProto& topology);

// "2024-05-01 12:00:00 UTC"; "-" for 0.
std::string TimeText(int64_t unix_ms);

// 32 hexadecimal digits.
std::string DigestText(const Digest& digest);

// Six digits; "inf", "-inf" and "nan" as such.
std::string NumberText(double value);

}  // namespace tessera::ckpt

#endif  // TESSERA_OPERATIONS_SUMMARY_H_
