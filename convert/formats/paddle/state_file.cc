#include <map>
#include <set>
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

absl::Status AddArrays(const Value& dict, pickle::Budget& budget,
                       std::vector<PaddleArray>& arrays) {
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
    TESSERA_ASSIGN_OR_RETURN(pickle::NumpyArray array,
                             In(Shown(*name), pickle::ResolveNumpyArray(tensor->array)));
    arrays.push_back({.key = std::string(*name),
                      .tensor_name = std::string(tensor->name),
                      .dtype = StoredDType(array.dtype),
                      .shape = array.shape,
                      .parts = {std::move(array)}});
  }
  return absl::OkStatus();
}

// {structured name: tensor name}, which paddle.save() adds to dicts of nothing but tensors.
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

// One array of {"OriginShape": shape, "slices": [keys of flat parts]}.
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
  TESSERA_RETURN_IF_ERROR(AddArrays(root, budget, state.arrays));
  TESSERA_RETURN_IF_ERROR(JoinBigArrays(root.Find(kBigArrays), state.arrays));
  TESSERA_RETURN_IF_ERROR(AddTensorNames(root.Find(kTensorNames), budget, state.arrays));
  TESSERA_RETURN_IF_ERROR(AddArrays(root.Find(kMasterWeights), budget, state.master_weights));
  Value epoch = root.Find(kScheduler).Find("last_epoch");
  if (!epoch.present()) epoch = root.Find("last_epoch");
  state.last_epoch = epoch.AsInt();
  return state;
}

}  // namespace tessera::ckpt::convert
