#ifndef TESSERA_TESTS_SUPPORT_SMALL_DISK_H_
#define TESSERA_TESTS_SUPPORT_SMALL_DISK_H_

// A small file system, which a test can fill.

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "gtest/gtest.h"

namespace tessera {

class SmallDisk {
 public:
  // Mounts a file system of `bytes` at `folder`, for this process and those that it starts later.
  // Precondition: the threads of the process have ended.
  SmallDisk(std::filesystem::path folder, int64_t bytes) : folder_(std::move(folder)) {
    std::filesystem::create_directories(folder_);
    is_mounted_ = OwnNamespace() && mount("tmpfs", folder_.c_str(), "tmpfs", 0,
                                          ("size=" + std::to_string(bytes)).c_str()) == 0;
  }
  ~SmallDisk() {
    if (is_mounted_) umount2(folder_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  // Returns false if mounting is not permitted.
  bool is_mounted() const { return is_mounted_; }
  const std::filesystem::path& folder() const { return folder_; }

  // Fills the file system except for `bytes`.
  void Fill(int64_t bytes) const {
    struct statvfs room = {};
    ASSERT_EQ(statvfs(folder_.c_str(), &room), 0);
    const auto free = static_cast<int64_t>(room.f_bavail * room.f_frsize);
    const int file = open(Ballast().c_str(), O_WRONLY | O_CREAT, 0644);
    ASSERT_GE(file, 0);
    if (free > bytes) EXPECT_EQ(posix_fallocate(file, 0, free - bytes), 0);
    close(file);
  }
  void MakeRoom() const { std::filesystem::remove(Ballast()); }
  void MakeReadOnly() const {
    EXPECT_EQ(mount(nullptr, folder_.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr), 0);
  }

 private:
  std::filesystem::path Ballast() const { return folder_ / "ballast"; }

  // Hides the mounts of this process from others.
  static bool OwnNamespace() {
    static const bool done = [] {
      if (!HasOneThread()) {
        ADD_FAILURE() << "mounting takes a process of one thread, and this one has more";
        return false;
      }
      const uid_t user = getuid();
      const gid_t group = getgid();
      if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
      std::ofstream("/proc/self/setgroups") << "deny";
      std::ofstream("/proc/self/gid_map") << "0 " << group << " 1";
      std::ofstream("/proc/self/uid_map") << "0 " << user << " 1";
      return mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
    }();
    return done;
  }

  // Waits for threads of the kernel's, which end when they had no I/O for seconds.
  static bool HasOneThread() {
    const auto count = [] {
      return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
    };
    for (int wait = 0; wait < 400 && count() > 1; ++wait) usleep(50'000);
    return count() == 1;
  }

  std::filesystem::path folder_;
  bool is_mounted_ = false;
};

}  // namespace tessera

#endif  // TESSERA_TESTS_SUPPORT_SMALL_DISK_H_
