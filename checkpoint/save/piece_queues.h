#ifndef TESSERA_CHECKPOINT_SAVE_PIECE_QUEUES_H_
#define TESSERA_CHECKPOINT_SAVE_PIECE_QUEUES_H_

#include <cstddef>
#include <deque>
#include <optional>
#include <vector>

namespace tessera::ckpt {

// An order of pieces: first the pieces that a thread waits for, then the others by their index. Not
// thread-safe.
class CopyOrder {
 public:
  void set_count(size_t count) { end_ = count; }
  // Marks a piece as waited for.
  void Want(size_t piece) { wanted_.push_back(piece); }

  // Returns the next piece that is waited for; nullopt if none is pending. Pieces never become
  // pending again.
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

// A queue that takes no memory once it has room for all that it will ever hold. Not thread-safe.
class PieceQueue {
 public:
  // Makes room for `count` calls of push_back().
  void reserve(size_t count) { pieces_.reserve(count); }
  bool empty() const { return next_ == pieces_.size(); }
  size_t front() const { return pieces_[next_]; }
  void push_back(size_t piece) { pieces_.push_back(piece); }
  void pop_front() { ++next_; }

 private:
  std::vector<size_t> pieces_;
  size_t next_ = 0;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_SAVE_PIECE_QUEUES_H_
