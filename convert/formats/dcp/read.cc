#include "convert/formats/torch/read.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/threads.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/include/manifest.h"
#include "convert/core/own_keys.h"
#include "convert/core/reading.h"
#include "convert/formats/dcp/dcp.h"
#include "convert/formats/dcp/metadata.h"
#include "convert/pickle/torch_archive.h"
#include "layout/box.h"
#include "storage/ends_in_memory.h"

namespace tessera::ckpt::convert {
namespace {

using pickle::Extent;

constexpr uint64_t kSafetensorsLengthBytes = 8;
// Threads that read headers of chunks. A header takes a few small reads of a disk.
constexpr int kThreads = 8;

// DataLoss if a part reaches beyond the end of its file.
absl::Status CheckInside(const ReadableFile& file, Extent part) {
  if (part.offset <= file.size_bytes() && part.length <= file.size_bytes() - part.offset) {
    return absl::OkStatus();
  }
  return DataLoss("a chunk of ", part.length, " bytes at offset ", part.offset, " in a file of ",
                  file.size_bytes(), " bytes");
}

// DataLoss for an object whose bytes are zeros, as those of a block that a disk has lost.
absl::Status CheckNotLost(const ReadableFile& file, Extent part) {
  constexpr uint64_t kFirstBytes = 4096;
  TESSERA_ASSIGN_OR_RETURN(const std::string first,
                           ReadPart(file, part.offset, std::min(part.length, kFirstBytes)));
  if (first.find_first_not_of('\0') != first.npos || first.empty()) return absl::OkStatus();
  return DataLoss(first.size(), " bytes of zeros, which no program saves");
}

// The files of the folder, each opened once. Thread-safe.
class OpenFiles {
 public:
  OpenFiles(Storage& storage, std::string_view folder) : storage_(storage), folder_(folder) {}

  absl::StatusOr<const ReadableFile*> Open(const std::string& file) {
    const MutexLock lock(&mutex_);
    std::unique_ptr<ReadableFile>& open = files_[file];
    if (open == nullptr) {
      TESSERA_ASSIGN_OR_RETURN(open, storage_.Open(JoinPath(folder_, file)));
    }
    return open.get();
  }

  // Returns the result for a part of a file; errors name the file, and the value that is there.
  template <typename Result>
  Result At(const DcpBlob& blob, const absl::AlphaNum& what, Result result) const {
    return convert::At(storage_, JoinPath(folder_, blob.file), In(what, std::move(result)));
  }

  // Reads the pickle of an object; nullopt if torch.save() did not write it, or not as it is read.
  // Errors, which name file and object: those of opening and reading it, and DataLoss for damage.
  absl::StatusOr<std::optional<TorchArchive>> ReadObject(const DcpObject& object) {
    TESSERA_ASSIGN_OR_RETURN(const ReadableFile* file, Open(object.blob.file));
    const auto read = [&]() -> absl::StatusOr<std::optional<TorchArchive>> {
      TESSERA_RETURN_IF_ERROR(CheckInside(*file, object.blob.part));
      TESSERA_ASSIGN_OR_RETURN(const bool is_torch, IsTorchArchive(*file, object.blob.part));
      if (!is_torch) {
        TESSERA_RETURN_IF_ERROR(CheckNotLost(*file, object.blob.part));
        return std::nullopt;
      }
      absl::StatusOr<TorchArchive> archive = ReadTorchArchive(*file, object.blob.part);
      if (absl::IsUnimplemented(archive.status())) return std::nullopt;
      TESSERA_RETURN_IF_ERROR(archive.status());
      return *std::move(archive);
    };
    return At(object.blob, absl::StrCat("object ", Shown(object.name)), read());
  }

 private:
  Storage& storage_;
  const std::string folder_;
  Mutex mutex_;
  std::map<std::string, std::unique_ptr<ReadableFile>> files_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<TorchTensor> ReadTorchChunk(const ReadableFile& whole, Extent part) {
  TESSERA_ASSIGN_OR_RETURN(const EndsInMemory file,
                           EndsInMemory::Create(whole, part.offset, part.length));
  TESSERA_ASSIGN_OR_RETURN(const TorchArchive archive, ReadTorchArchive(file, part));
  const pickle::Value root = archive.contents.root();
  if (!IsTorchTensor(root)) return DataLoss("a chunk that is not a tensor");
  return ResolveTorchTensor(archive, root);
}

TorchTensor TensorOf(const SafetensorsEntry& entry, uint64_t offset_bytes) {
  return {.dtype = entry.dtype,
          .shape = entry.shape,
          .strides = ContiguousStrides(entry.shape),
          .offset_bytes = offset_bytes + entry.file_offset};
}

// A chunk is a safetensors file of its own, or a tensor in a file that is one as a whole. In the
// latter, the place in the metadata means nothing, and the key is the tensor's name.
absl::StatusOr<TorchTensor> ReadSafetensorsChunk(const ReadableFile& file, Extent part,
                                                 const std::string& name) {
  const absl::StatusOr<SafetensorsHeader> chunk = ReadSafetensors(file, part.offset, part.length);
  if (chunk.ok() && chunk->entries.size() == 1) return TensorOf(chunk->entries[0], part.offset);
  TESSERA_ASSIGN_OR_RETURN(const SafetensorsHeader whole,
                           ReadSafetensors(file, 0, file.size_bytes()));
  for (const SafetensorsEntry& entry : whole.entries) {
    if (entry.key == name) return TensorOf(entry, 0);
  }
  return DataLoss("the safetensors file does not have the tensor");
}

// Returns whether a chunk, or the file that holds it, begins as a safetensors file does: with the
// length of a header, and '{'.
absl::StatusOr<bool> IsSafetensors(const ReadableFile& file, Extent part) {
  TESSERA_RETURN_IF_ERROR(CheckInside(file, part));
  const uint64_t length = kSafetensorsLengthBytes + 1;
  if (file.size_bytes() - part.offset < length) return false;
  TESSERA_ASSIGN_OR_RETURN(const std::string first, ReadPart(file, part.offset, length));
  return first.back() == '{' && !first.starts_with("PK");
}

absl::StatusOr<StoredPiece> ReadChunk(OpenFiles& files, const DcpTensor& tensor,
                                      const DcpChunk& chunk) {
  TESSERA_ASSIGN_OR_RETURN(const ReadableFile* file, files.Open(chunk.blob.file));
  TESSERA_ASSIGN_OR_RETURN(const bool is_safetensors, IsSafetensors(*file, chunk.blob.part));
  TESSERA_ASSIGN_OR_RETURN(
      TorchTensor stored, is_safetensors ? ReadSafetensorsChunk(*file, chunk.blob.part, tensor.name)
                                         : ReadTorchChunk(*file, chunk.blob.part));
  if (stored.dtype != tensor.dtype || stored.shape != chunk.box.shape) {
    return DataLoss("the metadata says ", ProtoName(tensor.dtype), " ",
                    ShapeToString(chunk.box.shape), ", the chunk is ", ProtoName(stored.dtype), " ",
                    ShapeToString(stored.shape));
  }
  return StoredPiece{.box = chunk.box,
                     .file = chunk.blob.file,
                     .offset_bytes = stored.offset_bytes,
                     .strides = std::move(stored.strides)};
}

// Tensors that are stored once under several names become aliases of the first.
void FindAliases(std::vector<ForeignTensor>& tensors) {
  std::map<std::pair<std::string, uint64_t>, const ForeignTensor*> first_by_place;
  for (ForeignTensor& tensor : tensors) {
    if (tensor.pieces.empty()) continue;
    const StoredPiece& piece = tensor.pieces.front();
    const auto [first, is_new] =
        first_by_place.try_emplace({piece.file, piece.offset_bytes}, &tensor);
    const ForeignTensor& other = *first->second;
    if (is_new || other.dtype != tensor.dtype || other.shape != tensor.shape ||
        other.pieces != tensor.pieces) {
      continue;
    }
    tensor.alias_of = other.name;
    tensor.pieces.clear();
  }
}

// Returns "X" of each "X.param_groups..." among all names; "" of "param_groups...".
std::set<std::string> OptimizerPrefixes(const DcpMetadata& metadata) {
  std::set<std::string> prefixes;
  const auto add = [&](const std::string& name) {
    constexpr std::string_view kGroups = "param_groups";
    const size_t at = name.find(kGroups);
    if (at == 0) prefixes.insert("");
    if (at != name.npos && at > 0 && name[at - 1] == '.') prefixes.insert(name.substr(0, at - 1));
  };
  for (const DcpTensor& tensor : metadata.tensors) add(tensor.name);
  for (const DcpObject& object : metadata.objects) add(object.name);
  return prefixes;
}

bool IsOptimizerState(const std::string& name, const std::set<std::string>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(), [&](const std::string& prefix) {
    const std::string optimizer = prefix.empty() ? "" : prefix + ".";
    return name.starts_with(optimizer + "state.") || name.starts_with(optimizer + "param_groups.");
  });
}

// What objects hold. Each is a file of torch.save() of its own, and reading one from an object
// store takes several requests. Several objects may be in one place.
class Objects {
 public:
  Objects(OpenFiles& files, const DcpMetadata& metadata, uint64_t metadata_bytes,
          ForeignCheckpoint& checkpoint)
      : files_(files), metadata_(metadata), budget_(metadata_bytes), reader_(checkpoint) {}

  // Adds them to the tree. Appends the names of those without values that no note has to `others`.
  absl::Status AddTo(TreeBuilder& tree, std::vector<std::string>& others) {
    std::map<Place, std::vector<const DcpObject*>> places;
    for (const DcpObject& object : metadata_.objects) {
      places[{object.blob.file, object.blob.part.offset}].push_back(&object);
    }
    const std::vector<std::pair<Place, std::vector<const DcpObject*>>> all(places.begin(),
                                                                           places.end());
    std::map<std::string, std::optional<SavedValue>> values;  // nullopt: a note names it
    for (size_t first = 0; first < all.size() && first < kMaxPlaces; first += kPlacesAtOnce) {
      const size_t count = std::min({all.size() - first, kMaxPlaces - first, kPlacesAtOnce});
      std::vector<std::optional<TorchArchive>> archives(count);
      TESSERA_RETURN_IF_ERROR(RunTasks(kThreads, count, [&](int, size_t i) -> absl::Status {
        TESSERA_ASSIGN_OR_RETURN(archives[i], files_.ReadObject(*all[first + i].second.front()));
        return absl::OkStatus();
      }));
      for (size_t i = 0; i < count; ++i) {
        if (!archives[i].has_value()) continue;
        const std::vector<const DcpObject*>& objects = all[first + i].second;
        const auto& [name, unused, blob] = *objects.front();
        TESSERA_ASSIGN_OR_RETURN(const ReadableFile* file, files_.Open(blob.file));
        const auto read = files_.At(blob, absl::StrCat("object ", Shown(name)),
                                    reader_.Read(*file, *archives[i], blob.file, name));
        if (absl::IsUnimplemented(read.status())) continue;  // a note names it
        TESSERA_ASSIGN_OR_RETURN(const std::optional<SavedValue> value, read);
        if (!value.has_value()) values[name] = std::nullopt;
        // A small pickle may be any number of objects, so that their bytes are limited.
        const uint64_t bytes = archives[i]->contents.size_bytes();
        budget_.AddInput(bytes);
        for (const DcpObject* const object : objects) {
          if (value.has_value() && budget_.Has(bytes)) values[object->name] = value;
        }
      }
    }
    reader_.AddNotes();
    for (const DcpObject& object : metadata_.objects) {  // in the order of the state dict
      const auto value = values.find(object.name);
      const bool is_known = value != values.end() &&
                            (!value->second || tree.Add(PathOf(object), *std::move(value->second)));
      if (!is_known) others.push_back(object.name);
    }
    return absl::OkStatus();
  }

  template <typename Named>
  static Path PathOf(const Named& named) {
    return named.path.empty() ? Path{PathPart::Text(named.name)} : named.path;
  }

 private:
  using Place = std::pair<std::string, uint64_t>;
  static constexpr size_t kPlacesAtOnce = 256, kMaxPlaces = size_t{1} << 16;

  OpenFiles& files_;
  const DcpMetadata& metadata_;
  pickle::Budget budget_;
  ObjectReader reader_;
};

// Reads the folder. Unimplemented if `all_tensors` are needed, and one in no object is not read.
absl::StatusOr<ForeignCheckpoint> ReadFolder(Storage& storage, std::string_view folder,
                                             bool all_tensors) {
  OpenFiles files(storage, folder);
  TESSERA_ASSIGN_OR_RETURN(const ReadableFile* metadata_file, files.Open(kDcpMetadataFile));
  TESSERA_ASSIGN_OR_RETURN(
      const DcpMetadata metadata,
      At(storage, JoinPath(folder, kDcpMetadataFile), ReadDcpMetadata(*metadata_file)));
  ForeignCheckpoint checkpoint = CheckpointOf(kDcp, "torch.distributed.checkpoint");
  const std::set<std::string> optimizers = OptimizerPrefixes(metadata);
  struct Chunk {
    const DcpTensor* tensor;
    const DcpChunk* stored;
    StoredPiece* piece;  // to be filled; it stays where it is when its tensor moves
  };
  std::vector<Chunk> chunks;
  for (const DcpTensor& tensor : metadata.tensors) {
    if (tensor.dtype == DType::kUnspecified) {
      checkpoint.unread[tensor.name] = "a tensor of a dtype that is not read";
      continue;
    }
    ForeignTensor added = {.name = tensor.name, .dtype = tensor.dtype};
    if (IsOptimizerState(tensor.name, optimizers)) added.role = TensorRole::kOptimizerState;
    added.shape = tensor.shape;
    added.pieces.resize(tensor.chunks.size());
    for (size_t c = 0; c < tensor.chunks.size(); ++c) {
      chunks.push_back({&tensor, &tensor.chunks[c], &added.pieces[c]});
    }
    checkpoint.tensors.push_back(std::move(added));
  }
  Mutex mutex;  // of checkpoint.unread
  TESSERA_RETURN_IF_ERROR(RunTasks(kThreads, chunks.size(), [&](int, size_t i) -> absl::Status {
    const auto& [tensor, stored, piece] = chunks[i];
    absl::StatusOr<StoredPiece> read = ReadChunk(files, *tensor, *stored);
    if (absl::IsUnimplemented(read.status()) && IsOptimizerState(tensor->name, optimizers)) {
      const MutexLock lock(&mutex);
      checkpoint.unread[tensor->name] = std::string(read.status().message());
      return absl::OkStatus();
    }
    TESSERA_ASSIGN_OR_RETURN(
        *piece,
        files.At(stored->blob, absl::StrCat("tensor ", Shown(tensor->name), ToString(stored->box)),
                 std::move(read)));
    return absl::OkStatus();
  }));
  if (all_tensors && !checkpoint.unread.empty()) {
    const auto& [name, why] = *checkpoint.unread.begin();
    return Unimplemented(storage.Describe(folder), ": tensor ", Shown(name), ": ", why);
  }
  std::erase_if(checkpoint.tensors, [&](const ForeignTensor& tensor) {
    return checkpoint.unread.contains(tensor.name);
  });
  NoteLeftOut("tensors of dtypes or kinds that are not read", KeysOf(checkpoint.unread),
              checkpoint.notes);
  TreeBuilder tree;
  for (const DcpTensor& tensor : metadata.tensors) {
    if (checkpoint.unread.contains(tensor.name)) continue;
    tree.Add(Objects::PathOf(tensor), {SavedValue::Tensor{tensor.name}});
  }
  std::vector<std::string> objects;
  TESSERA_RETURN_IF_ERROR(
      Objects(files, metadata, metadata_file->size_bytes(), checkpoint).AddTo(tree, objects));
  checkpoint.state = std::move(tree).Finish();
  NoteLeftOut("objects that are not tensors", objects, checkpoint.notes);
  FindAliases(checkpoint.tensors);
  TakeOwnKeys(checkpoint);
  return checkpoint;
}

}  // namespace

absl::StatusOr<bool> IsDcp(Storage& storage, std::string_view folder) {
  return Exists(storage, JoinPath(folder, kDcpMetadataFile));
}

absl::StatusOr<ForeignCheckpoint> ReadDcp(Storage& storage, std::string_view folder) {
  return ReadFolder(storage, folder, /*all_tensors=*/false);
}

absl::StatusOr<std::vector<ForeignTensor>> ReadDcpTensors(Storage& storage, std::string_view folder,
                                                          std::vector<std::string>* notes) {
  TESSERA_ASSIGN_OR_RETURN(ForeignCheckpoint stored,
                           ReadFolder(storage, folder, /*all_tensors=*/true));
  std::vector<std::string> in_objects = KeysOf(ValuesByName(stored.state));
  std::erase_if(stored.tensors, [&](const ForeignTensor& tensor) {
    if (tensor.role != TensorRole::kBuffer) return false;
    in_objects.push_back(tensor.name);
    return true;
  });
  for (ForeignTensor& tensor : stored.tensors) {
    for (StoredPiece& piece : tensor.pieces) piece.file = JoinPath(folder, piece.file);
  }
  NoteLeftOut("objects that are not tensors", in_objects, stored.notes);
  if (notes != nullptr) *notes = std::move(stored.notes);
  return std::move(stored.tensors);
}

}  // namespace tessera::ckpt::convert
