// Whether a device computes by IEEE 754.

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "compute/kernels/cuda/device_backend.h"
#include "compute/kernels/cuda/kernel_stream.h"
#include "compute/kernels/cuda/simt.h"
#include "tensor/device.h"
#include "tensor/host_copies.h"

namespace tessera::cuda {
namespace {

constexpr int kExamples = 4096, kExampleThreads = 128;

struct Example {
  float a, b, c;
};

enum Result { kQuotient, kRoot, kMultiplyAdd, kProduct, kSum, kResults };
constexpr const char* kResultNames[kResults] = {"quotients", "square roots", "multiply-adds",
                                                "products", "sums"};

struct Results {
  float of[kResults];
};

TESSERA_HOST_DEVICE Results ResultsOf(const Example& x) {
  return {{x.a / x.b, sqrtf(fabsf(x.a)), fmaf(x.a, x.b, x.c), x.a * x.b, x.a + x.c}};
}

TESSERA_KERNEL void ComputeExamples(const Example* examples, Results* results) {
  const int64_t i = simt::BlockX() * kExampleThreads + simt::ThreadIndex();
  if (i < kExamples) results[i] = ResultsOf(examples[i]);
}

// Numbers of all magnitudes, a quarter of them subnormal, whose results are finite or 0. Every
// fourth c all but cancels a * b, so that its rounding is what is left.
std::vector<Example> MakeExamples() {
  std::vector<Example> examples(kExamples);
  uint32_t state = 1;
  const auto number = [&](uint32_t exponents, uint32_t first) {
    state = state * 1664525u + 1013904223u;
    const uint32_t significand = state >> 9, sign = state << 23 & 0x80000000u;
    state = state * 1664525u + 1013904223u;
    const uint32_t exponent = (state >> 16) % exponents + first;
    return std::bit_cast<float>(sign | exponent << 23 | significand);
  };
  for (int i = 0; i < kExamples; ++i) {
    const bool small = i % 4 == 1;
    Example& x = examples[static_cast<size_t>(i)];
    x = {number(small ? 1 : 60, small ? 0 : 97), number(60, 97),
         number(small ? 1 : 60, small ? 0 : 97)};
    if (i % 4 == 2) x.c = -(x.a * x.b);
    if (i % 4 == 3) x = {number(10, 50), number(10, 60), number(1, 0)};  // subnormal products
  }
  return examples;
}

bool IsSubnormal(float x) { return std::fpclassify(x) == FP_SUBNORMAL; }

}  // namespace

absl::Status CheckArithmetic(const std::string& device, Stream& compute, HostCopies& copies) {
  const std::vector<Example> examples = MakeExamples();
  std::vector<Results> results(examples.size());
  const auto bytes = [](const auto& x) { return static_cast<int64_t>(x.size() * sizeof(x[0])); };
  TESSERA_ASSIGN_OR_RETURN(
      DeviceBuffer memory,
      DeviceBuffer::Allocate(compute, bytes(examples) + bytes(results), "workspace"));
  auto* const on_device = static_cast<Example*>(memory.data());
  auto* const computed = reinterpret_cast<Results*>(on_device + examples.size());
  TESSERA_RETURN_IF_ERROR(copies.ToDevice(examples.data(), bytes(examples), on_device));
  KernelStream kernels(compute);
  simt::Launch<ComputeExamples>({simt::BlocksOf(kExamples, kExampleThreads)}, kExampleThreads, 0,
                                kernels.get(), static_cast<const Example*>(on_device), computed);
  kernels.KeepErrors();
  TESSERA_RETURN_IF_ERROR(copies.ToHost(computed, bytes(results), results.data()));
  TESSERA_RETURN_IF_ERROR(compute.Synchronize());
  for (size_t i = 0; i < examples.size(); ++i) {
    const Example& x = examples[i];
    const Results expected = ResultsOf(x);
    for (int r = 0; r < kResults; ++r) {
      const float found = results[i].of[r];
      if (std::bit_cast<uint32_t>(found) == std::bit_cast<uint32_t>(expected.of[r])) continue;
      const bool flushes = found == 0 && (IsSubnormal(expected.of[r]) || IsSubnormal(x.a));
      return absl::FailedPreconditionError(absl::StrCat(
          device, flushes ? " flushes subnormal numbers: one of its " : ": one of its ",
          kResultNames[r],
          absl::StrFormat(" of %a, %a and %a is %a, by IEEE 754 %a", x.a, x.b, x.c, found,
                          expected.of[r]),
          "; EXACT numerics need a device that computes by IEEE 754"));
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera::cuda
