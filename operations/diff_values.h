#ifndef TESSERA_OPERATIONS_DIFF_VALUES_H_
#define TESSERA_OPERATIONS_DIFF_VALUES_H_

#include <string>
#include <vector>

#include "checkpoint/include/manifest.pb.h"
#include "google/protobuf/map.h"

namespace tessera::ckpt {

using TrainerEntries = google::protobuf::Map<std::string, std::string>;

// Compares the values that two checkpoints hold beside their tensors: the entries tessera_ckpt.* of
// checkpoint/FORMAT.md. Returns a line for each difference, "value optimizer.lr: 0.1 -> 0.2".
// `entries_a` and `entries_b` are copies of the entries of `a` and `b`; what is compared here is
// erased there.
std::vector<std::string> CompareValues(const Manifest& a, const Manifest& b,
                                       TrainerEntries& entries_a, TrainerEntries& entries_b);

}  // namespace tessera::ckpt

#endif  // TESSERA_OPERATIONS_DIFF_VALUES_H_
