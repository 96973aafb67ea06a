#include "checkpoint/storage/by_name/open_storage.h"

#include "checkpoint/storage/temporary_directory.h"
#include "gtest/gtest.h"

namespace tessera::ckpt {
namespace {

TEST(OpenStorageTest, APathAndItsLocalNameAreOnePlace) {
  const TemporaryDirectory directory;
  const std::string root = directory.path() + "/runs:a";
  EXPECT_EQ(OpenStorage(root).status().code(), absl::StatusCode::kNotFound);
  const auto by_path = OpenStorage(root, {.create_root = true});
  ASSERT_TRUE(by_path.ok()) << by_path.status();
  ASSERT_TRUE(WriteAll(**by_path, "file", "contents").ok());
  const auto by_name = OpenStorage("local:" + root);
  ASSERT_TRUE(by_name.ok()) << by_name.status();
  EXPECT_EQ(*ReadAll(**by_name, "file", 100), "contents");
  EXPECT_EQ((*by_name)->LocalPath(""), root);
  EXPECT_EQ((*by_name)->LocalPath("file"), root + "/file");
}

TEST(OpenStorageTest, AnEmptyNameIsRefused) {
  for (const char* name : {"", "local:"}) {
    EXPECT_EQ(OpenStorage(name, {.create_root = true}).status().code(),
              absl::StatusCode::kInvalidArgument)
        << name;
  }
}

TEST(OpenStorageTest, LocalNamesAreRecognised) {
  EXPECT_EQ(LocalPathOfName("/runs/a"), "/runs/a");
  EXPECT_EQ(LocalPathOfName("local:runs/a"), "runs/a");
}

}  // namespace
}  // namespace tessera::ckpt
