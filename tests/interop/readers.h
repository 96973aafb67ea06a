#ifndef TESSERA_TESTS_INTEROP_READERS_H_
#define TESSERA_TESTS_INTEROP_READERS_H_

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_replace.h"
#include "base/testing.h"
#include "checkpoint/include/manifest.h"
#include "convert/core/foreign_storage.h"
#include "convert/open_foreign.h"
#include "convert/testing/string_file.h"
#include "gtest/gtest.h"
#include "tests/interop/foreign_run.h"
#include "tests/support/command.h"

namespace tessera::testing {

// Tests of what readers find in the files of other frameworks.
class ReadersTest : public ForeignTest {
 protected:
  // Opens a checkpoint; its description is in manifest_.
  void Open(const std::string& folder, const ckpt::convert::OpenForeignOptions& options = {}) {
    ASSERT_OK_AND_ASSIGN(storage_, ckpt::convert::OpenForeign(folder, options));
    ASSERT_OK_AND_ASSIGN(manifest_, ckpt::ReadManifest(*storage_, ""));
  }

  // A name of the parameter in the format's own files.
  std::string ForeignName(const std::string& parameter, const std::string& key) const {
    for (const ckpt::OptimizerParameter& found : manifest_.optimizer().parameters()) {
      if (found.parameter() == parameter) return found.foreign_names().at(key);
    }
    return "";
  }

  std::vector<std::string> TensorNames() const {
    std::vector<std::string> names;
    for (const ckpt::LogicalTensor& tensor : manifest_.tensors()) names.push_back(tensor.name());
    return names;
  }

  // Replaces texts in all files whose names begin like this. Texts of files with tensors keep their
  // length.
  static void Edit(const std::string& folder, const std::string& start,
                   const std::vector<std::pair<std::string, std::string>>& texts) {
    int edited = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (!entry.path().filename().string().starts_with(start)) continue;
      const std::string before = ReadFile(entry.path());
      const std::string after = absl::StrReplaceAll(before, texts);
      edited += after != before;
      WriteFile(entry.path(), ckpt::convert::WithoutChecksums(after));
    }
    EXPECT_GT(edited, 0) << start;
  }

  static void Remove(const std::string& folder, const std::string& part) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().filename().string().find(part) != std::string::npos)
        std::filesystem::remove(entry.path());
    }
  }

  // That a run in fp32 begins with the state of a safetensors file.
  void ExpectHolds(const std::string& folder, const std::string& oracle) const {
    ASSERT_OK_AND_ASSIGN(const auto loaded, Load(folder, "single", /*bf16=*/false));
    ASSERT_OK_AND_ASSIGN(const auto expected, ReadFp32State(Fixture(oracle)));
    EXPECT_EQ(FirstStateDifference(loaded.state, expected), "");
  }

  std::unique_ptr<ckpt::convert::ForeignStorage> storage_;
  ckpt::Manifest manifest_;
};

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_INTEROP_READERS_H_
