#ifndef TESSERA_CHECKPOINT_INCLUDE_STATE_DICT_H_
#define TESSERA_CHECKPOINT_INCLUDE_STATE_DICT_H_

// The description of a state: logical tensors, and their boxes in this process's memory. Owns and
// copies no element.
//
// Implemented here; checkpoint/plan/rank_states.cc checks the descriptions.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <ranges>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "layout/box.h"
#include "layout/dtype.h"
#include "layout/partition.h"

namespace tessera::ckpt {

class DeviceMemory;  // checkpoint/include/device_memory.h

// The role of a tensor in training. The numbers are the same as in the manifest's RoleProto: never
// renumber.
enum class TensorRole {
  kUnspecified = 0,
  kWeight = 1,
  kMasterWeight = 2,
  kOptimizerState = 3,
  kBuffer = 4,
};

// Returns whether a tensor is state of the optimizer, which a program with a fresh optimizer does
// not load.
inline bool BelongsToOptimizer(TensorRole role) {
  return role == TensorRole::kMasterWeight || role == TensorRole::kOptimizerState;
}

// One box of a logical tensor in this process's memory: the source of a save, or the destination of
// a load. The memory belongs to the caller and must stay valid and, for a save, unchanged until the
// call returns.
//
// Of(), Untyped() and OnDevice() make it; the comments say which of them sets a field.
struct Shard {
  Box box = {};
  void* data = nullptr;          // the element at box.global_offset
  std::vector<int64_t> strides;  // in elements, one per dim; empty: contiguous row-major

  // Checked by the call that takes the shard.
  DType dtype = DType::kUnspecified;  // set by all three; unspecified: the tensor's
  int64_t memory_elements = -1;       // from `data` on; set by Of(); -1: unknown
  bool read_only = false;             // set by Of() for constant memory: a load refuses it

  // Set by OnDevice().
  std::shared_ptr<DeviceMemory> device = nullptr;  // null: host memory
  void* handle = nullptr;                          // by which the device knows the shard

  // Makes a view of typed memory: a span, a vector, an array. If the box, with its strides, does
  // not fit into the memory, the call that takes the shard returns InvalidArgument.
  template <std::ranges::contiguous_range Memory>
  // NOLINTNEXTLINE(performance-unnecessary-value-param): both are moved from.
  static Shard Of(Memory&& memory, Box box, std::vector<int64_t> strides = {}) {
    using Element = std::remove_reference_t<std::ranges::range_reference_t<Memory>>;
    constexpr DType kType = kDTypeOf<std::remove_cv_t<Element>>;
    static_assert(kType != DType::kUnspecified, "specialize kDTypeOf for this type");
    return {.box = std::move(box),
            .data = const_cast<std::remove_cv_t<Element>*>(std::ranges::data(memory)),
            .strides = std::move(strides),
            .dtype = kType,
            .memory_elements = static_cast<int64_t>(std::ranges::size(memory)),
            .read_only = std::is_const_v<Element>};
  }

  // Makes a view of memory of unknown size, whose dtype is known only at run time.
  static Shard Untyped(void* data, DType dtype, Box box, std::vector<int64_t> strides = {}) {
    return {.box = std::move(box), .data = data, .strides = std::move(strides), .dtype = dtype};
  }

  // Makes a view of memory of a device, which only `device` copies. `data` is never dereferenced:
  // AsyncSaver::WaitUntilCopied() compares its argument with `data` and the strides. Loads do not
  // compare it, so they do not find shards that share memory of a device.
  static Shard OnDevice(std::shared_ptr<DeviceMemory> device, void* handle, void* data, DType dtype,
                        Box box, std::vector<int64_t> strides = {}) {
    Shard shard = Untyped(data, dtype, std::move(box), std::move(strides));
    shard.device = std::move(device);
    shard.handle = handle;
    return shard;
  }
};

// One process's part of a logical tensor: its properties, and the boxes of it that this process
// holds (possibly none).
struct ShardedTensor {
  std::string name = {};
  TensorRole role = TensorRole::kWeight;
  DType dtype = DType::kUnspecified;  // unspecified: that of the shards
  Shape global_shape = {};
  Shape padded_shape = {};    // with padding rows, which are never saved; empty: no padding
  std::string alias_of = {};  // not empty: a second name of that tensor; carries no shards
  // How the tensor may be split; nullopt: unknown, or the tensor is an alias.
  std::optional<Partition> partition = {};
  std::vector<Shard> shards = {};
};

// The tensors that a process saves or loads. Boxes of one tensor must not overlap within a process.
// The boxes of all processes may overlap (replicas), and must cover the tensor. Replicas must be
// equal: a save writes one of them, and does not compare them.
//
// Files have the tensors in this order. If tensors are parts of one buffer, list them in the order
// of the buffer: then they are written together, in place.
struct StateDict {
  std::vector<ShardedTensor> tensors = {};
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_INCLUDE_STATE_DICT_H_
