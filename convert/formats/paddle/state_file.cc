#include "convert/formats/paddle/state_file.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "convert/core/reading.h"
#include "convert/formats/paddle/files.h"
#include "convert/pickle/read.h"
#include "convert/pickle/value.h"
#include "layout/box.h"
#include "layout/dtype.h"

namespace tessera::ckpt::convert {

namespace {

using pickle::Kind;
using pickle::Value;

constexpr std::string_view kTensorNames = "StructuredToParameterName@@";
constexpr std::string_view kBigArrays = "UnpackBigParamInfor@@";
constexpr std::string_view kMasterWeights = "master_weights";
constexpr std::string_view kScheduler = "LR_Scheduler";

// A tensor is an array, or tuple((name, array)): Paddle registers its tensors so.
struct TensorValue {
  Value array;
  std::string_view name;
};

std::optional<TensorValue> AsTensor(const Value& value) {
  if (pickle::IsNumpyArray(value)) return TensorValue{value, {}};
  Value pair = value;
  if (value.IsObjectOf("builtins.tuple") || value.IsObjectOf("__builtin__.tuple")) {
    pair = value.arguments()[0];
  }
  if (!pair.is(Kind::kTuple) || pair.size() != 2) return std::nullopt;
  const std::optional<std::string_view> name = pair[0].AsText();
  if (!name || !pickle::IsNumpyArray(pair[1])) return std::nullopt;
  return TensorValue{pair[1], *name};
}

DType StoredDType(DType dtype) { return dtype == DType::kU16 ? DType::kBF16 : dtype; }

absl::Status AddArrays(const Value& dict, const ReadableFile& file, pickle::Budget& budget,
                       std::string& decoded, std::vector<PaddleArray>& arrays) {
  std::set<std::string_view> keys;
  for (size_t i = 0; i < dict.entry_count(); ++i) {
    const auto [key, value] = dict.entry(i);
    const std::optional<TensorValue> tensor = AsTensor(value);
    if (!tensor) continue;
    const std::optional<std::string_view> name = key.AsText();
    if (!name || name->empty() || !IsValidUtf8(*name) || !IsValidUtf8(tensor->name)) {
      return absl::DataLossError("a tensor's name is empty or not valid UTF-8");
    }
    TESSERA_RETURN_IF_ERROR(budget.Take(sizeof(PaddleArray) + name->size() + tensor->name.size()));
    if (!keys.insert(*name).second) {
      return In(Shown(*name), absl::DataLossError("the name occurs twice"));
    }
    const size_t before = decoded.size();
    TESSERA_ASSIGN_OR_RETURN(
        pickle::NumpyArray array,
        In(Shown(*name), pickle::ResolveNumpyArray(tensor->array, file, decoded)));
    TESSERA_RETURN_IF_ERROR(budget.Take(decoded.size() - before));
    arrays.push_back({.key = std::string(*name),
                      .tensor_name = std::string(tensor->name),
                      .dtype = StoredDType(array.dtype),
                      .shape = array.shape,
                      .parts = {std::move(array)}});
  }
  return absl::OkStatus();
}

// Adds the names of {structured name: tensor name}, which paddle.save() adds to dicts of tensors
// alone.
absl::Status AddTensorNames(const Value& names, pickle::Budget& budget,
                            std::vector<PaddleArray>& arrays) {
  std::map<std::string_view, std::string_view> found;
  for (size_t i = 0; i < names.entry_count(); ++i) {
    const auto [key, value] = names.entry(i);
    const std::optional<std::string_view> structured = key.AsText(), name = value.AsText();
    if (structured && name && IsValidUtf8(*name)) found[*structured] = *name;
  }
  for (PaddleArray& array : arrays) {
    const auto name = found.find(array.key);
    if (name == found.end() || !array.tensor_name.empty()) continue;
    TESSERA_RETURN_IF_ERROR(budget.Take(name->second.size()));
    array.tensor_name = name->second;
  }
  return absl::OkStatus();
}

// Joins an array of {"OriginShape": shape, "slices": [keys of flat parts]}.
absl::StatusOr<PaddleArray> JoinParts(const std::string& key, const Value& description,
                                      std::map<std::string, PaddleArray>& by_key) {
  const std::optional<std::vector<int64_t>> shape =
      pickle::Integers(description.Find("OriginShape"));
  const Value slices = description.Find("slices");
  if (!shape || slices.size() == 0) return absl::DataLossError("its parts are malformed");
  TESSERA_ASSIGN_OR_RETURN(const int64_t elements, CheckedElementCount(*shape));
  PaddleArray joined = {.key = key, .shape = *shape};
  int64_t found = 0;
  for (size_t i = 0; i < slices.size(); ++i) {
    const std::optional<std::string_view> name = slices[i].AsText();
    const auto part = name ? by_key.find(std::string(*name)) : by_key.end();
    if (part == by_key.end() || part->second.shape.size() != 1) {
      return absl::DataLossError(
          absl::StrCat("its part ", i, " is missing or not flat: ", name ? Shown(*name) : ""));
    }
    joined.dtype = part->second.dtype;
    found += part->second.shape[0];
    joined.parts.push_back(part->second.parts[0]);
    by_key.erase(part);
  }
  for (const pickle::NumpyArray& part : joined.parts) {
    if (StoredDType(part.dtype) != joined.dtype) {
      return absl::DataLossError("its parts have several dtypes");
    }
  }
  if (found != elements) {
    return absl::DataLossError(absl::StrCat("its parts have ", found, " elements of ", elements));
  }
  return joined;
}

absl::Status JoinBigArrays(const Value& descriptions, std::vector<PaddleArray>& arrays) {
  if (descriptions.entry_count() == 0) return absl::OkStatus();
  std::map<std::string, PaddleArray> by_key;
  for (PaddleArray& array : arrays) {
    std::string key = array.key;
    by_key[std::move(key)] = std::move(array);
  }
  arrays.clear();
  std::vector<PaddleArray> all;
  for (size_t i = 0; i < descriptions.entry_count(); ++i) {
    const auto [key, description] = descriptions.entry(i);
    const std::string name(key.AsText().value_or(""));
    if (name.empty() || !IsValidUtf8(name) || by_key.contains(name)) {
      return In(Shown(name), absl::DataLossError("the name of a tensor in parts is wrong"));
    }
    TESSERA_ASSIGN_OR_RETURN(PaddleArray joined,
                             In(Shown(name), JoinParts(name, description, by_key)));
    all.push_back(std::move(joined));
  }
  for (auto& [key, array] : by_key) all.push_back(std::move(array));
  arrays = std::move(all);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PaddleStateFile> ReadPaddleStateFile(const ReadableFile& file) {
  TESSERA_ASSIGN_OR_RETURN(const pickle::Pickle contents,
                           pickle::ReadPickle(file, {0, file.size_bytes()}));
  const Value root = contents.root();
  if (root.entry_count() == 0 && !root.is(Kind::kDict)) {
    return absl::DataLossError(absl::StrCat(
        "expected a dict, found ", absl::string_view(pickle::KindName(root.kind()).data(),
                                                     pickle::KindName(root.kind()).size())));
  }
  pickle::Budget budget(contents);
  PaddleStateFile state;
  TESSERA_RETURN_IF_ERROR(AddArrays(root, file, budget, state.decoded, state.arrays));
  TESSERA_RETURN_IF_ERROR(JoinBigArrays(root.Find(kBigArrays), state.arrays));
  TESSERA_RETURN_IF_ERROR(AddTensorNames(root.Find(kTensorNames), budget, state.arrays));
  TESSERA_RETURN_IF_ERROR(
      AddArrays(root.Find(kMasterWeights), file, budget, state.decoded, state.master_weights));
  Value epoch = root.Find(kScheduler).Find("last_epoch");
  if (!epoch.present()) epoch = root.Find("last_epoch");
  state.last_epoch = epoch.AsInt();
  return state;
}

namespace {

// Paddle pads a parameter to 256 bytes for each sharding rank; other devices than CUDA's to a few
// times that.
constexpr int64_t kMaxPaddingPerRank = 1024;  // elements
constexpr uint64_t kBlockBytes = 64 << 10;

// Places one state of a parameter from what all sharding ranks store of it: as copies if every rank
// has the whole shape, otherwise as flat slices in the order of the ranks.
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

  // Returns whether this is a vector on several ranks, which have copies, or a slice that has all
  // of it and slices of padding.
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

  // Adds elements [0, count) of an array, which are those from `begin` on of the rank's share.
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

  // Returns the share of the parameter that the slices make up: the rank's, or all of it.
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
