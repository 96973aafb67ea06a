#include "tests/interop/foreign_fixture.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

#include "base/status_macros.h"
#include "trainer/data/token_file.h"

namespace tessera::testing {

namespace fs = std::filesystem;

std::string ReadFileBytes(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

void WriteFileBytes(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

void ForeignFixture::SetUp() {
  std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
  std::replace(name.begin(), name.end(), '/', '_');
  folder_ = fs::path(::testing::TempDir()) / name;
  fs::remove_all(folder_);
  fs::create_directories(folder_);
  std::mt19937 random(3);
  std::vector<int32_t> tokens(3000);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 20);
  SetTokens(tokens);
}

void ForeignFixture::TearDown() { fs::remove_all(folder_); }

void ForeignFixture::SetTokens(std::span<const int32_t> tokens) const {
  auto writer = TokenFileWriter::Create(In("tokens.bin"), TokenFormat::kGpt2);
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->Append(tokens).ok());
  ASSERT_TRUE((*writer)->Close().ok());
}

std::string ForeignFixture::CopyOf(const std::string& checkpoint) const {
  const fs::path copy = folder_ / fs::path(checkpoint).filename();
  fs::remove_all(copy);
  fs::copy(checkpoint, copy, fs::copy_options::recursive);
  for (const auto& entry : fs::directory_iterator(copy)) {
    fs::permissions(entry.path(), fs::perms::owner_all);
  }
  return copy.string();
}

RunSettings ForeignFixture::Settings(const std::string& model, const std::string& topology,
                                     bool bf16) const {
  return {.model = model,
          .tokens = In("tokens.bin"),
          .topology = topology,
          .exact_shards = 2,
          .bf16 = bf16,
          .micro_batch_size = 1,
          .global_batch_size = 4,
          .seq_length = 12,
          .bucket_elements = 500};
}

absl::StatusOr<TrainConfig> ForeignFixture::Config(const RunSettings& settings) const {
  return MakeConfig(settings);
}

absl::StatusOr<ContinuedRun> ForeignFixture::Load(const SavedRun& saved,
                                                  const std::string& topology, bool bf16) const {
  TESSERA_ASSIGN_OR_RETURN(const TrainConfig config,
                           Config(Settings(saved.manifest.model().text(), topology, bf16)));
  return ContinueRun(saved, config);
}

absl::StatusOr<ContinuedRun> ForeignFixture::Load(const std::string& checkpoint,
                                                  const std::string& topology, bool bf16) const {
  TESSERA_ASSIGN_OR_RETURN(const SavedRun saved, OpenForeignRun(checkpoint));
  return Load(saved, topology, bf16);
}

}  // namespace tessera::testing
