#include "compute/comm/communicator.h"

#include <glog/logging.h>

#include <utility>

namespace tessera {

CommType ToCommType(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return CommType::kF32;
    case DType::kBF16:
      return CommType::kBF16;
    case DType::kF64:
      return CommType::kF64;
    case DType::kI32:
      return CommType::kI32;
  }
  LOG(FATAL) << "unknown dtype " << static_cast<int>(dtype);
}

int64_t ElementSize(CommType type) {
  switch (type) {
    case CommType::kF32:
    case CommType::kI32:
      return 4;
    case CommType::kF64:
    case CommType::kI64:
      return 8;
    case CommType::kBF16:
      return 2;
    case CommType::kBytes:
      return 1;
  }
  LOG(FATAL) << "unknown type " << static_cast<int>(type);
}

std::string_view CommTypeName(CommType type) {
  static constexpr std::string_view kNames[] = {"float32", "bfloat16", "float64",
                                                "int32",   "int64",    "bytes"};
  return kNames[static_cast<int>(type)];
}

std::string_view CommOpName(CommOp op) {
  static constexpr std::string_view kNames[kCommOpCount] = {"all-reduce",
                                                            "reduce-scatter",
                                                            "all-gather",
                                                            "all-to-all",
                                                            "broadcast",
                                                            "gather of bytes",
                                                            "broadcast of bytes",
                                                            "send",
                                                            "receive",
                                                            "barrier",
                                                            "split"};
  return kNames[static_cast<int>(op)];
}

Buffer::Buffer(const TensorView& tensor)
    : Buffer(tensor.data(), ToCommType(tensor.dtype()), tensor.elements()) {
  CHECK(tensor.contiguous()) << "ranks exchange contiguous tensors only";
}

int64_t CommCounters::bytes_sent() const {
  int64_t sum = 0;
  for (const CommCounter& counter : by_op) sum += counter.bytes_sent;
  return sum;
}

Pending::Pending(std::unique_ptr<Operation> operation) : operation_(std::move(operation)) {}
Pending::Pending(Pending&&) noexcept = default;

Pending& Pending::operator=(Pending&& other) noexcept {
  if (this == &other) return *this;
  if (operation_ != nullptr) operation_->Wait(std::nullopt).IgnoreError();
  operation_ = std::move(other.operation_);
  early_ = std::move(other.early_);
  return *this;
}

Pending::~Pending() {
  if (operation_ != nullptr) operation_->Wait(std::nullopt).IgnoreError();
}

absl::Status Pending::Wait(std::optional<absl::Duration> timeout) {
  return operation_ == nullptr ? early_ : operation_->Wait(timeout);
}

absl::Status Pending::Follow(std::optional<absl::Duration> timeout) {
  return operation_ == nullptr ? early_ : operation_->Follow(timeout);
}

absl::StatusOr<bool> Pending::Test() {
  if (operation_ != nullptr) return operation_->Test();
  if (!early_.ok()) return early_;
  return true;
}

absl::Status Communicator::AllReduce(Buffer data, ReduceOp op, CallOptions options) {
  return StartAllReduce(data, op, options).Wait(options.timeout);
}

absl::Status Communicator::ReduceScatter(ConstBuffer input, Buffer output, ReduceOp op,
                                         std::span<const int64_t> counts, CallOptions options) {
  return StartReduceScatter(input, output, op, counts, options).Wait(options.timeout);
}

absl::Status Communicator::AllGather(ConstBuffer input, Buffer output,
                                     std::span<const int64_t> counts, CallOptions options) {
  return StartAllGather(input, output, counts, options).Wait(options.timeout);
}

absl::Status Communicator::AllToAll(ConstBuffer input, std::span<const int64_t> send_counts,
                                    Buffer output, std::span<const int64_t> receive_counts,
                                    CallOptions options) {
  return StartAllToAll(input, send_counts, output, receive_counts, options).Wait(options.timeout);
}

absl::Status Communicator::Broadcast(Buffer data, int root, CallOptions options) {
  return StartBroadcast(data, root, options).Wait(options.timeout);
}

absl::Status Communicator::Send(ConstBuffer data, int destination, int tag, CallOptions options) {
  return StartSend(data, destination, tag, options).Wait(options.timeout);
}

absl::Status Communicator::Receive(Buffer data, int source, int tag, CallOptions options) {
  return StartReceive(data, source, tag, options).Wait(options.timeout);
}

std::vector<int64_t> EvenCounts(int64_t elements, int ranks) {
  std::vector<int64_t> counts(ranks, elements / ranks);
  for (int64_t i = 0; i < elements % ranks; ++i) ++counts[i];
  return counts;
}

}  // namespace tessera
