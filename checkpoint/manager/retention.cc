#include "checkpoint/manager/retention.h"

#include <algorithm>
#include <cmath>

namespace tessera::ckpt {
namespace {

// Indices by ascending validation loss, the newer first where equal; without those that have none.
std::vector<size_t> ByLoss(std::span<const RetentionCandidate> candidates) {
  std::vector<size_t> order;
  for (size_t i = candidates.size(); i-- > 0;) {
    const std::optional<double>& loss = candidates[i].validation_loss;
    if (loss.has_value() && !std::isnan(*loss)) order.push_back(i);
  }
  std::ranges::stable_sort(order, {}, [&](size_t i) { return *candidates[i].validation_loss; });
  return order;
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
  for (size_t i = count; i-- > 0;) {
    if (!candidates[i].good) continue;
    kept[i] = true;
    break;
  }
  std::vector<size_t> deleted;
  for (size_t i = 0; i < count; ++i) {
    if (!kept[i]) deleted.push_back(i);
  }
  return deleted;
}

}  // namespace tessera::ckpt
