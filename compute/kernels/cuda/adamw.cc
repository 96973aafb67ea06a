// Loshchilov and Hutter, "Decoupled weight decay regularization" (ICLR 2019). One pass over memory.

#include <glog/logging.h>

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
#include "compute/tensor/tensor.h"

namespace tessera::cuda {
namespace {

template <typename T>
struct AdamWBody {
  AdamWCoefficients c;
  const float* grad;
  float* master;
  float* m;
  float* v;
  T* param;

  template <int kCount>
  TESSERA_DEVICE void Run(int64_t /*row*/, int64_t i) const {
    float g[kCount], first[kCount], second[kCount], weight[kCount];
    simt::LoadPack(grad + i, g);
    simt::LoadPack(m + i, first);
    simt::LoadPack(v + i, second);
    simt::LoadPack(master + i, weight);
    for (int j = 0; j < kCount; ++j) {
      const float gradient = g[j] * c.grad_scale;
      first[j] = fmaf(c.beta1, first[j], c.one_minus_beta1 * gradient);
      second[j] = fmaf(c.beta2, second[j], c.one_minus_beta2 * (gradient * gradient));
      const float root = fmaf(sqrtf(second[j]), c.inverse_root2, c.epsilon);
      weight[j] = fmaf(c.keep, weight[j], -(c.step_size * first[j] / root));
    }
    simt::StorePack(first, m + i);
    simt::StorePack(second, v + i);
    simt::StorePack(weight, master + i);
    if constexpr (std::is_same_v<T, float>) {
      if (param == master) return;
    }
    simt::StorePack(weight, param + i);
  }
};

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
TESSERA_DEVICE void UpdateBlock(const AdamWBody<T>& body, int64_t begin, int64_t end) {
  const int64_t step = static_cast<int64_t>(simt::ThreadCount()) * kCount;
  for (int64_t i = begin + simt::ThreadIndex() * kCount; i < end; i += step) {
    body.template Run<kCount>(0, i);
  }
}

template <typename T>
TESSERA_KERNEL void UpdateParts(AdamWCoefficients coefficients, Parts parts) {
  int which = 0;
  while (which + 1 < parts.count && parts.at[which + 1].first_block <= simt::BlockX()) ++which;
  coefficients.keep = parts.at[which].keep;
  const AdamWBody<T> body = {coefficients,           parts.at[which].grad,
                             parts.at[which].master, parts.at[which].m,
                             parts.at[which].v,      static_cast<T*>(parts.at[which].param)};
  const int64_t begin = (simt::BlockX() - parts.at[which].first_block) * kBlockElements;
  const int64_t behind = begin + kBlockElements, count = parts.at[which].count;
  const int64_t end = behind < count ? behind : count;
  if (parts.at[which].packs) {
    UpdateBlock<kAdamWPack>(body, begin, end);
  } else {
    UpdateBlock<1>(body, begin, end);
  }
}

template <typename T>
bool UsesPacks(const AdamWBody<T>& body, int64_t count) {
  return count % kAdamWPack == 0 && AllowsPacks<kAdamWPack>(body.grad) &&
         AllowsPacks<kAdamWPack>(body.master) && AllowsPacks<kAdamWPack>(body.m) &&
         AllowsPacks<kAdamWPack>(body.v) && AllowsPacks<kAdamWPack>(body.param);
}

template <typename T>
AdamWBody<T> BodyOf(const AdamWCoefficients& coefficients, const AdamWOperands& x) {
  const TensorView& master = x.master.empty() ? x.param : x.master;
  return {coefficients,    x.grad.as<float>(), master.as<float>(),
          x.m.as<float>(), x.v.as<float>(),    x.param.as<T>()};
}

template <typename T>
void LaunchParts(simt::Stream stream, const AdamWOptions& options,
                 std::span<const AdamWOperands> operands) {
  Parts parts = {};
  int64_t blocks = 0;
  AdamWOptions own = options;
  for (const AdamWOperands& x : operands) {
    own.weight_decay = x.weight_decay;
    const AdamWBody<T> body = BodyOf<T>(MakeAdamWCoefficients(own), x);
    const int64_t count = x.param.elements();
    if (count == 0) continue;
    parts.at[parts.count++] = {body.grad, body.master, body.m,
                               body.v,    body.param,  count,
                               blocks,    body.c.keep, UsesPacks(body, count)};
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
    const Operation here("AdamW", some.front().param);
    WithType(some.front().param.dtype(),
             [&]<typename T>(T) { LaunchParts<T>(stream(), op.options, some); });
  }
}

}  // namespace tessera::cuda
