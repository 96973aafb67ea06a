#ifndef TESSERA_CHECKPOINT_CONVERT_INTERNEVO_RUN_H_
#define TESSERA_CHECKPOINT_CONVERT_INTERNEVO_RUN_H_

#include <string_view>

#include "absl/status/status.h"
#include "checkpoint/convert/foreign_checkpoint.h"
#include "checkpoint/storage/storage.h"

namespace tessera::ckpt::convert {

// Adds what context.pt tells: the step, and a note about the position in the data. Where there is
// no such file, nothing is known. Errors: DataLoss, naming the file; those of the storage.
absl::Status DescribeInternEvoRun(Storage& storage, std::string_view folder,
                                  ForeignCheckpoint& checkpoint);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CHECKPOINT_CONVERT_INTERNEVO_RUN_H_
