#include "tools/ckpt/progress_bar.h"

#include <string>

#include "absl/strings/str_format.h"
#include "base/units.h"

namespace tessera::ckpt {
namespace {

constexpr int kBarWidth = 40;

}  // namespace

ProgressBar::~ProgressBar() {
  if (drawn_) *stream_ << "\r\033[K" << std::flush;
}

void ProgressBar::Update(uint64_t done, uint64_t total) {
  const Clock::time_point now = Clock::now();
  if (stream_ == nullptr || (drawn_ && now - last_ < std::chrono::milliseconds(100))) return;
  drawn_ = true;
  last_ = now;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double part = total == 0 ? 1 : static_cast<double>(done) / total;
  const int filled = static_cast<int>(part * kBarWidth);
  *stream_ << absl::StreamFormat("\r[%s%s] %3.0f%%  %s  %s left \033[K", std::string(filled, '#'),
                                 std::string(kBarWidth - filled, ' '), part * 100,
                                 HumanRate(done, seconds),
                                 HumanSeconds(part > 0 ? seconds / part - seconds : -1))
           << std::flush;
}

}  // namespace tessera::ckpt
