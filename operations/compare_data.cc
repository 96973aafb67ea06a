#include "operations/compare_data.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "base/checked_math.h"
#include "base/status_macros.h"
#include "base/threads.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/plan/rank_states.h"
#include "convert/core/saved_weights.h"

namespace tessera::ckpt {
namespace {

// Memory for each side at a time, as saved, unless one row needs more.
constexpr int64_t kBatchBytes = int64_t{32} << 20;

using convert::IsFloating;

// Some rows of a tensor.
struct Slab {
  const LogicalTensor* tensor_a;
  const LogicalTensor* tensor_b;
  Box box;
};

// Compares tensors in slabs of rows. Add() collects slabs up to a batch; Flush() reads both
// checkpoints' slabs, compares the bytes and, where they differ, the numbers.
class Comparer {
 public:
  Comparer(const Checkpoint& a, const Checkpoint& b, int threads) : a_(a), b_(b) {
    options_.allow_unexpected = true;
    options_.io_threads = threads;
  }

  absl::Status Add(const LogicalTensor& tensor_a, const LogicalTensor& tensor_b) {
    differences_[tensor_a.name()];
    Box box = WholeBox(GlobalShape(tensor_a));
    const int64_t elements = ElementCount(box.shape);
    if (elements == 0) return absl::OkStatus();
    const int64_t element_bytes = ElementSize(FromProto(tensor_a.dtype()));
    if (box.shape.empty()) return AddSlab({&tensor_a, &tensor_b, box}, element_bytes);
    const int64_t rows = box.shape[0], row_bytes = elements / rows * element_bytes;
    const int64_t rows_at_once = std::max<int64_t>(kBatchBytes / row_bytes, 1);
    for (int64_t row = 0; row < rows; row += rows_at_once) {
      box.global_offset[0] = row;
      box.shape[0] = std::min(rows - row, rows_at_once);
      TESSERA_RETURN_IF_ERROR(AddSlab({&tensor_a, &tensor_b, box}, box.shape[0] * row_bytes));
    }
    return absl::OkStatus();
  }

  absl::Status Flush() {
    std::vector<Slab> slabs = std::move(slabs_), differ;
    slabs_.clear();
    bytes_ = 0;
    if (slabs.empty()) return absl::OkStatus();
    TESSERA_RETURN_IF_ERROR(ReadBoth(slabs, /*as_numbers=*/false));
    for (size_t s = 0; s < slabs.size(); ++s) {
      const bool comparable = slabs[s].tensor_a->dtype() == slabs[s].tensor_b->dtype();
      const size_t size =
          ElementCount(slabs[s].box.shape) * ElementSize(FromProto(slabs[s].tensor_a->dtype()));
      if (comparable && std::memcmp(contents_a_.slabs[s], contents_b_.slabs[s], size) == 0)
        continue;
      differences_[slabs[s].tensor_a->name()].same_bits = false;
      differ.push_back(std::move(slabs[s]));
    }
    return CompareAsNumbers(differ);
  }

  std::map<std::string, DataDifference> Finish() && { return std::move(differences_); }

 private:
  // Contents of slabs, each aligned for any dtype. One memory for all batches: touching new memory
  // takes as long as reading into it.
  struct Contents {
    std::unique_ptr<std::byte[]> memory;
    size_t capacity_bytes = 0;
    std::vector<std::byte*> slabs;
  };

  absl::Status AddSlab(Slab slab, int64_t bytes) {
    if (bytes_ + bytes > kBatchBytes) TESSERA_RETURN_IF_ERROR(Flush());
    slabs_.push_back(std::move(slab));
    bytes_ += bytes;
    return absl::OkStatus();
  }

  absl::Status CompareAsNumbers(const std::vector<Slab>& slabs) {
    if (slabs.empty()) return absl::OkStatus();
    TESSERA_RETURN_IF_ERROR(ReadBoth(slabs, /*as_numbers=*/true));
    for (size_t s = 0; s < slabs.size(); ++s) {
      DataDifference& difference = differences_[slabs[s].tensor_a->name()];
      const int64_t count = ElementCount(slabs[s].box.shape);
      if (IsFloating(FromProto(slabs[s].tensor_a->dtype()))) {
        CompareValues(reinterpret_cast<const double*>(contents_a_.slabs[s]),
                      reinterpret_cast<const double*>(contents_b_.slabs[s]), count, difference);
      } else {
        CompareBits(contents_a_.slabs[s], contents_b_.slabs[s], count,
                    ElementSize(FromProto(slabs[s].tensor_a->dtype())), difference);
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadBoth(const std::vector<Slab>& slabs, bool as_numbers) {
    return RunTasks(2, 2, [&](int, size_t side) {
      return side == 0 ? Read(a_, slabs, &Slab::tensor_a, as_numbers, contents_a_)
                       : Read(b_, slabs, &Slab::tensor_b, as_numbers, contents_b_);
    });
  }

  static DType DTypeInMemory(const LogicalTensor& saved, bool as_numbers) {
    return as_numbers && IsFloating(FromProto(saved.dtype())) ? DType::kF64
                                                              : FromProto(saved.dtype());
  }

  static void MakeRoom(const std::vector<Slab>& slabs, const LogicalTensor* Slab::*side,
                       bool as_numbers, Contents& contents) {
    std::vector<size_t> begins;
    size_t bytes = 0;
    for (const Slab& slab : slabs) {
      begins.push_back(bytes);
      const size_t element_bytes = ElementSize(DTypeInMemory(*(slab.*side), as_numbers));
      bytes += RoundUp<size_t>(ElementCount(slab.box.shape) * element_bytes, sizeof(double));
    }
    if (contents.capacity_bytes < bytes) {
      contents.memory.reset();
      contents.memory = std::make_unique_for_overwrite<std::byte[]>(bytes);
      contents.capacity_bytes = bytes;
    }
    contents.slabs.clear();
    for (const size_t begin : begins) contents.slabs.push_back(contents.memory.get() + begin);
  }

  // Reads all slabs of one side, as saved or, if floating, as doubles.
  absl::Status Read(const Checkpoint& checkpoint, const std::vector<Slab>& slabs,
                    const LogicalTensor* Slab::*side, bool as_numbers, Contents& contents) const {
    MakeRoom(slabs, side, as_numbers, contents);
    StateDict state;
    for (size_t s = 0; s < slabs.size(); ++s) {
      const LogicalTensor& saved = *(slabs[s].*side);
      ShardedTensor* tensor = state.tensors.empty() ? nullptr : &state.tensors.back();
      if (tensor == nullptr || tensor->name != saved.name()) {
        tensor = &state.tensors.emplace_back();
        tensor->name = saved.name();
        tensor->role = FromProto(saved.role());
        tensor->dtype = DTypeInMemory(saved, as_numbers);
        tensor->global_shape = GlobalShape(saved);
      }
      tensor->shards.push_back({slabs[s].box, contents.slabs[s], {}});
    }
    return checkpoint.Load(state, options_).status();
  }

  static void CompareValues(const double* a, const double* b, int64_t count,
                            DataDifference& difference) {
    for (int64_t i = 0; i < count; ++i) {
      if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
      ++difference.different_elements;
      const double distance = std::fabs(a[i] - b[i]);
      difference.max_abs =
          std::max(difference.max_abs,
                   std::isnan(distance) ? std::numeric_limits<double>::infinity() : distance);
      if (std::isfinite(a[i]) && std::isfinite(b[i])) {
        difference.squares += distance * distance;
      } else {
        ++difference.without_distance;
      }
    }
  }

  static void CompareBits(const void* a, const void* b, int64_t count, size_t element_bytes,
                          DataDifference& difference) {
    const auto* const bytes_a = static_cast<const char*>(a);
    const auto* const bytes_b = static_cast<const char*>(b);
    for (int64_t i = 0; i < count; ++i) {
      const size_t at = i * element_bytes;
      if (std::memcmp(bytes_a + at, bytes_b + at, element_bytes) != 0) {
        ++difference.different_elements;
      }
    }
  }

  const Checkpoint& a_;
  const Checkpoint& b_;
  LoadOptions options_;
  std::vector<Slab> slabs_;
  int64_t bytes_ = 0;
  Contents contents_a_, contents_b_;
  std::map<std::string, DataDifference> differences_;
};

}  // namespace

absl::StatusOr<std::map<std::string, DataDifference>> CompareData(
    const Checkpoint& a, const Checkpoint& b, const std::vector<std::string>& names, int threads) {
  std::map<std::string, const LogicalTensor*> index_a, index_b;
  for (const LogicalTensor& tensor : a.manifest().tensors()) index_a[tensor.name()] = &tensor;
  for (const LogicalTensor& tensor : b.manifest().tensors()) index_b[tensor.name()] = &tensor;
  Comparer comparer(a, b, threads);
  for (const std::string& name : names) {
    const LogicalTensor& in_a = *index_a.at(name);
    const LogicalTensor& in_b = *index_b.at(name);
    const bool comparable = in_a.dtype() == in_b.dtype() || (IsFloating(FromProto(in_a.dtype())) &&
                                                             IsFloating(FromProto(in_b.dtype())));
    if (comparable && GlobalShape(in_a) == GlobalShape(in_b)) {
      TESSERA_RETURN_IF_ERROR(comparer.Add(in_a, in_b));
    }
  }
  TESSERA_RETURN_IF_ERROR(comparer.Flush());
  return std::move(comparer).Finish();
}

}  // namespace tessera::ckpt
