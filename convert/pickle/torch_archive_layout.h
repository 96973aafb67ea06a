#ifndef TESSERA_CONVERT_PICKLE_TORCH_ARCHIVE_LAYOUT_H_
#define TESSERA_CONVERT_PICKLE_TORCH_ARCHIVE_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "convert/core/output_file.h"
#include "convert/pickle/write.h"
#include "convert/pickle/zip.h"
#include "layout/box.h"
#include "layout/dtype.h"

namespace tessera::ckpt::convert {

// A zip archive as torch.save() writes it: the pickle of an object, and the storages that its
// tensors show. Where everything goes is known before any storage is.
class TorchArchiveLayout {
 public:
  TorchArchiveLayout(std::string pickle, std::span<const uint64_t> storage_bytes);

  // Where the first byte of a storage is, in bytes from the beginning of the archive.
  uint64_t storage_offset(size_t storage) const { return storage_offsets_[storage]; }
  uint64_t size_bytes() const { return size_bytes_; }

  // Everything but the storages, for an archive that begins at `offset_bytes` of its file.
  // `crc32`: of the storages.
  std::vector<OutputBytes> Records(std::span<const uint32_t> crc32, uint64_t offset_bytes) const;

  // The same in two parts: what is directly before a storage, and all the rest.
  OutputBytes StorageHeader(size_t storage, uint32_t crc32, uint64_t offset_bytes) const;
  std::vector<OutputBytes> OtherRecords(std::span<const uint32_t> crc32,
                                        uint64_t offset_bytes) const;

 private:
  ZipLayout zip_;
  std::vector<std::string> texts_;  // contents of the first members
  std::vector<uint64_t> text_offsets_;
  std::vector<uint64_t> storage_offsets_;
  uint64_t size_bytes_ = 0;
};

// Appends a contiguous tensor that is all of a storage of the archive.
void WriteTorchTensor(DType dtype, const Shape& shape, size_t storage, pickle::Writer& writer);

// Appends a torch.dtype. Precondition: ElementSize(dtype) > 0.
void WriteTorchDType(DType dtype, pickle::Writer& writer);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_PICKLE_TORCH_ARCHIVE_LAYOUT_H_
