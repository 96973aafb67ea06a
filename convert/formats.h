#ifndef TESSERA_CONVERT_FORMATS_H_
#define TESSERA_CONVERT_FORMATS_H_

// The known formats.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/include/manifest.pb.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/output_file.h"
#include "convert/open_foreign.h"
#include "convert/source_place.h"

namespace tessera::ckpt::convert {

// The data that a written format can hold, besides the tensors of its plan.
enum class Holds {
  kWeights,     // nothing
  kStep,        // the step
  kProgress,    // the step, and the consumed samples
  kEverything,  // all of the trainer's state, and values
};

struct Format {
  std::string_view name;
  std::string_view other_name = {};  // such as InternEvo's ckpt_type
  // Returns whether the files are of this format, judged by their names and first bytes, or can be
  // read as such if the user names it (`named`, else empty).
  absl::StatusOr<bool> (*matches)(const SourcePlace& place, std::string_view named);
  absl::StatusOr<ForeignCheckpoint> (*read)(const SourcePlace& place,
                                            const OpenForeignOptions& options);
  // Plans the files of a checkpoint. Null: the format is only read.
  absl::StatusOr<std::vector<OutputFile>> (*plan)(const Manifest& manifest,
                                                  const PlanOptions& options) = nullptr;
  Holds holds = Holds::kWeights;
  // Whether a checkpoint is a single file, the only one of its plan, under the given name.
  bool is_file = false;
  // A note where no tokenizer is written. Empty: the format has no place for the model's.
  std::string_view without_tokenizer = {};
  // Whether the files hold values besides tensors that are not read. Only the step, the position in
  // the data and the like are.
  bool has_unread_values = false;
};

// Returns the formats in the order in which they are tried.
std::span<const Format> Formats();

// Returns the names of the formats for which the predicate is true.
template <typename Predicate>
std::vector<std::string> NamesOfFormats(const Predicate& predicate) {
  std::vector<std::string> names;
  for (const Format& format : Formats()) {
    if (predicate(format)) names.emplace_back(format.name);
  }
  return names;
}

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_FORMATS_H_
