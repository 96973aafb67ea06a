#ifndef TESSERA_COMPUTE_KERNELS_CUDA_TESTING_SIMULATED_MMA_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_TESTING_SIMULATED_MMA_H_

// The products of one warp on the simulated device (mma.h).

#include <cstdint>
#include <cstring>

#include "compute/kernels/cuda/simt_common.h"
#include "compute/kernels/cuda/testing/simt_host.h"
#include "tensor/bfloat16.h"

namespace tessera::cuda {

namespace internal {

// A lane's operands of a product.
struct MmaOperands {
  uint32_t a[4], b[2];
  float sums[4];
};

inline float Half(uint32_t pair, int k) {
  BFloat16 value;
  value.bits = static_cast<uint16_t>(k % 2 == 0 ? pair : pair >> 16);
  return static_cast<float>(value);
}

// Gathers the operands of all lanes, as the instruction distributes them, and multiplies them.
inline void MultiplyLanes(const void* const inputs[simt::kWarpSize],
                          void* const outputs[simt::kWarpSize]) {
  constexpr int kRows = 16, kColumns = 8, kInner = 16;
  float a[kRows][kInner], b[kInner][kColumns];
  for (int lane = 0; lane < simt::kWarpSize; ++lane) {
    const MmaOperands& x = *static_cast<const MmaOperands*>(inputs[lane]);
    const int group = lane / 4, inner = lane % 4 * 2;
    for (int k = 0; k < 2; ++k) {
      for (int i = 0; i < 4; ++i) a[group + i % 2 * 8][inner + i / 2 * 8 + k] = Half(x.a[i], k);
      for (int i = 0; i < 2; ++i) b[inner + i * 8 + k][group] = Half(x.b[i], k);
    }
  }
  for (int lane = 0; lane < simt::kWarpSize; ++lane) {
    float* const sums = static_cast<float*>(outputs[lane]);
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      for (int k = 0; k < kInner; ++k) sums[i] += a[row][k] * b[k][column];
    }
  }
}

// Distributes the elements of the matrices to all lanes. Each lane's input is the address of its
// row.
template <bool kTransposed>
void DistributeMatrices(const void* const inputs[simt::kWarpSize],
                        void* const outputs[simt::kWarpSize]) {
  const auto element = [&](int matrix, int row, int column) -> uint32_t {
    return static_cast<const BFloat16*>(inputs[matrix * 8 + row])[column].bits;
  };
  for (int lane = 0; lane < simt::kWarpSize; ++lane) {
    const int row = lane / 4, column = lane % 4 * 2;
    for (int j = 0; j < 4; ++j) {
      const uint32_t low = kTransposed ? element(j, column, row) : element(j, row, column);
      const uint32_t high = kTransposed ? element(j, column + 1, row) : element(j, row, column + 1);
      static_cast<uint32_t*>(outputs[lane])[j] = high << 16 | low;
    }
  }
}

}  // namespace internal

// Do what the instructions do on the simulated device.
inline void Mma(const uint32_t (&a)[4], uint32_t b0, uint32_t b1, float (&sums)[4],
                simt::Site site = simt::Site::Here()) {
  internal::MmaOperands x = {.b = {b0, b1}};
  std::memcpy(x.a, a, sizeof(a));
  simt::internal::MeetLanes("a product", simt::kAllLanes, &x, sums, internal::MultiplyLanes, site);
}

template <bool kTransposed>
void LoadMatrices(const simt::SharedArray<BFloat16>& from, int at, uint32_t (&to)[4],
                  simt::Site site = simt::Site::Here()) {
  simt::internal::MeetLanes("a load of matrices", simt::kAllLanes, from.PackForWarp(at), to,
                            internal::DistributeMatrices<kTransposed>, site);
}

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_TESTING_SIMULATED_MMA_H_
