// EXACT numerics of every operation in fp32 and bf16, and of the fixed examples of fingerprints:
// all processors compute the bits whose digests are in exact_bits.golden, a line for each case. To
// write it anew after a change of the contract or of the cases:
//
//   TESSERA_WRITE_GOLDEN=1 ./bazelw run //compute/kernels/cpu:exact_bits_test

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/testing.h"
#include "compute/kernels/backend.h"
#include "compute/kernels/cpu/cpu_backend.h"
#include "compute/kernels/numerics_fingerprint.h"
#include "compute/kernels/testing/operation_cases.h"
#include "compute/kernels/testing/random_tensors.h"
#include "compute/random/philox.h"
#include "layout/dtype.h"
#include "tensor/tensor.h"

namespace tessera {
namespace {

constexpr char kGolden[] = "compute/kernels/cpu/exact_bits.golden";

// The digest of all operands after a case.
std::string Digest(const testing::OperationCase& one, Backend& backend) {
  uint64_t digest = 0;
  for (const Tensor& tensor : RunCase(one, backend)) {
    const TensorView x = tensor;
    digest = MixCoordinates(
        digest, HashName({static_cast<const char*>(x.data()), static_cast<size_t>(x.bytes())}));
  }
  return absl::StrCat(absl::Hex(digest, absl::kZeroPad16));
}

std::string ComputedLines() {
  unsetenv("TESSERA_TEST_SEED");  // which would change the operands
  const std::unique_ptr<Backend> backend = MakeCpuBackend(2, /*exact=*/true);
  std::string lines;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    testing::RandomTensors random(20261129);
    for (const testing::OperationCase& one : testing::OperationCases(dtype, random)) {
      absl::StrAppend(&lines, Digest(one, *backend), " ", std::string(DTypeName(dtype)), " ",
                      one.name, "\n");
    }
  }
  const NumericsFingerprint& fixed = ExactNumericsFingerprint(/*bf16=*/true);
  absl::StrAppend(&lines, absl::Hex(fixed.products_hash, absl::kZeroPad16),
                  " products of fingerprints\n", absl::Hex(fixed.loops_hash, absl::kZeroPad16),
                  " loops of fingerprints\n");
  return lines;
}

TEST(ExactBitsTest, EveryOperationHasTheCommittedBits) {
  const std::string lines = ComputedLines();
  if (std::getenv("TESSERA_WRITE_GOLDEN") != nullptr) {
    std::ofstream file(std::filesystem::path(std::getenv("BUILD_WORKSPACE_DIRECTORY")) / kGolden);
    ASSERT_TRUE((file << lines).flush().good());
    return;
  }
  EXPECT_EQ(lines, OrFail(ReadWholeFile(kGolden)));
}

}  // namespace
}  // namespace tessera
