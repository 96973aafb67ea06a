#include "trainer/device/kernel_reducer.h"

#include <glog/logging.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "trainer/comm/communicator.h"
#include "trainer/comm/nccl/device_reducer.h"
#include "trainer/kernels/cuda/kernel_stream.h"
#include "trainer/kernels/cuda/tree_reduce.h"
#include "trainer/tensor/device.h"
#include "trainer/tensor/dtype.h"

namespace tessera {
namespace {

using cuda::TreeOp;

template <typename T>
void ReduceAs(cuda::KernelStream& stream, TreeOp op, std::span<const void* const> inputs,
              void* output, int64_t elements) {
  std::vector<const T*> addresses;
  for (const void* input : inputs) addresses.push_back(static_cast<const T*>(input));
  cuda::TreeReduce<T>(stream.get(), op, addresses, elements, static_cast<T*>(output));
}

class KernelReducer final : public DeviceReducer {
 public:
  void Reduce(const Stream& stream, ReduceOp op, CommType type, std::span<const void* const> inputs,
              void* output, int64_t elements) override {
    if (inputs.size() > cuda::kMaxTreeInputs) {
      stream.context().KeepError("a reduction",
                                 absl::UnimplementedError(std::to_string(inputs.size()) +
                                                          " ranks; the kernel takes up to 256"));
      return;
    }
    cuda::KernelStream kernels(stream);
    const TreeOp tree_op = op == ReduceOp::kSum ? TreeOp::kSum : TreeOp::kMax;
    switch (type) {
      case CommType::kF32:
        ReduceAs<float>(kernels, tree_op, inputs, output, elements);
        break;
      case CommType::kBF16:
        ReduceAs<BFloat16>(kernels, tree_op, inputs, output, elements);
        break;
      case CommType::kF64:
        ReduceAs<double>(kernels, tree_op, inputs, output, elements);
        break;
      case CommType::kI32:
        ReduceAs<int32_t>(kernels, tree_op, inputs, output, elements);
        break;
      case CommType::kI64:
        ReduceAs<int64_t>(kernels, tree_op, inputs, output, elements);
        break;
      case CommType::kBytes:
        LOG(FATAL) << "bytes cannot be reduced";
    }
    kernels.KeepErrors();
  }
};

}  // namespace

std::unique_ptr<DeviceReducer> MakeKernelReducer() { return std::make_unique<KernelReducer>(); }

}  // namespace tessera
