#ifndef TESSERA_CHECKPOINT_PLAN_LEAST_LOADED_H_
#define TESSERA_CHECKPOINT_PLAN_LEAST_LOADED_H_

#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

namespace tessera::ckpt {

// Who of a set of ranks has the least to do, where ranks belong to several sets. An entry may say
// less than a rank has by now, never more, and is put right when it comes first. Precondition:
// loads only grow; the set is not empty.
class LeastLoaded {
 public:
  LeastLoaded(const std::vector<uint32_t>& ranks, const std::vector<uint64_t>& load) {
    std::vector<Entry> entries;
    entries.reserve(ranks.size());
    for (const uint32_t rank : ranks) entries.push_back({load[rank], rank});
    queue_ = Queue(std::greater<Entry>(), std::move(entries));
  }

  // The lowest of the ranks with the least load, which grows by `bytes`. Cost: O(log n) for each
  // rank whose load others have changed.
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
