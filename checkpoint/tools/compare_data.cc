#include "checkpoint/tools/compare_data.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "checkpoint/base/status_macros.h"
#include "checkpoint/engine/checkpoint.h"
#include "checkpoint/engine/process_group.h"
#include "checkpoint/engine/state_dict.h"
#include "checkpoint/format/dtype.h"
#include "checkpoint/format/manifest.h"

namespace tessera::ckpt {
namespace {

// Elements held of each side at a time, unless one row has more.
constexpr int64_t kBatchElements = int64_t{4} << 20;

bool IsFloating(DType dtype) {
  return dtype == F64 || dtype == F32 || dtype == F16 || dtype == BF16;
}

// Some rows of a tensor.
struct Slab {
  const LogicalTensor* tensor_a;
  const LogicalTensor* tensor_b;
  Box box;
};

class Comparer {
 public:
  Comparer(const Target& a, const Target& b, int threads) : a_(a), b_(b) {
    options_.allow_unexpected = true;
    options_.io_threads = threads;
  }

  absl::Status Add(const LogicalTensor& tensor_a, const LogicalTensor& tensor_b) {
    differences_[tensor_a.name()];
    Box box = WholeBox(GlobalShape(tensor_a));
    const int64_t elements = ElementCount(box.shape);
    if (elements == 0) return absl::OkStatus();
    if (box.shape.empty()) return AddSlab({&tensor_a, &tensor_b, box}, 1);
    const int64_t rows = box.shape[0], row_elements = elements / rows;
    const int64_t rows_at_once = std::max<int64_t>(kBatchElements / row_elements, 1);
    for (int64_t row = 0; row < rows; row += rows_at_once) {
      box.global_offset[0] = row;
      box.shape[0] = std::min(rows - row, rows_at_once);
      TESSERA_RETURN_IF_ERROR(AddSlab({&tensor_a, &tensor_b, box}, box.shape[0] * row_elements));
    }
    return absl::OkStatus();
  }

  absl::Status Flush() {
    if (slabs_.empty()) return absl::OkStatus();
    std::vector<std::vector<double>> values_a, values_b;
    TESSERA_RETURN_IF_ERROR(Read(a_, &Slab::tensor_a, values_a));
    TESSERA_RETURN_IF_ERROR(Read(b_, &Slab::tensor_b, values_b));
    for (size_t s = 0; s < slabs_.size(); ++s) {
      DataDifference& difference = differences_[slabs_[s].tensor_a->name()];
      const int64_t count = ElementCount(slabs_[s].box.shape);
      if (IsFloating(slabs_[s].tensor_a->dtype())) {
        CompareValues(values_a[s].data(), values_b[s].data(), count, difference);
      } else {
        CompareBits(values_a[s].data(), values_b[s].data(), count,
                    DTypeSize(slabs_[s].tensor_a->dtype()), difference);
      }
    }
    slabs_.clear();
    elements_ = 0;
    return absl::OkStatus();
  }

  std::map<std::string, DataDifference> Finish() && { return std::move(differences_); }

 private:
  absl::Status AddSlab(Slab slab, int64_t elements) {
    if (elements_ + elements > kBatchElements) TESSERA_RETURN_IF_ERROR(Flush());
    slabs_.push_back(std::move(slab));
    elements_ += elements;
    return absl::OkStatus();
  }

  // All slabs of one side: floating ones as doubles, others as they are.
  absl::Status Read(const Target& target, const LogicalTensor* Slab::*side,
                    std::vector<std::vector<double>>& values) {
    StateDict state;
    for (const Slab& slab : slabs_) {
      const LogicalTensor& saved = *(slab.*side);
      const DType dtype = IsFloating(saved.dtype()) ? F64 : saved.dtype();
      values.emplace_back(ElementCount(slab.box.shape) * DTypeSize(dtype) / sizeof(double) + 1);
      ShardedTensor* tensor = state.tensors.empty() ? nullptr : &state.tensors.back();
      if (tensor == nullptr || tensor->name != saved.name()) {
        tensor = &state.tensors.emplace_back();
        tensor->name = saved.name();
        tensor->role = saved.role();
        tensor->dtype = dtype;
        tensor->global_shape = GlobalShape(saved);
      }
      tensor->shards.push_back({slab.box, values.back().data(), {}});
    }
    SingleProcessGroup group;
    return Load(*target.storage, target.directory, state, group, options_).status();
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

  const Target& a_;
  const Target& b_;
  LoadOptions options_;
  std::vector<Slab> slabs_;
  int64_t elements_ = 0;
  std::map<std::string, DataDifference> differences_;
};

}  // namespace

absl::StatusOr<std::map<std::string, DataDifference>> CompareData(
    const Target& a, const Manifest& manifest_a, const Target& b, const Manifest& manifest_b,
    const std::vector<std::string>& names, int threads) {
  std::map<std::string, const LogicalTensor*> index_a, index_b;
  for (const LogicalTensor& tensor : manifest_a.tensors()) index_a[tensor.name()] = &tensor;
  for (const LogicalTensor& tensor : manifest_b.tensors()) index_b[tensor.name()] = &tensor;
  Comparer comparer(a, b, threads);
  for (const std::string& name : names) {
    const LogicalTensor& in_a = *index_a.at(name);
    const LogicalTensor& in_b = *index_b.at(name);
    const bool comparable =
        in_a.dtype() == in_b.dtype() || (IsFloating(in_a.dtype()) && IsFloating(in_b.dtype()));
    if (comparable && GlobalShape(in_a) == GlobalShape(in_b)) {
      TESSERA_RETURN_IF_ERROR(comparer.Add(in_a, in_b));
    }
  }
  TESSERA_RETURN_IF_ERROR(comparer.Flush());
  return std::move(comparer).Finish();
}

}  // namespace tessera::ckpt
