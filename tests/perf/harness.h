#ifndef TESSERA_TESTS_PERF_HARNESS_H_
#define TESSERA_TESTS_PERF_HARNESS_H_

// Common parts of this folder's programs:
// - rounds, each announced by a line on standard error, and ratios of two measurements within a
//   round;
// - lines `figure NAME VALUE UNIT` on standard output;
// - a folder for files, and ranks.

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace tessera {

// Returns the seconds of a clock that never goes back.
double Now();
// Returns the processor time of this process, which other load on the machine hardly changes.
double ProcessorSeconds();
// Returns the largest resident memory that this process has had.
double PeakResidentBytes();

// Returns the median; the mean of the two middle values for an even number. Precondition: not
// empty.
double Median(std::vector<double> values);
// Returns the median duration of `work` in seconds, after one run that does not count: of five
// runs, or of as many as take `least_seconds`, but at most 51.
double MedianSeconds(absl::FunctionRef<void()> work, double least_seconds = 0);

void PrintFigure(const std::string& name, double value, const char* unit = "ratio");

// Calls body(round) for each round, and announces it before.
absl::Status ForEachRound(int rounds, absl::FunctionRef<absl::Status(int round)> body);

// The measurements of two sides of a comparison, pair by pair within rounds.
class Pairs {
 public:
  void Add(double ours, double theirs) {
    ours_.push_back(ours);
    theirs_.push_back(theirs);
  }
  double ours() const { return Median(ours_); }
  double theirs() const { return Median(theirs_); }
  // Returns the median of ours over theirs.
  double Ratio() const;
  // Prints the medians of both rates, in bytes per second, and all ratios, and the figures
  // `PREFIX.RATIO` and `PREFIX.rate`.
  void PrintRates(const std::string& prefix, const std::string& ratio,
                  const std::string& limit) const;

 private:
  std::vector<double> ours_, theirs_;
};

// Runs `body`, prints its error if it fails, and returns the exit code of the program.
int RunProgram(const char* name, absl::FunctionRef<absl::Status()> body);

// Calls `body` with the folder `given` or, if it is empty, with a new one below /tmp, which is
// removed afterwards.
absl::Status WithFolder(const std::string& given,
                        absl::FunctionRef<absl::Status(const std::string& folder)> body);

// Runs this program with other flags on `ranks` ranks under mpirun, and calls on_line for each line
// of its output. An error contains the whole output.
absl::Status RunRanks(int ranks, const std::string& flags,
                      absl::FunctionRef<void(const std::string& line)> on_line);

}  // namespace tessera

#endif  // TESSERA_TESTS_PERF_HARNESS_H_
