#ifndef TESSERA_BASE_PROGRAM_H_
#define TESSERA_BASE_PROGRAM_H_

#include <cstdio>
#include <functional>
#include <string>
#include <string_view>

namespace tessera {

struct Program {
  const char* name = nullptr;  // begins its messages
  // True: the program is run for its output. It ends quietly, as by SIGPIPE, once nobody reads the
  // output; output that cannot be written and a missing stdout are errors. False: the program is
  // run for the files that it writes, and continues without output.
  bool prints_result = false;
  int failure_code = 1;  // exit code where output is lost or memory is missing
};

// Runs a whole program and returns its exit code, as a rule the one that `body` returns. Before
// `body`:
// - /dev/null is opened for each of stdin, stdout and stderr that the parent process left closed.
//   Otherwise a file opened later would get the free descriptor and receive what is printed.
// - SIGXFSZ and SIGPIPE no longer end the process, whatever the parent has set. A write beyond the
//   limit of a file's size fails with EFBIG, a write to a pipe or a socket without a reader with
//   EPIPE.
//
// A std::bad_alloc from `body` ends the program with a sentence.
int RunProgram(const Program& program, const std::function<int()>& body);

// Prints text that may have come from any file, as Printable() shows it. Programs print only with
// Print() and PrintError().
void Print(std::string_view text, std::FILE* out = stdout);
// Prints "NAME: MESSAGE" and a line break on stderr.
void PrintError(std::string_view name, std::string_view message);

// Returns a variable of the environment; "" where it is not set.
std::string EnvironmentVariable(const std::string& name);

// Receives sentences for the user, one a call, without a line break.
using NoteSink = std::function<void(const std::string&)>;

}  // namespace tessera

#endif  // TESSERA_BASE_PROGRAM_H_
