#ifndef TESSERA_TRAINER_CONFIG_CONFIG_H_
#define TESSERA_TRAINER_CONFIG_CONFIG_H_

// From a command line to a complete, checked TrainConfig, and from there to text and back.
//
//   // --config FILE, and flags on top of it in any order.
//   absl::StatusOr<CommandLine> line = ParseCommandLine(argc, argv);
//   if (!line->help.empty()) { print it; return 0; }
//   // Every default written out, every contradiction refused.
//   absl::StatusOr<TrainConfig> config =
//       ResolveConfig(line->config, {.origins = line->origins});
//
// Every error is InvalidArgument (NotFound for a missing file) with a message that names field and
// value: one line, or a line for each of several contradictions.

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "layout/topology.h"
#include "trainer/config/config.pb.h"
#include "trainer/config/problems.h"

namespace tessera {

// The load_format of checkpoints of this program.
inline constexpr char kTesseraFormat[] = "tessera";

struct CommandLine {
  TrainConfig config;  // the settings of file and flags, without defaults
  Origins origins;     // where each of them was given
  std::string help;    // not empty: the user asked for it; print it and end
};

// Parses a command line; argv[0] is the program. `--config FILE` reads protobuf text format; flags
// override it, before or after it. Accepts the flags of flags.h over TrainConfig, and `--help`,
// `--help=GROUP`.
absl::StatusOr<CommandLine> ParseCommandLine(int argc, const char* const* argv);

// Parses a config in text format. `source` is the file name in error messages, "source:line:column:
// message". `origins`, which may be null, gets "source:line" of every field of a group.
absl::StatusOr<TrainConfig> ParseConfig(std::string_view text, std::string_view source,
                                        Origins* origins = nullptr);
absl::StatusOr<TrainConfig> LoadConfig(const std::string& path, Origins* origins = nullptr);

// The model of a checkpoint.
struct SavedModel {
  ModelConfig config;  // resolved
  std::string place;   // the checkpoint, for messages
};

struct ResolveOptions {
  int processes = 1;
  Origins origins = {};  // of the settings: see SettleDependents()
  // Returns the model of the checkpoint with which a run with these settings begins, as far as its
  // files describe one. Called only if the settings do not describe the model. May be null.
  std::function<absl::StatusOr<std::optional<SavedModel>>(const CheckpointConfig&)> saved_model;
};

// Fills in every field, defaults included, and validates the whole. Idempotent: resolving its own
// result changes nothing. `topology` becomes the sizes that it names; "auto" becomes those that are
// best for the number of processes (trainer/config/choose_topology.h). Unset fields of the model
// are taken from the saved model; InvalidArgument if a set one differs from it.
absl::StatusOr<TrainConfig> ResolveConfig(const TrainConfig& config,
                                          const ResolveOptions& options = {});

// Returns whether the number of processes decides the topology.
bool HasAutoTopology(const TrainConfig& config);

// Returns the sizes of the parallel axes of a resolved config; world_size() is the number of
// processes of the run.
Topology ConfigTopology(const TrainConfig& config);
// Returns exact_tp_shards of a resolved config in EXACT numerics; 0 in FAST numerics.
int ExactShards(const TrainConfig& config);

// Returns the complete text, one field per line; ParseConfig() reads it back to the same config.
std::string ConfigText(const TrainConfig& config);
// Returns "name=value" of the fields that differ from their defaults, one line per group, for the
// terminal.
std::string ConfigDifferences(const TrainConfig& config);
// Writes ConfigText to PATH/config.textproto (temporary name, synced, renamed). Creates the folder.
absl::Status WriteConfig(const TrainConfig& config, const std::string& run_dir);

}  // namespace tessera

#endif  // TESSERA_TRAINER_CONFIG_CONFIG_H_
