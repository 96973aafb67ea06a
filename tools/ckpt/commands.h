#ifndef TESSERA_TOOLS_CKPT_COMMANDS_H_
#define TESSERA_TOOLS_CKPT_COMMANDS_H_

// The `ckpt` command without main(), so that tests can run it.

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/program.h"
#include "layout/dtype.h"
#include "operations/named_checkpoint.h"
#include "operations/rank_layout.h"

namespace tessera::ckpt {

// Exit codes.
inline constexpr int kExitOk = 0;
inline constexpr int kExitDifferent = 1;  // damage, a difference, a signature that does not hold
inline constexpr int kExitUsage = 2;      // wrong usage, no checkpoint, or it cannot be read

struct ReshardOptions {
  std::string topology;
  LayoutOptions layout;
  std::optional<uint64_t> memory_bytes;  // unset: kReshardMemoryBytes or kConversionMemoryBytes
  bool dry_run = false;
};

struct ConvertOptions {
  std::string format;
  DType dtype = DType::kUnspecified;
  bool allow_overflow = false;
  bool weights_only = false;
  std::optional<uint64_t> max_file_bytes;  // unset: 5 GB
  std::string tokenizer;                   // a path; empty: none
};

struct CommandOptions {
  bool json = false;
  bool all = false;        // verify
  bool digests = false;    // verify
  bool data = false;       // diff
  bool overwrite = false;  // seal, sign
  ReshardOptions reshard;
  ConvertOptions convert;
  int threads = 4;
  std::string html;   // inspect: the file of a page; empty: none
  std::string other;  // inspect: a name, compared with on the page; may be empty
  std::string key;    // verify: public, may be empty; sign: private. A path
  SourceOptions source;
  std::vector<std::string> paths;  // names, see OpenStorage()
};

// The output of a command. `progress` is null if it is not shown.
struct CommandOutput {
  std::ostream& out;
  std::ostream& err;
  std::ostream* progress;
};

// Each returns the exit code, or why it ends without a result.
absl::StatusOr<int> RunLs(const CommandOptions& options, const CommandOutput& output);
absl::StatusOr<int> RunInspect(const CommandOptions& options, const CommandOutput& output);
absl::StatusOr<int> RunVerify(const CommandOptions& options, const CommandOutput& output);
absl::StatusOr<int> RunDiff(const CommandOptions& options, const CommandOutput& output);
absl::StatusOr<int> RunSeal(const CommandOptions& options, const CommandOutput& output);
absl::StatusOr<int> RunSign(const CommandOptions& options, const CommandOutput& output);
absl::StatusOr<int> RunReshard(const CommandOptions& options, const CommandOutput& output);
absl::StatusOr<int> RunConvert(const CommandOptions& options, const CommandOutput& output);

// Runs the command. `arguments` do not include the program's name.
int RunCkpt(const std::vector<std::string>& arguments, const CommandOutput& output);

// RunCkpt() in a process of its own, which RunProgram() has prepared: uses its output, and goes to
// the user's folder.
inline constexpr Program kProgram = {
    .name = "ckpt", .prints_result = true, .failure_code = kExitUsage};
int Main(const std::vector<std::string>& arguments);

// Reads a checkpoint whole and writes the page options.html about it, compared with options.other
// if that is a name. `head` is the part of the output of `ckpt inspect` before the tensors: lines
// of a label of twelve characters and a text, or, indented, the continuation of a text. Returns the
// exit code.
absl::StatusOr<int> WriteInspectPage(const NamedCheckpoint& named, const std::string& head,
                                     const CommandOptions& options, const CommandOutput& output);

}  // namespace tessera::ckpt

#endif  // TESSERA_TOOLS_CKPT_COMMANDS_H_
