#include "checkpoint/manager/retention.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "absl/strings/str_format.h"

namespace tessera::ckpt {
namespace {

// Returns the indices with a validation loss in ascending order of it, the newer first if equal.
std::vector<size_t> ByLoss(std::span<const RetentionCandidate> candidates) {
  std::vector<size_t> order;
  for (size_t i = candidates.size(); i-- > 0;) {
    const std::optional<double>& loss = candidates[i].validation_loss;
    if (loss.has_value() && !std::isnan(*loss)) order.push_back(i);
  }
  std::ranges::stable_sort(order, {}, [&](size_t i) { return *candidates[i].validation_loss; });
  return order;
}

std::optional<size_t> NewestGood(std::span<const RetentionCandidate> candidates) {
  for (size_t i = candidates.size(); i-- > 0;) {
    if (candidates[i].good) return i;
  }
  return std::nullopt;
}

}  // namespace

std::vector<size_t> ChooseToDelete(const RetentionOptions& options,
                                   std::span<const RetentionCandidate> candidates, absl::Time now) {
  if (!options.deletes() || candidates.empty()) return {};
  const size_t count = candidates.size();
  std::vector<bool> kept(count);
  for (size_t i = 0; i < count; ++i) {
    const RetentionCandidate& candidate = candidates[i];
    kept[i] = count - i <= static_cast<uint64_t>(std::max<int64_t>(options.newest, 1)) ||
              (options.every_steps > 0 && candidate.step % options.every_steps == 0) ||
              (options.within > absl::ZeroDuration() && candidate.saved_at >= now - options.within);
  }
  const std::vector<size_t> best = ByLoss(candidates);
  for (size_t i = 0; i < best.size() && static_cast<int64_t>(i) < options.best; ++i) {
    kept[best[i]] = true;
  }
  if (const std::optional<size_t> good = NewestGood(candidates)) kept[*good] = true;
  std::vector<size_t> deleted;
  for (size_t i = 0; i < count; ++i) {
    if (!kept[i]) deleted.push_back(i);
  }
  return deleted;
}

std::vector<size_t> ChooseToMakeRoom(const RetentionOptions& options,
                                     std::span<const RetentionCandidate> candidates,
                                     const RetentionCandidate& coming, absl::Time now) {
  const std::optional<size_t> good = NewestGood(candidates);
  if (!good.has_value()) return {};
  std::vector<size_t> chosen;
  const auto choose = [&](size_t i) {
    if (i != *good && std::ranges::find(chosen, i) == chosen.end()) chosen.push_back(i);
  };
  // The permanent ones that the policy gives up among all permanent ones, and those that count.
  const auto choose_permanent = [&](bool newest_count) {
    std::vector<size_t> indices;
    std::vector<RetentionCandidate> counted;
    for (size_t i = 0; i < candidates.size(); ++i) {
      if (candidates[i].rolling && !(newest_count && i == *good)) continue;
      indices.push_back(i);
      counted.push_back(candidates[i]);
    }
    if (newest_count || !coming.rolling) counted.push_back(coming);
    for (const size_t i : ChooseToDelete(options, counted, now)) {
      if (i < indices.size()) choose(indices[i]);
    }
  };
  choose_permanent(/*newest_count=*/false);
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (candidates[i].rolling) choose(i);
  }
  choose_permanent(/*newest_count=*/true);
  return chosen;
}

std::string MakeRollingAttempt() { return absl::StrFormat("%08x", std::random_device()()); }

bool IsRollingAttempt(std::string_view name) {
  return name.size() == 8 && std::ranges::all_of(name, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

}  // namespace tessera::ckpt
