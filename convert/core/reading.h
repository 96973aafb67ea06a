#ifndef TESSERA_CONVERT_CORE_READING_H_
#define TESSERA_CONVERT_CORE_READING_H_

// Common functions of the readers of all formats.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/include/manifest.pb.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/models.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

inline constexpr uint64_t kMaxJsonBytes = uint64_t{64} << 20;

// Returns the status with `what` before its message; OK and values are returned unchanged.
absl::Status In(const absl::AlphaNum& what, const absl::Status& status);
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
// Returns DataLoss that names the file.
absl::Status Damaged(const Storage& storage, std::string_view path, const absl::AlphaNum& problem);

// Returns a text of a file for messages: escaped, and cut if it is long.
std::string Shown(std::string_view text);

// Opens the file of this name; returns null if there is no such file.
absl::StatusOr<std::unique_ptr<ReadableFile>> OpenIfPresent(Storage& storage,
                                                            std::string_view path);

// Returns whether there is a file of this name.
absl::StatusOr<bool> Exists(Storage& storage, std::string_view path);

// Reads bytes of a file. Precondition: the caller has bounded their number.
absl::StatusOr<std::string> ReadPart(const ReadableFile& file, uint64_t offset, uint64_t length);

// Reads the header of the safetensors file that is part of a file.
absl::StatusOr<SafetensorsHeader> ReadSafetensors(const ReadableFile& file, uint64_t offset,
                                                  uint64_t length);

// The numbers of ranks of a run. Impossible numbers count as 1.
struct ForeignTopology {
  int64_t data = 1, tensor = 1, pipeline = 1;
  int64_t virtual_pipeline = 1;
  uint32_t zero_stage = 0;
};
void SetTopology(const ForeignTopology& topology, Manifest& manifest);

// Sets the progress of a trainer: its step and, if they are known and not negative, the consumed
// samples. The best loss is unknown.
void SetProgress(int64_t step, std::optional<int64_t> samples, Manifest& manifest);

// Returns the total size of the files that have pieces of the tensors, as far as they can be
// opened: a limit of the model's size, see CheckModelFits().
uint64_t FileBytes(Storage& storage, std::span<const ForeignTensor> tensors);

// A tensor's name without the number of its layer, which is the first part that is a number.
struct LayerName {
  std::string before;  // "decoder.layers."
  int64_t layer = -1;  // -1: the tensor is of no layer, and `before` is the whole name
  std::string after;   // ".mlp.linear_fc1.weight"
};

LayerName SplitLayer(std::string_view name);

// A model, and its parameters in a framework's form.
class ForeignModel {
 public:
  // Reads the model that a ForeignFormat's configuration describes. InvalidArgument if the model is
  // unknown, or has more parameters than the files have tensors and bytes.
  static absl::StatusOr<ForeignModel> Read(std::string_view framework, std::string_view config_json,
                                           int64_t tensor_count, uint64_t file_bytes);

  const ModelDescription& description() const { return description_; }
  // The parameters in the order of their declaration.
  const std::vector<ForeignParameter>& parameters() const { return parameters_; }
  // Returns the parameters that have this name, or have it as another name. Releases of a framework
  // may give one name to several parameters.
  std::vector<ForeignParameter*> Named(std::string_view name);
  // Returns the first parameter with this name; null if there is no such parameter.
  ForeignParameter* Find(std::string_view name);

 private:
  ModelDescription description_;
  std::vector<ForeignParameter> parameters_;
  std::multimap<std::string, size_t, std::less<>> by_name_;
};

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_READING_H_
