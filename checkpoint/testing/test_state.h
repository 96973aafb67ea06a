#ifndef TESSERA_CHECKPOINT_TESTING_TEST_STATE_H_
#define TESSERA_CHECKPOINT_TESTING_TEST_STATE_H_

// The oracle for saves and loads: logical tensors held whole in memory, and split into shards one
// element at a time.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/collective/testing/forwarding_group.h"
#include "checkpoint/include/async_saver.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/plan/rank_states.h"
#include "checkpoint/save/run_save.h"

namespace tessera::ckpt {

// Returns the options with a group.
template <typename Options>
Options On(ProcessGroup& group, Options options) {
  options.group = &group;
  return options;
}

inline AsyncSaveOptions On(ProcessGroup& group, AsyncSaveOptions options) {
  options.save.group = &group;
  return options;
}

// Returns the function that has a save made in a folder of the storage.
inline ChooseRoot In(std::string folder) {
  return [folder = std::move(folder)](const PlannedSave&) { return folder; };
}

// Returns a tensor that one caller has all of, in `values`.
template <typename T>
ShardedTensor TensorOf(std::string name, TensorRole role, DType dtype, std::vector<T>& values,
                       const Shape& shape) {
  ShardedTensor tensor;
  tensor.name = std::move(name);
  tensor.role = role;
  tensor.dtype = dtype;
  tensor.global_shape = shape;
  tensor.shards = {{WholeBox(shape), values.data(), {}}};
  return tensor;
}

// Counts the messages that its rank sends to rank 0, and their bytes.
class CountingGroup final : public ForwardingGroup {
 public:
  using ForwardingGroup::ForwardingGroup;
  int messages = 0;
  uint64_t sent_bytes = 0;

  absl::StatusOr<std::vector<std::string>> Gather(std::string_view mine,
                                                  absl::Duration timeout) override {
    ++messages;
    sent_bytes += mine.size();
    return ForwardingGroup::Gather(mine, timeout);
  }
};

// Opens the checkpoint in a directory of a storage, and loads it.
inline absl::StatusOr<LoadReport> LoadCheckpoint(Storage& storage, std::string_view directory,
                                                 const StateDict& state,
                                                 const LoadOptions& options = {}) {
  const absl::StatusOr<Checkpoint> opened = Checkpoint::Open(storage, directory);
  return opened.ok() ? opened->Load(state, options) : opened.status();
}

struct WholeTensor {
  std::string name;
  TensorRole role = TensorRole::kWeight;
  DType dtype = DType::kF32;
  Shape shape;
  std::string bytes;  // row-major
};

inline WholeTensor RandomTensor(std::string name, TensorRole role, DType dtype, Shape shape,
                                std::mt19937_64& random) {
  WholeTensor tensor{std::move(name), role, dtype, std::move(shape), {}};
  tensor.bytes.resize(ElementCount(tensor.shape) * ElementSize(dtype));
  for (char& byte : tensor.bytes) byte = static_cast<char>(random());
  return tensor;
}

// Calls fn(global indices) for every element of the box, in row-major order.
template <typename Function>
void ForEachIndex(const Box& box, Function&& fn) {
  if (box.empty()) return;
  std::vector<int64_t> index = box.global_offset;
  while (true) {
    fn(index);
    size_t d = index.size();
    while (d > 0 && ++index[d - 1] == box.global_offset[d - 1] + box.shape[d - 1]) {
      index[d - 1] = box.global_offset[d - 1];
      --d;
    }
    if (d == 0) return;
  }
}

// The memory of one process: owns the buffers of its shards.
class LocalState {
 public:
  StateDict dict;

  // Adds boxes of a tensor, each in its own buffer, with random gaps between its dims if `random`
  // is given, filled from the tensor or, if `fill` is false, with a pattern.
  void Add(const WholeTensor& whole, const std::vector<Box>& boxes, bool fill,
           std::mt19937_64* random = nullptr) {
    ShardedTensor tensor;
    tensor.name = whole.name;
    tensor.role = whole.role;
    tensor.dtype = whole.dtype;
    tensor.global_shape = whole.shape;
    for (const Box& box : boxes) {
      Shard shard;
      shard.box = box;
      int64_t elements = 1;
      if (random != nullptr && (*random)() % 2 == 0) {
        shard.strides.resize(box.shape.size());
        for (size_t d = box.shape.size(); d-- > 0;) {
          elements *= 1 + (*random)() % 2;  // a gap between neighbours of this dim
          shard.strides[d] = elements;
          elements *= std::max<int64_t>(box.shape[d], 1);
        }
      } else {
        elements = ElementCount(box.shape);
      }
      memory_.emplace_back((elements + 1) * ElementSize(whole.dtype), '\x5a');
      shard.data = memory_.back().data();
      tensor.shards.push_back(shard);
      if (fill) CopyIn(whole, tensor.shards.back());
    }
    dict.tensors.push_back(std::move(tensor));
  }

  // Returns whether the elements of the shard equal those of the tensor, bit for bit.
  static bool Holds(const Shard& shard, const WholeTensor& whole) {
    bool equal = true;
    const size_t size = ElementSize(whole.dtype);
    ForEachElement(shard, whole, [&](char* local, size_t at) {
      equal &= std::memcmp(local, whole.bytes.data() + at, size) == 0;
    });
    return equal;
  }

 private:
  template <typename Function>
  static void ForEachElement(const Shard& shard, const WholeTensor& whole, Function&& fn) {
    const size_t size = ElementSize(whole.dtype);
    const std::vector<int64_t> global = ContiguousStrides(whole.shape);
    const std::vector<int64_t> local =
        shard.strides.empty() ? ContiguousStrides(shard.box.shape) : shard.strides;
    ForEachIndex(shard.box, [&](const std::vector<int64_t>& index) {
      int64_t from = 0, to = 0;
      for (size_t d = 0; d < index.size(); ++d) {
        from += index[d] * global[d];
        to += (index[d] - shard.box.global_offset[d]) * local[d];
      }
      fn(static_cast<char*>(shard.data) + to * size, from * size);
    });
  }

  static void CopyIn(const WholeTensor& whole, const Shard& shard) {
    ForEachElement(shard, whole, [&](char* local, size_t at) {
      std::memcpy(local, whole.bytes.data() + at, ElementSize(whole.dtype));
    });
  }

  std::deque<std::string> memory_;
};

// Splits a box into about `pieces` disjoint boxes that cover it, at random places in random dims.
inline std::vector<Box> RandomCut(const Shape& shape, size_t pieces, std::mt19937_64& random) {
  std::vector<Box> boxes = {WholeBox(shape)};
  for (size_t i = 1; i < pieces && !shape.empty(); ++i) {
    Box& box = boxes[random() % boxes.size()];
    const size_t d = random() % shape.size();
    const int64_t at = random() % (box.shape[d] + 1);  // either part may be empty
    Box rest = box;
    rest.global_offset[d] += at;
    rest.shape[d] -= at;
    box.shape[d] = at;
    boxes.push_back(std::move(rest));
  }
  return boxes;
}

// Returns a state of one tensor, all of which is in the memory.
inline StateDict OneTensor(std::vector<float>& elements, const std::string& name = "weight") {
  const auto size = static_cast<int64_t>(elements.size());
  return {
      {{.name = name, .global_shape = {size}, .shards = {Shard::Of(elements, WholeBox({size}))}}}};
}

// Returns the state of rank `rank` of `ranks`, each of which has a part of the rows of every
// tensor. Scalars are whole on each rank.
inline LocalState RowsOf(const std::vector<WholeTensor>& tensors, int rank = 0, int ranks = 1,
                         bool fill = true) {
  LocalState state;
  for (const WholeTensor& tensor : tensors) {
    Box box = WholeBox(tensor.shape);
    if (!box.shape.empty()) {
      const int64_t rows = tensor.shape[0];
      box.global_offset[0] = rows * rank / ranks;
      box.shape[0] = rows * (rank + 1) / ranks - box.global_offset[0];
    }
    state.Add(tensor, {box}, fill);
  }
  return state;
}

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_TESTING_TEST_STATE_H_
