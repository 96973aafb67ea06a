#ifndef TESSERA_CONVERT_TORCH_TAR_ARCHIVE_H_
#define TESSERA_CONVERT_TORCH_TAR_ARCHIVE_H_

// The form of torch.save() before version 0.1.10: a tar archive of "sys_info", "pickle", "tensors"
// and "storages". The pickle refers to tensors by numbers; the others say what those are.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "checkpoint/storage/storage.h"
#include "convert/pickle/value.h"
#include "convert/torch/storage_class.h"
#include "layout/box.h"

namespace tessera::ckpt::convert {

// A tensor as it is described there: only the storage has been checked.
struct TarTensor {
  const TorchStorageClass* elements = nullptr;  // null: of an unknown class, or without a storage
  pickle::Extent storage;                       // of the file
  uint64_t first = 0;                           // element of the storage
  Shape shape;
  std::vector<int64_t> strides;
};

struct TorchTar {
  pickle::Extent contents;                              // the pickle
  absl::flat_hash_map<std::string, TarTensor> tensors;  // by number
};

// Reads the archive that fills part of a file. Memory is proportional to the number of tensors and
// storages, which the part bounds. Errors: DataLoss with the offset or the storage's number;
// Unimplemented for storages in big-endian byte order; the file's own.
absl::StatusOr<TorchTar> ReadTorchTar(const ReadableFile& file, pickle::Extent part);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_TORCH_TAR_ARCHIVE_H_
