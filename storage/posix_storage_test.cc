// Behaviour specific to an operating system's files: links, pipes, full and read-only disks.

#include "storage/posix_storage.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/testing.h"
#include "gtest/gtest.h"
#include "storage/aligned_buffer.h"
#include "storage/posix_file.h"
#include "storage/testing/fault_storage.h"

namespace tessera {
namespace {

using Names = std::vector<std::string>;

class PosixStorageTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(mkdir(root().c_str(), 0777), 0);
    ASSERT_EQ(mkdir(outside().c_str(), 0777), 0);
    std::ofstream(outside() + "/precious") << "precious";
    storage_ = *OpenPosixStorage(root());
  }

  std::string root() const { return directory_.path() + "/root"; }
  std::string outside() const { return directory_.path() + "/outside"; }
  std::string Precious() const {
    std::string contents;
    std::ifstream(outside() + "/precious") >> contents;
    return contents;
  }

  TestFolder directory_;
  std::unique_ptr<Storage> storage_;
};

TEST_F(PosixStorageTest, TheRootMustBeADirectory) {
  EXPECT_EQ(OpenPosixStorage(root() + "/none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(OpenPosixStorage(outside() + "/precious").status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenPosixStorage("").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenPosixStorage(root(), {.bounce_buffer_bytes = 1000}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenPosixStorage(root(), {.max_bounce_buffers = 0}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(PosixStorageTest, TheRootIsMadeWhereAsked) {
  EXPECT_EQ((*OpenPosixStorage("."))->Describe("a/b"), "a/b");
  for (const char* name : {"/a/b/c", "/a/b/d/", "/a//e", ""}) {
    ASSERT_OK_AND_ASSIGN(auto storage, OpenPosixStorage(root() + name, {.create_root = true}));
    EXPECT_OK(WriteAll(*storage, "file", "x"));
    EXPECT_TRUE(std::filesystem::exists(root() + name + "/file"));
  }
  EXPECT_EQ(OpenPosixStorage(outside() + "/precious/x", {.create_root = true}).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(PosixStorageTest, APrivateRootBelongsToItsUser) {
  EXPECT_OK(OpenPosixStorage(root(), {.private_to = geteuid()}));
  const absl::Status refused = OpenPosixStorage(root(), {.private_to = geteuid() + 1}).status();
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
  EXPECT_EQ(refused.message(), absl::StrCat(root(), " belongs to another user (", geteuid(), ")"));
}

TEST_F(PosixStorageTest, WhatCannotBeDeletedSaysWhy) {
  const absl::Status refused = (*OpenPosixStorage("/proc"))->DeleteTree("version");
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
}

TEST_F(PosixStorageTest, AVersionIsReplacedWhereOthersCanBeKeptOut) {
  EXPECT_TRUE(storage_->Traits().replaces_versions);
  ASSERT_OK_AND_ASSIGN(const std::string first, storage_->Write("file", "1", {}));
  ASSERT_OK(WriteAll(*storage_, "file.tmp-of-another", "2"));
  FaultInjectingStorage failing(*storage_);
  failing.FailWhere([](const Operation& call) { return call.kind == OperationKind::kDelete; },
                    absl::PermissionDeniedError("it stays"));
  const absl::Status written = failing.Write("file", "3", {.version = first}).status();
  EXPECT_TRUE(absl::IsPermissionDenied(written)) << written;
}

TEST_F(PosixStorageTest, AWriteWhoseNameMayBeLostIsAnError) {
  FaultInjectingStorage failing(*storage_);
  failing.FailWhere(
      [](const Operation& call) { return call.kind == OperationKind::kSyncDirectory; },
      absl::UnavailableError("the disk is gone"));
  const absl::Status written = failing.Write("file", "1", {}).status();
  EXPECT_TRUE(absl::IsUnavailable(written)) << written;
}

TEST_F(PosixStorageTest, OfABadPathTheBeginningIsShown) {
  const absl::Status refused = storage_->Delete(std::string(300, 'a'));
  EXPECT_EQ(refused.message(), absl::StrCat("Delete \"", std::string(200, 'a'),
                                            "\": the path has a component of more than 255 bytes"));
}

TEST_F(PosixStorageTest, StaysWithItsDirectory) {
  std::filesystem::rename(root(), directory_.path() + "/renamed");
  ASSERT_OK(WriteAll(*storage_, "file", "x"));
  EXPECT_TRUE(std::filesystem::exists(directory_.path() + "/renamed/file"));
}

TEST_F(PosixStorageTest, DeletingNeverFollowsLinks) {
  ASSERT_OK(storage_->MakeDirectory("tree/inner"));
  std::filesystem::create_directory_symlink(outside(), root() + "/tree/inner/directory");
  std::filesystem::create_symlink(outside() + "/precious", root() + "/tree/file");
  std::filesystem::create_symlink("nowhere", root() + "/tree/dangling");
  std::filesystem::create_directory_symlink(outside(), root() + "/link");
  std::filesystem::create_directory_symlink(outside(), root() + "/other_link");
  EXPECT_EQ(*storage_->List("tree"), Names({"dangling", "file", "inner/"}));
  EXPECT_EQ(*storage_->List(""), Names({"link/", "other_link/", "tree/"}));
  EXPECT_OK(storage_->DeleteTree("tree"));
  EXPECT_OK(storage_->DeleteTree("link"));
  EXPECT_OK(storage_->Delete("other_link"));
  EXPECT_EQ(*storage_->List(""), Names());
  EXPECT_EQ(Precious(), "precious");
}

TEST_F(PosixStorageTest, ReadingAndDirectoriesFollowLinks) {
  std::filesystem::create_symlink(outside() + "/precious", root() + "/file");
  std::filesystem::create_directory_symlink(outside(), root() + "/link");
  EXPECT_EQ(*ReadAll(*storage_, "file", 100), "precious");
  EXPECT_EQ(*ReadAll(*storage_, "link/precious", 100), "precious");
  EXPECT_EQ(*storage_->List("link"), Names({"precious"}));
}

TEST_F(PosixStorageTest, CreatingReplacesLinksAndNotWhatTheyLeadTo) {
  std::filesystem::create_symlink(outside() + "/precious", root() + "/symbolic");
  std::filesystem::create_hard_link(outside() + "/precious", root() + "/hard");
  for (const char* name : {"symbolic", "hard"}) {
    ASSERT_OK(WriteAll(*storage_, name, "new"));
    EXPECT_EQ(*ReadAll(*storage_, name, 100), "new");
    EXPECT_EQ(Precious(), "precious");
  }
}

TEST_F(PosixStorageTest, APipeIsNoFileAndDoesNotHang) {
  ASSERT_EQ(mkfifo((root() + "/pipe").c_str(), 0600), 0);
  EXPECT_EQ(storage_->Open("pipe").status().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_OK(WriteAll(*storage_, "pipe", "x"));
  EXPECT_EQ(*ReadAll(*storage_, "pipe", 100), "x");
}

TEST_F(PosixStorageTest, ALoopOfLinksIsAnError) {
  std::filesystem::create_symlink("loop", root() + "/loop");
  EXPECT_EQ(storage_->Open("loop").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(*storage_->List(""), Names({"loop"}));
  EXPECT_OK(storage_->DeleteTree("loop"));
}

// The kernel's answer to a bad sector, a file system's checksum error and the like.
int read_errno = 0;

TEST_F(PosixStorageTest, WhatTheDiskHasLostIsDataLossAndAnInputErrorIsNot) {
  ASSERT_OK(WriteAll(*storage_, "file", std::string(10'000, 'x')));
  internal::IoCalls calls;
  calls.pread = [](int, void*, size_t, off_t) -> ssize_t {
    errno = read_errno;
    return -1;
  };
  ASSERT_OK_AND_ASSIGN(const auto storage, OpenPosixStorage(root(), {.io_calls = &calls}));
  ASSERT_OK_AND_ASSIGN(const auto file, storage->Open("file"));
  std::vector<std::byte> out(100);
  for (const int error : {EIO, EBADMSG, EUCLEAN, ENODATA, ESTALE}) {
    read_errno = error;
    const absl::Status status = file->ReadAt(4321, out);
    EXPECT_EQ(status.code(), error == ESTALE || error == EIO ? absl::StatusCode::kUnavailable
                                                             : absl::StatusCode::kDataLoss)
        << status;
    EXPECT_NE(std::string(status.message()).find(storage_->Describe("file")), std::string::npos);
    EXPECT_NE(std::string(status.message()).find("at offset 4321"), std::string::npos) << status;
  }
}

int reads = 0;

// 4 MiB is what loads read at a time, at any offset.
TEST_F(PosixStorageTest, AMisalignedReadIsOneCall) {
  constexpr size_t kBytes = size_t{4} << 20;
  std::string contents(kBytes + 10'000, '\0');
  for (size_t i = 0; i < contents.size(); ++i) contents[i] = static_cast<char>(i % 251);
  ASSERT_OK(WriteAll(*storage_, "file", contents));
  internal::IoCalls calls;
  calls.pread = [](int fd, void* data, size_t size, off_t offset) {
    ++reads;
    return ::pread(fd, data, size, offset);
  };
  ASSERT_OK_AND_ASSIGN(const auto storage, OpenPosixStorage(root(), {.io_calls = &calls}));
  ASSERT_OK_AND_ASSIGN(const auto file, storage->Open("file"));
  std::vector<char> out(kBytes);
  reads = 0;
  ASSERT_OK(file->ReadAt(4321, std::as_writable_bytes(std::span(out))));
  EXPECT_EQ(reads, 1);
  EXPECT_TRUE(std::equal(out.begin(), out.end(), contents.begin() + 4321));
}

TEST_F(PosixStorageTest, AnAbandonedFileIsHarmless) {
  {
    ASSERT_OK_AND_ASSIGN(auto file, storage_->Create("file", 1 << 20));
    ASSERT_OK(file->WriteAt(0, std::as_bytes(std::span("abc", 3))));
  }
  ASSERT_OK(WriteAll(*storage_, "file", "whole"));
  EXPECT_EQ(*ReadAll(*storage_, "file", 100), "whole");
}

// Number of the file's pages that are in the cache.
size_t CachedPages(const std::string& path, size_t size_bytes) {
  const int fd = open(path.c_str(), O_RDONLY);
  void* mapped = mmap(nullptr, size_bytes, PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  if (mapped == MAP_FAILED) return 0;
  std::vector<unsigned char> resident((size_bytes + 4095) / 4096);
  EXPECT_EQ(mincore(mapped, size_bytes, resident.data()), 0);
  munmap(mapped, size_bytes);
  return std::count_if(resident.begin(), resident.end(), [](unsigned char r) { return r & 1; });
}

TEST_F(PosixStorageTest, LargeTransfersStayOutOfThePageCache) {
  const int probe = open((outside() + "/precious").c_str(), O_RDONLY | O_DIRECT);
  const bool supported = probe >= 0;
  close(probe);
  AlignedBuffer data = *AlignedBuffer::Allocate(8 << 20);
  for (bool direct_io : {true, false}) {
    for (size_t shift : {0, 1}) {
      auto storage = *OpenPosixStorage(root(), {.direct_io = direct_io});
      EXPECT_LE(storage->Traits().in_place_alignment_bytes, direct_io ? kIoAlignmentBytes : 0);
      const size_t size = data.size_bytes() - 4096;
      ASSERT_OK_AND_ASSIGN(auto writer, storage->Create("file", size));
      ASSERT_OK(writer->WriteAt(0, data.span().subspan(shift, size)));
      ASSERT_OK(writer->Sync());
      ASSERT_OK(writer->Close());
      ASSERT_OK_AND_ASSIGN(auto reader, storage->Open("file"));
      ASSERT_OK(reader->ReadAt(0, data.span().subspan(shift, size)));
      const size_t cached = CachedPages(root() + "/file", size);
      if (direct_io && supported) {
        EXPECT_EQ(cached, 0);
      } else {
        EXPECT_GT(cached, size / 4096 / 2);
      }
    }
  }
}

// Runs `body` in a child process, so that its limits and mounts affect no other process. Returns
// what `body` returned: a description of the failure, or "".
std::string InChild(const std::function<std::string()>& body) {
  int pipe_fds[2];
  if (pipe(pipe_fds) != 0) return "no pipe";
  const pid_t child = fork();
  if (child < 0) return "no process";
  if (child == 0) {
    const std::string problem = body();
    // One atomic write: messages are shorter than PIPE_BUF.
    const ssize_t n = write(pipe_fds[1], problem.data(), std::min<size_t>(problem.size(), 4096));
    _exit(n < 0 ? 1 : 0);
  }
  close(pipe_fds[1]);
  std::string problem;
  char buffer[4096];
  for (ssize_t n; (n = read(pipe_fds[0], buffer, sizeof(buffer))) > 0;) problem.append(buffer, n);
  close(pipe_fds[0]);
  int status = 0;
  if (waitpid(child, &status, 0) != child || status != 0) {
    absl::StrAppend(&problem, " (the child ended with status ", status, ")");
  }
  return problem;
}

void WriteProcFile(const char* path, const std::string& text) { std::ofstream(path) << text; }

constexpr char kNoMount[] = "mounting is not permitted here (needs: mount)";

// Mounts a tmpfs of 1 MiB that only this process sees. Tries as root, then as root of a new user
// namespace.
bool MountSmallTmpfs(const std::string& at) {
  const uid_t uid = getuid();
  const gid_t gid = getgid();
  if (unshare(CLONE_NEWNS) != 0) {
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
    WriteProcFile("/proc/self/setgroups", "deny");
    WriteProcFile("/proc/self/uid_map", absl::StrCat("0 ", uid, " 1"));
    WriteProcFile("/proc/self/gid_map", absl::StrCat("0 ", gid, " 1"));
  }
  return mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("tmpfs", at.c_str(), "tmpfs", 0, "size=1m") == 0;
}

#define REQUIRE(condition, detail)                                                   \
  do {                                                                               \
    if (!(condition)) return absl::StrCat(__LINE__, ": " #condition ": ", (detail)); \
  } while (false)

bool Says(const absl::Status& status, absl::StatusCode code, const std::string& text) {
  return status.code() == code && std::string(status.message()).find(text) != std::string::npos;
}

// For a place with room for little more than a megabyte.
std::string FillDisk(const std::string& root) {
  constexpr auto kFull = absl::StatusCode::kResourceExhausted;
  auto storage = *OpenPosixStorage(root);
  absl::Status status = WriteAll(*storage, "old", std::string(100'000, 'o'));
  REQUIRE(status.ok(), status.ToString());
  status = storage->Create("hinted", 4 << 20).status();
  REQUIRE(Says(status, kFull, "4194304 bytes needed"), status.ToString());
  REQUIRE(Says(status, kFull, storage->Describe("hinted")), status.ToString());
  REQUIRE(*storage->List("") == Names({"old"}), "the refused file is still there");

  for (size_t piece_bytes : {size_t{10'000}, size_t{65'536}, size_t{200'001}, size_t{3 << 20}}) {
    auto file = storage->Create("new", 0);
    REQUIRE(file.ok(), file.status().ToString());
    AlignedBuffer piece = *AlignedBuffer::Allocate(piece_bytes);
    uint64_t offset = 0;
    for (status = absl::OkStatus(); status.ok() && offset < 4 << 20; offset += piece_bytes) {
      status = (*file)->WriteAt(offset, piece.span());
    }
    REQUIRE(Says(status, kFull, storage->Describe("new")), status.ToString());
    REQUIRE(Says(status, kFull, "WriteAt"), status.ToString());
    REQUIRE((*file)->Close().ok(), "closing");
    REQUIRE(*ReadAll(*storage, "old", 1 << 20) == std::string(100'000, 'o'), "old has changed");
    REQUIRE(storage->Delete("new").ok(), "deleting");
  }
  status = WriteAll(*storage, "new", std::string(500'000, 'n'));
  REQUIRE(status.ok(), status.ToString());
  return "";
}

std::string FillLimitedFile(const std::string& root) {
  signal(SIGXFSZ, SIG_IGN);
  const rlimit limit = {1 << 20, 1 << 20};
  if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return "cannot set RLIMIT_FSIZE";
  return FillDisk(root);
}

TEST_F(PosixStorageTest, AFullDiskIsReportedAndHurtsNothing) {
  const std::string problem = InChild([this]() -> std::string {
    if (!MountSmallTmpfs(root())) return kNoMount;
    const absl::StatusOr<uint64_t> free_bytes = (*OpenPosixStorage(root()))->FreeBytes();
    REQUIRE(free_bytes.ok() && *free_bytes <= 1 << 20, "free bytes");
    return FillDisk(root());
  });
  if (problem == kNoMount) GTEST_SKIP() << problem;
  EXPECT_EQ(problem, "");
}

TEST_F(PosixStorageTest, ADiskWithoutInodesIsReportedAsSuch) {
  const std::string problem = InChild([this]() -> std::string {
    if (!MountSmallTmpfs(root())) return kNoMount;
    REQUIRE(mount(nullptr, root().c_str(), nullptr, MS_REMOUNT, "nr_inodes=2") == 0, "mount");
    const auto storage = *OpenPosixStorage(root());
    REQUIRE(WriteAll(*storage, "first", "x").ok(), "there is one inode");
    const auto lacks_inodes = [](const absl::Status& status) {
      return Says(status, absl::StatusCode::kResourceExhausted, " device (no inode is free)");
    };
    REQUIRE(lacks_inodes(storage->Create("second", 0).status()), "a file");
    REQUIRE(lacks_inodes(storage->MakeDirectory("second")), "a directory");
    std::ofstream(root() + "/first") << std::string(2 << 20, 'x');
    REQUIRE(!lacks_inodes(storage->MakeDirectory("second")), "space is lacking, too");
    return "";
  });
  if (problem == kNoMount) GTEST_SKIP() << problem;
  EXPECT_EQ(problem, "");
}

TEST_F(PosixStorageTest, AFileBeyondTheProcessLimitIsReportedAndHurtsNothing) {
  EXPECT_EQ(InChild([this] { return FillLimitedFile(root()); }), "");
}

TEST_F(PosixStorageTest, LocalPathsLeadThereFromAnyDirectory) {
  EXPECT_EQ(InChild([this]() -> std::string {
              REQUIRE(chdir(directory_.path().c_str()) == 0, std::strerror(errno));
              const auto storage = *OpenPosixStorage("root");
              REQUIRE(chdir("/") == 0, std::strerror(errno));
              REQUIRE(storage->LocalPath("") == root(), *storage->LocalPath(""));
              REQUIRE(storage->LocalPath("a") == root() + "/a", *storage->LocalPath("a"));
              return "";
            }),
            "");
}

TEST_F(PosixStorageTest, LocalPathsFollowARootThatIsRenamed) {
  const std::string moved = directory_.path() + "/moved";
  std::filesystem::rename(root(), moved);
  EXPECT_EQ(storage_->LocalPath("a"), moved + "/a");
  std::filesystem::rename(moved, root());
  EXPECT_EQ(storage_->LocalPath(""), root());
  std::filesystem::remove(root());
  EXPECT_EQ(storage_->LocalPath("a"), root() + "/a");
}

std::string ExpectReadOnly(Storage& storage) {
  constexpr auto kDenied = absl::StatusCode::kPermissionDenied;
  const auto denied = [&storage](const absl::Status& status, const char* operation) {
    return Says(status, kDenied, operation) && Says(status, kDenied, storage.Describe(""));
  };
  absl::Status status = storage.Create("new", 0).status();
  REQUIRE(denied(status, "Create"), status.ToString());
  status = storage.Create("file", 100'000).status();
  REQUIRE(denied(status, "Create"), status.ToString());
  status = storage.MakeDirectory("new");
  REQUIRE(denied(status, "MakeDirectory"), status.ToString());
  status = storage.Rename("file", "other");
  REQUIRE(denied(status, "Rename"), status.ToString());
  status = storage.Delete("file");
  REQUIRE(denied(status, "Delete"), status.ToString());
  status = storage.DeleteTree("d");
  REQUIRE(denied(status, "DeleteTree"), status.ToString());
  REQUIRE(storage.MakeDirectory("d").ok(), "making what is there");
  REQUIRE(*ReadAll(storage, "file", 100) == "x", "contents");
  REQUIRE(*storage.List("") == Names({"d/", "file"}), "names");
  return "";
}

// Afterwards even root obeys the permission bits.
bool DropCapabilities() {
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2] = {};
  return syscall(SYS_capset, &header, none) == 0;
}

TEST_F(PosixStorageTest, ADirectoryWithoutWritePermission) {
  ASSERT_OK(storage_->MakeDirectory("d"));
  ASSERT_OK(WriteAll(*storage_, "file", "x"));
  ASSERT_EQ(chmod(root().c_str(), 0555), 0);
  EXPECT_EQ(InChild([this]() -> std::string {
              REQUIRE(DropCapabilities(), "capset");
              return ExpectReadOnly(*storage_);
            }),
            "");
  ASSERT_EQ(chmod(root().c_str(), 0777), 0);
}

TEST_F(PosixStorageTest, WhatCanBeDeletedOfATreeIsDeleted) {
  for (const std::string name : {"tree/a", "tree/locked/file", "tree/z"}) {
    ASSERT_OK(storage_->MakeDirectory(name.substr(0, name.rfind('/'))));
    ASSERT_OK(WriteAll(*storage_, name, "x"));
  }
  const std::string locked = root() + "/tree/locked";
  ASSERT_EQ(chmod(locked.c_str(), 0555), 0);
  const std::string said = InChild([this]() -> std::string {
    REQUIRE(DropCapabilities(), "capset");
    return storage_->DeleteTree("tree").ToString();
  });
  EXPECT_NE(said.find("tree/locked/file: Permission denied"), said.npos) << said;
  EXPECT_EQ(*storage_->List("tree"), Names({"locked/"}));
  ASSERT_EQ(chmod(locked.c_str(), 0777), 0);
}

TEST_F(PosixStorageTest, AFileWithoutReadPermission) {
  ASSERT_OK(WriteAll(*storage_, "secret", "x"));
  ASSERT_EQ(chmod((root() + "/secret").c_str(), 0), 0);
  EXPECT_EQ(InChild([this]() -> std::string {
              REQUIRE(DropCapabilities(), "capset");
              const absl::Status status = storage_->Open("secret").status();
              REQUIRE(
                  Says(status, absl::StatusCode::kPermissionDenied, storage_->Describe("secret")),
                  status.ToString());
              return "";
            }),
            "");
}

TEST_F(PosixStorageTest, AReadOnlyFileSystem) {
  const std::string problem = InChild([this]() -> std::string {
    if (!MountSmallTmpfs(root())) return kNoMount;
    auto storage = *OpenPosixStorage(root());
    REQUIRE(storage->MakeDirectory("d").ok(), "directory");
    REQUIRE(WriteAll(*storage, "file", "x").ok(), "file");
    REQUIRE(mount(nullptr, root().c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) == 0,
            std::strerror(errno));
    return ExpectReadOnly(*storage);
  });
  if (problem == kNoMount) GTEST_SKIP() << problem;
  EXPECT_EQ(problem, "");
}

}  // namespace
}  // namespace tessera
