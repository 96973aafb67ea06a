#ifndef TESSERA_CONVERT_TORCH_TORCH_FILE_H_
#define TESSERA_CONVERT_TORCH_TORCH_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/include/storage.h"
#include "convert/pickle/value.h"
#include "convert/torch/archive.h"

namespace tessera::ckpt::convert {

// The same, with the file's name before the message of an error.
template <typename T>
absl::StatusOr<T> InFile(Storage& storage, const std::string& path, absl::StatusOr<T> result) {
  if (result.ok()) return result;
  return absl::Status(result.status().code(),
                      absl::StrCat(storage.Describe(path), ": ", result.status().message()));
}

// Opens a file of torch.save() and reads its pickle. Errors: those of ReadTorchArchive(), naming
// the file, and of the storage.
absl::StatusOr<TorchArchive> ReadTorchFile(Storage& storage, const std::string& path);

// The value of the entry whose key is this integer; absent if the dict has no such entry.
pickle::Value FindNumber(const pickle::Value& dict, int64_t key);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_TORCH_TORCH_FILE_H_
