#include "convert/core/rank_grid.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/errors.h"

namespace tessera::ckpt::convert {
namespace {

constexpr int64_t kMaxRanks = int64_t{1} << 20;
constexpr size_t kMaxDigits = 7;
// A grid is refused if more files than this are missing, besides as many as exist.
constexpr int64_t kMaxMissing = int64_t{1} << 17;

}  // namespace

RankPattern::RankPattern(std::string_view pattern) {
  for (size_t begin = 0;;) {
    const size_t open = pattern.find('{', begin);
    texts_.emplace_back(pattern.substr(begin, open - begin));
    if (open == pattern.npos) return;
    digits_.push_back(pattern[open + 1] - '0');
    begin = open + 3;
  }
}

std::optional<std::vector<int64_t>> RankPattern::Parse(std::string_view name) const {
  std::vector<int64_t> ranks;
  for (size_t i = 0; i < texts_.size(); ++i) {
    if (!name.starts_with(texts_[i])) return std::nullopt;
    name.remove_prefix(texts_[i].size());
    if (i == digits_.size()) break;
    const size_t count = std::min(name.find_first_not_of("0123456789"), name.size());
    if (count == 0 || count > kMaxDigits) return std::nullopt;
    int64_t rank = 0;
    for (const char digit : name.substr(0, count)) rank = 10 * rank + (digit - '0');
    if (rank >= kMaxRanks) return std::nullopt;
    ranks.push_back(rank);
    name.remove_prefix(count);
  }
  if (!name.empty()) return std::nullopt;
  return ranks;
}

std::string RankPattern::Name(std::span<const int64_t> ranks) const {
  std::string name = texts_[0];
  for (size_t i = 0; i < digits_.size(); ++i) {
    absl::StrAppend(&name, absl::StrFormat("%0*d", digits_[i], ranks[i]), texts_[i + 1]);
  }
  return name;
}

absl::StatusOr<std::vector<RankFile>> CompleteGrid(const RankPattern& pattern,
                                                   std::span<const int64_t> extents,
                                                   std::span<const std::string> present,
                                                   std::vector<std::string>& missing) {
  const int64_t limit = kMaxMissing + static_cast<int64_t>(present.size());
  int64_t files = 1;
  for (const int64_t extent : extents) {
    if (extent > limit / files) {
      return DataLoss("a grid of ", absl::StrJoin(extents, " x "), " ranks, but there are ",
                      present.size(), " files");
    }
    files *= extent;
  }
  const std::set<std::string_view> names(present.begin(), present.end());
  std::vector<RankFile> grid;
  for (int64_t i = 0; i < files; ++i) {
    RankFile file = {.ranks = std::vector<int64_t>(extents.size())};
    int64_t rest = i;
    for (size_t axis = extents.size(); axis-- > 0; rest /= extents[axis]) {
      file.ranks[axis] = rest % extents[axis];
    }
    file.name = pattern.Name(file.ranks);
    if (!names.contains(file.name)) missing.push_back(file.name);
    grid.push_back(std::move(file));
  }
  return grid;
}

}  // namespace tessera::ckpt::convert
