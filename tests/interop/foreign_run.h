#ifndef TESSERA_TESTS_INTEROP_FOREIGN_RUN_H_
#define TESSERA_TESTS_INTEROP_FOREIGN_RUN_H_

// A run of the trainer that continues from another framework's checkpoint, all ranks in one
// process, and the command `ckpt` on such checkpoints.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/testing.h"
#include "gtest/gtest.h"
#include "tests/support/logical_state.h"
#include "tests/support/training.h"
#include "trainer/config/config.pb.h"
#include "trainer/state/saved_run.h"

namespace tessera::testing {

// The topologies under which every layout of every format is loaded.
inline constexpr char kTopologies[][24] = {"single", "tp2", "pp2", "dp2_zero2_tp2_pp2"};

// Opens the checkpoint in a folder or a file, and detects its format. `model`, which may be null,
// is the model of state dicts that do not describe theirs. `names` may name a file; see
// OpenForeignOptions::parameter_names_file.
absl::StatusOr<SavedRun> OpenForeignRun(const std::string& folder,
                                        const ckpt::ModelProto* model = nullptr,
                                        const std::string& names = "");

// Reads the complete state of an fp32 run from a safetensors file, or from those of a folder, whose
// keys are logical names. Master weights ("<name>.master") take the place of rounded weights.
absl::StatusOr<LogicalState> ReadFp32State(const std::string& path);

// Returns the path of a checkpoint below tests/interop.
inline std::string Fixture(const std::string& name) { return "tests/interop/" + name; }

struct ContinuedRun {
  LogicalState state;          // as loaded
  std::vector<double> losses;  // of the next two steps
};

// Loads weights and, if there is one, the optimizer's state on all ranks of the topology of
// `config`, which is resolved, and takes two steps.
absl::StatusOr<ContinuedRun> ContinueRun(const SavedRun& saved, const TrainConfig& config);

// Continues from a complete state after `step` updates instead of a checkpoint. Missing moments are
// zero.
absl::StatusOr<ContinuedRun> ContinueRun(const LogicalState& state, int64_t step,
                                         const TrainConfig& config);

// A test with an empty folder of its own, and with tokens for runs.
class ForeignTest : public ::testing::Test {
 protected:
  void SetUp() override;

  std::string In(const std::string& name) const { return (folder_ / name).string(); }
  // Replaces the tokens, which at first are random numbers below 20.
  void SetTokens(std::span<const int32_t> tokens) const;
  // Returns a copy of a checkpoint, a folder or a file, that the test may change. Its name is the
  // original's by default.
  std::string CopyOf(const std::string& checkpoint, const std::string& name = "") const;

  // Runs `ckpt` in this process and returns its exit code; its output is in out_ and err_.
  int Run(const std::vector<std::string>& arguments);

  // Returns the settings of a run, in EXACT numerics, of a model in text format.
  RunSettings Settings(const std::string& model, const std::string& topology, bool bf16) const;
  // Returns the config of such a run; a test may change it.
  virtual absl::StatusOr<TrainConfig> Config(const RunSettings& settings) const;
  // Loads a checkpoint on all ranks of a topology, and takes two steps.
  absl::StatusOr<ContinuedRun> Load(const SavedRun& saved, const std::string& topology,
                                    bool bf16) const;
  absl::StatusOr<ContinuedRun> Load(const std::string& checkpoint, const std::string& topology,
                                    bool bf16) const;

  const TestFolder data_, own_;
  const std::filesystem::path folder_ = own_.path();
  std::string out_, err_;
};

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_INTEROP_FOREIGN_RUN_H_
