#ifndef TESSERA_BASE_JOIN_FIRST_H_
#define TESSERA_BASE_JOIN_FIRST_H_

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace tessera {

// For messages: the first ten items, then "and 146 more" if there are more.
inline std::string JoinFirst(const std::vector<std::string>& items, absl::string_view separator) {
  constexpr size_t kMost = 10;
  const size_t shown = std::min(items.size(), kMost);
  std::string text = absl::StrJoin(items.begin(), items.begin() + shown, separator);
  if (shown < items.size())
    absl::StrAppend(&text, separator, "and ", items.size() - shown, " more");
  return text;
}

}  // namespace tessera

#endif  // TESSERA_BASE_JOIN_FIRST_H_
