#ifndef TESSERA_OPERATIONS_DIFF_VALUES_H_
#define TESSERA_OPERATIONS_DIFF_VALUES_H_

#include <string>
#include <vector>

#include "google/protobuf/map.h"
#include "operations/named_checkpoint.h"

namespace tessera::ckpt {

using TrainerEntries = google::protobuf::Map<std::string, std::string>;

// A difference beside tensors, and between which checkpoints it counts. Otherwise, it is a note.
struct MetadataDifference {
  enum class Counts {
    kNever,
    kBetweenOurs,  // where both are of this library: files of other formats need not tell it
    kInOneFormat,
    kAlways,
  };
  std::string text;
  Counts counts = Counts::kInOneFormat;
};

// Compares the values that two opened checkpoints hold beside their tensors: those of formats that
// hold everything, and the entries tessera_ckpt.* of checkpoint/FORMAT.md. Returns a line for each
// difference, "value optimizer.lr: 0.1 -> 0.2" or "container betas: list -> tuple". The order of a
// dict's keys, and whether it is an OrderedDict, never count. `entries_a` and `entries_b` are
// copies of the entries of `a` and `b`; what is compared here is erased there.
std::vector<MetadataDifference> CompareValues(const NamedCheckpoint& a, const NamedCheckpoint& b,
                                              TrainerEntries& entries_a, TrainerEntries& entries_b);

}  // namespace tessera::ckpt

#endif  // TESSERA_OPERATIONS_DIFF_VALUES_H_
