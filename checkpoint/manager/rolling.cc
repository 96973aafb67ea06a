#include "checkpoint/manager/rolling.h"

#include <algorithm>
#include <random>

#include "absl/strings/str_format.h"

namespace tessera::ckpt {

std::string MakeRollingAttempt() { return absl::StrFormat("%08x", std::random_device()()); }

bool IsRollingAttempt(std::string_view name) {
  return name.size() == 8 && std::ranges::all_of(name, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

}  // namespace tessera::ckpt
