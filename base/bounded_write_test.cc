#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "base/files.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;

std::string ReadAll(int fd) {
  std::string text;
  std::array<char, 4096> some;
  for (ssize_t bytes; (bytes = read(fd, some.data(), some.size())) > 0;) {
    text.append(some.data(), bytes);
  }
  return text;
}

// Writes bytes to a descriptor until it accepts no more. Returns their number.
size_t Fill(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  fcntl(fd, F_SETFL, flags | O_NONBLOCK);
  const std::string some(512, '.');
  size_t bytes = 0;
  for (ssize_t written; (written = write(fd, some.data(), some.size())) > 0;) bytes += written;
  fcntl(fd, F_SETFL, flags);
  return bytes;
}

class BoundedWriteTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    ASSERT_EQ(GetParam() ? socketpair(AF_UNIX, SOCK_STREAM, 0, ends_.data()) : pipe(ends_.data()),
              0);
    if (GetParam()) std::swap(ends_[0], ends_[1]);
  }
  void TearDown() override {
    close(ends_[0]);
    close(ends_[1]);
  }
  std::array<int, 2> ends_;  // for reading and for writing
};

INSTANTIATE_TEST_SUITE_P(Kinds, BoundedWriteTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Socket" : "Pipe"; });

TEST_P(BoundedWriteTest, WritesAll) {
  const std::string text(1000, 'x');
  EXPECT_TRUE(WriteBounded(ends_[1], text, milliseconds(60000)));
  std::string found(text.size(), ' ');
  EXPECT_EQ(read(ends_[0], found.data(), found.size()), 1000);
  EXPECT_EQ(found, text);
}

// Returns at all: write() would wait forever.
TEST_P(BoundedWriteTest, GivesUpWhereNobodyReads) {
  Fill(ends_[1]);
  EXPECT_FALSE(WriteBounded(ends_[1], "last words", milliseconds(20)));
  EXPECT_FALSE(WriteBounded(ends_[1], std::string(1 << 20, 'x'), milliseconds(20)));
  // The descriptor still blocks.
  EXPECT_EQ(fcntl(ends_[1], F_GETFL) & O_NONBLOCK, 0);
}

TEST_P(BoundedWriteTest, WaitsForASlowReader) {
  const size_t before = Fill(ends_[1]);
  std::string text;
  std::thread reader([&] { text = ReadAll(ends_[0]); });
  const std::string words(1 << 20, 'x');
  EXPECT_TRUE(WriteBounded(ends_[1], words, milliseconds(60000)));
  close(ends_[1]);
  reader.join();
  ends_[1] = -1;
  EXPECT_EQ(text.size(), before + words.size());
  EXPECT_EQ(text.substr(before), words);
}

TEST(BoundedWriteFileTest, WritesAtTheFilesOffsetAndRefusesClosedDescriptors) {
  const std::string path = testing::TempDir() + "/bounded_write";
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(write(fd, "one ", 4), 4);
  EXPECT_TRUE(WriteBounded(fd, "two", milliseconds(60000)));
  ASSERT_EQ(write(fd, " three", 6), 6);
  ASSERT_EQ(lseek(fd, 0, SEEK_SET), 0);
  EXPECT_EQ(ReadAll(fd), "one two three");
  close(fd);
  EXPECT_FALSE(WriteBounded(fd, "four", milliseconds(20)));
}

}  // namespace
}  // namespace tessera
