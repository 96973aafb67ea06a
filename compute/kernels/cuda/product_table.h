#ifndef TESSERA_COMPUTE_KERNELS_CUDA_PRODUCT_TABLE_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_PRODUCT_TABLE_H_

#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compute/kernels/cuda/products.h"

namespace tessera::cuda {

// The proposals that were measured to be the fastest, by DeviceName(). Its file has
//
//   tessera product table 1
//   [NVIDIA H200, sm_90, 132 multiprocessors; cuBLASLt 130002]
//   3 product [65536,768] x [768,3072]' of bfloat16 to bfloat16, strides 768, 768 and 3072
//   crc32c 89abcdef
//
// with a line for each device and each of its products, and the checksum of all lines before.
using ProductTable = std::map<std::string, ProductProposals>;

// Names what proposals are measured on: a type of GPU, and a library with its version.
std::string DeviceName(const std::string& gpu_type, const std::string& library);

std::string ToText(const ProductTable& table);
// DataLoss, with the reason, for anything but the text of a table.
absl::StatusOr<ProductTable> ParseProductTable(std::string_view text);

// Returns a digest of one device's proposals, "89abcdef", for the fingerprint of numerics.
std::string DigestOf(const ProductProposals& proposals);

// Returns the file in the user's cache: tessera/products in $XDG_CACHE_HOME or ~/.cache.
// FailedPrecondition without either.
absl::StatusOr<std::string> ProductTablePath();

// Adds the proposals of a device to the file, atomically, in place of those of the same products. A
// product whose fastest is the first proposal, 0, needs no line and gets none. Makes the file, its
// folder, and beside it a ".lock", by which processes that add wait for each other. A damaged table
// of this version is replaced, with a warning; DataLoss for any other file.
absl::Status AddProposals(const std::string& path, const std::string& device,
                          const ProductProposals& proposals);

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_PRODUCT_TABLE_H_
