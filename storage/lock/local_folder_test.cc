#include "storage/lock/local_folder.h"

#include <sys/inotify.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/testing.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

// The names that have been deleted in the folder of `watch`, in this order.
std::vector<std::string> Deleted(int watch) {
  alignas(inotify_event) char buffer[1 << 16];
  std::vector<std::string> names;
  const ssize_t size = read(watch, buffer, sizeof(buffer));
  for (ssize_t at = 0; at < size;) {
    const auto* event = reinterpret_cast<const inotify_event*>(buffer + at);
    if ((event->mask & IN_DELETE) != 0) names.emplace_back(event->name);
    at += static_cast<ssize_t>(sizeof(*event) + event->len);
  }
  return names;
}

// A process that dies while it removes an abandoned folder leaves one that the next recognises.
TEST(LocalFolderTest, OfAnAbandonedFolderTheLockFileIsDeletedLast) {
  const std::string path = ::testing::TempDir() + "/local_folder/new";
  const std::string left = path + ".unfinished-0123abcd";
  std::filesystem::create_directories(left + "/folder");
  // Between others in the order of any file system.
  for (const char* name : {"a", "b", "c", ".lock", "d", "e", "folder/f"}) {
    std::ofstream(left + "/" + name) << name;
  }
  const std::string of_the_user = path + ".unfinished-sketches";
  std::filesystem::create_directories(of_the_user);
  std::ofstream(of_the_user + "/.lock");
  const int watch = inotify_init1(IN_NONBLOCK);
  ASSERT_GE(watch, 0);
  ASSERT_GE(inotify_add_watch(watch, left.c_str(), IN_DELETE), 0);
  ASSERT_OK_AND_ASSIGN(const auto folder, LocalFolder::Create(path, path));
  EXPECT_EQ(folder.removed().size(), 1u);
  const std::vector<std::string> deleted = Deleted(watch);
  close(watch);
  ASSERT_EQ(deleted.size(), 7u);
  EXPECT_EQ(deleted.back(), ".lock");
  EXPECT_TRUE(std::filesystem::exists(of_the_user));
}

TEST(LocalFolderTest, APublicationThatFailsLeavesNothing) {
  const std::string path = ::testing::TempDir() + "/local_folder_published/new";
  ASSERT_OK_AND_ASSIGN(auto folder, LocalFolder::Create(path, path));
  const std::string temporary = folder.temporary_path();
  std::filesystem::remove(temporary + "/.lock");
  std::filesystem::create_directories(temporary + "/.lock/in_it");  // cannot be deleted as a file
  EXPECT_FALSE(folder.Publish().ok());
  EXPECT_FALSE(std::filesystem::exists(path));
  folder.Abandon();
  EXPECT_TRUE(std::filesystem::is_empty(std::filesystem::path(path).parent_path()));
  ASSERT_OK_AND_ASSIGN(auto again, LocalFolder::Create(path, path));
  ASSERT_OK(again.Publish());
}

}  // namespace
}  // namespace tessera
