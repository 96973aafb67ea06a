#include "tests/worlds/power/durable_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"

namespace tessera {
namespace {

using Lost = DurableFiles::Lost;

// A file of which "durable" was synced is overwritten; another one is new.
TEST(DurableFilesTest, ContentsThatWereNotSyncedAreDurableOnesZerosOrTorn) {
  const std::string root = testing::TempDir() + "/durable_files";
  std::filesystem::create_directories(root);
  const auto write = [&](const std::string& name, const std::string& contents) {
    std::ofstream(root + "/" + name) << contents;
  };
  write("old", "durable");
  DurableFiles files(root);
  write("old", "current!");
  write("new", "1234");
  const int directory = open(root.c_str(), O_RDONLY);
  files.MakeDurable(directory);
  close(directory);
  const DurableFiles::Live live = files.Look();
  EXPECT_EQ(files.MakeImage(live, {}, Lost::kDurable),
            (FileImage{{"new", ""}, {"old", "durable"}}));
  EXPECT_EQ(files.MakeImage(live, {}, Lost::kZeros),
            (FileImage{{"new", std::string(4, 0)}, {"old", std::string("durable\0", 8)}}));
  EXPECT_EQ(files.MakeImage(live, {}, Lost::kTorn, 3),
            (FileImage{{"new", "123"}, {"old", "curable"}}));
  EXPECT_EQ(files.MakeImage(live, {}, Lost::kTorn, 8),
            (FileImage{{"new", "123"}, {"old", "current!"}}));
  const auto doubts = files.FindDoubts(live);
  EXPECT_EQ(files.MakeImage(live, {doubts.begin(), doubts.end()}, Lost::kTorn, 3),
            (FileImage{{"new", "1234"}, {"old", "current!"}}));
}

}  // namespace
}  // namespace tessera
