#ifndef TESSERA_TRAINER_STATE_FOREIGN_WEIGHTS_H_
#define TESSERA_TRAINER_STATE_FOREIGN_WEIGHTS_H_

#include <string>

#include "absl/status/status.h"
#include "layout/dtype.h"
#include "models/config/config.pb.h"
#include "tokenizer/tokenizer.h"
#include "trainer/state/communicator_group.h"
#include "trainer/state/state_chunks.h"

namespace tessera {

// A run's weights in another framework's format: "llmc", a model file, or "hf", a folder.
struct ForeignWeights {
  std::string format;
  std::string path;
  DType dtype = DType::kUnspecified;     // in the files; unspecified: the weights' own
  const Tokenizer* tokenizer = nullptr;  // the model's, in "hf"; may be null
  std::string tokenizer_path;            // for messages
  bool is_retry = false;  // by a start, for a process that may have died before it wrote them
};

// Checks that WriteForeignWeights() will be able to write: the format can represent the model with
// its weights, whose own dtype is `dtype`, and the tokenizer, and the path can be written to.
// InvalidArgument, Unimplemented, or the error of the file system.
absl::Status CheckForeignWeights(const ForeignWeights& weights, const ModelConfig& model,
                                 DType dtype);

// Writes the weights of the chunks: saves them to the folder "PATH.unfinished",
// which all ranks must see, and converts that checkpoint, as `ckpt convert` does. The file or
// folder appears complete and durable or not at all, and atomically replaces one of that name. Only
// if a file system cannot exchange names, an old folder is gone just before the new one appears.
// OutOfRange, on every rank, names path, tensor, element and value if `dtype` cannot hold a
// finite weight. Collective. Memory: some MiB in addition to the chunks.
absl::Status WriteForeignWeights(const ForeignWeights& weights, const ModelConfig& model,
                                 StateChunks chunks, const RankGroup& group);

}  // namespace tessera

#endif  // TESSERA_TRAINER_STATE_FOREIGN_WEIGHTS_H_
