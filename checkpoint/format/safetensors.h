#ifndef TESSERA_CHECKPOINT_FORMAT_SAFETENSORS_H_
#define TESSERA_CHECKPOINT_FORMAT_SAFETENSORS_H_

// The header of a safetensors file (https://github.com/huggingface/safetensors): u64 little-endian
// length N, N bytes of JSON, then the data of all tensors without gaps. Pure: no I/O.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/include/manifest.pb.h"
#include "layout/box.h"
#include "layout/dtype.h"

namespace tessera::ckpt {

inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;  // the Rust reader's own limit
// The alignment of the first data byte, for direct I/O.
inline constexpr uint64_t kSafetensorsDataAlignment = 4096;

struct SafetensorsEntry {
  std::string key;
  DType dtype = DType::kUnspecified;  // if this library does not have it
  Shape shape;
  uint64_t file_offset = 0;   // of the first data byte, from the beginning of the file
  uint64_t length_bytes = 0;  // follows from shape and dtype, unless that is unspecified
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;        // ascending by file_offset after a parse
  std::map<std::string, std::string> metadata;  // __metadata__
  uint64_t data_offset = 0;                     // where the data begins: 8 + N
  uint64_t file_size_bytes = 0;
};

// Lays out a file with the given keys, dtypes and shapes; offsets and lengths of `entries` are
// outputs. Returns the bytes before its data, 8-byte length included, padded with spaces so that
// the data begins at a multiple of kSafetensorsDataAlignment. Data is laid out in the order of
// `entries`, larger elements first, so that every tensor is aligned to its element size, which
// PyTorch needs. Also sets data_offset and file_size_bytes. Errors: InvalidArgument (a duplicate or
// malformed key, an unknown dtype, a size beyond 64 bits, a header above the limit).
absl::StatusOr<std::string> BuildSafetensorsHeader(SafetensorsHeader& header);

// Returns the length N + 8 of the header of a file of the given size, from its first 8 bytes: the
// number of bytes to read for ParseSafetensorsHeader(). Errors: DataLoss.
absl::StatusOr<uint64_t> SafetensorsHeaderBytes(std::string_view first_8_bytes,
                                                uint64_t file_size_bytes);

// Parses the bytes before the data (further ones are ignored). As strict as the Rust reader: unique
// keys, contiguous offsets from 0 to the end of the file, lengths that follow from dtype and shape.
// A dtype that this library does not have is accepted; see SafetensorsEntry. Errors: DataLoss,
// naming the key or the offset.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view bytes,
                                                         uint64_t file_size_bytes);

// Returns the key of a shard: the tensor's name if the box is the whole tensor, so that any tool
// finds it under its own name; otherwise name@[0:4,8:16].
std::string ShardKey(std::string_view tensor_name, const Shape& global_shape, const Box& box);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_FORMAT_SAFETENSORS_H_
