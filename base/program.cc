#include "base/program.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <new>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/no_memory.h"
#include "base/text.h"

namespace tessera {
namespace {

bool HasLostReader() {
  pollfd outputs[] = {{STDOUT_FILENO, 0, 0}, {STDERR_FILENO, 0, 0}};
  constexpr int kGone = POLLERR | POLLHUP;
  return poll(outputs, 2, 0) > 0 && ((outputs[0].revents | outputs[1].revents) & kGone) != 0;
}

// A broken connection to a store raises the same signal, and is an error of the call that wrote.
void EndIfUnread(int signal) {
  const int error = errno;
  if (HasLostReader()) {
    std::signal(signal, SIG_DFL);
    raise(signal);  // takes effect when the handler returns
  }
  errno = error;
}

void SetSignal(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigaction(signal, &action, nullptr);
}

Program running;                                // for EndWithoutMemory()
std::terminate_handler usual_end = std::abort;  // without it

// Ends the program with a sentence if memory is missing in a destructor or another function that
// may not throw, as nlohmann's values allocate while they are destroyed. Other exceptions end it as
// usual.
[[noreturn]] void EndWithoutMemory() {
  try {
    if (std::current_exception() != nullptr) std::rethrow_exception(std::current_exception());
  } catch (const std::bad_alloc& error) {
    try {
      PrintError(running.name, std::string(NoMemoryStatus(error, "").message()));
    } catch (...) {  // the sentence needs memory, too
    }
    _exit(running.failure_code);
  } catch (...) {
  }
  usual_end();
  std::abort();
}

// Writes what is still in buffers. Returns 0, or the error.
int FlushOutput() {
  errno = 0;
  std::cout.flush();
  const bool ok = std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good();
  if (ok) return 0;
  // The write that failed may be long past: another one tells why.
  if (errno == 0 && write(STDOUT_FILENO, "\n", 1) == 1) return EIO;
  return errno;
}

// Opens stdin, stdout and stderr if they are closed; `out_flags` are open()'s for the last two.
bool OpenMissingStandardStreams(int out_flags) {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) >= 0) continue;
    // open() returns the lowest free descriptor, which is this one.
    if (open("/dev/null", stream == STDIN_FILENO ? O_RDWR : out_flags) != stream) return false;
  }
  return true;
}

}  // namespace

void Print(std::string_view text, std::FILE* out) {
  const std::string shown = Printable(text);
  std::fwrite(shown.data(), 1, shown.size(), out);
}

void PrintError(std::string_view name, std::string_view message) {
  std::fflush(stdout);
  Print(absl::StrCat(View(name), ": ", View(message), "\n"), stderr);
}

int RunProgram(const Program& program, const std::function<int()>& body) {
  // A stdout for reading only makes the loss of a result an error of the write.
  if (!OpenMissingStandardStreams(program.prints_result ? O_RDONLY : O_RDWR)) {
    return program.failure_code;
  }
  running = program;
  if (std::get_terminate() != EndWithoutMemory) usual_end = std::set_terminate(EndWithoutMemory);
  SetSignal(SIGXFSZ, SIG_IGN);
  SetSignal(SIGPIPE, program.prints_result ? EndIfUnread : SIG_IGN);
  int exit_code = program.failure_code;
  try {
    exit_code = body();
  } catch (const std::bad_alloc& error) {
    PrintError(program.name, std::string(NoMemoryStatus(error, "").message()));
  } catch (const std::exception& error) {
    PrintError(program.name, absl::StrCat("a defect of this program: ", error.what()));
  }
  const int lost = FlushOutput();
  if (lost == 0 || !program.prints_result) return exit_code;
  PrintError(program.name, "the output is lost: cannot write to stdout: " +
                               std::generic_category().message(lost));
  return program.failure_code;
}

std::string EnvironmentVariable(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  return value == nullptr ? "" : value;
}

}  // namespace tessera
