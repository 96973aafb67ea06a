#ifndef TESSERA_CONVERT_CORE_OUTPUT_FILE_H_
#define TESSERA_CONVERT_CORE_OUTPUT_FILE_H_

// Descriptions of the files to write, and of their sources.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/include/state_dict.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/value.h"
#include "layout/box.h"
#include "layout/dtype.h"
#include "tokenizer/tokenizer.h"

namespace tessera::ckpt::convert {

// The options for planning the files of a checkpoint.
struct PlanOptions {
  DType dtype = DType::kUnspecified;  // of the weights; unspecified: as they are saved
  bool weights_only = false;          // in formats that have optimizer state
  // The most bytes in one file of formats that have several, unless one tensor or chunk is larger.
  uint64_t max_file_bytes = 5'000'000'000;
  // The tree of the checkpoint, for formats that hold values; may be null. Names of values that the
  // format cannot hold are appended to `left_out`, which may be null, too.
  const SavedValue* state = nullptr;
  std::vector<std::string>* left_out = nullptr;
  // The model's tokenizer, of at most its ids, for formats that hold one; may be null.
  const Tokenizer* tokenizer = nullptr;
  std::string tokenizer_path;  // for messages
};

// A matrix of a new file.
struct OutputTensor {
  std::string name;         // in the new files, as their reader names it
  std::string source_name;  // in the source: the same, or the tensor that it is tied to
  TensorRole role = TensorRole::kWeight;  // of the source
  DType dtype = DType::kUnspecified;      // in the file
  Shape shape;                            // of the logical tensor
  uint64_t offset_bytes = 0;              // in the file
  int64_t elements = 0;                   // in the file, padding included; padding is zero
  // Returns elements [begin, end) of the file's tensor as pieces of the logical tensor. Offsets
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
  // Whether readers find no checkpoint without this file, which has no tensors. The file is created
  // last in places where a folder does not get its name when it is complete.
  bool commits = false;
  // Returns the bytes between a tensor and its neighbours, which are written together with it, of
  // its index and the CRC-32 (zip's) of its bytes. Called by several threads. May be null.
  std::function<std::vector<OutputBytes>(size_t tensor, uint32_t crc32)> records;
  // Returns the bytes before the first tensor and after the last one, given the CRC-32 of each
  // tensor. Called when all tensors are written. May be null.
  std::function<std::vector<OutputBytes>(std::span<const uint32_t> crc32)> finish;
};

// Returns a file without tensors.
inline OutputFile PlainOutputFile(std::string name, std::string contents) {
  const uint64_t size_bytes = contents.size();
  return {.name = std::move(name), .header = std::move(contents), .size_bytes = size_bytes};
}

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_OUTPUT_FILE_H_
