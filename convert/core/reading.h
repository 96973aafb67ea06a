#ifndef TESSERA_CONVERT_CORE_READING_H_
#define TESSERA_CONVERT_CORE_READING_H_

// Common functions of the readers of all formats.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/errno_status.h"
#include "base/errors.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/include/manifest.pb.h"
#include "convert/core/foreign_checkpoint.h"
#include "storage/file_cursor.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

// The weights of transformers, of diffusers and of an adapter of peft; parts have an index.
inline constexpr const char* kWeightFiles[] = {
    "model.safetensors", "diffusion_pytorch_model.safetensors", "adapter_model.safetensors"};

inline constexpr uint64_t kMaxJsonBytes = uint64_t{64} << 20;

// In() of a status; values are returned unchanged.
using tessera::In;
template <typename T>
absl::StatusOr<T> In(const absl::AlphaNum& what, absl::StatusOr<T> result) {
  if (result.ok()) return result;
  return In(what, result.status());
}
// Returns the status with the file's name before its message; OK and values are returned unchanged.
absl::Status At(const Storage& storage, std::string_view path, const absl::Status& status);
template <typename T>
absl::StatusOr<T> At(const Storage& storage, std::string_view path, absl::StatusOr<T> result) {
  if (result.ok()) return result;
  return At(storage, path, result.status());
}
// Returns DataLoss that names the file. The problem consists of parts of a message.
template <typename... Parts>
absl::Status Damaged(const Storage& storage, std::string_view path, const Parts&... problem) {
  return DataLoss(storage.Describe(path), ": ", problem...);
}

// Returns the result, and nullopt in place of NotFound.
template <typename T>
absl::StatusOr<std::optional<T>> IfPresent(absl::StatusOr<T> result) {
  if (absl::IsNotFound(result.status())) return std::nullopt;
  TESSERA_RETURN_IF_ERROR(result.status());
  return std::optional<T>(*std::move(result));
}

// Opens the file of this name; returns null if there is no such file.
absl::StatusOr<std::unique_ptr<ReadableFile>> OpenIfPresent(Storage& storage,
                                                            std::string_view path);

// Returns whether there is a file of this name.
absl::StatusOr<bool> Exists(Storage& storage, std::string_view path);

// Returns whether the names in a folder have this one.
inline bool Has(std::span<const std::string> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}
// Returns the names in a map, for messages.
template <typename Map>
std::vector<std::string> KeysOf(const Map& map) {
  std::vector<std::string> keys;
  for (const auto& [key, unused] : map) keys.push_back(key);
  return keys;
}

// Returns the real number or the integer at an offset; nullopt for one of another dtype. Errors:
// those of the file.
absl::StatusOr<std::optional<double>> ReadNumber(const ReadableFile& file, uint64_t offset,
                                                 DType dtype);

// Reads the header of the safetensors file that is part of a file.
absl::StatusOr<SafetensorsHeader> ReadSafetensors(const ReadableFile& file, uint64_t offset,
                                                  uint64_t length);

// The sizes of a run's parallel axes. Impossible sizes count as 1.
struct ForeignTopology {
  int64_t data = 1, tensor = 1, pipeline = 1;
  int64_t virtual_pipeline = 1;
  uint32_t zero_stage = 0;
};
void SetTopology(const ForeignTopology& topology, Manifest& manifest);

// Sets the progress of a trainer: its step and, if they are known and not negative, the consumed
// samples. The best loss is unknown.
void SetProgress(int64_t step, std::optional<int64_t> samples, Manifest& manifest);

// Returns the files that have pieces of the tensors.
std::set<std::string> FilesOf(std::span<const ForeignTensor> tensors);

// Returns the total size of the files: a limit of the model's size, see CheckModelFits(). Errors:
// those of opening a file.
absl::StatusOr<uint64_t> FileBytes(Storage& storage, const std::set<std::string>& files);

// A tensor's name without the number of its layer, which is the first part that is a number.
struct LayerName {
  std::string before;  // "decoder.layers."
  int64_t layer = -1;  // -1: the tensor is of no layer, and `before` is the whole name
  std::string after;   // ".mlp.linear_fc1.weight"
};

LayerName SplitLayer(std::string_view name);

// Adds the note "Left out: WHAT: a, b, c, and 14 more."; none if there are no names. They are
// escaped as by JoinShown().
void NoteLeftOut(const absl::AlphaNum& what, const std::vector<std::string>& names,
                 std::vector<std::string>& notes);

// Returns an error of an operation on another framework's checkpoint, followed by the notes of its
// reader, which may be the reason: "the checkpoint has no model. Left out: ...". Errors that do not
// come from a checkpoint's contents, such as those of a disk, are returned unchanged.
absl::Status WithNotes(const absl::Status& status, const std::vector<std::string>& notes);

// Additions of programs to the names of a model's tensors, in files of any format.

// Returns a tensor's name without the additions of torch's wrappers that may be anywhere in it:
// those of torch.compile ("_orig_mod"), FSDP ("_fsdp_wrapped_module") and activation checkpointing
// ("_checkpoint_wrapped_module").
std::string WithoutInnerWrappers(std::string_view name);
// Also removes those at its beginning: of DistributedDataParallel ("module.") and peft
// ("base_model.model.").
std::string WithoutWrappers(std::string_view name);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_READING_H_
