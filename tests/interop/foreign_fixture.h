#ifndef TESSERA_TESTS_INTEROP_FOREIGN_FIXTURE_H_
#define TESSERA_TESTS_INTEROP_FOREIGN_FIXTURE_H_

// What tests share that continue runs from other frameworks' checkpoints.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/interop/foreign_run.h"
#include "tests/support/training.h"
#include "trainer/config/config.pb.h"

namespace tessera::testing {

// Under which every layout is loaded.
inline constexpr char kTopologies[][24] = {"single", "tp2", "pp2", "dp2_zero2_tp2_pp2"};

// The bytes of a file; fails the test where it cannot be read.
std::string ReadFileBytes(const std::filesystem::path& path);
void WriteFileBytes(const std::filesystem::path& path, const std::string& bytes);

// A test with a folder of its own, in which there are tokens for runs.
class ForeignFixture : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  std::string In(const std::string& name) const { return (folder_ / name).string(); }
  // Replaces the tokens, which are random numbers below 20 at first.
  void SetTokens(std::span<const int32_t> tokens) const;
  // A copy of a checkpoint's folder that the test may change.
  std::string CopyOf(const std::string& checkpoint) const;

  // The settings of a run of a model, in text format, in EXACT numerics.
  RunSettings Settings(const std::string& model, const std::string& topology, bool bf16) const;
  // The config of such a run; a test may change it.
  virtual absl::StatusOr<TrainConfig> Config(const RunSettings& settings) const;
  // Loads a checkpoint on all ranks of a topology, and takes two steps.
  absl::StatusOr<ContinuedRun> Load(const SavedRun& saved, const std::string& topology,
                                    bool bf16) const;
  absl::StatusOr<ContinuedRun> Load(const std::string& checkpoint, const std::string& topology,
                                    bool bf16) const;

 private:
  std::filesystem::path folder_;
};

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_INTEROP_FOREIGN_FIXTURE_H_
