#ifndef TESSERA_CHECKPOINT_PLAN_LEAST_LOADED_H_
#define TESSERA_CHECKPOINT_PLAN_LEAST_LOADED_H_

#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

namespace tessera::ckpt {

// Finds the least loaded rank of a set, if ranks may belong to several sets. An entry may
// understate a rank's current load, but never overstates it, and is corrected when it comes first.
// Precondition: loads only grow; the set is not empty.
class LeastLoaded {
 public:
  LeastLoaded(const std::vector<uint32_t>& ranks, const std::vector<uint64_t>& load) {
    std::vector<Entry> entries;
    entries.reserve(ranks.size());
    for (const uint32_t rank : ranks) entries.push_back({load[rank], rank});
    queue_ = Queue(std::greater<Entry>(), std::move(entries));
  }

  // Returns the lowest of the least loaded ranks, and adds `bytes` to its load. Cost: O(log n) for
  // each rank whose load was changed through other sets.
  uint32_t Take(uint64_t bytes, std::vector<uint64_t>& load) {
    while (queue_.top().first != load[queue_.top().second]) {
      const uint32_t rank = queue_.top().second;
      queue_.pop();
      queue_.push({load[rank], rank});
    }
    const uint32_t rank = queue_.top().second;
    queue_.pop();
    load[rank] += bytes;
    queue_.push({load[rank], rank});
    return rank;
  }

 private:
  using Entry = std::pair<uint64_t, uint32_t>;  // bytes, rank
  using Queue = std::priority_queue<Entry, std::vector<Entry>, std::greater<Entry>>;
  Queue queue_;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_PLAN_LEAST_LOADED_H_
