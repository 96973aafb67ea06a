#include "convert/formats/paddle/state_file.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "convert/core/reading.h"
#include "convert/pickle/read.h"
#include "convert/pickle/value.h"

namespace tessera::ckpt::convert {
namespace {

using pickle::Kind;
using pickle::Value;

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

absl::Status AddArrays(const Value& dict, const ReadableFile& file, pickle::Budget& budget,
                       std::string& decoded, std::vector<PaddleArray>& arrays) {
  std::set<std::string_view> keys;
  for (const auto& [key, value] : dict.entries()) {
    const std::optional<TensorValue> tensor = AsTensor(value);
    if (!tensor) continue;
    const std::optional<std::string_view> name = key.AsText();
    if (!name || name->empty() || !IsValidUtf8(*name) || !IsValidUtf8(tensor->name)) {
      return DataLoss("a tensor's name is empty or not valid UTF-8");
    }
    TESSERA_RETURN_IF_ERROR(budget.Take(sizeof(PaddleArray) + name->size() + tensor->name.size()));
    if (!keys.insert(*name).second) return In(Shown(*name), DataLoss("the name occurs twice"));
    const size_t before = decoded.size();
    TESSERA_ASSIGN_OR_RETURN(
        pickle::NumpyArray array,
        In(Shown(*name), pickle::ResolveNumpyArray(tensor->array, file, decoded)));
    TESSERA_RETURN_IF_ERROR(budget.Take(decoded.size() - before));
    arrays.push_back({.key = std::string(*name),
                      .tensor_name = std::string(tensor->name),
                      .dtype = array.dtype == DType::kU16 ? DType::kBF16 : array.dtype,
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
  for (const auto& [key, value] : names.entries()) {
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
  const std::optional<std::vector<int64_t>> shape = pickle::DimsOf(description.Find("OriginShape"));
  const Value slices = description.Find("slices");
  if (!shape || slices.size() == 0) return DataLoss("its parts are malformed");
  TESSERA_ASSIGN_OR_RETURN(const int64_t elements, CheckedElementCount(*shape));
  PaddleArray joined = {.key = key, .shape = *shape};
  int64_t found = 0;
  for (size_t i = 0; i < slices.size(); ++i) {
    const std::optional<std::string_view> name = slices[i].AsText();
    const auto part = name ? by_key.find(std::string(*name)) : by_key.end();
    if (part == by_key.end() || part->second.shape.size() != 1) {
      return DataLoss("its part ", i, " is missing or not flat: ", name ? Shown(*name) : "");
    }
    if (i > 0 && part->second.dtype != joined.dtype) {
      return DataLoss("its parts have several dtypes");
    }
    joined.dtype = part->second.dtype;
    found += part->second.shape[0];
    joined.parts.push_back(part->second.parts[0]);
    by_key.erase(part);
  }
  if (found != elements) return DataLoss("its parts have ", found, " elements of ", elements);
  return joined;
}

absl::Status JoinBigArrays(const Value& descriptions, std::vector<PaddleArray>& arrays) {
  if (descriptions.entry_count() == 0) return absl::OkStatus();
  std::map<std::string, PaddleArray> by_key;
  for (PaddleArray& array : arrays) by_key[array.key] = std::move(array);
  std::vector<PaddleArray> all;
  for (const auto& [key, description] : descriptions.entries()) {
    const std::string name(key.AsText().value_or(""));
    if (name.empty() || !IsValidUtf8(name) || by_key.contains(name)) {
      return In(Shown(name), DataLoss("the name of a tensor in parts is wrong"));
    }
    TESSERA_ASSIGN_OR_RETURN(PaddleArray joined,
                             In(Shown(name), JoinParts(name, description, by_key)));
    all.push_back(std::move(joined));
  }
  for (auto& [key, array] : by_key) all.push_back(std::move(array));
  arrays = std::move(all);
  return absl::OkStatus();
}

// Paddle pads a parameter to 256 bytes for each sharding rank; on other devices than CUDA, more.
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
      // Vectors on several ranks are copies, or one slice that has everything and others of padding
      const bool may_be_slices = shape.size() == 1 && stored_.size() > 1;
      if (wanted && AllHave(shape) && !may_be_slices) return AddCopies(share);
    }
    const auto is_flat = [](const PaddleStored& one) { return one.array->shape.size() == 1; };
    return std::ranges::all_of(stored_, is_flat) ? AddSlices(shares) : WrongShape();
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

  std::string Name() const {
    return target_.kind.state.empty()
               ? target_.parameter->name
               : absl::StrCat(target_.parameter->name, " (", target_.kind.state, ")");
  }

  template <typename... Parts>
  absl::Status Damaged(const PaddleStored& stored, const Parts&... problem) const {
    return convert::Damaged(storage_, stored.file->name, stored.array->key, ": ", problem...);
  }

  absl::Status WrongShape() const {
    const auto other = std::ranges::find_if(stored_, [&](const PaddleStored& one) {
      return one.array->shape != ShapeUnder({0, 1});
    });
    const PaddleStored& shown = other == stored_.end() ? stored_[0] : *other;
    return Damaged(shown, "shape ", ShapeToString(shown.array->shape), " is not that of ",
                   target_.parameter->name, ", ", ShapeToString(target_.parameter->shape),
                   ", on one of ", target_.share.size, " tensor-parallel ranks");
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
      return Damaged(stored_[i], stored_[i - 1].file->name,
                     " has a slice, too, but ranks between them do not");
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
        return Damaged(one, "expected padding, since ", stored_[0].file->name, " has all ",
                       elements, " elements, found other values");
      }
      TESSERA_RETURN_IF_ERROR(AddRange(share, one, 0, elements));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<bool> IsZero(const PaddleStored& one) const {
    TESSERA_ASSIGN_OR_RETURN(const auto file, storage_.Open(one.file->name));
    std::vector<std::byte> block(kBlockBytes);
    for (const pickle::NumpyArray& part : one.array->parts) {
      uint64_t left = ByteCount(part.shape, part.dtype);
      for (uint64_t at = part.offset_bytes; left > 0;) {
        const std::span<std::byte> read(block.data(), std::min<uint64_t>(left, block.size()));
        TESSERA_RETURN_IF_ERROR(file->ReadAt(at, read));
        if (std::ranges::count(read, std::byte{0}) < std::ssize(read)) return false;
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
    std::string wanted;
    for (const TensorParallelShare& share : shares) {
      if (target_.local_shape && *target_.local_shape != ShapeUnder(share)) continue;
      if (Fits(share)) fitting.push_back(share);
      absl::StrAppend(&wanted, wanted.empty() ? "" : " or ", ElementCount(ShapeUnder(share)));
    }
    if (fitting.size() == 1) return fitting[0];
    std::string files = stored_[0].file->name;
    if (stored_.size() > 1) absl::StrAppend(&files, " to ", stored_.back().file->name);
    const std::string found = absl::StrCat(storage_.Describe(""), ": ", files, ": ", Name(), ": ",
                                           flat_elements_, " elements in flat slices");
    if (!fitting.empty()) {
      return InvalidArgument(
          found, ", which with padding may be the whole parameter ",
          ShapeToString(target_.parameter->shape), " or one tensor-parallel rank's part of it; ",
          "param_meta in model_meta.json, or the model's files, would settle it");
    }
    return DataLoss(found, ", expected ", wanted,
                    " and padding: a slice is missing, or it is another parameter's");
  }

  const PaddleTarget& target_;
  const std::vector<PaddleStored>& stored_;
  Storage& storage_;
  ForeignTensorSet& set_;
  int64_t flat_elements_ = 0;
};

}  // namespace

absl::StatusOr<PaddleStateFile> ReadPaddleStateFile(const ReadableFile& file) {
  TESSERA_ASSIGN_OR_RETURN(const pickle::Pickle contents,
                           pickle::ReadPickle(file, {0, file.size_bytes()}));
  const Value root = contents.root();
  if (root.entry_count() == 0 && !root.is(Kind::kDict)) {
    return DataLoss("expected a dict, found ", pickle::KindName(root.kind()));
  }
  pickle::Budget budget(contents);
  PaddleStateFile state;
  TESSERA_RETURN_IF_ERROR(AddArrays(root, file, budget, state.decoded, state.arrays));
  TESSERA_RETURN_IF_ERROR(JoinBigArrays(root.Find(kBigArrays), state.arrays));
  TESSERA_RETURN_IF_ERROR(AddTensorNames(root.Find(kPaddleTensorNames), budget, state.arrays));
  TESSERA_RETURN_IF_ERROR(
      AddArrays(root.Find(kMasterWeights), file, budget, state.decoded, state.master_weights));
  Value epoch = root.Find(kScheduler).Find("last_epoch");
  if (!epoch.present()) epoch = root.Find("last_epoch");
  state.last_epoch = epoch.AsInt();
  return state;
}

std::optional<ForeignKind> KindOf(PaddleState state) {
  switch (state) {
    case PaddleState::kMoment1:
      return kForeignExpAvg;
    case PaddleState::kMoment2:
      return kForeignExpAvgSq;
    case PaddleState::kMasterWeight:
      return kForeignMaster;
    default:
      return std::nullopt;
  }
}

absl::Status AddPaddleState(const PaddleTarget& target, const std::vector<PaddleStored>& stored,
                            Storage& storage, ForeignTensorSet& set) {
  return StatePlacer(target, stored, storage, set).Add();
}

}  // namespace tessera::ckpt::convert
