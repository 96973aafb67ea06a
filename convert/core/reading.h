#ifndef TESSERA_CONVERT_CORE_READING_H_
#define TESSERA_CONVERT_CORE_READING_H_

// What the readers of all formats share.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/format/manifest.pb.h"
#include "checkpoint/include/storage.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/models.h"

namespace tessera::ckpt::convert {

inline constexpr uint64_t kMaxJsonBytes = uint64_t{64} << 20;

// The status with the file's name before its message; OK stays OK.
absl::Status At(const Storage& storage, std::string_view path, const absl::Status& status);
// DataLoss that names the file.
absl::Status Damaged(const Storage& storage, std::string_view path, const absl::AlphaNum& problem);

// Where a trainer is: its step and, where they are known and not negative, the samples it has
// consumed. The best loss is unknown.
void SetProgress(int64_t step, std::optional<int64_t> samples, Manifest& manifest);

// The sizes of the files that have pieces of the tensors, as far as they can be opened. A limit for
// the model's size, see CheckModelFits().
uint64_t FileBytes(Storage& storage, std::span<const ForeignTensor> tensors);

// A model, and its parameters as a framework has them.
class ForeignModel {
 public:
  // The model that a ForeignFormat's configuration describes. InvalidArgument if that model is
  // not known here, or has more parameters than the files have tensors and bytes.
  static absl::StatusOr<ForeignModel> Read(std::string_view framework, std::string_view config_json,
                                           int64_t tensor_count, uint64_t file_bytes);

  const ModelDescription& description() const { return description_; }
  // In the order of the declaration.
  const std::vector<ForeignParameter>& parameters() const { return parameters_; }
  // Those that have this name, or have it as another name. Releases of a framework may give one
  // name to several.
  std::vector<ForeignParameter*> Named(std::string_view name);
  // The first of them; null if no parameter has this name.
  ForeignParameter* Find(std::string_view name);

 private:
  ModelDescription description_;
  std::vector<ForeignParameter> parameters_;
  std::multimap<std::string, size_t, std::less<>> by_name_;
};

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_READING_H_
