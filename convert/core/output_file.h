#ifndef TESSERA_CONVERT_CORE_OUTPUT_FILE_H_
#define TESSERA_CONVERT_CORE_OUTPUT_FILE_H_

// What is written, and from what.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/include/manifest.pb.h"
#include "checkpoint/include/tensor_role.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/value.h"
#include "layout/box.h"
#include "layout/dtype.h"
#include "storage/storage.h"
#include "tokenizer/tokenizer.h"

namespace tessera::ckpt::convert {

// What is written of a checkpoint.
struct PlanOptions {
  DType dtype = DType::kUnspecified;  // of the weights; unspecified: as they are saved
  bool weights_only = false;          // in formats that have optimizer state
  // The most bytes in one file of formats that have several, unless one tensor or chunk is larger.
  uint64_t max_file_bytes = 5'000'000'000;
  // The tree of the checkpoint, for formats that hold values; may be null. Names of values that get
  // no place are appended to `left_out`, which may be null, too.
  const SavedValue* state = nullptr;
  std::vector<std::string>* left_out = nullptr;
  // The model's, of at most its ids; may be null. In formats that have one.
  const Tokenizer* tokenizer = nullptr;
  std::string tokenizer_path;  // for messages

  // The error of something that was done with the tokenizer.
  absl::Status AtTokenizer(const absl::Status& status) const {
    return absl::Status(status.code(), absl::StrCat(tokenizer_path, ": ", status.message()));
  }
};

// A matrix of a new file.
struct OutputTensor {
  std::string name;         // in the new files, as their reader calls it
  std::string source_name;  // in the source: the same, or the tensor that it is tied to
  TensorRole role = TensorRole::kWeight;
  DType dtype = DType::kUnspecified;  // in the file
  Shape shape;                        // of the logical tensor
  uint64_t offset_bytes = 0;          // in the file
  int64_t elements = 0;               // in the file, padding included; padding is zero
  // The pieces of the logical tensor that elements [begin, end) of the file's tensor are. Offsets
  // count from the element `begin`. Called by several threads.
  std::function<std::vector<StoredPiece>(int64_t begin, int64_t end)> pieces;
};

// Bytes of a new file that belong to no tensor.
struct OutputBytes {
  uint64_t offset_bytes = 0;
  std::string bytes;
};

struct OutputFile {
  std::string name;
  std::string header;  // the bytes before the first tensor: all of a file without tensors
  uint64_t size_bytes = 0;
  std::vector<OutputTensor> tensors;  // in the order of their offsets, without overlaps
  // Readers find no checkpoint without this file, which has no tensors: in places where a folder
  // does not get its name when it is complete, it is created last.
  bool commits = false;
  // May be null. What the file has between the tensor of that index and its neighbours, given the
  // CRC-32 (that of zip) of the tensor's bytes: it is written together with them. Called by several
  // threads.
  std::function<std::vector<OutputBytes>(size_t tensor, uint32_t crc32)> records;
  // May be null. Called when all tensors are written, with the CRC-32 of each: what the file has
  // before the first tensor and after the last one.
  std::function<std::vector<OutputBytes>(std::span<const uint32_t> crc32)> finish;
};

// A file without tensors.
inline OutputFile PlainOutputFile(std::string name, std::string contents) {
  const uint64_t size_bytes = contents.size();
  return {.name = std::move(name), .header = std::move(contents), .size_bytes = size_bytes};
}

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_OUTPUT_FILE_H_
