#include "comm/tree_tasks.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace tessera {
namespace {

// The tree along which data goes from the root to all ranks, or back: a binomial tree, in which a
// rank has at most log2(P) children. Ranks are numbered from the root on, v = (rank - root) mod P.
// The parent of v is v without its lowest bit, and its subtree is [v, v + lowest bit).
class TreeTask : public Task {
 protected:
  explicit TreeTask(int root) : root_(root) {}
  int v() const { return (rank() - root_ + size()) % size(); }
  int FromV(int v) const { return (v + root_) % size(); }
  int parent() const { return FromV(v() & (v() - 1)); }
  int SubtreeSize(int v) const { return v == 0 ? size() : std::min(v & -v, size() - v); }
  // Returns the children's v, the largest subtree first.
  std::vector<int> Children() const {
    std::vector<int> children;
    const int limit = v() == 0 ? size() : v() & -v();
    for (int bit = 1; bit < limit && v() + bit < size(); bit *= 2) children.push_back(v() + bit);
    std::reverse(children.begin(), children.end());
    return children;
  }
  const int root_;
};

class TreeBroadcastTask final : public TreeTask {
 public:
  TreeBroadcastTask(Buffer data, int root) : TreeTask(root), data_(data) {}

  bool Advance() override {
    if (data_.bytes() == 0) return true;
    if (stage_ == 0) {
      stage_ = 1;
      if (v() != 0) Receive(parent(), data_.data, data_.bytes());
    }
    if (outstanding() > 0) return false;
    if (stage_ == 1) {
      stage_ = 2;
      for (int child : Children()) Send(FromV(child), data_.data, data_.bytes());
    }
    return outstanding() == 0;
  }

 private:
  const Buffer data_;
  int stage_ = 0;
};

class BarrierTask final : public Task {
 public:
  bool Advance() override {
    while (outstanding() == 0) {
      if (distance_ >= size()) return true;
      // Rounds of different ranks overlap, but no two rounds connect the same two ranks.
      Receive((rank() - distance_ + size()) % size(), nullptr, 0);
      Send((rank() + distance_) % size(), nullptr, 0);
      distance_ *= 2;
    }
    return false;
  }

 private:
  int distance_ = 1;
};

// The subtree's strings in order of v, each preceded by its length.
class GatherBytesTask final : public TreeTask {
 public:
  GatherBytesTask(std::string_view mine, int root, std::vector<std::string>* gathered)
      : TreeTask(root), mine_(mine), gathered_(gathered) {}

  bool Advance() override {
    while (outstanding() == 0) {
      switch (stage_++) {
        case 0:
          children_ = Children();
          std::reverse(children_.begin(), children_.end());
          sizes_.resize(children_.size());
          parts_.resize(children_.size());
          for (size_t i = 0; i < children_.size(); ++i) {
            Receive(FromV(children_[i]), &sizes_[i], sizeof(sizes_[i]));
          }
          break;
        case 1:
          for (size_t i = 0; i < children_.size(); ++i) {
            parts_[i].resize(sizes_[i]);
            Receive(FromV(children_[i]), parts_[i].data(), sizes_[i], 1);
          }
          break;
        case 2:
          Pack();
          if (v() == 0) {
            Unpack();
            return true;
          }
          packed_bytes_ = static_cast<int64_t>(packed_.size());
          Send(parent(), &packed_bytes_, sizeof(packed_bytes_));
          Send(parent(), packed_.data(), packed_bytes_, 1);
          break;
        default:
          return true;
      }
    }
    return false;
  }

 private:
  void Pack() {
    const int64_t length = static_cast<int64_t>(mine_.size());
    packed_.append(reinterpret_cast<const char*>(&length), sizeof(length));
    packed_.append(mine_);
    for (std::string& part : parts_) packed_.append(part);
    parts_.clear();
  }
  void Unpack() {
    gathered_->resize(size());
    const char* at = packed_.data();
    for (int v = 0; v < size(); ++v) {
      int64_t length;
      std::memcpy(&length, at, sizeof(length));
      (*gathered_)[FromV(v)].assign(at + sizeof(length), length);
      at += sizeof(length) + length;
    }
  }

  const std::string_view mine_;
  std::vector<std::string>* const gathered_;
  int stage_ = 0;
  std::vector<int> children_;
  std::vector<int64_t> sizes_;
  std::vector<std::string> parts_;
  std::string packed_;
  int64_t packed_bytes_ = 0;
};

class BroadcastBytesTask final : public TreeTask {
 public:
  BroadcastBytesTask(std::string* bytes, int root) : TreeTask(root), bytes_(bytes) {}

  bool Advance() override {
    while (outstanding() == 0) {
      switch (stage_++) {
        case 0:
          if (v() != 0) Receive(parent(), &length_, sizeof(length_));
          break;
        case 1:
          if (v() == 0) length_ = static_cast<int64_t>(bytes_->size());
          bytes_->resize(length_);
          if (v() != 0) Receive(parent(), bytes_->data(), length_, 1);
          break;
        case 2:
          for (int child : Children()) {
            Send(FromV(child), &length_, sizeof(length_));
            Send(FromV(child), bytes_->data(), length_, 1);
          }
          break;
        default:
          return true;
      }
    }
    return false;
  }

 private:
  std::string* const bytes_;
  int stage_ = 0;
  int64_t length_ = 0;
};

}  // namespace

std::unique_ptr<Task> MakeTreeBroadcastTask(Buffer data, int root) {
  return std::make_unique<TreeBroadcastTask>(data, root);
}

std::unique_ptr<Task> MakeBarrierTask() { return std::make_unique<BarrierTask>(); }

std::unique_ptr<Task> MakeGatherBytesTask(std::string_view mine, int root,
                                          std::vector<std::string>* gathered) {
  return std::make_unique<GatherBytesTask>(mine, root, gathered);
}

std::unique_ptr<Task> MakeBroadcastBytesTask(std::string* bytes, int root) {
  return std::make_unique<BroadcastBytesTask>(bytes, root);
}

}  // namespace tessera
