#ifndef TESSERA_TRAINER_METRICS_KEPT_RECORDS_H_
#define TESSERA_TRAINER_METRICS_KEPT_RECORDS_H_

// What a resumed run takes over from the metrics.jsonl that is there.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

struct KeptRecords {
  std::string text;  // whole lines, unchanged, in their order
  // Sentences without the file's name; empty for a log that is as a killed process leaves it.
  std::vector<std::string> notes;
};

// The records of `log` up to `last_step`. No content of a log is an error: it is a record of the
// past, and the run must go on without it.
// - Records of later steps are dropped, and so is an incomplete last line: both are what a process
//   leaves that died after its last save.
// - A line that is no record is dropped. Of a line with zero bytes, which a file system may leave
//   after a power loss, what follows the last of them is kept where it is a record. A note names
//   the lines, and the steps up to `last_step` that have no record.
// - Of two records of one kind and step the first is dropped, with a note: the second run of the
//   step is the one that the later steps follow from.
KeptRecords KeepRecords(std::string_view log, int64_t last_step);

}  // namespace tessera

#endif  // TESSERA_TRAINER_METRICS_KEPT_RECORDS_H_
