#include "convert/pickle/torch_archive.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/byte_order.h"
#include "base/text.h"
#include "convert/core/saved_values.h"
#include "convert/pickle/read.h"
#include "storage/checked/checked_storage.h"

namespace tessera::ckpt::convert {
namespace {

using pickle::Extent;
using pickle::Kind;
using pickle::Pickle;
using pickle::Value;

// The magic number 0x1950A86A20F9469CFC6C in a pickle, with which the legacy form begins.
constexpr std::string_view kLegacyMagic = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
constexpr int64_t kLegacyVersion = 1001;
constexpr uint64_t kFirstBytes = 262;  // up to the end of a tar archive's mark

// Returns the size of the magic number's pickle; 0 if the bytes begin otherwise. The protocol takes
// two bytes, and from protocol 4 on a frame nine more.
uint64_t LegacyMagicBytes(std::string_view first_bytes) {
  const size_t at = first_bytes.find(kLegacyMagic);
  const bool is_pickle = first_bytes.starts_with('\x80') && (at == 2 || at == 11);
  return is_pickle ? at + kLegacyMagic.size() : 0;
}

// Returns whether this is a tar archive whose first member is "sys_info", or Python's record of the
// times of a member.
bool LooksLikeTarForm(std::string_view first_bytes) {
  const bool is_named = first_bytes.starts_with(std::string_view("sys_info\0", 9)) ||
                        first_bytes.starts_with(std::string_view("././@PaxHeader\0", 15));
  return is_named &&
         first_bytes.substr(std::min<size_t>(257, first_bytes.size())).starts_with("ustar");
}

// Returns the beginning of a part of the file, at most `max_bytes` of it.
absl::StatusOr<std::string> ReadSome(const ReadableFile& file, Extent part, uint64_t max_bytes) {
  return ReadPart(file, part.offset, std::min(part.length, max_bytes));
}

// What a persistent id of torch says: ("storage", class, key, location, number of elements), and in
// the legacy form a view: None or (key, offset, number of elements).
struct StorageReference {
  const TorchType* elements = nullptr;
  std::string key;
  uint64_t count = 0;
  Value view;
};

absl::StatusOr<StorageReference> ParseStorage(const Value& value) {
  const Value id = value.persistent_id();
  if (!id.is(Kind::kTuple) || id.size() < 5 || !id[0].IsText("storage")) {
    return DataLoss("a tensor without a storage");
  }
  StorageReference storage = {.elements = FindTorchStorage(id[1]),
                              .key = std::string(id[2].AsText().value_or("")),
                              .count = id[4].AsUint().value_or(UINT64_MAX),
                              .view = id[5]};
  if (storage.elements == nullptr) {
    return Unimplemented("a storage of the class ", Shown(id[1].GlobalName()));
  }
  if (storage.key.empty() || storage.count == UINT64_MAX) return DataLoss("a malformed storage");
  return storage;
}

// Returns the bytes that a storage of an archive shows, which lie within the file.
absl::StatusOr<Extent> LocateStorage(const TorchArchive& archive, const StorageReference& storage) {
  const auto found = archive.storages.find(storage.key);
  if (found == archive.storages.end()) {
    return DataLoss("the storage ", Shown(storage.key), " is missing");
  }
  const Extent bytes = found->second;
  if (storage.count > bytes.length / storage.elements->element_bytes) {
    return DataLoss("the storage ", Shown(storage.key), " has ", bytes.length, " bytes, expected ",
                    storage.count, " elements of ", storage.elements->element_bytes, " bytes");
  }
  uint64_t offset = 0, count = storage.count;
  if (storage.view.is(Kind::kTuple)) {
    offset = storage.view[1].AsUint().value_or(UINT64_MAX);
    count = storage.view[2].AsUint().value_or(UINT64_MAX);
    if (offset > storage.count || count > storage.count - offset) {
      return DataLoss("a view beyond the end of the storage ", Shown(storage.key));
    }
  }
  return Extent{bytes.offset + offset * storage.elements->element_bytes,
                count * storage.elements->element_bytes};
}

// Returns the folder that begins all names, with its slash. What it is called does not matter.
absl::StatusOr<std::string> FindFolder(const std::vector<ZipMember>& members) {
  constexpr absl::string_view kPickle = "/data.pkl";
  std::string folder;
  for (const ZipMember& member : members) {
    if (absl::EndsWith(member.name, "/archive_format")) {
      return Unimplemented("a program of torch.export: save its state_dict() instead");
    }
    if (!absl::EndsWith(member.name, kPickle)) continue;
    if (member.name.find('/') != member.name.size() - kPickle.size()) continue;
    if (!folder.empty()) return DataLoss("two files data.pkl in one archive");
    folder = member.name.substr(0, member.name.size() - kPickle.size() + 1);
  }
  if (!folder.empty()) return folder;
  return Unimplemented("a zip archive without data.pkl: not written by torch.save()");
}

absl::Status CheckByteOrder(const ReadableFile& file, const ZipMember& member) {
  TESSERA_ASSIGN_OR_RETURN(const std::string order, ReadSome(file, member.data, 16));
  if (order == "little") return absl::OkStatus();
  return Unimplemented("storages in the byte order \"", absl::CHexEscape(order), "\"");
}

// Larger members are not read for their checksums alone, since a hole may be of any size.
constexpr uint64_t kWholeRecordBytes = uint64_t{64} << 20;

// Checks all members but the storages, which are checked as they are read where the file does so.
// Where no member has a checksum, torch.save() was told not to compute any.
absl::Status UseChecksums(const ReadableFile& file, const std::vector<ZipMember>& members,
                          const std::string& storages) {
#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
  return absl::OkStatus();  // no mutation would get past a checksum
#endif
  StatedChecksums* const stated = file.stated_checksums();
  if (std::ranges::all_of(members, [](const ZipMember& member) { return member.crc32 == 0; })) {
    if (stated != nullptr) stated->AddUnchecked();
    return absl::OkStatus();
  }
  for (const ZipMember& member : members) {
    if (member.compressed) continue;
    StoredRecord record = {member.name, member.data.offset, member.data.length, member.crc32};
    if (!absl::StartsWith(member.name, storages) && record.size_bytes <= kWholeRecordBytes) {
      TESSERA_RETURN_IF_ERROR(CheckRecord(file, record));
    } else if (stated != nullptr) {
      stated->Add(std::move(record));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<TorchArchive> ReadZip(const ReadableFile& file, Extent part) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<ZipMember> members, ReadZipDirectory(file, part));
  TESSERA_ASSIGN_OR_RETURN(const std::string folder, FindFolder(members));
  const std::string data = folder + "data/";
  absl::flat_hash_map<std::string, Extent> storages;
  Extent pickled;
  if (std::ranges::find(members, folder + "constants.pkl", &ZipMember::name) != members.end()) {
    return Unimplemented("a TorchScript program: save its state_dict() instead");
  }
  for (const ZipMember& member : members) {
    const bool is_pickle = member.name == folder + "data.pkl";
    const bool is_order = member.name == folder + "byteorder";
    const bool is_storage = absl::StartsWith(member.name, data);
    if (member.compressed && (is_pickle || is_order || is_storage)) {
      return DataLoss(absl::CHexEscape(member.name),
                      " is compressed; torch.save() stores everything as it is");
    }
    if (is_pickle) pickled = member.data;
    if (is_order) TESSERA_RETURN_IF_ERROR(CheckByteOrder(file, member));
    if (is_storage) storages.emplace(member.name.substr(data.size()), member.data);
  }
  TESSERA_RETURN_IF_ERROR(UseChecksums(file, members, data));
  TESSERA_ASSIGN_OR_RETURN(Pickle contents, pickle::ReadPickle(file, pickled));
  return TorchArchive{std::move(contents), std::move(storages)};
}

// Returns the element size of each storage that the pickle refers to, by key.
absl::StatusOr<absl::flat_hash_map<std::string, uint64_t>> ElementSizes(const Pickle& contents) {
  absl::flat_hash_map<std::string, uint64_t> sizes;
  for (size_t i = 0; i < contents.node_count(); ++i) {
    const Value value = contents.at(static_cast<pickle::NodeId>(i));
    if (!value.persistent_id()[0].IsText("storage")) continue;
    TESSERA_ASSIGN_OR_RETURN(const StorageReference storage, ParseStorage(value));
    const auto [found, is_new] = sizes.emplace(storage.key, storage.elements->element_bytes);
    if (!is_new && found->second != storage.elements->element_bytes) {
      return DataLoss("a storage of two dtypes");
    }
  }
  return sizes;
}

// Reads the legacy form from the end of its magic number on.
absl::StatusOr<TorchArchive> ReadLegacy(const ReadableFile& file, uint64_t at, uint64_t end) {
  const auto next = [&]() -> absl::StatusOr<Pickle> {
    TESSERA_ASSIGN_OR_RETURN(Pickle read, pickle::ReadPickle(file, {at, end - at}));
    at = read.end_offset();
    return read;
  };
  TESSERA_ASSIGN_OR_RETURN(const Pickle version, next());
  if (version.root().AsInt() != kLegacyVersion) {
    return Unimplemented("an unknown version of torch's legacy form");
  }
  TESSERA_ASSIGN_OR_RETURN(const Pickle system, next());
  if (system.root().Find("little_endian").AsBool() == false) {
    return Unimplemented("storages in big-endian byte order");
  }
  TESSERA_ASSIGN_OR_RETURN(Pickle contents, next());
  TESSERA_ASSIGN_OR_RETURN(const Pickle keys, next());
  TESSERA_ASSIGN_OR_RETURN(const auto element_sizes, ElementSizes(contents));
  absl::flat_hash_map<std::string, Extent> storages;
  for (size_t i = 0; i < keys.root().size(); ++i) {
    const std::string key(keys.root()[i].AsText().value_or(""));
    const std::string shown = Shown(key);
    const auto element_bytes = element_sizes.find(key);
    if (element_bytes == element_sizes.end()) {
      return DataLoss("the storage ", shown, " belongs to no tensor");
    }
    constexpr uint64_t kCountBytes = 8;
    if (end - at < kCountBytes) return DataLoss("the file ends before its storages do");
    TESSERA_ASSIGN_OR_RETURN(const std::string count_bytes, ReadPart(file, at, kCountBytes));
    const auto count = LoadLittleEndian<uint64_t>(count_bytes.data());
    at += kCountBytes;
    if (count > (end - at) / element_bytes->second) {
      return DataLoss("offset ", at, ": the storage ", shown, " has ", count,
                      " elements, and the file ends before");
    }
    const Extent bytes = {at, count * element_bytes->second};
    if (!storages.emplace(key, bytes).second) {
      return DataLoss("the storage ", shown, " occurs twice");
    }
    at += bytes.length;
  }
  return TorchArchive{std::move(contents), std::move(storages)};
}

// A call that makes a tensor: the function's name and its arguments.
struct TensorCall {
  std::string function;
  Value arguments;
};

constexpr int kMaxWrappers = 8;

// Parameters and subclasses wrap the call that makes their tensor.
TensorCall Unwrap(Value value) {
  for (int i = 0; i < kMaxWrappers; ++i) {
    TensorCall call = {value.callable().GlobalName(), value.arguments()};
    if (call.function == "torch._tensor._rebuild_from_type_v2") {
      const Value type = call.arguments[1];
      const bool is_plain = type.IsGlobal("torch.Tensor") ||
                            type.IsGlobal("torch._tensor.Tensor") ||
                            type.IsGlobal("torch.nn.parameter.Parameter") ||
                            type.IsGlobal("torch.nn.parameter.Buffer");
      if (!is_plain) return {type.GlobalName(), {}};
      call = {call.arguments[0].GlobalName(), call.arguments[2]};
    }
    if (!call.function.starts_with("torch._utils._rebuild_parameter")) return call;
    value = call.arguments[0];
  }
  return {};
}

// Checks the elements of a storage that a tensor shows. Its bounds were checked before.
absl::Status CheckView(const TorchTensor& tensor, uint64_t first, uint64_t storage_elements) {
  const absl::StatusOr<int64_t> count = CheckedByteCount(tensor.shape, 1);
  if (!count.ok()) return DataLoss(count.status().message());
  if (tensor.strides.size() != tensor.shape.size()) {
    return DataLoss("shape ", ShapeToString(tensor.shape), " with ", tensor.strides.size(),
                    " strides");
  }
  if (*count == 0) return absl::OkStatus();
  const std::optional<int64_t> last = LastElement(tensor.shape, tensor.strides);
  if (!last || first >= storage_elements ||
      static_cast<uint64_t>(*last) >= storage_elements - first) {
    return DataLoss("shape ", ShapeToString(tensor.shape), " at element ", first,
                    " reaches beyond its storage of ", storage_elements, " elements");
  }
  if (static_cast<uint64_t>(*count) > storage_elements) {
    return Unimplemented("an expanded tensor: shape ", ShapeToString(tensor.shape),
                         " shows the elements of a storage of ", storage_elements, " repeatedly");
  }
  return absl::OkStatus();
}

}  // namespace

const TorchType* FindTorchStorage(const Value& global) {
  const std::string name = global.GlobalName();
  if (!name.starts_with("torch.")) return nullptr;
  const std::string_view last = std::string_view(name).substr(name.rfind('.') + 1);
  const auto known = std::ranges::find(kTorchTypes, last, &TorchType::storage_class);
  return last.empty() || known == std::end(kTorchTypes) ? nullptr : known;
}

DType TorchDType(const Value& value) {
  const std::string name = value.GlobalName();
  for (const TorchType& type : kTorchTypes) {
    if (name == absl::StrCat("torch.", type.name)) return type.dtype;
  }
  return DType::kUnspecified;
}

bool IsTorchTensor(const Value& value) {
  const std::string name = value.callable().GlobalName();
  return name.starts_with("torch._utils._rebuild_") ||
         name.starts_with("torch._tensor._rebuild_") || value.persistent_id().AsText().has_value();
}

absl::StatusOr<TorchTensor> ShowElements(TorchTensor tensor, uint64_t first,
                                         const Extent& storage) {
  const uint64_t element_bytes = ElementSize(tensor.dtype);
  TESSERA_RETURN_IF_ERROR(CheckView(tensor, first, storage.length / element_bytes));
  const bool empty = ElementCount(tensor.shape) == 0;
  tensor.offset_bytes = storage.offset + (empty ? 0 : first * element_bytes);
  return tensor;
}

absl::StatusOr<TorchTensor> ResolveTorchTensor(const TorchArchive& archive, const Value& value) {
  if (const std::optional<std::string_view> id = value.persistent_id().AsText()) {
    const auto found = archive.tensors.find(View(*id));
    if (found == archive.tensors.end()) return DataLoss("the tensor ", Shown(*id), " is missing");
    return found->second;
  }
  const TensorCall call = Unwrap(value);
  const bool with_dtype = call.function == "torch._utils._rebuild_tensor_v3";
  if (!with_dtype && call.function != "torch._utils._rebuild_tensor_v2" &&
      call.function != "torch._utils._rebuild_tensor") {
    return Unimplemented("a tensor of the kind ", Shown(call.function));
  }
  const Value& arguments = call.arguments;
  if (arguments[with_dtype ? 7 : 6].entry_count() > 0) {
    return Unimplemented("a tensor that is to be negated or conjugated");
  }
  TESSERA_ASSIGN_OR_RETURN(const StorageReference storage, ParseStorage(arguments[0]));
  TESSERA_ASSIGN_OR_RETURN(const Extent bytes, LocateStorage(archive, storage));
  TorchTensor tensor;
  tensor.dtype = with_dtype ? TorchDType(arguments[6]) : storage.elements->dtype;
  if (tensor.dtype == DType::kUnspecified) {
    return Unimplemented("a tensor",
                         with_dtype ? absl::StrCat(" of ", Shown(arguments[6].GlobalName())) : "",
                         " in a ", storage.elements->storage_class);
  }
  std::optional<std::vector<int64_t>> shape = pickle::DimsOf(arguments[2]);
  std::optional<std::vector<int64_t>> strides = pickle::DimsOf(arguments[3]);
  const std::optional<uint64_t> first = arguments[1].AsUint();
  if (!shape || !strides || !first) return DataLoss("offset, shape or strides are malformed");
  tensor.shape = *std::move(shape);
  tensor.strides = *std::move(strides);
  return ShowElements(std::move(tensor), *first, bytes);
}

absl::StatusOr<TorchTensor> ResolveTorchVector(const TorchArchive& archive, const Value& value) {
  if (!IsTorchTensor(value)) return DataLoss("no tensor");
  TESSERA_ASSIGN_OR_RETURN(TorchTensor tensor, ResolveTorchTensor(archive, value));
  if (tensor.shape.size() == 1 && (tensor.strides[0] == 1 || tensor.shape[0] <= 1)) return tensor;
  return DataLoss("shape ", ShapeToString(tensor.shape), ", expected a contiguous vector");
}

absl::Status AddOptimizerFacts(const ReadableFile& file, const TorchArchive& archive,
                               OptimizerFacts& facts) {
  pickle::Budget budget(archive.contents);
  const auto add_updates = [&](const Value& updates) -> absl::Status {
    if (!updates.present() || updates.is(Kind::kNone)) return absl::OkStatus();
    std::optional<double> number = updates.AsFloat();
    if (const auto integer = updates.AsInt()) number = static_cast<double>(*integer);
    if (IsTorchTensor(updates)) {
      TESSERA_ASSIGN_OR_RETURN(const TorchTensor tensor, ResolveTorchTensor(archive, updates));
      if (ElementCount(tensor.shape) == 1) {
        TESSERA_ASSIGN_OR_RETURN(number, ReadNumber(file, tensor.offset_bytes, tensor.dtype));
      }
    }
    facts.AddUpdates(number);
    return absl::OkStatus();
  };
  const auto add_state = [&](const Value& state) -> absl::Status {
    for (const auto& [key, value] : state.entries()) {
      const std::string_view name = key.AsText().value_or("");
      TESSERA_RETURN_IF_ERROR(budget.Take(pickle::Budget::kVisitBytes + name.size()));
      if (name == "step") {
        TESSERA_RETURN_IF_ERROR(add_updates(value));
      } else if (name != "exp_avg" && name != "exp_avg_sq" && IsTorchTensor(value)) {
        facts.other_states.emplace(name);
      }
    }
    return absl::OkStatus();
  };
  Value optimizer = archive.contents.root();
  if (optimizer.is(Kind::kList) && optimizer.size() == 1) optimizer = optimizer[0];
  for (const char* const name : {"optimizer_state_dict", "optimizer_state_dict",
                                 "base_optimizer_state", "optimizer", "optimizer"}) {
    if (const Value inner = optimizer.Find(name); inner.present()) optimizer = inner;
  }
  if (IsTorchTensor(optimizer) || optimizer.AsInt() || optimizer.AsFloat()) {
    return add_updates(optimizer);
  }
  const Value states = optimizer.Find("state"), groups = optimizer.Find("param_groups");
  TESSERA_RETURN_IF_ERROR(add_updates(states.Find("common_step")));
  for (const auto& [unused, state] : states.entries()) TESSERA_RETURN_IF_ERROR(add_state(state));
  // The states of an elastic checkpoint of DeepSpeed are a list.
  for (size_t i = 0; i < optimizer.size(); ++i) TESSERA_RETURN_IF_ERROR(add_state(optimizer[i]));
  for (size_t i = 0; i < groups.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(
        budget.Take(pickle::Budget::kVisitBytes * (1 + groups[i].entry_count())));
    TESSERA_RETURN_IF_ERROR(add_updates(groups[i].Find("step")));
    const auto settings = ValueOfJson(pickle::DictToJson(groups[i]).dump());
    if (settings) facts.AddSettings(*settings->As<SavedValue::Dict>());
  }
  return absl::OkStatus();
}

absl::Status AddOptimizerFacts(Storage& storage, const std::string& path, OptimizerFacts& facts) {
  TESSERA_ASSIGN_OR_RETURN(const auto file, OpenIfPresent(storage, path));
  if (file == nullptr) return absl::OkStatus();
  const auto archive = ReadTorchArchive(*file, {0, file->size_bytes()});
  return At(storage, path,
            archive.ok() ? AddOptimizerFacts(*file, *archive, facts) : archive.status());
}

absl::StatusOr<std::string> ReadTorchName(const Value& key, pickle::Budget& budget) {
  const std::string_view text = key.AsText().value_or("");
  TESSERA_RETURN_IF_ERROR(budget.Take(sizeof(TorchTensor) + text.size()));
  if (!text.empty() && IsValidUtf8(text)) return std::string(text);
  return DataLoss("a tensor whose name is empty or not valid UTF-8");
}

absl::StatusOr<bool> IsTorchArchive(const ReadableFile& file, Extent part) {
  TESSERA_ASSIGN_OR_RETURN(const std::string first, ReadSome(file, part, kFirstBytes));
  if (LooksLikeZip(first) || LegacyMagicBytes(first) > 0 || LooksLikeTarForm(first)) return true;
  constexpr uint64_t kZipEndBytes = 22;
  const uint64_t before_end = part.length - std::min(part.length, kZipEndBytes);
  TESSERA_ASSIGN_OR_RETURN(const std::string end,
                           ReadPart(file, part.offset + before_end, part.length - before_end));
  return absl::StartsWith(end, "PK\5\6");
}

absl::StatusOr<TorchArchive> ReadTorchArchive(const ReadableFile& file, Extent part) {
  if (part.offset > file.size_bytes() || part.length > file.size_bytes() - part.offset) {
    return DataLoss("an archive of ", part.length, " bytes at offset ", part.offset,
                    " in a file of ", file.size_bytes(), " bytes");
  }
  TESSERA_ASSIGN_OR_RETURN(const std::string first, ReadSome(file, part, kFirstBytes));
  if (LooksLikeZip(first)) return ReadZip(file, part);
  if (const uint64_t magic_bytes = LegacyMagicBytes(first); magic_bytes > 0) {
    return ReadLegacy(file, part.offset + magic_bytes, part.offset + part.length);
  }
  if (LooksLikeTarForm(first)) return ReadTorchTar(file, part);
  return DataLoss("neither a zip archive nor torch's legacy form: not written by torch.save()");
}

absl::StatusOr<TorchArchive> ReadTorchFile(Storage& storage, std::string_view path) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file, storage.Open(path));
  return At(storage, path, ReadTorchArchive(*file, {0, file->size_bytes()}));
}

pickle::Value FindNumber(const pickle::Value& dict, int64_t key) {
  for (size_t i = dict.entry_count(); i > 0; --i) {
    const auto [name, value] = dict.entry(i - 1);
    if (name.AsInt() == key) return value;
  }
  return {};
}

}  // namespace tessera::ckpt::convert
