#include "base/threads.h"

#include <atomic>
#include <cerrno>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

std::atomic<int> threads_left = -1;

bool TakeThread() {
  int left = threads_left.load();
  while (left > 0 && !threads_left.compare_exchange_weak(left, left - 1)) {
  }
  return left != 0;
}

absl::Status NoThread(const std::string& reason) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "cannot start a thread (", reason,
      "): raise the limit on processes (ulimit -u, or pids.max of the control group)"));
}

}  // namespace

absl::StatusOr<std::thread> StartThread(std::function<void()> body) {
  if (!TakeThread()) return NoThread(std::generic_category().message(EAGAIN));
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    return NoThread(error.code().message());
  }
}

std::vector<std::thread> StartThreads(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  if (count <= 0) return threads;
  threads.reserve(count);
  for (int i = 0; i < count; ++i) {
    absl::StatusOr<std::thread> thread = StartThread([body, i] { body(i); });
    if (!thread.ok()) break;
    threads.push_back(*std::move(thread));
  }
  return threads;
}

void LimitThreads(int left) { threads_left.store(left); }

}  // namespace tessera
