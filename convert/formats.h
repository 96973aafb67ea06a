#ifndef TESSERA_CONVERT_FORMATS_H_
#define TESSERA_CONVERT_FORMATS_H_

// The formats that are known: all that opening and writing a checkpoint of one depend on.

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/format/manifest.pb.h"
#include "checkpoint/include/storage.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/output_file.h"
#include "convert/open_foreign.h"

namespace tessera::ckpt::convert {

// Where the files are: all of a folder, or one file in it.
struct SourcePlace {
  std::shared_ptr<Storage> storage;  // its root is the folder
  std::string file;                  // empty: the whole folder
};

// Where what a name means is, which need not be a checkpoint. An object of an object store is what
// FindObject() finds.
absl::StatusOr<SourcePlace> FindPlace(std::string_view name, const std::string& s3_endpoint);

struct Format {
  std::string_view name;
  std::string_view other_name = {};  // InternEvo's ckpt_type
  // Whether the files are of this format, as far as a look at their names and first bytes tells.
  absl::StatusOr<bool> (*matches)(const SourcePlace& place);
  absl::StatusOr<ForeignCheckpoint> (*read)(const SourcePlace& place,
                                            const OpenForeignOptions& options);
  // Null: the format is only read.
  absl::StatusOr<std::vector<OutputFile>> (*plan)(const Manifest& manifest,
                                                  const PlanOptions& options) = nullptr;
  bool has_tokenizer = false;  // `plan` takes the model's
  // A checkpoint is the only file of its plan, under the name that is given.
  bool is_file = false;
  std::string_view without_tokenizer = {};  // a note
};

// In the order in which they are tried.
std::span<const Format> Formats();

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_FORMATS_H_
