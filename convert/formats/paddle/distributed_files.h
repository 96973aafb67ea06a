#ifndef TESSERA_CONVERT_FORMATS_PADDLE_DISTRIBUTED_FILES_H_
#define TESSERA_CONVERT_FORMATS_PADDLE_DISTRIBUTED_FILES_H_

// Distributed checkpoints of auto parallel (paddle.distributed.save_state_dict()). The state dict
// is flat, each rank has a file of its shards ("3_0.distcp"), and "0.metadata" says which shard is
// in which file.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "convert/formats/paddle/files.h"
#include "layout/box.h"
#include "layout/dtype.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

// The folder in which PaddleNLP's trainer has such a checkpoint.
inline constexpr char kPaddleShardsFolder[] = "dist_ckpt";
inline constexpr char kPaddleMetadataFile[] = "0.metadata";

// What the keys of the model and of the optimizer begin with.
inline constexpr char kPaddleModelPrefix[] = "model.";
inline constexpr char kPaddleOptimizerPrefix[] = "optimizer.";
inline constexpr char kPaddleMasterPrefix[] = "master_weights.";

// A box of a tensor, which is an array under the tensor's key in a file.
struct PaddleShard {
  std::string key;
  Box box;
  DType dtype = DType::kUnspecified;
  std::string file;
};

// The parts of a key. States of the optimizer belong to a tensor, or, with sharded_state_dict(), to
// a parameter: "optimizer.linear_0.w_0_moment1_0", "llama.norm.weight.moment1_0".
struct PaddleShardKey {
  std::string name;                  // the tensor's, or the parameter's
  std::optional<PaddleState> state;  // nullopt: the weight
};

PaddleShardKey ParsePaddleShardKey(std::string_view key);

// Returns the path of the newest metadata file, in the root or in kPaddleShardsFolder; empty if
// neither has shards. DataLoss if there are shards, but no metadata file.
absl::StatusOr<std::string> FindPaddleMetadata(Storage& storage);

// Reads a metadata file, of Paddle 3.0 and later. Replicas are left out. Errors: DataLoss, with the
// key, if anything is malformed, or a file's name is not that of a rank. Unimplemented for shards
// that are flat ranges, and for dtypes that this library does not have. Those of ReadPickle().
absl::StatusOr<std::vector<PaddleShard>> ReadPaddleMetadata(const ReadableFile& file);

// Returns whether tensors of this dtype are read and written. Paddle has more: float8, for example.
bool IsPaddleDType(DType dtype);

// Returns a metadata file as Paddle 3.2 and later read it. Each tensor is one shard. Precondition:
// IsPaddleDType() of all dtypes.
std::string PaddleMetadataPickle(const std::vector<PaddleShard>& shards);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_FORMATS_PADDLE_DISTRIBUTED_FILES_H_
