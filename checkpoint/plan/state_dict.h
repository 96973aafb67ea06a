#ifndef TESSERA_CHECKPOINT_PLAN_STATE_DICT_H_
#define TESSERA_CHECKPOINT_PLAN_STATE_DICT_H_

// State as the library sees it: logical tensors, and the boxes of them that lie in this process's
// memory. Descriptions only: no element is owned or copied here.

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
#include "layout/partition.h"

namespace tessera::ckpt {

// The numbers are the same as in the manifest's DType (FORMAT.md): never renumber.
enum class ElementType {
  kUnspecified = 0,
  kF64 = 1,
  kF32 = 2,
  kF16 = 3,
  kBF16 = 4,
  kI64 = 5,
  kI32 = 6,
  kI16 = 7,
  kI8 = 8,
  kU8 = 9,
  kBool = 10,
  kU16 = 11,
  kU32 = 12,
  kU64 = 13,
  kF8E4M3 = 14,
  kF8E5M2 = 15,
};

// Bytes of one element; 0 for kUnspecified and for a dtype that this version does not know.
size_t ElementBytes(ElementType dtype);

// What a tensor is to training. The numbers are the same as in the manifest's Role: never renumber.
enum class TensorRole {
  kWeight = 1,
  kMasterWeight = 2,
  kOptimizerState = 3,
  kBuffer = 4,
};

// Whether a tensor is state of the optimizer: what a program that starts a fresh one leaves out.
inline bool BelongsToOptimizer(TensorRole role) {
  return role == TensorRole::kMasterWeight || role == TensorRole::kOptimizerState;
}

// The dtype of memory that holds elements of type T. Specialize it for a 16-bit floating type of
// the program's own:
//   template <>
//   inline constexpr ckpt::ElementType ckpt::kElementTypeOf<BFloat16> = ckpt::ElementType::kBF16;
template <typename T>
inline constexpr ElementType kElementTypeOf = [] {
  constexpr size_t kBits = 8 * sizeof(T);
  if constexpr (std::is_same_v<T, bool>) return ElementType::kBool;
  if constexpr (std::is_floating_point_v<T>) {
    return kBits == 64   ? ElementType::kF64
           : kBits == 32 ? ElementType::kF32
                         : ElementType::kUnspecified;
  } else if constexpr (std::is_integral_v<T>) {
    constexpr bool kSigned = std::is_signed_v<T>;
    return kBits == 64   ? (kSigned ? ElementType::kI64 : ElementType::kU64)
           : kBits == 32 ? (kSigned ? ElementType::kI32 : ElementType::kU32)
           : kBits == 16 ? (kSigned ? ElementType::kI16 : ElementType::kU16)
                         : (kSigned ? ElementType::kI8 : ElementType::kU8);
  } else {
    return ElementType::kUnspecified;
  }
}();

// One box of a logical tensor in this process's memory: the source of a save, the destination of a
// load. The memory belongs to the caller and must stay valid and, for a save, unchanged until the
// call returns.
struct Shard {
  Box box;
  void* data = nullptr;          // the element at box.global_offset
  std::vector<int64_t> strides;  // in elements, one per dim; empty: contiguous row-major

  // What Of() knows besides, and the library then checks.
  ElementType dtype = ElementType::kUnspecified;  // unspecified: the tensor's
  int64_t memory_elements = -1;                   // from `data` on; -1: unknown
  bool read_only = false;                         // a load refuses it

  // A view of typed memory: a span, a vector, an array. InvalidArgument from the call that takes it
  // where the box, with its strides, does not fit into the memory.
  template <std::ranges::contiguous_range Memory>
  // NOLINTNEXTLINE(performance-unnecessary-value-param): both are moved from.
  static Shard Of(Memory&& memory, Box box, std::vector<int64_t> strides = {}) {
    using Element = std::remove_reference_t<std::ranges::range_reference_t<Memory>>;
    constexpr ElementType kType = kElementTypeOf<std::remove_cv_t<Element>>;
    static_assert(kType != ElementType::kUnspecified, "specialize kElementTypeOf for this type");
    return {.box = std::move(box),
            .data = const_cast<std::remove_cv_t<Element>*>(std::ranges::data(memory)),
            .strides = std::move(strides),
            .dtype = kType,
            .memory_elements = static_cast<int64_t>(std::ranges::size(memory)),
            .read_only = std::is_const_v<Element>};
  }

  // A view of memory whose dtype is known only at run time, and its size not at all.
  static Shard Untyped(void* data, ElementType dtype, Box box, std::vector<int64_t> strides = {}) {
    return {.box = std::move(box), .data = data, .strides = std::move(strides), .dtype = dtype};
  }
};

// One process's part of a logical tensor: its properties, and the boxes of it that this process
// holds (possibly none).
struct ShardedTensor {
  std::string name;
  TensorRole role = TensorRole::kWeight;
  ElementType dtype = ElementType::kUnspecified;  // unspecified: that of the shards
  Shape global_shape;
  Shape padded_shape;                  // empty: not padded
  std::string alias_of;                // not empty: a second name of that tensor; carries no shards
  std::optional<Partition> partition;  // how it may be cut, where that is known; not of an alias
  std::vector<Shard> shards;
};

// Everything that a process contributes to a save, or wants from a load. Boxes of one tensor must
// not overlap within a process; across processes they may (replicas), and must cover the tensor.
struct StateDict {
  std::vector<ShardedTensor> tensors;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_PLAN_STATE_DICT_H_
