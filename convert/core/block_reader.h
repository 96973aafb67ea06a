#ifndef TESSERA_CONVERT_CORE_BLOCK_READER_H_
#define TESSERA_CONVERT_CORE_BLOCK_READER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "checkpoint/format/digest.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/load_options.h"
#include "checkpoint/include/manifest.pb.h"
#include "checkpoint/include/state_dict.h"
#include "checkpoint/load/named_tensors.h"
#include "checkpoint/scan/scan.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/output_file.h"
#include "storage/aligned_buffer.h"

namespace tessera::ckpt::convert {

// The size of the largest tensor that a BlockReader keeps whole.
inline constexpr int64_t kWholeTensorBytes = int64_t{32} << 20;

// Returns whether the elements of the piece are a range of the tensor's, in its order and in memory
// alike, so that they are read into place.
bool IsRange(const Shape& shape, const StoredPiece& piece);

// A tensor, or a part of it, to be read.
struct BlockPart {
  const OutputTensor& tensor;
  std::vector<StoredPiece> pieces;  // with offsets in `block`
  std::span<std::byte> block;
  LogicalDigest& digest;  // the pieces' digests are added to it
};

// Reads blocks of a checkpoint's tensors, each as pieces with strides of their own, on the caller's
// thread, with a read in flight while the data before it is placed. A tensor of at most
// kWholeTensorBytes whose pieces are not ranges of its elements (columns, transposed) is read once
// and kept until another one is read.
//
// Readers of neighbouring blocks share chunks through `ends`, which must outlive them.
//
// Memory: the buffers of a load, and either such a tensor or a copy of the block. Not thread-safe;
// the source must outlive the reader. The cost of a block does not depend on the number of tensors.
class BlockReader {
 public:
  // `allow_overflow` as in LoadOptions.
  BlockReader(const Checkpoint& source, EdgeChunkCache& ends, bool allow_overflow = false);

  // Reads the elements of `pieces`, whose offsets are relative to `block`, and adds their digests.
  absl::Status Read(const OutputTensor& tensor, const std::vector<StoredPiece>& pieces,
                    std::span<std::byte> block, LogicalDigest& digest);

  // Reads several parts in one load, which reads a checksum chunk that several of them share once.
  // Precondition: all pieces are ranges; those of one tensor have one dtype and are disjoint.
  absl::Status ReadTogether(std::span<const BlockPart> parts);

 private:
  absl::Status LoadShards(const OutputTensor& tensor, std::vector<Shard> shards);
  absl::Status Load(std::vector<ShardedTensor> wanted);
  absl::Status MakeScratch(size_t bytes);
  // Read into scratch_: the tensor, or the boxes of the pieces, one after the other.
  absl::Status LoadWhole(const OutputTensor& tensor);
  absl::Status LoadBoxes(const OutputTensor& tensor, const std::vector<StoredPiece>& pieces);

  const Checkpoint& source_;
  LoadOptions options_;
  const NamedTensors tensors_;
  ScanBuffers staging_;
  std::vector<std::string> current_;  // the tensors that manifest_ has
  Manifest manifest_;
  AlignedBuffer scratch_;
  std::string whole_;  // the tensor that is in scratch_; empty: none
  DType whole_dtype_ = DType::kUnspecified;
};

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_BLOCK_READER_H_
