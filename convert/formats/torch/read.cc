#include "convert/formats/torch/read.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "convert/core/own_keys.h"
#include "convert/core/reading.h"
#include "convert/pickle/numpy_array.h"
#include "convert/pickle/torch_archive.h"
#include "layout/box.h"
#include "layout/elements/copy_elements.h"

namespace tessera::ckpt::convert {
namespace {

using pickle::Kind;

// Real state dicts nest five deep.
constexpr int kMaxDepth = 64;
// Each module in a module is five deep: object, attributes, submodules, and what is called.
constexpr int kMaxObjectDepth = 256;
constexpr std::string_view kPartsOfModule[] = {"_modules", "_parameters", "_buffers"};
// Keys may be long and shared: copying so many bytes of one costs as much as a visit.
constexpr uint64_t kKeyBytesOfVisit = 32;
// Names of one class of opaque objects or of one kind of unread tensors in the notes, and classes
// and kinds.
constexpr size_t kMaxNotedNames = 3;
constexpr size_t kMaxNotes = 100;

// Bytes that a tree of values takes beside its texts.
constexpr uint64_t kValueBytes = 2 * sizeof(SavedValue);
constexpr char kTooMuch[] = "what expands to many times the file's size";

// Returns the number that an element of a dtype of numpy is; nullopt for one beyond int64.
std::optional<SavedValue> NumberOf(DType dtype, const std::string& bytes) {
  if (dtype == DType::kBool) return SavedValue{bytes[0] != 0};
  if (const CopyElements copy = FindCopy(dtype, DType::kF64)) {
    double number = 0;
    copy(std::as_bytes(std::span(bytes)).data(),
         std::as_writable_bytes(std::span(&number, 1)).data(), 1, 1);
    return SavedValue{number};
  }
  const bool is_signed = DTypeName(dtype).starts_with("int");
  int64_t integer = is_signed && static_cast<signed char>(bytes.back()) < 0 ? -1 : 0;
  std::memcpy(&integer, bytes.data(), bytes.size());
  if (!is_signed && integer < 0) return std::nullopt;
  return SavedValue{integer};
}

// Returns the name of what an object calls. If that is the result of another call, such as one of
// getattr(), the name is the other one's.
std::string CalledName(const pickle::Value& object) {
  pickle::Value called = object.callable();
  int calls = 0;
  for (; called.is(Kind::kObject) && calls < kMaxDepth; ++calls) called = called.callable();
  const std::string name = Shown(called.GlobalName());
  return calls == 0 ? name : absl::StrCat("a result of ", name);
}

// Says, for a note, what values like this one are.
std::string WhatIs(const pickle::Value& value) {
  if (value.is(Kind::kObject)) return absl::StrCat("objects of ", CalledName(value));
  return absl::StrCat("values of the kind ", View(pickle::KindName(value.kind())));
}

// Returns whether a value is a tensor, or the storage of one.
bool IsStored(const pickle::Value& value) {
  return IsTorchTensor(value) || value.persistent_id().present();
}

// Returns whether a value is an object of a type that Python itself has.
bool IsBuiltIn(const pickle::Value& value, const char* type) {
  return value.is(Kind::kObject) && (value.IsObjectOf(absl::StrCat("builtins.", type)) ||
                                     value.IsObjectOf(absl::StrCat("__builtin__.", type)));
}

}  // namespace

// Makes a tree of the values of pickles, and of the tensors of their archives.
class TorchCollector {
 public:
  explicit TorchCollector(ForeignCheckpoint& checkpoint) : checkpoint_(checkpoint) {
    for (const ForeignTensor& tensor : checkpoint.tensors) files_by_name_[tensor.name];
  }

  // Adds the file of an archive to the checkpoint.
  absl::Status AddFile(const ReadableFile& open, const TorchArchive& archive,
                       const std::string& file) {
    Begin(open, archive, file);
    const pickle::Value root = archive.contents.root();
    path_ = IsTensor(root) ? "tensor" : "";
    TESSERA_ASSIGN_OR_RETURN(std::optional<SavedValue> tree, Walk(root, TensorRole::kWeight, 0));
    if (!tree.has_value()) return absl::OkStatus();
    // The tree is a dict. The items of a list get their indices as keys, as in names of tensors.
    SavedValue::Dict dict;
    if (tree->As<SavedValue::Tensor>() != nullptr) {
      dict.Add({path_}, *std::move(tree));
    } else if (IsBranch(*tree)) {
      ForEachChild<SavedValue>(*tree, [&](const PathPart& part, SavedValue& item) {
        const bool is_text = part.kind == PathPart::Kind::kText;
        dict.Add(is_text ? SavedValue{part.text} : SavedValue{part.number}, std::move(item));
      });
    } else {
      LeftOut("a value that is not in a dict");
    }
    MergeInto({std::move(dict)}, checkpoint_.state);
    return absl::OkStatus();
  }

  // Returns the tree of an archive beside tensors, for the entry `name`; nullopt if nothing of it
  // is a value.
  absl::StatusOr<std::optional<SavedValue>> ReadObject(const ReadableFile& open,
                                                       const TorchArchive& archive,
                                                       const std::string& file,
                                                       const std::string& name) {
    Begin(open, archive, file);
    path_ = name;
    const pickle::Value root = archive.contents.root();
    Tree tree = Walk(root, TensorRole::kBuffer, 0);
    unread_nodes_.clear();
    if (absl::IsUnimplemented(tree.status()) && HoldsTensors(root)) {
      checkpoint_.unread[Shown(name)] =
          absl::StrCat("tensors in an object that is not read to its end: ",
                       std::string(tree.status().message()));
    }
    return tree;
  }

  // Called after the last file or object: tensors of objects may be read under other names.
  void AddNotes() {
    for (const auto& [name, view] : views_of_unread_) {
      if (first_names_.contains(view)) checkpoint_.unread.erase(name);
    }
    for (const auto& [what, noted] : noted_) {
      checkpoint_.notes.push_back(
          absl::StrCat("Left out: ", what, ": ", noted.names,
                       noted.count > kMaxNotedNames
                           ? absl::StrCat(" and ", noted.count - kMaxNotedNames, " more")
                           : "",
                       "."));
    }
  }

 private:
  // File, offset, dtype, shape and strides: equal for tensors that are the same elements.
  using StoredView = std::tuple<std::string, uint64_t, DType, Shape, std::vector<int64_t>>;
  using Tree = absl::StatusOr<std::optional<SavedValue>>;  // nullopt: left out, with a note

  void Begin(const ReadableFile& open, const TorchArchive& archive, const std::string& file) {
    archive_ = &archive;
    open_ = &open;
    file_ = file;
    budget_.emplace(archive.contents);
    values_budget_.emplace(archive.contents);
    unread_nodes_.clear();
  }

  // Takes bytes of the budget. Unimplemented once nothing is left.
  absl::Status Take(uint64_t bytes) {
    const absl::Status taken = budget_->Take(bytes);
    return taken.ok() ? taken : Unimplemented(taken.message());
  }

  static bool IsTensor(const pickle::Value& value) {
    return IsTorchTensor(value) || pickle::IsNumpyArray(value);
  }

  // These use path_, the name of the value that is looked at.
  Tree Walk(const pickle::Value& value, TensorRole role, int depth) {
    TESSERA_RETURN_IF_ERROR(Take(pickle::Budget::kVisitBytes));
    if (depth > kMaxDepth)
      return Unimplemented("objects are nested more than ", kMaxDepth, " deep");
    if (IsTorchDict(value)) return WalkEntries(value, role, depth);
    const pickle::Value items = value.IsObjectOf("torch.Size") ? value.arguments()[0] : value;
    if (items.is(Kind::kList) || items.is(Kind::kTuple)) return WalkItems(items, role, depth);
    if (IsTensor(value)) return AddTensor(value, role);
    return pickle::IsNumpyScalar(value) ? ReadScalar(value) : ReadLeaf(value);
  }

  Tree WalkItems(const pickle::Value& list, TensorRole role, int depth) {
    std::vector<SavedValue> items;
    for (size_t i = 0; i < list.size(); ++i) {
      TESSERA_ASSIGN_OR_RETURN(std::optional<SavedValue> item,
                               WalkBelow(absl::StrCat(i), list[i], role, depth));
      // In the place of what is left out, so that the others keep theirs.
      if (HasRoom(0)) items.push_back(std::move(item).value_or(SavedValue{SavedValue::None{}}));
    }
    if (items.size() < list.size()) return LeftOut(kTooMuch);
    return SavedValue{SavedValue::List{std::move(items), list.is(Kind::kTuple)}};
  }

  Tree WalkEntries(const pickle::Value& dict, TensorRole role, int depth) {
    const bool is_optimizer = dict.Find("state").present() && dict.Find("param_groups").present();
    SavedValue::Dict tree;
    for (const auto& [key, value] : dict.entries()) {
      const std::optional<std::string_view> text = key.AsText();
      const std::optional<int64_t> number = key.AsInt();
      if (!text && !number) {
        const char* const kOther = "entries whose key is neither a text nor a number";
        LeftOut(kOther);
        TESSERA_RETURN_IF_ERROR(AddUnread(value, kOther, 0));
        continue;
      }
      TESSERA_RETURN_IF_ERROR(Take(text ? text->size() / kKeyBytesOfVisit : 0));
      const std::string digits = number ? absl::StrCat(*number) : "";
      const bool is_state = is_optimizer && (text == "state" || text == "param_groups");
      TESSERA_ASSIGN_OR_RETURN(std::optional<SavedValue> child,
                               WalkBelow(text.value_or(digits), value,
                                         is_state ? TensorRole::kOptimizerState : role, depth));
      if (!child.has_value()) continue;
      if (!HasRoom(text ? text->size() : 0)) {
        LeftOut(kTooMuch);
      } else if (text && !IsValidUtf8(*text)) {
        LeftOut("entries whose key is not valid UTF-8");
      } else {
        tree.Add(text ? SavedValue{std::string(*text)} : SavedValue{*number}, *std::move(child));
      }
    }
    return SavedValue{std::move(tree)};
  }

  Tree WalkBelow(std::string_view key, const pickle::Value& value, TensorRole role, int depth) {
    const size_t parent_bytes = path_.size();
    if (!path_.empty()) path_ += '.';
    path_ += key;
    Tree tree = Walk(value, role, depth + 1);
    path_.resize(parent_bytes);
    return tree;
  }

  Tree AddTensor(const pickle::Value& value, TensorRole role) {
    const std::string& name = path_;
    // Programs put no weights into arrays.
    if (pickle::IsNumpyArray(value) && role == TensorRole::kWeight) role = TensorRole::kBuffer;
    const auto unread = [&](const std::string& what) -> Tree {
      if (IsTorchTensor(value)) {
        checkpoint_.unread[Shown(name)] = what;
      } else {
        TESSERA_RETURN_IF_ERROR(AddUnread(value, what, 0));
      }
      return LeftOut(what);
    };
    TESSERA_RETURN_IF_ERROR(Take(sizeof(ForeignTensor) + name.size()));
    if (name.empty() || !IsValidUtf8(name)) {
      return unread("a tensor whose name is empty or not valid UTF-8");
    }
    absl::StatusOr<TorchTensor> tensor =
        IsTorchTensor(value) ? ResolveTorchTensor(*archive_, value) : ResolveArray(value);
    if (tensor.status().code() == absl::StatusCode::kUnimplemented) {
      return unread(std::string(tensor.status().message()));
    }
    if (!tensor.ok()) return In(absl::StrCat("tensor ", Shown(name)), tensor.status());
    const StoredView view = ViewOf(*tensor);
    if (const auto same = first_names_.find(view); same != first_names_.end()) {
      // The same tensor below keys that give the same name.
      if (same->second == name) return SavedValue{SavedValue::Tensor{name}};
    }
    const auto [first, is_first] = files_by_name_.emplace(name, file_);
    if (!is_first && (first->second.empty() || first->second == file_)) {
      return unread("a tensor that has the name of another one");
    }
    if (!is_first) return DataLoss("tensor ", Shown(name), ": the name occurs twice");
    ForeignTensor added = {.name = name, .role = role, .dtype = tensor->dtype};
    added.shape = tensor->shape;
    if (ElementCount(tensor->shape) > 0) {
      const auto [same, is_new] = first_names_.emplace(view, name);
      if (is_new) {
        added.pieces.push_back(
            {WholeBox(tensor->shape), file_, tensor->offset_bytes, tensor->strides});
      } else {
        added.alias_of = same->second;
      }
    }
    checkpoint_.tensors.push_back(std::move(added));
    if (!HasRoom(name.size())) return std::nullopt;  // the tensor is not left out
    return SavedValue{SavedValue::Tensor{name}};
  }

  StoredView ViewOf(const TorchTensor& tensor) const {
    return {file_, tensor.offset_bytes, tensor.dtype, tensor.shape, tensor.strides};
  }

  // Unimplemented for every array that is not read, unless the file's storage has failed.
  absl::StatusOr<TorchTensor> ResolveArray(const pickle::Value& value) {
    std::string& decoded = checkpoint_.decoded[file_];
    const size_t before = decoded.size();
    absl::StatusOr<pickle::NumpyArray> array = pickle::ResolveNumpyArray(value, *open_, decoded);
    if (array.ok() && HasRoom(decoded.size() - before)) {
      return TorchTensor{array->dtype, array->shape, array->strides, array->offset_bytes};
    }
    decoded.resize(before);
    if (absl::IsUnavailable(array.status())) return array.status();
    return Unimplemented(array.ok() ? kTooMuch : std::string(array.status().message()));
  }

  // Returns the number that a scalar of numpy is.
  Tree ReadScalar(const pickle::Value& value) {
    std::string element;
    const auto scalar = pickle::ResolveNumpyArray(value, *open_, element);
    if (absl::IsUnavailable(scalar.status())) return scalar.status();
    if (!scalar.ok()) return LeftOut(std::string(scalar.status().message()));
    if (element.empty()) {
      TESSERA_ASSIGN_OR_RETURN(element,
                               ReadPart(*open_, scalar->offset_bytes, ElementSize(scalar->dtype)));
    }
    std::optional<SavedValue> number = NumberOf(scalar->dtype, element);
    if (!number.has_value()) return LeftOut("integers beyond 64 bits");
    return HasRoom(0) ? number : LeftOut(kTooMuch);
  }

  // Bytes of protocol 3 and later are in the file. Before, they are a text whose characters they
  // are. Empty ones, and each bytearray before protocol 5, are calls of their types.
  Tree ReadLeaf(const pickle::Value& value) {
    const bool is_call = IsBuiltIn(value, "bytes") || IsBuiltIn(value, "bytearray");
    const bool is_empty = is_call && value.arguments().size() == 0;
    const pickle::Value contents = is_call && !is_empty ? value.arguments()[0] : value;
    SavedValue::Bytes read = {.is_bytearray =
                                  value.is(Kind::kByteArray) || IsBuiltIn(value, "bytearray")};
    if (contents.is(Kind::kBytes) || contents.is(Kind::kByteArray)) {
      const pickle::Extent extent = *contents.extent();
      if (extent.length > pickle::kMaxTextBytes || !HasRoom(extent.length)) {
        return LeftOut("byte strings that are too long");
      }
      TESSERA_ASSIGN_OR_RETURN(read.bytes, ReadPart(*open_, extent.offset, extent.length));
      return SavedValue{std::move(read)};
    }
    const std::optional<std::string_view> text = contents.arguments()[0].AsText();
    const bool is_latin1 =
        contents.IsObjectOf("_codecs.encode") && contents.arguments()[1].IsText("latin1");
    std::optional<std::string> bytes;
    if (text && is_latin1 && HasRoom(text->size())) bytes = pickle::DecodeLatin1(*text);
    if (!is_empty && !bytes) {
      std::optional<SavedValue> plain = Plain(value);
      if (!plain.has_value()) TESSERA_RETURN_IF_ERROR(AddUnread(value, WhatIs(value), 0));
      return plain;
    }
    read.bytes = std::move(bytes).value_or("");
    return SavedValue{std::move(read)};
  }

  // Adds the tensors of what is left out to those that are not read, each once. They have the names
  // of the attributes, keys and indices that lead to them, those of modules as in a state dict.
  absl::Status AddUnread(const pickle::Value& value, const std::string& what, int depth) {
    if (!value.present() || !unread_nodes_.insert(value.id()).second) return absl::OkStatus();
    TESSERA_RETURN_IF_ERROR(Take(pickle::Budget::kVisitBytes));
    if (IsStored(value) || depth == kMaxObjectDepth) {
      if (!IsStored(value) && !HoldsTensors(value)) return absl::OkStatus();
      TESSERA_RETURN_IF_ERROR(Take(path_.size() + what.size()));
      const auto tensor = ResolveTorchTensor(*archive_, value);
      if (tensor.ok()) views_of_unread_[Shown(path_)] = ViewOf(*tensor);
      checkpoint_.unread[Shown(path_)] =
          absl::StrCat(IsStored(value) ? "a tensor" : "what is nested deep", " in ", what);
      return absl::OkStatus();
    }
    return pickle::ForEachPart(
        value, [&](std::optional<std::string_view> key, const pickle::Value& part) {
          TESSERA_RETURN_IF_ERROR(Take(key ? key->size() / kKeyBytesOfVisit : 0));
          const size_t parent_bytes = path_.size();
          if (key && !std::ranges::count(kPartsOfModule, *key)) {
            absl::StrAppend(&path_, path_.empty() ? "" : ".", View(*key));
          }
          const absl::Status status = AddUnread(part, what, depth + 1);
          path_.resize(parent_bytes);
          return status;
        });
  }

  // Returns whether a value, at any depth, has tensors that AddUnread() has not visited.
  bool HoldsTensors(const pickle::Value& value) {
    std::vector<pickle::Value> next = {value};
    while (!next.empty()) {
      const pickle::Value visited = next.back();
      next.pop_back();
      if (IsStored(visited)) return true;
      (void)pickle::ForEachPart(visited,
                                [&](std::optional<std::string_view>, const pickle::Value& part) {
                                  if (unread_nodes_.insert(part.id()).second) next.push_back(part);
                                  return absl::OkStatus();
                                });
    }
    return false;
  }

  // Returns a value without others inside.
  std::optional<SavedValue> Plain(const pickle::Value& value) {
    const std::optional<std::string_view> text = value.AsText();
    if (!HasRoom(text ? text->size() : 0)) return LeftOut(kTooMuch);
    if (value.is(Kind::kNone)) return SavedValue{SavedValue::None{}};
    if (const auto truth = value.AsBool()) return SavedValue{*truth};
    if (const auto integer = value.AsInt()) return SavedValue{*integer};
    if (const auto number = value.AsFloat()) return SavedValue{*number};
    if (text && IsValidUtf8(*text)) return SavedValue{std::string(*text)};
    if (value.is(Kind::kText)) return LeftOut("texts that are too long or not valid UTF-8");
    if (value.is(Kind::kInt)) return LeftOut("integers beyond 64 bits");
    if (value.is(Kind::kGlobal)) return LeftOut(Shown(value.GlobalName()));
    return LeftOut(WhatIs(value));
  }

  std::optional<SavedValue> LeftOut(const std::string& what) {
    const bool is_known = noted_.size() < kMaxNotes || noted_.contains(what);
    Noted& noted = noted_[is_known ? what : "other objects"];
    if (++noted.count > kMaxNotedNames) return std::nullopt;
    absl::StrAppend(&noted.names, noted.count > 1 ? ", " : "",
                    path_.empty() ? "the file" : Shown(path_));
    return std::nullopt;
  }

  // Returns whether the budget allows a value with a text of this size.
  bool HasRoom(uint64_t text_bytes) { return values_budget_->Has(kValueBytes + text_bytes); }

  ForeignCheckpoint& checkpoint_;
  const ReadableFile* open_ = nullptr;
  const TorchArchive* archive_ = nullptr;
  std::string file_;
  std::string path_;
  std::optional<pickle::Budget> budget_, values_budget_;  // of the present file or object
  std::set<pickle::NodeId> unread_nodes_;                 // of the present file or object
  std::map<StoredView, std::string> first_names_;
  std::map<std::string, StoredView> views_of_unread_;  // by names, of objects' tensors
  std::map<std::string, std::string> files_by_name_;   // of tensors
  struct Noted {
    size_t count = 0;
    std::string names;
  };
  std::map<std::string, Noted> noted_;
};

bool IsTorchDict(const pickle::Value& value) {
  return value.is(Kind::kDict) || value.IsObjectOf("collections.OrderedDict") ||
         value.IsObjectOf("collections.defaultdict") || IsBuiltIn(value, "dict");
}

ObjectReader::ObjectReader(ForeignCheckpoint& checkpoint)
    : collector_(std::make_unique<TorchCollector>(checkpoint)) {}
ObjectReader::~ObjectReader() = default;

absl::StatusOr<std::optional<SavedValue>> ObjectReader::Read(const ReadableFile& open,
                                                             const TorchArchive& archive,
                                                             const std::string& file,
                                                             const std::string& name) {
  return collector_->ReadObject(open, archive, file, name);
}

void ObjectReader::AddNotes() { collector_->AddNotes(); }

absl::StatusOr<ForeignCheckpoint> ReadTorch(Storage& storage, std::span<const std::string> files) {
  ForeignCheckpoint checkpoint = CheckpointOf(kTorch, "torch.save");
  checkpoint.in_module_order = true;
  TorchCollector collector(checkpoint);
  for (const std::string& file : files) {
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> open, storage.Open(file));
    TESSERA_ASSIGN_OR_RETURN(const TorchArchive archive,
                             At(storage, file, ReadTorchArchive(*open, {0, open->size_bytes()})));
    TESSERA_RETURN_IF_ERROR(At(storage, file, collector.AddFile(*open, archive, file)));
  }
  collector.AddNotes();
  TakeOwnKeys(checkpoint);
  return checkpoint;
}

}  // namespace tessera::ckpt::convert
