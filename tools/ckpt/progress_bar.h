#ifndef TESSERA_TOOLS_CKPT_PROGRESS_BAR_H_
#define TESSERA_TOOLS_CKPT_PROGRESS_BAR_H_

#include <chrono>
#include <cstdint>
#include <ostream>

namespace tessera::ckpt {

// One line that is redrawn at most ten times a second, and erased at the end.
class ProgressBar {
 public:
  // `stream` may be null: nothing is shown.
  explicit ProgressBar(std::ostream* stream) : stream_(stream), start_(Clock::now()) {}
  ~ProgressBar();

  void Update(uint64_t done, uint64_t total);

 private:
  using Clock = std::chrono::steady_clock;
  std::ostream* const stream_;
  const Clock::time_point start_;
  Clock::time_point last_;
  bool drawn_ = false;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_TOOLS_CKPT_PROGRESS_BAR_H_
