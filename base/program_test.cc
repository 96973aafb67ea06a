#include "base/program.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <new>
#include <stdexcept>

#include "base/files.h"
#include "base/no_memory.h"
#include "base/testing.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

constexpr Program kResult = {.name = "tool", .prints_result = true, .failure_code = 2};
constexpr Program kRun = {.name = "run"};

struct End {
  int exit_code = 0;  // 128 + signal after a death by signal
  std::string err;
};

// Runs the program in a process of its own, which `prepare` sets up.
End RunInAChild(const Program& program, const std::function<void()>& prepare,
                const std::function<int()>& body) {
  const TestFolder folder;
  const std::string err = folder.Write("err", "");
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    dup2(open(err.c_str(), O_WRONLY | O_APPEND), STDERR_FILENO);
    prepare();
    _exit(RunProgram(program, body));
  }
  int status = 0;
  waitpid(child, &status, 0);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
          ReadWholeFile(err).value_or("?")};
}

void PutInPlaceOf(int stream, int fd) {
  dup2(fd, stream);
  close(fd);
}

void LoseTheReader(int stream) {
  int ends[2];
  if (pipe(ends) != 0) _exit(100);
  close(ends[0]);
  PutInPlaceOf(stream, ends[1]);
}

int WriteALot() {
  for (int i = 0; i < 1000; ++i) {
    Print("a line\n");
    std::fflush(stdout);
  }
  return 7;
}

TEST(RunProgramTest, AResultThatNobodyReadsEndsTheProgramQuietly) {
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    const End end = RunInAChild(
        kResult, [&] { LoseTheReader(stream); },
        [&] {
          std::fputs("a line\n", stream == STDOUT_FILENO ? stdout : stderr);
          return std::fflush(nullptr), 7;
        });
    EXPECT_EQ(end.exit_code, 128 + SIGPIPE);
    EXPECT_EQ(end.err, "");
  }
}

TEST(RunProgramTest, ARunDoesNotNeedAReader) {
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    const End end = RunInAChild(
        kRun, [&] { LoseTheReader(stream); },
        [] {
          PrintError("run", "a message");
          return WriteALot();
        });
    EXPECT_EQ(end.exit_code, 7) << stream;
  }
}

// As a store that closes a connection does.
TEST(RunProgramTest, ABrokenConnectionIsAnErrorOfTheCall) {
  for (const Program& program : {kResult, kRun}) {
    const End end = RunInAChild(
        program, [] { PutInPlaceOf(STDOUT_FILENO, open("/dev/null", O_WRONLY)); },
        [] {
          int ends[2];
          if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return 100;
          close(ends[0]);
          return write(ends[1], "x", 1) < 0 && errno == EPIPE ? 7 : 101;
        });
    EXPECT_EQ(end.exit_code, 7) << program.name;
  }
}

TEST(RunProgramTest, AFileThatMayNotGrowIsAnErrorOfTheCall) {
  for (const Program& program : {kResult, kRun}) {
    const End end = RunInAChild(
        program,
        [] {
          const rlimit none = {0, 0};
          setrlimit(RLIMIT_FSIZE, &none);
          std::signal(SIGXFSZ, SIG_DFL);
        },
        [] {
          std::FILE* const file = std::tmpfile();
          return write(fileno(file), "x", 1) < 0 && errno == EFBIG ? 7 : 101;
        });
    EXPECT_EQ(end.exit_code, 7) << program.name;
  }
}

TEST(RunProgramTest, AResultThatCannotBeWrittenIsAnError) {
  const auto full = [] { PutInPlaceOf(STDOUT_FILENO, open("/dev/full", O_WRONLY)); };
  const auto closed = [] { close(STDOUT_FILENO); };
  const auto print = [] { return std::fputs("a line\n", stdout), 7; };
  const End lost = RunInAChild(kResult, full, print);
  EXPECT_EQ(lost.exit_code, 2);
  EXPECT_EQ(lost.err,
            "tool: the output is lost: cannot write to stdout: No space left on device\n");
  const End nowhere = RunInAChild(kResult, closed, print);
  EXPECT_EQ(nowhere.exit_code, 2);
  EXPECT_EQ(nowhere.err, "tool: the output is lost: cannot write to stdout: Bad file descriptor\n");
  EXPECT_EQ(RunInAChild(kRun, full, print).exit_code, 7);
  EXPECT_EQ(RunInAChild(kRun, closed, print).exit_code, 7);
}

TEST(RunProgramTest, MissingMemoryIsASentence) {
  const End plain = RunInAChild(
      kRun, [] {}, []() -> int { throw std::bad_alloc(); });
  EXPECT_EQ(plain.exit_code, 1);
  EXPECT_EQ(plain.err,
            "run: not enough memory: the system gives no more; the limit may be the machine's, the "
            "control group's or that of ulimit -v\n");
  const End known = RunInAChild(
      kResult, [] {}, []() -> int { throw NoMemory("5 bytes"); });
  EXPECT_EQ(known.exit_code, 2);
  EXPECT_EQ(known.err.substr(0, 38), "tool: not enough memory: 5 bytes; the ");
}

int LackMemory() { throw std::bad_alloc(); }

// As in a destructor, from which no exception may come.
TEST(RunProgramTest, MissingMemoryIsASentenceWhereNothingMayBeThrown) {
  const End end = RunInAChild(
      kResult, [] {}, []() noexcept { return LackMemory(); });
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_EQ(end.err.substr(0, 42), "tool: not enough memory: the system gives ");
}

TEST(RunProgramTest, AnExceptionIsASentence) {
  const End end = RunInAChild(
      kResult, [] {}, []() -> int { throw std::out_of_range("map::at"); });
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_EQ(end.err, "tool: a defect of this program: map::at\n");
}

// Without the `closed` streams, as many descriptors are taken when a program opens its first file.
TEST(RunProgramTest, AFileNeverTakesThePlaceOfAStandardStream) {
  const auto first_file = [](const Program& program, const std::string& closed) {
    return RunInAChild(
               program,
               [&] {
                 for (const char stream : closed) close(stream - '0');
               },
               [] { return open("/dev/zero", O_RDONLY); })
        .exit_code;
  };
  const int usual = first_file(kRun, "");
  ASSERT_GT(usual, STDERR_FILENO);
  for (const char* closed : {"0", "1", "2", "01", "12", "02", "012"}) {
    EXPECT_EQ(first_file(kRun, closed), usual) << "closed: " << closed;
    EXPECT_EQ(first_file(kResult, closed), usual) << "closed: " << closed;
  }
}

TEST(PrintTest, WhatATerminalWouldObeyIsEscaped) {
  const End end = RunInAChild(
      kRun, [] {},
      [] {
        PrintError("run",
                   "name \x1b[2J\x9b"
                   "31m");
        return 7;
      });
  EXPECT_EQ(end.exit_code, 7);
  EXPECT_EQ(end.err, "run: name \\u001b[2J\\x9b31m\n");
}

}  // namespace
}  // namespace tessera
