#include "convert/torch/torch_file.h"

#include <cstddef>
#include <memory>

#include "base/status_macros.h"

namespace tessera::ckpt::convert {

absl::StatusOr<TorchArchive> ReadTorchFile(Storage& storage, const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file, storage.Open(path));
  return InFile(storage, path, ReadTorchArchive(*file, {0, file->size_bytes()}));
}

pickle::Value FindNumber(const pickle::Value& dict, int64_t key) {
  for (size_t i = dict.entry_count(); i > 0; --i) {
    const auto [name, value] = dict.entry(i - 1);
    if (name.AsInt() == key) return value;
  }
  return {};
}

}  // namespace tessera::ckpt::convert
