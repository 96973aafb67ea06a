// Damaged and mismatched files of Megatron-LM's format `torch` (mp_rank_XX folders).

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/format/safetensors.h"
#include "convert/open_foreign.h"
#include "convert/testing/zip_changes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/ckpt/commands.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

namespace fs = std::filesystem;

fs::path Fixture(const std::string& name) { return "tests/interop/megatron/" + name; }

std::string ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

class MegatronLegacyTest : public ::testing::Test {
 protected:
  // A copy of a run's folder, to be changed; returns the folder of its checkpoint.
  fs::path Copy(const std::string& fixture) {
    run_ = fs::path(::testing::TempDir()) / "megatron_legacy";
    fs::remove_all(run_);
    fs::copy(Fixture(fixture), run_, fs::copy_options::recursive);
    return run_ / "iter_0000007";
  }

  // The error of reading the copy; empty if reading succeeds.
  std::string Error() {
    std::ostringstream out, err;
    const int exit_code =
        ckpt::RunCkpt({"inspect", run_.string(), "--from=megatron"}, {out, err, nullptr});
    EXPECT_EQ(exit_code == ckpt::kExitOk, err.str().empty()) << err.str();
    return exit_code == ckpt::kExitOk ? "" : err.str();
  }

  fs::path run_;
};

TEST_F(MegatronLegacyTest, RefusesMissingRanks) {
  fs::path folder = Copy("legacy_gpt2_tp2_pp2");
  ASSERT_EQ(Error(), "");
  fs::remove_all(folder / "mp_rank_01_001");
  EXPECT_THAT(Error(), HasSubstr("the run had 2 tensor-parallel and 2 pipeline-parallel ranks, but "
                                 "there is no mp_rank_01_001"));
  folder = Copy("legacy_gpt2_tp2_pp2");
  fs::remove(folder / "mp_rank_01_000/model_optim_rng.pt");
  EXPECT_THAT(Error(), HasSubstr("mp_rank_01_000/model_optim_rng.pt"));
}

TEST_F(MegatronLegacyTest, RefusesAnotherGrid) {
  fs::path folder = Copy("legacy_gpt2_tp2_pp2");
  fs::copy(folder / "mp_rank_00_000", folder / "mp_rank_02_000", fs::copy_options::recursive);
  EXPECT_THAT(Error(), HasSubstr("but there is mp_rank_02_000, too"));
  folder = Copy("legacy_gpt2_tp2_pp2");
  fs::copy_file(Fixture("legacy_llama3_untied_dp2_tp2/iter_0000007/mp_rank_01/model_optim_rng.pt"),
                folder / "mp_rank_01_001/model_optim_rng.pt", fs::copy_options::overwrite_existing);
  EXPECT_THAT(Error(), HasSubstr("mp_rank_01_001/model_optim_rng.pt: its arguments have another "
                                 "parallel layout than those of mp_rank_00_000"));
}

TEST_F(MegatronLegacyTest, RefusesCopiesThatDiffer) {
  const fs::path folder = Copy("legacy_gpt2_tp2_pp2");
  const std::string model = ReadFile(Fixture("gpt2.safetensors"));
  const auto header_bytes = ckpt::SafetensorsHeaderBytes(model.substr(0, 8), model.size());
  ASSERT_TRUE(header_bytes.ok());
  const auto header = ckpt::ParseSafetensorsHeader(model.substr(0, *header_bytes), model.size());
  ASSERT_TRUE(header.ok());
  std::string norm;
  for (const ckpt::SafetensorsEntry& entry : header->entries) {
    if (entry.key == "transformer.h.0.ln_2.bias") {
      norm = model.substr(entry.file_offset, entry.length_bytes);
    }
  }
  const fs::path changed = folder / "mp_rank_01_000/model_optim_rng.pt";
  std::string bytes = ReadFile(changed);
  const size_t at = bytes.find(norm);
  ASSERT_NE(at, std::string::npos);
  bytes[at + 5] ^= 1;
  std::ofstream(changed, std::ios::binary) << ckpt::convert::WithoutChecksums(bytes);
  const std::string error = Error();
  EXPECT_THAT(error, HasSubstr("transformer.h.0.ln_2.bias"));
  EXPECT_THAT(error, HasSubstr("mp_rank_01_000/model_optim_rng.pt"));
}

void Exchange(const fs::path& a, const fs::path& b) {
  fs::rename(a, a.string() + ".tmp");
  fs::rename(b, a);
  fs::rename(a.string() + ".tmp", b);
}

// Shapes and sizes fit, and there are no fp32 weights that would differ.
TEST_F(MegatronLegacyTest, RefusesFilesInOtherPlaces) {
  constexpr char kFile[] = "model_optim_rng.pt";
  fs::path folder = Copy("legacy_gpt2_tp2_pp2");
  Exchange(folder / "mp_rank_00_001" / kFile, folder / "mp_rank_01_001" / kFile);
  const std::string error = Error();
  EXPECT_THAT(error, HasSubstr("mp_rank_00_001/model_optim_rng.pt: its arguments say that rank 3 "
                               "of the run wrote it, whose place is "));
  EXPECT_THAT(error, HasSubstr("mp_rank_01_001/model_optim_rng.pt"));
  folder = Copy("legacy_gpt2_tp2_pp2");
  fs::copy_file(folder / "mp_rank_00_000" / kFile, folder / "mp_rank_01_000" / kFile,
                fs::copy_options::overwrite_existing);
  EXPECT_THAT(Error(), HasSubstr("mp_rank_01_000/model_optim_rng.pt: its arguments say that rank 0 "
                                 "of the run wrote it"));
}

TEST_F(MegatronLegacyTest, RefusesStatesOfOtherRanks) {
  fs::path folder = Copy("legacy_llama3_bf16_dp2_pp2_vpp2");
  Exchange(folder / "mp_rank_00_000/distrib_optim.pt", folder / "mp_rank_00_001/distrib_optim.pt");
  EXPECT_THAT(Error(), HasSubstr("buffer 0 has 840 elements"));
  // The sizes fit, the values do not.
  folder = Copy("legacy_llama3_untied_dp2_tp2");
  Exchange(folder / "mp_rank_00/distrib_optim.pt", folder / "mp_rank_01/distrib_optim.pt");
  EXPECT_THAT(Error(), HasSubstr("do not round to its weights in"));
  folder = Copy("legacy_llama3_untied_dp2_tp2");
  fs::remove(folder / "mp_rank_01/distrib_optim.pt");
  EXPECT_THAT(Error(), HasSubstr("mp_rank_01/distrib_optim.pt: missing; it has the distributed "
                                 "optimizer's state"));
}

TEST_F(MegatronLegacyTest, RefusesTruncatedFiles) {
  for (const char* file : {"mp_rank_00/model_optim_rng.pt", "mp_rank_01/distrib_optim.pt"}) {
    const uint64_t size =
        fs::file_size(Fixture("legacy_llama3_untied_dp2_tp2/iter_0000007") / file);
    for (const uint64_t length : {uint64_t{0}, uint64_t{1}, size / 2, size - 1}) {
      const fs::path folder = Copy("legacy_llama3_untied_dp2_tp2");
      fs::resize_file(folder / file, length);
      EXPECT_THAT(Error(), HasSubstr(file)) << length << " bytes";
    }
  }
}

}  // namespace
}  // namespace tessera
