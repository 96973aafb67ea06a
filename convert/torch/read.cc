#include "convert/torch/read.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/directory/directory.h"
#include "convert/core/reading.h"
#include "convert/pickle/numpy_array.h"
#include "convert/pickle/value.h"
#include "convert/torch/archive.h"
#include "layout/box.h"

namespace tessera::ckpt::convert {
namespace {

using pickle::Kind;
using pickle::Value;

// Real state dicts nest five deep.
constexpr int kMaxDepth = 64;
// Keys may be long and shared: copying so many bytes of one costs as much as a visit.
constexpr uint64_t kKeyBytesOfVisit = 32;
// Names of one class of opaque objects or of one kind of unread tensors in the notes, and classes
// and kinds.
constexpr size_t kMaxNotedNames = 3;
constexpr size_t kMaxNotes = 100;

// Collects the tensors of archives under dotted names.
class Collector {
 public:
  explicit Collector(ForeignCheckpoint& checkpoint) : checkpoint_(checkpoint) {}

  absl::Status AddFile(const TorchArchive& archive, const std::string& file);
  void AddNotes();

 private:
  struct StoredView {  // equal for tensors that are the same elements
    std::string file;
    uint64_t offset_bytes;
    DType dtype;
    Shape shape;
    std::vector<int64_t> strides;
    bool operator<(const StoredView& other) const {
      return std::tie(file, offset_bytes, dtype, shape, strides) <
             std::tie(other.file, other.offset_bytes, other.dtype, other.shape, other.strides);
    }
  };

  // These use path_, the name of the value that is looked at.
  absl::Status Walk(const Value& value, TensorRole role, int depth);
  absl::Status WalkEntries(const Value& dict, TensorRole role, int depth);
  absl::Status WalkBelow(std::string_view key, const Value& value, TensorRole role, int depth);
  absl::Status AddTensor(const Value& value, TensorRole role);
  void Note(const std::string& what);

  ForeignCheckpoint& checkpoint_;
  const TorchArchive* archive_ = nullptr;
  std::string file_;
  std::string path_;
  pickle::Budget* budget_ = nullptr;
  std::map<StoredView, std::string> first_names_;
  std::set<std::string> names_;
  struct Noted {
    size_t count = 0;
    std::string names;
  };
  std::map<std::string, Noted> noted_;
};

// Aliases name their tensors by names, too.
void RenameTensors(const std::map<std::string, std::string>& names,
                   std::span<ForeignTensor> tensors) {
  for (ForeignTensor& tensor : tensors) {
    for (std::string* const name : {&tensor.name, &tensor.alias_of}) {
      const auto at = names.find(*name);
      if (at != names.end() && !at->second.empty()) *name = at->second;
    }
  }
}

absl::Status Collector::AddFile(const TorchArchive& archive, const std::string& file) {
  archive_ = &archive;
  file_ = file;
  pickle::Budget budget(archive.contents);
  budget_ = &budget;
  const Value root = archive.contents.root();
  const size_t first = checkpoint_.tensors.size();
  path_ = IsTorchTensor(root) ? "tensor" : "";
  TESSERA_RETURN_IF_ERROR(Walk(root, TensorRole::kWeight, 0));
  const std::map<std::string, TensorRole> roles = ReadTorchRoles(root.Find(kTorchRolesKey));
  for (size_t i = first; i < checkpoint_.tensors.size(); ++i) {
    const auto role = roles.find(checkpoint_.tensors[i].name);
    if (role != roles.end()) checkpoint_.tensors[i].role = role->second;
  }
  const std::map<std::string, std::string> names = ReadTorchNames(
      root.Find(kTorchNamesKey), [this](const std::string& key) { return names_.contains(key); });
  RenameTensors(names, std::span(checkpoint_.tensors).subspan(first));
  pickle::Budget values_budget(archive.contents);
  AddPlainValues(archive.contents, "", values_budget, checkpoint_.values);
  std::erase_if(checkpoint_.values, [&](const ForeignValue& value) {
    return value.name.starts_with(absl::StrCat(kTorchRolesKey, ".")) ||
           value.name.starts_with(absl::StrCat(kTorchNamesKey, ".")) ||
           (!names.empty() && value.name.starts_with("optimizer."));
  });
  return absl::OkStatus();
}

void Collector::Note(const std::string& what) {
  const bool is_known = noted_.size() < kMaxNotes || noted_.contains(what);
  Noted& noted = noted_[is_known ? what : "other objects"];
  if (++noted.count > kMaxNotedNames) return;
  absl::StrAppend(&noted.names, noted.count > 1 ? ", " : "",
                  path_.empty() ? "the file" : Shown(path_));
}

void Collector::AddNotes() {
  for (const auto& [what, noted] : noted_) {
    checkpoint_.notes.push_back(absl::StrCat(
        "Left out: ", what, ": ", noted.names,
        noted.count > kMaxNotedNames ? absl::StrCat(" and ", noted.count - kMaxNotedNames, " more")
                                     : "",
        "."));
  }
}

absl::Status Collector::Walk(const Value& value, TensorRole role, int depth) {
  TESSERA_RETURN_IF_ERROR(budget_->Take(pickle::Budget::kVisitBytes));
  if (depth > kMaxDepth) {
    return absl::DataLossError(absl::StrCat("objects are nested more than ", kMaxDepth, " deep"));
  }
  if (IsTorchDict(value)) return WalkEntries(value, role, depth);
  if (value.is(Kind::kList) || value.is(Kind::kTuple)) {
    for (size_t i = 0; i < value.size(); ++i) {
      TESSERA_RETURN_IF_ERROR(WalkBelow(absl::StrCat(i), value[i], role, depth));
    }
    return absl::OkStatus();
  }
  if (IsTorchTensor(value)) return AddTensor(value, role);
  if (value.is(Kind::kObject)) {
    Note(absl::StrCat("objects of ", Shown(value.callable().GlobalName())));
  }
  return absl::OkStatus();
}

absl::Status Collector::WalkBelow(std::string_view key, const Value& value, TensorRole role,
                                  int depth) {
  const size_t parent_bytes = path_.size();
  if (!path_.empty()) path_ += '.';
  path_ += key;
  TESSERA_RETURN_IF_ERROR(Walk(value, role, depth + 1));
  path_.resize(parent_bytes);
  return absl::OkStatus();
}

absl::Status Collector::WalkEntries(const Value& dict, TensorRole role, int depth) {
  const bool is_optimizer = dict.Find("state").present() && dict.Find("param_groups").present();
  for (size_t i = 0; i < dict.entry_count(); ++i) {
    const auto [key, value] = dict.entry(i);
    const std::optional<std::string_view> text = key.AsText();
    const std::optional<int64_t> number = key.AsInt();
    if (!text && !number) {
      Note("entries whose key is neither a text nor a number");
      continue;
    }
    TESSERA_RETURN_IF_ERROR(budget_->Take(text ? text->size() / kKeyBytesOfVisit : 0));
    const bool is_state = is_optimizer && text == "state";
    const std::string digits = number ? absl::StrCat(*number) : "";
    TESSERA_RETURN_IF_ERROR(WalkBelow(text.value_or(digits), value,
                                      is_state ? TensorRole::kOptimizerState : role, depth));
  }
  return absl::OkStatus();
}

absl::Status Collector::AddTensor(const Value& value, TensorRole role) {
  const std::string& name = path_;
  const auto in_tensor = [&](const absl::Status& status) {
    return In(absl::StrCat("tensor ", Shown(name)), status);
  };
  TESSERA_RETURN_IF_ERROR(budget_->Take(sizeof(ForeignTensor) + name.size()));
  if (name.empty() || !IsValidUtf8(name)) {
    return in_tensor(absl::DataLossError("the name is empty or not valid UTF-8"));
  }
  absl::StatusOr<TorchTensor> tensor = ResolveTorchTensor(*archive_, value);
  if (tensor.status().code() == absl::StatusCode::kUnimplemented) {
    Note(std::string(tensor.status().message()));
    return absl::OkStatus();
  }
  if (!tensor.ok()) return in_tensor(tensor.status());
  if (!names_.insert(name).second) return in_tensor(absl::DataLossError("the name occurs twice"));
  ForeignTensor added = {.name = name, .role = role, .dtype = tensor->dtype};
  added.shape = tensor->shape;
  if (ElementCount(tensor->shape) > 0) {
    const auto [first, is_new] = first_names_.emplace(
        StoredView{file_, tensor->offset_bytes, tensor->dtype, tensor->shape, tensor->strides},
        name);
    if (is_new) {
      added.pieces.push_back({.box = WholeBox(tensor->shape),
                              .file = file_,
                              .offset_bytes = tensor->offset_bytes,
                              .strides = tensor->strides});
    } else {
      added.alias_of = first->second;
    }
  }
  checkpoint_.tensors.push_back(std::move(added));
  return absl::OkStatus();
}

// Adds the values of a pickle under dotted names.
class ValueWalker {
 public:
  ValueWalker(pickle::Budget& budget, std::vector<ForeignValue>& values)
      : values_(values), budget_(budget) {}

  void Walk(const Value& value, const std::string& name, int depth) {
    if (name.size() > kMaxPlainTextBytes || depth > kMaxDepth) return;
    if (!budget_.Has(pickle::Budget::kVisitBytes)) return;
    if (IsTorchDict(value)) {
      for (size_t i = 0; i < value.entry_count(); ++i) {
        const auto [key, child] = value.entry(i);
        if (const auto text = key.AsText(); text && text->size() <= kMaxPlainTextBytes) {
          Walk(child, Below(name, *text), depth + 1);
        } else if (const auto number = key.AsInt()) {
          Walk(child, Below(name, absl::StrCat(*number)), depth + 1);
        }
      }
    } else if (value.is(Kind::kList) || value.is(Kind::kTuple)) {
      WalkList(value, name, depth);
    } else if (!name.empty()) {
      AddScalar(value, name);
    }
  }

 private:
  static std::string Below(const std::string& name, std::string_view child) {
    std::string path = name.empty() ? "" : name + ".";
    path.append(child);
    return path;
  }

  void WalkList(const Value& list, const std::string& name, int depth) {
    if (!name.empty() && budget_.Has(list.size())) {
      std::optional<std::vector<int64_t>> integers = pickle::Integers(list);
      if (integers.has_value() && !integers->empty()) {
        const uint64_t bytes = integers->size() * sizeof(int64_t);
        return Add(name, *std::move(integers), bytes);
      }
    }
    for (size_t i = 0; i < list.size(); ++i) {
      Walk(list[i], Below(name, absl::StrCat(i)), depth + 1);
    }
  }

  void AddScalar(const Value& value, const std::string& name) {
    if (const auto truth = value.AsBool()) return Add(name, *truth);
    if (const auto integer = value.AsInt()) return Add(name, *integer);
    if (const auto number = value.AsFloat()) return Add(name, *number);
    const std::optional<std::string_view> text = value.AsText();
    if (text && text->size() <= kMaxPlainTextBytes && IsValidUtf8(*text)) {
      Add(name, std::string(*text), text->size());
    }
  }

  template <typename T>
  void Add(const std::string& name, T value, uint64_t value_bytes = 0) {
    if (!IsValidUtf8(name) || !budget_.Has(sizeof(ForeignValue) + name.size() + value_bytes)) {
      return;
    }
    values_.push_back({name, std::move(value)});
  }

  std::vector<ForeignValue>& values_;
  pickle::Budget& budget_;
};

// Whether a trainer of transformers, or accelerate, gives this name to a file beside the model.
bool IsBesideModel(const std::string& name) {
  const std::string stem = name.substr(0, name.rfind('.'));
  return stem == "optimizer" || stem == "scheduler" || stem == "scaler" ||
         stem == "training_args" || stem.starts_with("rng_state");
}

bool HasTorchName(const std::string& name) {
  return name.ends_with(".pt") || name.ends_with(".pth") || name.ends_with(".bin") ||
         name.ends_with(".ckpt");
}

// Whether the files, in the order of their names, are "X-00001-of-00003.bin", ...: parts of one
// state dict, and all of them.
bool AreParts(const std::vector<std::string>& files) {
  constexpr size_t kEndBytes = sizeof("-00001-of-00003.bin") - 1;
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string end = absl::StrFormat("-%05d-of-%05d.bin", i + 1, files.size());
    if (files[i].size() < kEndBytes || !files[i].ends_with(end)) return false;
    const size_t stem = files[i].size() - end.size();
    if (files[i].substr(0, stem) != files[0].substr(0, stem)) return false;
  }
  return true;
}

absl::Status CheckRanks(const Storage& storage, std::string_view folder,
                        const std::vector<std::string>& files) {
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string expected = absl::StrFormat("consolidated.%02d.pth", i);
    if (files[i] != expected) {
      return absl::DataLossError(absl::StrCat(storage.Describe(folder), ": ", expected,
                                              " is missing, ", files[i], " is there"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

bool IsTorchDict(const Value& value) {
  return value.is(Kind::kDict) || value.IsObjectOf("collections.OrderedDict") ||
         value.IsObjectOf("collections.defaultdict") || value.IsObjectOf("builtins.dict") ||
         value.IsObjectOf("__builtin__.dict");
}

void AddPlainValues(const pickle::Pickle& contents, const std::string& name, pickle::Budget& budget,
                    std::vector<ForeignValue>& values) {
  ValueWalker(budget, values).Walk(contents.root(), name, 0);
}

absl::StatusOr<std::vector<std::string>> FindTorchFiles(Storage& storage, std::string_view folder,
                                                        const std::string& file) {
  std::vector<std::string> names = {file};
  if (file.empty()) {
    TESSERA_ASSIGN_OR_RETURN(names, storage.List(folder));
    std::erase_if(names, [](const std::string& name) { return !HasTorchName(name); });
  }
  std::vector<std::string> found;
  for (std::string& name : names) {
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> open,
                             storage.Open(JoinPath(folder, name)));
    TESSERA_ASSIGN_OR_RETURN(const bool is_torch, IsTorchArchive(*open));
    if (is_torch) found.push_back(std::move(name));
  }
  if (!std::ranges::all_of(found, IsBesideModel)) std::erase_if(found, IsBesideModel);
  if (found.size() <= 1 || AreParts(found)) return found;
  // As Meta names the files of ranks.
  if (std::ranges::all_of(found, [](const std::string& name) {
        return name.starts_with("consolidated.") && name.ends_with(".pth");
      })) {
    TESSERA_RETURN_IF_ERROR(CheckRanks(storage, folder, found));
    return found;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(storage.Describe(folder), ": ", found.size(),
                   " files of torch.save(), each of which may be a checkpoint; name one of them: ",
                   JoinFirst(found, ", ")));
}

absl::StatusOr<ForeignCheckpoint> ReadTorch(Storage& storage, std::string_view folder,
                                            std::span<const std::string> files) {
  ForeignCheckpoint checkpoint;
  checkpoint.format = kTorch;
  checkpoint.in_module_order = true;
  checkpoint.description.mutable_producer()->set_program("torch.save");
  Collector collector(checkpoint);
  for (const std::string& file : files) {
    const std::string path = JoinPath(folder, file);
    TESSERA_ASSIGN_OR_RETURN(const TorchArchive archive, ReadTorchFile(storage, path));
    TESSERA_RETURN_IF_ERROR(At(storage, path, collector.AddFile(archive, file)));
  }
  collector.AddNotes();
  return checkpoint;
}

}  // namespace tessera::ckpt::convert
