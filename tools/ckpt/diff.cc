#include "operations/diff.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "tools/ckpt/commands.h"
#include "tools/ckpt/report.h"

namespace tessera::ckpt {
namespace {

// Returns a sentence that says what was compared, and is therefore proven.
std::string ProofOfEquality(const Differences& differences, bool sealed) {
  std::vector<std::string> parts;
  if (differences.equal_by_digest > 0) {
    parts.push_back(absl::StrCat(
        differences.equal_by_digest,
        sealed ? " by the digests in manifest and seal, without reading the files"
               : " by the digests in the manifests",
        " (ckpt verify --digests proves that the files match them; diff --data compares the "
        "files)"));
  }
  if (differences.equal_by_contents > 0) {
    parts.push_back(absl::StrCat(differences.equal_by_contents,
                                 " by every bit of the contents, read and checked"));
  }
  if (differences.equal_aliases > 0) {
    parts.push_back(absl::StrCat(differences.equal_aliases, " as other names of the same tensors"));
  }
  return absl::StrJoin(parts, "; ");
}

void PrintDifferences(const Differences& differences, bool sealed, std::ostream& out) {
  for (const std::string& line : differences.notes) out << "note      " << line << "\n";
  for (const std::string& line : differences.metadata) out << "metadata  " << line << "\n";
  for (const TensorDifference& difference : differences.tensors) {
    out << "tensor    " << difference.tensor << ": " << difference.message << "\n";
  }
  out << "equal tensors: " << differences.equal()
      << ", tensor differences: " << differences.tensors.size()
      << ", metadata differences: " << differences.metadata.size() << "\n";
  if (differences.equal() > 0) out << "equal: " << ProofOfEquality(differences, sealed) << "\n";
  if (differences.none()) out << "the two hold the same state\n";
}

}  // namespace

absl::StatusOr<int> RunDiff(const CommandOptions& options, const CommandOutput& output) {
  TESSERA_ASSIGN_OR_RETURN(const auto a, FindCheckpoint(options.paths[0], options.source));
  TESSERA_ASSIGN_OR_RETURN(const auto b, FindCheckpoint(options.paths[1], options.source));
  TESSERA_ASSIGN_OR_RETURN(const auto differences,
                           Diff(a, b, {.data = options.data, .io_threads = options.threads}));
  if (options.json) {
    PrintJson(ToJson(differences), output.out);
  } else {
    PrintDifferences(differences, a.seal.has_value() || b.seal.has_value(), output.out);
  }
  return differences.none() ? kExitOk : kExitDifferent;
}

}  // namespace tessera::ckpt
