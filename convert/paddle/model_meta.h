#ifndef TESSERA_CONVERT_PADDLE_MODEL_META_H_
#define TESSERA_CONVERT_PADDLE_MODEL_META_H_

// model_meta.json, which PaddleNLP writes beside the states where each sharding rank saves its own.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "convert/paddle/rank_files.h"
#include "layout/box.h"

namespace tessera::ckpt::convert {

// Of the ranks with one tensor-parallel and one pipeline rank.
struct PaddleShardingMeta {
  std::string strategy;                                 // "ShardingV1", "ShardingV2" or empty
  std::map<std::string, std::string> structured_names;  // by tensor name
  std::map<std::string, int64_t> owners;                // by tensor name: its sharding rank
  std::map<std::string, Shape> shapes;                  // by structured name
};

struct PaddleModelMeta {
  std::optional<PaddleDegrees> degrees;
  int64_t virtual_pipeline = 1;
  std::map<std::pair<int64_t, int64_t>, PaddleShardingMeta> ranks;  // by tensor, pipeline
};

// Errors: DataLoss, a phrase.
absl::StatusOr<PaddleModelMeta> ParsePaddleModelMeta(std::string_view json);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_PADDLE_MODEL_META_H_
