#ifndef TESSERA_TRAINER_METRICS_KEPT_RECORDS_H_
#define TESSERA_TRAINER_METRICS_KEPT_RECORDS_H_

// The records that a resumed run keeps of an existing metrics.jsonl.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

struct KeptRecords {
  std::string text;  // whole lines, unchanged, in their order
  // Sentences without the file's name; empty for the log of a killed process without other damage.
  std::vector<std::string> notes;
  // The dropped records of steps after the last one: computed in vain.
  int64_t lost_steps = 0;
  double lost_seconds = 0;
};

// The records of `log` up to `last_step`. No content of a log is an error: it is a record of the
// past, and the run must be able to continue without it.
// - Records of later steps are dropped, and so is an incomplete last line: a process that dies
//   after its last save leaves both.
// - A line that is not a record is dropped. In a line with zero bytes, which a file system may
//   leave after a power loss, the text after the last of them is kept if it is a record. A note
//   names the lines, and the steps up to `last_step` that have no record.
// - Of two records of one kind and step the first is dropped, with a note: later steps follow from
//   the second run of the step.
KeptRecords KeepRecords(std::string_view log, int64_t last_step);

}  // namespace tessera

#endif  // TESSERA_TRAINER_METRICS_KEPT_RECORDS_H_
