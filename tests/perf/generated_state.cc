#include "tests/perf/generated_state.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <random>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/include/device_memory.h"
#include "layout/box.h"
#include "layout/elements/box_runs.h"

namespace tessera {
namespace {

constexpr int64_t kBatch = 48;  // divisible by every data axis of up to 8 ranks, and 12, 16, 24
constexpr int64_t kShortSequence = 64;
constexpr size_t kPageLockedAlignment = 4096;

}  // namespace

// Element i of a tensor is element (seed of the tensor + i) modulo a prime of the table: equal rows
// or columns of a matrix, and tensors of one shape, have different values.
class GeneratedMemory final : public ckpt::DeviceMemory {
 public:
  GeneratedMemory() : table_(kElements) {
    std::mt19937 random(1);
    for (uint32_t& value : table_) value = random();
  }

  // Replaces the memory of a shard by generated values.
  void Take(const ckpt::ShardedTensor& tensor, ckpt::Shard& shard) {
    Source& source = shards_.emplace_back();
    source.name = &tensor.name;
    source.seed = std::hash<std::string_view>()(tensor.name) % kElements;
    source.global_shape = tensor.global_shape;
    source.box = shard.box;
    source.element_bytes = ElementSize(tensor.dtype);
    shard.handle = &source;
  }

  // Calls fn(memory, bytes) for the values of elements [first, first + count) of a tensor.
  template <typename Function>
  void ForEachPart(uint64_t seed, int64_t first, int64_t count, int64_t element_bytes,
                   Function&& fn) {
    while (count > 0) {
      const auto at = static_cast<int64_t>((seed + first) % kElements);
      const int64_t part = std::min<int64_t>(count, kElements - at);
      fn(reinterpret_cast<std::byte*>(table_.data()) + at * element_bytes, part * element_bytes);
      first += part;
      count -= part;
    }
  }

  std::vector<std::span<std::byte>> Buffers() {
    std::vector<std::span<std::byte>> buffers;
    for (const Source& shard : shards_) {
      ForEachPart(shard.seed, 0, ElementCount(shard.box.shape), shard.element_bytes,
                  [&](std::byte* part, int64_t bytes) { buffers.emplace_back(part, bytes); });
    }
    return buffers;
  }

  absl::Status CheckLoaded() {
    for (Source& shard : shards_) {
      const int64_t missing = ElementCount(shard.box.shape) - shard.loaded.exchange(0);
      if (missing == 0) continue;
      return absl::DataLossError(absl::StrCat(*shard.name, ": ", missing, " elements of ",
                                              ToString(shard.box), " have not been loaded"));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<ckpt::PendingCopy>> StartCopies(std::span<const BoxCopy> copies,
                                                                 Direction direction) override {
    for (const BoxCopy& copy : copies) TESSERA_RETURN_IF_ERROR(CopyBox(copy, direction));
    return std::make_unique<Done>();
  }
  absl::StatusOr<std::byte*> Allocate(size_t size_bytes) override {
    return static_cast<std::byte*>(std::aligned_alloc(kPageLockedAlignment, size_bytes));
  }
  void Free(std::byte* memory) override { std::free(memory); }

 private:
  static constexpr int64_t kElements = 2097143;  // a prime

  struct Source {
    const std::string* name = nullptr;
    uint64_t seed = 0;
    Shape global_shape;
    Box box;
    int64_t element_bytes = 0;
    std::atomic<int64_t> loaded = 0;  // elements
  };
  struct Done final : ckpt::PendingCopy {
    absl::Status Wait() override { return absl::OkStatus(); }
  };

  absl::Status CopyBox(const BoxCopy& copy, Direction direction) {
    Source& shard = *static_cast<Source*>(copy.handle);
    Box box = copy.box;
    for (size_t d = 0; d < box.shape.size(); ++d) {
      box.global_offset[d] += shard.box.global_offset[d];
    }
    bool equal = true;
    const BoxRuns runs(WholeBox(shard.global_shape), box, box.global_offset,
                       ContiguousStrides(box.shape));
    runs.ForEach(0, ElementCount(shard.global_shape), [&](const BoxRuns::Run& run) {
      std::byte* host = copy.host + run.strided_element * shard.element_bytes;
      ForEachPart(shard.seed, run.outer_element, run.count, shard.element_bytes,
                  [&](const std::byte* values, int64_t bytes) {
                    if (direction == Direction::kToHost) {
                      std::memcpy(host, values, bytes);
                    } else {
                      equal &= std::memcmp(host, values, bytes) == 0;
                    }
                    host += bytes;
                  });
    });
    if (direction == Direction::kToHost) return absl::OkStatus();
    shard.loaded += ElementCount(box.shape);
    if (equal) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrCat(*shard.name, ": ", ToString(box), " does not have the values saved"));
  }

  std::vector<uint32_t> table_;  // its first half also has the values of two bytes
  std::deque<Source> shards_;
};

absl::StatusOr<std::unique_ptr<GeneratedState>> GeneratedState::Create(const std::string& model,
                                                                       const std::string& topology,
                                                                       Communicator& world) {
  std::unique_ptr<GeneratedState> state(new GeneratedState);
  TESSERA_ASSIGN_OR_RETURN(state->run_, Gpt2Run::Create({.model = model,
                                                         .topology = topology,
                                                         .bf16 = true,
                                                         .micro_batches = kBatch,
                                                         .sequence = kShortSequence,
                                                         .initialize = false},
                                                        &world));
  state->memory_ = std::make_shared<GeneratedMemory>();
  state->dict_ = state->run_->State();
  for (ckpt::ShardedTensor& tensor : state->dict_.tensors) {
    for (ckpt::Shard& shard : tensor.shards) {
      shard.device = state->memory_;
      state->memory_->Take(tensor, shard);
    }
  }
  return state;
}

std::vector<std::span<std::byte>> GeneratedState::Buffers() const { return memory_->Buffers(); }

absl::Status GeneratedState::CheckLoaded() { return memory_->CheckLoaded(); }

}  // namespace tessera
