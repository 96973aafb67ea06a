#ifndef TESSERA_CHECKPOINT_SAVE_COPY_ORDER_H_
#define TESSERA_CHECKPOINT_SAVE_COPY_ORDER_H_

#include <cstddef>
#include <deque>
#include <optional>

namespace tessera::ckpt {

// The order of `count` pieces: first those that are waited for, then the others in their own order.
// Not thread-safe.
class CopyOrder {
 public:
  void set_count(size_t count) { end_ = count; }
  // Marks a piece as waited for.
  void Want(size_t piece) { wanted_.push_back(piece); }

  // Returns the next piece that is waited for; nullopt if none is pending. A piece that is no
  // longer pending never is again.
  template <typename IsPending>
  std::optional<size_t> Wanted(const IsPending& is_pending) {
    while (!wanted_.empty() && !is_pending(wanted_.front())) wanted_.pop_front();
    return wanted_.empty() ? std::nullopt : std::optional(wanted_.front());
  }

  // Returns the next piece; nullopt if none is pending.
  template <typename IsPending>
  std::optional<size_t> Next(const IsPending& is_pending) {
    while (next_ < end_ && !is_pending(next_)) ++next_;
    return next_ == end_ ? std::nullopt : std::optional(next_);
  }

  // Returns the last piece; nullopt if none is pending.
  template <typename IsPending>
  std::optional<size_t> Last(const IsPending& is_pending) {
    while (next_ < end_ && !is_pending(end_ - 1)) --end_;
    return next_ == end_ ? std::nullopt : std::optional(end_ - 1);
  }

 private:
  std::deque<size_t> wanted_;
  size_t next_ = 0;  // no piece before it is pending
  size_t end_ = 0;   // nor this one or one behind it
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_SAVE_COPY_ORDER_H_
