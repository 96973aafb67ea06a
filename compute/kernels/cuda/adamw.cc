// Loshchilov and Hutter, "Decoupled weight decay regularization" (ICLR 2019). One pass over memory.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "compute/kernels/backend.h"
#include "compute/kernels/cpu/adamw_coefficients.h"
#include "compute/kernels/cuda/device_kernels.h"
#include "compute/kernels/cuda/operation.h"
#include "compute/kernels/cuda/simt.h"
#include "tensor/tensor.h"

namespace tessera::cuda {
namespace {

// The largest number of parts of one launch: as many as fit into its arguments.
constexpr int kMaxParts = 48;
// Elements of a block, of one part.
constexpr int64_t kBlockElements = 4096;
constexpr int kAdamWPack = kPackOf<float>;

struct Part {
  const float* grad;
  float* master;
  float* m;
  float* v;
  void* param;
  int64_t count;
  int64_t first_block;
  float keep;
  bool packs;
};

struct Parts {
  Part at[kMaxParts];
  int count = 0;
};

template <int kCount, typename T>
TESSERA_DEVICE void UpdateBlock(const AdamWCoefficients& c, const Part& x, int64_t begin,
                                int64_t end) {
  const int64_t step = static_cast<int64_t>(simt::ThreadCount()) * kCount;
  for (int64_t i = begin + simt::ThreadIndex() * kCount; i < end; i += step) {
    float g[kCount], first[kCount], second[kCount], weight[kCount];
    simt::LoadPack(x.grad + i, g);
    simt::LoadPack(x.m + i, first);
    simt::LoadPack(x.v + i, second);
    simt::LoadPack(x.master + i, weight);
    for (int j = 0; j < kCount; ++j) {
      const float gradient = g[j] * c.grad_scale;
      first[j] = fmaf(c.beta1, first[j], c.one_minus_beta1 * gradient);
      second[j] = fmaf(c.beta2, second[j], c.one_minus_beta2 * (gradient * gradient));
      const float root = fmaf(sqrtf(second[j]), c.inverse_root2, c.epsilon);
      weight[j] = fmaf(x.keep, weight[j], -(c.step_size * first[j] / root));
    }
    simt::StorePack(first, x.m + i);
    simt::StorePack(second, x.v + i);
    simt::StorePack(weight, x.master + i);
    if (std::is_same_v<T, float> && x.param == x.master) continue;
    simt::StorePack(weight, static_cast<T*>(x.param) + i);
  }
}

template <typename T>
TESSERA_KERNEL void UpdateParts(AdamWCoefficients coefficients, Parts parts) {
  int which = 0;
  while (which + 1 < parts.count && parts.at[which + 1].first_block <= simt::BlockX()) ++which;
  const Part part = parts.at[which];
  const int64_t begin = (simt::BlockX() - part.first_block) * kBlockElements;
  const int64_t behind = begin + kBlockElements;
  const int64_t end = behind < part.count ? behind : part.count;
  if (part.packs) {
    UpdateBlock<kAdamWPack, T>(coefficients, part, begin, end);
  } else {
    UpdateBlock<1, T>(coefficients, part, begin, end);
  }
}

template <typename T>
void LaunchParts(simt::Stream stream, const AdamWOptions& options,
                 std::span<const AdamWOperands> operands) {
  Parts parts = {};
  int64_t blocks = 0;
  AdamWOptions own = options;
  for (const AdamWOperands& x : operands) {
    const int64_t count = x.param.elements();
    if (count == 0) continue;
    own.weight_decay = x.weight_decay;
    float* const master = (x.master.empty() ? x.param : x.master).as<float>();
    float *const grad = x.grad.as<float>(), *const m = x.m.as<float>(), *const v = x.v.as<float>();
    T* const param = x.param.as<T>();
    const bool packs =
        count % kAdamWPack == 0 && AllowsPacks<kAdamWPack>(grad, master, m, v, param);
    parts.at[parts.count++] = {
        grad, master, m, v, param, count, blocks, MakeAdamWCoefficients(own).keep, packs};
    blocks += simt::BlocksOf(count, kBlockElements);
  }
  if (blocks == 0) return;
  simt::Launch<UpdateParts<T>>({blocks}, kElementwiseThreads, 0, stream,
                               MakeAdamWCoefficients(options), parts);
}

}  // namespace

void DeviceKernels::Run(const ops::AdamW& op) {
  const AdamWOperands part = {op.grad, op.master, op.m, op.v, op.param, op.options.weight_decay};
  Run(ops::AdamWAll{op.options, {&part, 1}});
}

void DeviceKernels::Run(const ops::AdamWAll& op) {
  for (size_t first = 0; first < op.parts.size(); first += kMaxParts) {
    const std::span<const AdamWOperands> some =
        op.parts.subspan(first, std::min<size_t>(op.parts.size() - first, kMaxParts));
    const Operation here(*this, "AdamW", some.front().param);
    WithType(some.front().param.dtype(),
             [&]<typename T>(T) { LaunchParts<T>(stream(), op.options, some); });
  }
}

}  // namespace tessera::cuda
