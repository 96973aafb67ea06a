#include "tests/perf/reshard_load_state.h"

#include <array>
#include <cstddef>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "layout/box.h"
#include "layout/elements/box_runs.h"

namespace tessera {
namespace {

constexpr int64_t kMicroBatches = 8;  // divisible by every topology of four ranks
// A prime, so that over the rows of a matrix the sample visits all columns.
constexpr int64_t kSampleEvery = 4093;

uint64_t Hash(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

// The bytes of an element, from the highest bits of the product, which are mixed best.
std::array<std::byte, 8> Value(uint64_t tensor, int64_t element) {
  const uint64_t mixed =
      __builtin_bswap64((tensor + static_cast<uint64_t>(element)) * 0x9E3779B97F4A7C15u);
  std::array<std::byte, 8> bytes;
  std::memcpy(bytes.data(), &mixed, sizeof(mixed));
  return bytes;
}

// Calls fn(first element in the global tensor, address, elements, stride in elements) for runs of a
// shard.
template <typename Function>
void ForEachRun(const ckpt::ShardedTensor& tensor, const ckpt::Shard& shard, Function&& fn) {
  if (shard.box.empty()) return;
  const auto size = ElementSize(tensor.dtype);
  const std::vector<int64_t> strides =
      shard.strides.empty() ? ContiguousStrides(shard.box.shape) : shard.strides;
  const BoxRuns runs(WholeBox(tensor.global_shape), shard.box, shard.box.global_offset, strides);
  runs.ForEach(0, ElementCount(tensor.global_shape), [&](const BoxRuns::Run& run) {
    fn(run.outer_element, static_cast<std::byte*>(shard.data) + run.strided_element * size,
       run.count, runs.run_stride());
  });
}

// Calls fn(tensor, its hash, element, address) for every `every`-th element.
template <typename Function>
void ForEachElement(const ckpt::StateDict& dict, int64_t every, Function&& fn) {
  for (const ckpt::ShardedTensor& tensor : dict.tensors) {
    const uint64_t hash = Hash(tensor.name);
    const auto size = ElementSize(tensor.dtype);
    for (const ckpt::Shard& shard : tensor.shards) {
      ForEachRun(tensor, shard, [&](int64_t first, std::byte* at, int64_t count, int64_t stride) {
        for (int64_t i = (every - first % every) % every; i < count; i += every) {
          fn(tensor, hash, first + i, at + i * stride * size);
        }
      });
    }
  }
}

// Bytes of each whole tensor by name, on every rank, combined from all ranks.
absl::StatusOr<uint64_t> LogicalBytes(const ckpt::StateDict& dict, Communicator& world) {
  std::string mine;
  for (const ckpt::ShardedTensor& tensor : dict.tensors) {
    if (!tensor.alias_of.empty()) continue;
    absl::StrAppend(&mine, tensor.name, " ",
                    ElementCount(tensor.global_shape) * ElementSize(tensor.dtype), "\n");
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> all, world.GatherBytes(mine, 0));
  absl::flat_hash_map<std::string, uint64_t> tensors;
  for (const std::string& lines : all) {
    for (const auto line : absl::StrSplit(lines, '\n', absl::SkipEmpty())) {
      const std::pair<std::string, std::string> entry = absl::StrSplit(line, ' ');
      tensors[entry.first] = std::stoull(entry.second);
    }
  }
  int64_t bytes = 0;
  for (const auto& [name, tensor_bytes] : tensors) bytes += static_cast<int64_t>(tensor_bytes);
  TESSERA_RETURN_IF_ERROR(world.Broadcast(std::span(&bytes, 1), 0));
  return static_cast<uint64_t>(bytes);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ReshardLoadState>> ReshardLoadState::Create(
    const std::string& topology, int layers, Communicator& world) {
  std::unique_ptr<ReshardLoadState> state(new ReshardLoadState(topology));
  TESSERA_ASSIGN_OR_RETURN(
      state->run_,
      Gpt2Run::Create(
          {.layers = layers, .topology = topology, .bf16 = true, .micro_batches = kMicroBatches},
          &world));
  state->dict_ = state->run_->State();
  TESSERA_ASSIGN_OR_RETURN(state->logical_bytes_, LogicalBytes(state->dict_, world));
  ForEachElement(state->dict_, 1,
                 [&](const ckpt::ShardedTensor& tensor, uint64_t hash, int64_t i, std::byte* at) {
                   const size_t size = ElementSize(tensor.dtype);
                   std::memcpy(at, Value(hash, i).data(), size);
                   state->local_bytes_ += size;
                 });
  return state;
}

void ReshardLoadState::Spoil() {
  ForEachElement(dict_, kSampleEvery,
                 [](const ckpt::ShardedTensor& tensor, uint64_t, int64_t, std::byte* at) {
                   std::memset(at, 0x55, ElementSize(tensor.dtype));
                 });
}

absl::Status ReshardLoadState::Check() const {
  absl::Status status;
  ForEachElement(dict_, kSampleEvery,
                 [&](const ckpt::ShardedTensor& tensor, uint64_t hash, int64_t i, std::byte* at) {
                   const size_t size = ElementSize(tensor.dtype);
                   if (!status.ok() || std::memcmp(at, Value(hash, i).data(), size) == 0) return;
                   status = absl::DataLossError(absl::StrCat(
                       topology_, ": ", tensor.name, ": element ", i, " is not what was saved"));
                 });
  return status;
}

}  // namespace tessera
