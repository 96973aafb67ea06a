#ifndef TESSERA_CONVERT_INTERNEVO_RUN_H_
#define TESSERA_CONVERT_INTERNEVO_RUN_H_

#include <string_view>

#include "absl/status/status.h"
#include "checkpoint/storage/storage.h"
#include "convert/core/foreign_checkpoint.h"

namespace tessera::ckpt::convert {

// Adds what context.pt tells: the step, and a note about the position in the data. Where there is
// no such file, nothing is known. Errors: DataLoss, naming the file; those of the storage.
absl::Status DescribeInternEvoRun(Storage& storage, std::string_view folder,
                                  ForeignCheckpoint& checkpoint);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_INTERNEVO_RUN_H_
