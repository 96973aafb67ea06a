#ifndef TESSERA_OPERATIONS_SURVEY_H_
#define TESSERA_OPERATIONS_SURVEY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/include/verify_options.h"
#include "operations/element_statistics.h"
#include "operations/named_checkpoint.h"

namespace tessera::ckpt {

struct SurveyOptions {
  int io_threads = 4;
  size_t max_histograms = 4096;  // of the tensors with the most elements; 16 KiB of memory each
  // As in VerifyOptions. Null: not called.
  std::function<void(uint64_t done_bytes, uint64_t total_bytes)> progress;
};

struct TensorSurvey {
  // The statistics of all elements that could be read, those in damaged chunks included. Empty for
  // an alias.
  ElementStatistics statistics;
  bool damaged = false;  // bytes of it are missing, or in a chunk whose checksum is wrong
};

// A survey of the values in a checkpoint.
struct CheckpointSurvey {
  std::vector<TensorSurvey> tensors;  // in the manifest's order
  std::vector<Damage> damage;         // as ckpt verify reports it
  uint64_t bytes_read = 0;
  absl::Duration duration;
};

// Reads every byte of a checkpoint once, in bounded memory, makes the checks of Verify(), and
// computes the statistics of every tensor. The number of threads does not change them. A sealed
// checkpoint is first compared with its seal, which reads its files once more. Damage is in the
// result; an error means that the checkpoint could not be read.
absl::StatusOr<CheckpointSurvey> Survey(const NamedCheckpoint& named, const SurveyOptions& options);

}  // namespace tessera::ckpt

#endif  // TESSERA_OPERATIONS_SURVEY_H_
