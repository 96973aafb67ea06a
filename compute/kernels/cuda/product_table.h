#ifndef TESSERA_COMPUTE_KERNELS_CUDA_PRODUCT_TABLE_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_PRODUCT_TABLE_H_

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compute/kernels/cuda/products.h"

namespace tessera::cuda {

// A choice that a table may make: a member of ProductChoices, under its name.
struct Way {
  const char* name;
  bool ProductChoices::*member;
};
// Those that are expected to save the most time come first.
inline constexpr Way kWays[] = {
    {"attention_gradients_by_warpgroups", &ProductChoices::attention_gradients_by_warpgroups},
    {"attention_by_warpgroups", &ProductChoices::attention_by_warpgroups},
    {"sums", &ProductChoices::sums},
    {"attention_at_once", &ProductChoices::attention_at_once},
    {"gelu_gradient", &ProductChoices::gelu_gradient}};

// Values of some of kWays, by name.
using Ways = std::map<std::string, bool>;

// Adds "sums=true". Returns false for anything else, and for a name that has a value already.
bool AddWay(std::string_view text, Ways* ways);
// Returns "sums=true,gelu_gradient=false".
std::string WaysText(const Ways& ways);
// Returns the choices with the values of these ways.
ProductChoices WithWays(ProductChoices choices, const Ways& ways);

// What was measured to be the fastest on one device.
struct MeasuredProducts {
  Ways ways = {};  // that are not the device's own
  ProductProposals proposals = {};

  bool empty() const { return ways.empty() && proposals.empty(); }
  bool operator==(const MeasuredProducts&) const = default;
};

// What was measured, by DeviceName(). Its file has
//
//   tessera product table 2
//   [NVIDIA H200, sm_90, 132 multiprocessors; cuBLASLt 130002]
//   attention_by_warpgroups=true
//   3 product [65536,768] x [768,3072]' of bfloat16 to bfloat16, strides 768, 768 and 3072
//   crc32c 89abcdef
//
// with a line for each device, each of its ways and each of its products, and the checksum of all
// lines before. Version 1 had no ways.
using ProductTable = std::map<std::string, MeasuredProducts>;

// Names what proposals are measured on: a type of GPU, and a library with its version.
std::string DeviceName(const std::string& gpu_type, const std::string& library);

std::string ToText(const ProductTable& table);
// DataLoss, with the reason, for anything but the text of a table.
absl::StatusOr<ProductTable> ParseProductTable(std::string_view text);

// Returns a digest of what one device has, "89abcdef", for the fingerprint of numerics.
std::string DigestOf(const MeasuredProducts& measured);

// Returns the file in the user's cache: tessera/products in $XDG_CACHE_HOME or ~/.cache.
// FailedPrecondition without either.
absl::StatusOr<std::string> ProductTablePath();

// Adds the proposals of a device to the file, atomically, in place of those of the same products. A
// product whose fastest is the first proposal, 0, needs no line and gets none. Makes the file, its
// folder, and beside it a ".lock", by which processes that add wait for each other. A damaged table
// of this version is replaced, with a warning; DataLoss for any other file.
absl::Status AddProposals(const std::string& path, const std::string& device,
                          const ProductProposals& proposals);
// Does the same with ways, in place of those of the same names. One without a value is the device's
// own, and gets no line.
absl::Status SetWays(const std::string& path, const std::string& device,
                     const std::map<std::string, std::optional<bool>>& ways);

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_PRODUCT_TABLE_H_
