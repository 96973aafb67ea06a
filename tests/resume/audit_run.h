#ifndef TESSERA_TESTS_RESUME_AUDIT_RUN_H_
#define TESSERA_TESTS_RESUME_AUDIT_RUN_H_

// Audits of runs of a tiny model, and changes of the files that runs have left.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/testing.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/box.h"
#include "layout/dtype.h"
#include "tests/support/command.h"

namespace tessera {

inline const Words kExact = {"--numerics=exact", "--exact-tp-shards=2"};

// `train`: the program that executes steps again.
inline Words AuditCommand(const std::filesystem::path& run_dir, const Words& words,
                          const std::string& train = "trainer/app/train") {
  return Joined(
      {Runfile("trainer/tools/audit"), Runfile("trainer/configs/launch.py"), Runfile(train),
       Runfile("trainer/data/prepare_data"), Runfile("tools/ckpt/ckpt"), run_dir.string()},
      words);
}

// A test of audits, whose run is called "run".
class AuditTest : public CommandTest {
 protected:
  Result Audit(const Words& words) const { return Run(AuditCommand(RunDir("run"), words)); }
  Result MustAudit(const Words& words, int exit_code = 0) const {
    return MustRun(AuditCommand(RunDir("run"), words), exit_code);
  }
  void ExpectProven(const Words& words, const std::string& sentence) const {
    const Result result = MustAudit(words);
    EXPECT_THAT(result.out, ::testing::HasSubstr(sentence));
  }
  void ExpectNotProven(const Words& words, const std::string& sentence) const {
    const Result result = MustAudit(words, 1);
    EXPECT_THAT(result.out, ::testing::HasSubstr("not proven: " + sentence));
  }
  // Replaces the first occurrence in a file of the run.
  void Edit(const std::string& file, const std::string& before, const std::string& after) const {
    std::string text = ReadFile(RunDir("run") / file);
    const size_t place = text.find(before);
    ASSERT_NE(place, std::string::npos) << before;
    WriteFile(RunDir("run") / file, text.replace(place, before.size(), after));
  }
  void ExpectRefused(const Words& words, const std::string& sentence) const {
    const Result result = MustAudit(words, 2);
    EXPECT_THAT(result.err, ::testing::HasSubstr(sentence));
  }
  // Saves a checkpoint once more with one bit of a weight flipped, and with fitting checksums and
  // digests.
  void FlipWeight(int64_t step) const {
    ASSERT_OK_AND_ASSIGN(const auto folder,
                         ckpt::CheckpointFolder::Open(Checkpoints("run").string()));
    ckpt::Manifest manifest;
    ckpt::StateDict state;
    std::vector<std::unique_ptr<std::vector<std::byte>>> memory;
    std::byte* weight = nullptr;
    {
      ASSERT_OK_AND_ASSIGN(const auto checkpoint, folder.At(step));
      manifest = checkpoint.manifest();
      for (const ckpt::LogicalTensor& saved : manifest.tensors()) {
        ckpt::ShardedTensor tensor{.name = saved.name(),
                                   .role = ckpt::FromProto(saved.role()),
                                   .dtype = ckpt::FromProto(saved.dtype()),
                                   .global_shape = ckpt::GlobalShape(saved),
                                   .alias_of = saved.alias_of()};
        ASSERT_EQ(tensor.dtype, DType::kF32);
        if (tensor.alias_of.empty()) {
          memory.push_back(std::make_unique<std::vector<std::byte>>(
              sizeof(float) * static_cast<size_t>(ElementCount(tensor.global_shape))));
          std::byte* const data = memory.back()->data();
          if (tensor.role == ckpt::TensorRole::kWeight) weight = data;
          tensor.shards = {ckpt::Shard::Untyped(data, tensor.dtype, WholeBox(tensor.global_shape))};
        }
        state.tensors.push_back(std::move(tensor));
      }
      ASSERT_OK(checkpoint.Load(state));
    }
    ASSERT_NE(weight, nullptr);
    weight[2] ^= std::byte{0x40};
    manifest.clear_tensors();
    manifest.clear_files();
    std::filesystem::remove_all(StepDir("run", step));
    ASSERT_OK(folder.Save({.step = step, .metadata = ckpt::ToMetadata(manifest)}, state));
  }
};

}  // namespace tessera

#endif  // TESSERA_TESTS_RESUME_AUDIT_RUN_H_
