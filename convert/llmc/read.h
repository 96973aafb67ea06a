#ifndef TESSERA_CONVERT_LLMC_READ_H_
#define TESSERA_CONVERT_LLMC_READ_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "checkpoint/storage/storage.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/model_rules.h"

namespace tessera::ckpt::convert {

inline constexpr std::string_view kLlmc = "llmc";

// The model file of llm.c that a place means: `file` inside the folder or, where that is empty, the
// model_NNNNNNNN.bin of the newest step, with DONE_NNNNNNNN where any step has one. Empty where
// there is none, or it does not begin as such a file does.
absl::StatusOr<std::string> FindLlmcModel(Storage& storage, std::string_view folder,
                                          std::string_view file);

// The index pass over that model file and, where it is called model_NNNNNNNN.bin, the optimizer
// states of its step: state_NNNNNNNN_RRRRR.bin of every rank, each with all of it or, with ZeRO,
// its part. Copies on several ranks are copies of one tensor.
//
// Errors: NotFound (a rank's file), DataLoss naming the file.
absl::StatusOr<ForeignCheckpoint> ReadLlmc(Storage& storage, std::string_view folder,
                                           const std::string& model_file, const ModelRules& rules);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_LLMC_READ_H_
