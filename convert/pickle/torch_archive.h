#ifndef TESSERA_CONVERT_PICKLE_TORCH_ARCHIVE_H_
#define TESSERA_CONVERT_PICKLE_TORCH_ARCHIVE_H_

// Archives of torch.save(), which are a pickle and the storages of its tensors as they are in
// memory: reading one, and laying out a new one.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "convert/core/optimizer_groups.h"
#include "convert/core/output_file.h"
#include "convert/core/reading.h"
#include "convert/pickle/value.h"
#include "convert/pickle/write.h"
#include "layout/box.h"
#include "layout/dtype.h"
#include "storage/storage.h"
#include "storage/zip.h"

namespace tessera::ckpt::convert {

// A tensor: strided elements of a storage.
struct TorchTensor {
  DType dtype = DType::kUnspecified;
  Shape shape;
  std::vector<int64_t> strides;  // in elements, one per dim
  uint64_t offset_bytes = 0;     // of its first element, from the beginning of the file
};

// An archive: a zip archive; before torch 1.6, one pickle after another and then the storages; or,
// before 0.1.10, a tar archive.
struct TorchArchive {
  pickle::Pickle contents;
  absl::flat_hash_map<std::string, pickle::Extent> storages = {};  // by key; of the file
  // The tensors of a tar archive, by the persistent ids that stand for them in the pickle.
  absl::flat_hash_map<std::string, absl::StatusOr<TorchTensor>> tensors = {};
};

// Reads the archive that fills part of a file. In the zip form, everything but the storages is
// compared with its CRC-32, and the storages' CRC-32s are reported (see
// ReadableFile::stated_checksums()). Errors: DataLoss with the offset, or with the damaged record;
// Unimplemented for TorchScript programs and storages in big-endian byte order; the file's own.
absl::StatusOr<TorchArchive> ReadTorchArchive(const ReadableFile& file, pickle::Extent part);

// Returns whether a part of a file begins like a form of torch.save(), or ends like a zip archive.
// Errors: those of the file. Precondition: the part lies in it.
absl::StatusOr<bool> IsTorchArchive(const ReadableFile& file, pickle::Extent part);

// Reads a tar archive of torch.save(), as ReadTorchArchive() does.
absl::StatusOr<TorchArchive> ReadTorchTar(const ReadableFile& file, pickle::Extent part);

// Returns whether a value of the archive's pickle is a tensor, or a parameter, of any kind.
bool IsTorchTensor(const pickle::Value& value);

// Returns the elements of a tensor, which lie within their storage. Errors: DataLoss if they do
// not, or if the description is malformed; Unimplemented for tensors other than dense ones of known
// dtypes, and for expanded ones, which have more elements than their storage. Precondition:
// IsTorchTensor(value).
absl::StatusOr<TorchTensor> ResolveTorchTensor(const TorchArchive& archive,
                                               const pickle::Value& value);

// Returns the elements of a flat state, a contiguous vector. DataLoss for any other value, too.
absl::StatusOr<TorchTensor> ResolveTorchVector(const TorchArchive& archive,
                                               const pickle::Value& value);

// Adds what an archive of `file` tells of its optimizer: settings of groups, numbers of updates,
// and names of states that AdamW does not have. The archive is the state dict, or has it as
// Megatron-LM and DeepSpeed do; it may also be a number of updates alone. Errors: DataLoss for
// malformed tensors; those of the file.
absl::Status AddOptimizerFacts(const ReadableFile& file, const TorchArchive& archive,
                               OptimizerFacts& facts);
// Does so for a file of torch.save(), which may be missing. Errors name the file.
absl::Status AddOptimizerFacts(Storage& storage, const std::string& path, OptimizerFacts& facts);

// Returns the key of a tensor in a dict, whose bytes are taken from the budget. DataLoss if the key
// is empty or not valid UTF-8.
absl::StatusOr<std::string> ReadTorchName(const pickle::Value& key, pickle::Budget& budget);

// The names of a type of elements in torch.
struct TorchType {
  DType dtype = DType::kUnspecified;  // if this version has none
  uint64_t element_bytes = 0;
  const char* name = "";                // of the torch.dtype; empty: only storages have it
  std::string_view storage_class = "";  // empty: torch writes the bytes of an UntypedStorage
};

inline constexpr TorchType kTorchTypes[] = {
    {DType::kF64, 8, "float64", "DoubleStorage"},
    {DType::kF32, 4, "float32", "FloatStorage"},
    {DType::kF16, 2, "float16", "HalfStorage"},
    {DType::kBF16, 2, "bfloat16", "BFloat16Storage"},
    {DType::kI64, 8, "int64", "LongStorage"},
    {DType::kI32, 4, "int32", "IntStorage"},
    {DType::kI16, 2, "int16", "ShortStorage"},
    {DType::kI8, 1, "int8", "CharStorage"},
    {DType::kU8, 1, "uint8", "ByteStorage"},
    {DType::kBool, 1, "bool", "BoolStorage"},
    {DType::kU16, 2, "uint16"},
    {DType::kU32, 4, "uint32"},
    {DType::kU64, 8, "uint64"},
    {DType::kF8E4M3, 1, "float8_e4m3fn"},
    {DType::kF8E5M2, 1, "float8_e5m2"},
    {.element_bytes = 1, .storage_class = "UntypedStorage"},
    {.element_bytes = 8, .storage_class = "ComplexFloatStorage"},
    {.element_bytes = 16, .storage_class = "ComplexDoubleStorage"},
    {.element_bytes = 1, .storage_class = "QUInt8Storage"},
    {.element_bytes = 1, .storage_class = "QInt8Storage"},
    {.element_bytes = 4, .storage_class = "QInt32Storage"},
    {.element_bytes = 1, .storage_class = "QUInt4x2Storage"},
    {.element_bytes = 1, .storage_class = "QUInt2x4Storage"},
};

// Returns the type whose storages are of the class that a global names; null for an unknown one.
const TorchType* FindTorchStorage(const pickle::Value& global);

// Returns a tensor of this dtype, shape and strides, from element `first` of the storage that these
// bytes are. Errors: as ResolveTorchTensor().
absl::StatusOr<TorchTensor> ShowElements(TorchTensor tensor, uint64_t first,
                                         const pickle::Extent& storage);

// Returns the dtype that a global such as torch.float32 names; otherwise DType::kUnspecified.
DType TorchDType(const pickle::Value& value);

// Opens a file of torch.save() and reads its pickle. Errors: those of ReadTorchArchive(), naming
// the file, and of the storage.
absl::StatusOr<TorchArchive> ReadTorchFile(Storage& storage, std::string_view path);

// Reads such a file, and returns what `parse` makes of its archive; its errors name the file, too.
template <typename T>
absl::StatusOr<T> ReadTorchFile(Storage& storage, std::string_view path,
                                absl::StatusOr<T> (*parse)(const TorchArchive&)) {
  TESSERA_ASSIGN_OR_RETURN(const TorchArchive archive, ReadTorchFile(storage, path));
  return At(storage, path, parse(archive));
}

// Returns the value of the entry whose key is this integer; absent if the dict has no such entry.
pickle::Value FindNumber(const pickle::Value& dict, int64_t key);

// The layout of a zip archive of torch.save(): the pickle of an object, and the storages that its
// tensors show. All offsets are known before the contents of the storages.
class TorchArchiveLayout {
 public:
  TorchArchiveLayout(std::string pickle, std::span<const uint64_t> storage_bytes);

  // Returns the offset of a storage, in bytes from the beginning of the archive.
  uint64_t storage_offset(size_t storage) const { return storage_offsets_[storage]; }
  uint64_t size_bytes() const { return size_bytes_; }

  // Returns everything but the storages, for an archive that begins at `offset_bytes` of its file.
  // `crc32` has the checksums of the storages.
  std::vector<OutputBytes> Records(std::span<const uint32_t> crc32, uint64_t offset_bytes) const;

  // Return Records() in two parts: the bytes directly before a storage, and all the rest.
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

// Appends a contiguous tensor that is a whole storage of the archive.
void WriteTorchTensor(DType dtype, const Shape& shape, size_t storage, pickle::Writer& writer);

// Appends a torch.dtype. Precondition: ElementSize(dtype) > 0.
void WriteTorchDType(DType dtype, pickle::Writer& writer);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_PICKLE_TORCH_ARCHIVE_H_
