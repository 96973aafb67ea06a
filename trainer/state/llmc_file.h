#ifndef TESSERA_TRAINER_STATE_LLMC_FILE_H_
#define TESSERA_TRAINER_STATE_LLMC_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "layout/dtype.h"
#include "models/config/config.pb.h"
#include "trainer/state/checkpoints.h"
#include "trainer/state/state_dict.h"

namespace tessera {

// Whether WriteLlmcFile() will be able to write: the format can represent the model with weights of
// this dtype, and the file can be created. InvalidArgument, or the error of the file system.
absl::Status CheckLlmcFile(const std::string& path, const ModelConfig& model, DType dtype);

// Writes the weights of the chunks, in their dtype, to a model file of llm.c: saves them to the
// folder "PATH.unfinished", which all ranks must see, and converts that checkpoint. The file
// appears complete and durable or not at all, in place of one of that name. Collective. Memory:
// some MiB in addition to the chunks.
absl::Status WriteLlmcFile(const std::string& path, const ModelConfig& model, StateChunks chunks,
                           const RankGroup& group);

}  // namespace tessera

#endif  // TESSERA_TRAINER_STATE_LLMC_FILE_H_
