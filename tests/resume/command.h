#ifndef TESSERA_TESTS_RESUME_COMMAND_H_
#define TESSERA_TESTS_RESUME_COMMAND_H_

// Runs commands as a user does.

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/read_whole_file.h"

namespace tessera {

// Empty where it cannot be read.
inline std::string ReadFile(const std::filesystem::path& path) {
  return ReadWholeFile(path.string()).value_or("");
}

// The data file of a checkpoint whose name begins like this; an attempt's name follows, which no
// test knows. Empty where there is none.
inline std::filesystem::path DataFile(const std::filesystem::path& checkpoint,
                                      const std::string& start) {
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint)) {
    if (entry.path().filename().string().starts_with(start)) return entry.path();
  }
  return {};
}

// The file of another checkpoint that differs from `file` in the attempt's name alone.
inline std::filesystem::path Counterpart(const std::filesystem::path& file,
                                         const std::filesystem::path& checkpoint) {
  const std::string name = file.filename();
  return DataFile(checkpoint, name.substr(0, name.rfind('-') + 1));
}

struct Result {
  int exit_code = 0;  // 128 + signal for a death by signal
  std::string out;
  std::string err;
};

// A running command, whose output goes to files. Open MPI's files lie in the scratch folder, too:
// their usual names contain a process id, which tests that run in process id namespaces of their
// own can have in common.
class Process {
 public:
  Process(const std::vector<std::string>& command, const std::filesystem::path& scratch)
      : out_(scratch / "stdout"), err_(scratch / "stderr") {
    const std::filesystem::path temporary = scratch / "tmp";
    std::filesystem::create_directories(temporary);
    pid_ = fork();
    if (pid_ != 0) return;
    setenv("TMPDIR", temporary.c_str(), /*overwrite=*/1);
    setenv("OMPI_MCA_btl_vader_backing_directory", temporary.c_str(), /*overwrite=*/1);
    dup2(open(out_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), STDOUT_FILENO);
    dup2(open(err_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), STDERR_FILENO);
    std::vector<char*> argv;
    for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    _exit(127);
  }

  pid_t pid() const { return pid_; }
  void Kill(int signal) const { kill(pid_, signal); }
  // Valid until Wait().
  bool Ended() const {
    siginfo_t info = {};
    waitid(P_PID, pid_, &info, WEXITED | WNOHANG | WNOWAIT);
    return info.si_pid != 0;
  }

  Result Wait() const {
    int status = 0;
    waitpid(pid_, &status, 0);
    return {.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
            .out = ReadFile(out_),
            .err = ReadFile(err_)};
  }

 private:
  std::filesystem::path out_;
  std::filesystem::path err_;
  pid_t pid_ = -1;
};

}  // namespace tessera

#endif  // TESSERA_TESTS_RESUME_COMMAND_H_
