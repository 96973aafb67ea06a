#include "compute/device/kernel_reducer.h"

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "comm/communicator.h"
#include "compute/kernels/cuda/kernel_stream.h"
#include "compute/kernels/cuda/tree_reduce.h"
#include "tensor/bfloat16.h"
#include "tensor/device.h"

namespace tessera {
namespace {

using cuda::TreeOp;

template <typename T>
absl::Status ReduceAs(Stream& stream, TreeOp op, std::span<const void* const> inputs, void* output,
                      int64_t elements) {
  std::vector<const T*> addresses;
  for (const void* input : inputs) addresses.push_back(static_cast<const T*>(input));
  cuda::KernelStream kernels(stream);
  const int64_t bytes =
      cuda::TreeReduceScratchBytes<T>(static_cast<int64_t>(inputs.size()), elements);
  // Given back in the order of the stream: after the launches.
  std::optional<DeviceBuffer> scratch;
  if (bytes > 0) {
    TESSERA_ASSIGN_OR_RETURN(DeviceBuffer memory,
                             DeviceBuffer::Allocate(stream, bytes, "partial sums"));
    scratch.emplace(std::move(memory));
    kernels.Poison(scratch->data(), bytes);
  }
  cuda::TreeReduce<T>(kernels.get(), op, addresses, elements, static_cast<T*>(output),
                      scratch.has_value() ? scratch->data() : nullptr);
  kernels.KeepErrors();
  return absl::OkStatus();
}

absl::Status ReduceTo(Stream& stream, TreeOp op, CommType type, std::span<const void* const> inputs,
                      void* output, int64_t elements) {
  if (inputs.size() > cuda::kMaxTreeInputs) {
    return absl::UnimplementedError(
        absl::StrCat(inputs.size(), " ranks; the kernel takes up to ", cuda::kMaxTreeInputs));
  }
  switch (type) {
    case CommType::kF32:
      return ReduceAs<float>(stream, op, inputs, output, elements);
    case CommType::kBF16:
      return ReduceAs<BFloat16>(stream, op, inputs, output, elements);
    case CommType::kF64:
      return ReduceAs<double>(stream, op, inputs, output, elements);
    case CommType::kI32:
      return ReduceAs<int32_t>(stream, op, inputs, output, elements);
    case CommType::kI64:
      return ReduceAs<int64_t>(stream, op, inputs, output, elements);
    case CommType::kBytes:
      break;
  }
  return absl::InvalidArgumentError("bytes cannot be reduced");
}

class KernelReducer final : public DeviceReducer {
 public:
  void Reduce(Stream& stream, ReduceOp op, CommType type, std::span<const void* const> inputs,
              void* output, int64_t elements) override {
    const TreeOp tree_op = op == ReduceOp::kSum ? TreeOp::kSum : TreeOp::kMax;
    stream.context().KeepError("a reduction",
                               ReduceTo(stream, tree_op, type, inputs, output, elements));
  }
};

}  // namespace

std::unique_ptr<DeviceReducer> MakeKernelReducer() { return std::make_unique<KernelReducer>(); }

}  // namespace tessera
