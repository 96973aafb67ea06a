#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "convert/formats/paddle/files.h"
#include "layout/dtype.h"

namespace tessera::ckpt::convert {
namespace {

// Paddle pads a parameter to 256 bytes for each sharding rank; other devices than CUDA's to a few
// times that.
constexpr int64_t kMaxPaddingPerRank = 1024;  // elements
constexpr uint64_t kBlockBytes = 64 << 10;

class StatePlacer {
 public:
  StatePlacer(const PaddleTarget& target, const std::vector<PaddleStored>& stored, Storage& storage,
              ForeignTensorSet& set)
      : target_(target), stored_(stored), storage_(storage), set_(set) {
    for (const PaddleStored& one : stored) flat_elements_ += ElementCount(one.array->shape);
  }

  absl::Status Add() {
    std::vector<TensorParallelShare> shares = {{0, 1}};
    const absl::StatusOr<Shape> local = LocalShape(*target_.parameter, target_.share.size);
    if (local.ok() && *local != target_.parameter->shape) shares.push_back(target_.share);
    // A parameter that the ranks could cut may be whole on each of them: its shape tells.
    for (const TensorParallelShare& share : shares) {
      const Shape shape = ShapeUnder(share);
      const bool wanted = !target_.local_shape || *target_.local_shape == shape;
      if (wanted && AllHave(shape) && !IsOneSliceOfSeveral(shape)) return AddCopies(share);
    }
    if (!std::ranges::all_of(
            stored_, [](const PaddleStored& one) { return one.array->shape.size() == 1; })) {
      return WrongShape();
    }
    return AddSlices(shares);
  }

 private:
  Shape ShapeUnder(const TensorParallelShare& share) const {
    if (share.size == 1) return target_.parameter->shape;
    return *LocalShape(*target_.parameter, share.size);
  }

  bool AllHave(const Shape& shape) const {
    return std::ranges::all_of(stored_,
                               [&](const PaddleStored& one) { return one.array->shape == shape; });
  }

  // A vector on several ranks: copies, or a slice that has all of it and slices of padding.
  bool IsOneSliceOfSeveral(const Shape& shape) const {
    return shape.size() == 1 && stored_.size() > 1;
  }

  std::string Name() const {
    return target_.kind.state.empty()
               ? target_.parameter->name
               : absl::StrCat(target_.parameter->name, " (", target_.kind.state, ")");
  }

  absl::Status Damaged(const PaddleStored& stored, const absl::AlphaNum& problem) const {
    return absl::DataLossError(
        absl::StrCat(storage_.Describe(stored.file->name), ": ", stored.array->key, ": ", problem));
  }

  absl::Status WrongShape() const {
    const auto other = std::ranges::find_if(stored_, [&](const PaddleStored& one) {
      return one.array->shape != ShapeUnder({0, 1});
    });
    const PaddleStored& shown = other == stored_.end() ? stored_[0] : *other;
    return Damaged(
        shown, absl::StrCat("shape ", ShapeToString(shown.array->shape), " is not that of ",
                            target_.parameter->name, ", ", ShapeToString(target_.parameter->shape),
                            ", on one of ", target_.share.size, " tensor-parallel ranks"));
  }

  absl::Status AddCopies(const TensorParallelShare& share) {
    for (const PaddleStored& one : stored_) {
      if (one.array->parts.size() == 1) {
        TESSERA_RETURN_IF_ERROR(set_.AddWhole(*target_.parameter, share, target_.kind,
                                              one.array->shape, PlaceOf(one, 0),
                                              one.array->parts[0].strides));
      } else {
        TESSERA_RETURN_IF_ERROR(AddRange(share, one, 0, ElementCount(one.array->shape)));
      }
    }
    return absl::OkStatus();
  }

  ForeignPlace PlaceOf(const PaddleStored& one, size_t part) const {
    return {.file = one.file->name,
            .offset_bytes = one.array->parts[part].offset_bytes,
            .dtype = one.array->dtype};
  }

  // Elements [0, count) of an array, which are those from `begin` on of the rank's share.
  absl::Status AddRange(const TensorParallelShare& share, const PaddleStored& one, int64_t begin,
                        int64_t count) {
    for (size_t part = 0; part < one.array->parts.size() && count > 0; ++part) {
      const int64_t has = std::min(ElementCount(one.array->parts[part].shape), count);
      TESSERA_RETURN_IF_ERROR(set_.AddRange(*target_.parameter, share, target_.kind, begin,
                                            begin + has, PlaceOf(one, part)));
      begin += has;
      count -= has;
    }
    return absl::OkStatus();
  }

  absl::Status AddSlices(const std::vector<TensorParallelShare>& shares) {
    TensorParallelShare share;
    TESSERA_ASSIGN_OR_RETURN(share, ShareOfSlices(shares));
    const int64_t elements = ElementCount(ShapeUnder(share));
    for (size_t i = 1; i < stored_.size(); ++i) {
      if (stored_[i].file->shard == stored_[i - 1].file->shard + 1) continue;
      return Damaged(stored_[i], absl::StrCat(stored_[i - 1].file->name,
                                              " has a slice, too, but ranks between them do not"));
    }
    if (ElementCount(stored_[0].array->shape) == elements) return AddFirstSlice(share, elements);
    int64_t begin = 0;
    for (const PaddleStored& one : stored_) {
      const int64_t has = ElementCount(one.array->shape);
      TESSERA_RETURN_IF_ERROR(AddRange(share, one, begin, std::min(has, elements - begin)));
      begin = std::min(begin + has, elements);
    }
    return absl::OkStatus();
  }

  // The first rank has everything. What the others have must be a copy or padding.
  absl::Status AddFirstSlice(const TensorParallelShare& share, int64_t elements) {
    for (const PaddleStored& one : stored_) {
      if (&one != &stored_[0]) {
        TESSERA_ASSIGN_OR_RETURN(const bool is_padding, IsZero(one));
        if (is_padding) continue;
      }
      if (ElementCount(one.array->shape) != elements) {
        return Damaged(one, absl::StrCat("expected padding, since ", stored_[0].file->name, " has ",
                                         "all ", elements, " elements, found other values"));
      }
      TESSERA_RETURN_IF_ERROR(AddRange(share, one, 0, elements));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<bool> IsZero(const PaddleStored& one) const {
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file,
                             storage_.Open(one.file->name));
    std::vector<std::byte> block(kBlockBytes);
    for (const pickle::NumpyArray& part : one.array->parts) {
      uint64_t left = static_cast<uint64_t>(ElementCount(part.shape)) * ElementSize(part.dtype);
      for (uint64_t at = part.offset_bytes; left > 0;) {
        const std::span<std::byte> read(block.data(), std::min<uint64_t>(left, block.size()));
        TESSERA_RETURN_IF_ERROR(file->ReadAt(at, read));
        for (const std::byte byte : read) {
          if (byte != std::byte{0}) return false;
        }
        at += read.size();
        left -= read.size();
      }
    }
    return true;
  }

  bool Fits(const TensorParallelShare& share) const {
    const Shape shape = ShapeUnder(share);
    if (AllHave(shape)) return true;
    const int64_t elements = ElementCount(shape);
    const int64_t padding = kMaxPaddingPerRank * static_cast<int64_t>(stored_.size() + 1);
    return elements <= flat_elements_ && flat_elements_ <= elements + padding;
  }

  // The share of the parameter that the slices make up: the rank's, or all of it.
  absl::StatusOr<TensorParallelShare> ShareOfSlices(
      const std::vector<TensorParallelShare>& shares) const {
    std::vector<TensorParallelShare> fitting;
    for (const TensorParallelShare& share : shares) {
      if (target_.local_shape && *target_.local_shape != ShapeUnder(share)) continue;
      if (Fits(share)) fitting.push_back(share);
    }
    if (fitting.size() == 1) return fitting[0];
    std::string files = stored_[0].file->name;
    if (stored_.size() > 1) absl::StrAppend(&files, " to ", stored_.back().file->name);
    const std::string found = absl::StrCat(storage_.Describe(""), ": ", files, ": ", Name(), ": ",
                                           flat_elements_, " elements in flat slices");
    if (!fitting.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          found, ", which with padding may be the whole parameter ",
          ShapeToString(target_.parameter->shape), " or one tensor-parallel rank's part of it; ",
          "param_meta in model_meta.json, or the model's files, would settle it"));
    }
    std::string wanted;
    for (const TensorParallelShare& share : shares) {
      if (target_.local_shape && *target_.local_shape != ShapeUnder(share)) continue;
      absl::StrAppend(&wanted, wanted.empty() ? "" : " or ", ElementCount(ShapeUnder(share)));
    }
    return absl::DataLossError(absl::StrCat(found, ", expected ", wanted,
                                            " and padding: a slice is missing, or it is ",
                                            "another parameter's"));
  }

  const PaddleTarget& target_;
  const std::vector<PaddleStored>& stored_;
  Storage& storage_;
  ForeignTensorSet& set_;
  int64_t flat_elements_ = 0;
};

}  // namespace

absl::Status AddPaddleState(const PaddleTarget& target, const std::vector<PaddleStored>& stored,
                            Storage& storage, ForeignTensorSet& set) {
  return StatePlacer(target, stored, storage, set).Add();
}

}  // namespace tessera::ckpt::convert
