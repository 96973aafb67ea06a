#include "compute/kernels/cuda/testing/simulated_products.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>

#include "tensor/bfloat16.h"

namespace tessera::simt::internal {
namespace {

constexpr int kWarpsOfGroup = 4;
constexpr int kRows = 16;   // of a warp
constexpr int kInner = 16;  // of a product
constexpr int kMaxColumns = 256;
constexpr int kRun = 8;                   // elements of 16 bytes
constexpr uint32_t kQueued = 0x7fc0dead;  // sums of a product that is queued: NaN

// A matrix in shared memory, from its descriptor's bits:
//   13-0 address, 29-16 leading byte offset, 45-32 stride byte offset, all over 16;
//   51-49 base offset; 63-62 swizzle: 0 none, 1 of 128 bytes, 2 of 64, 3 of 32.
class Matrix {
 public:
  Matrix(uint64_t bits, bool rows_are_inner)
      : bits_(bits),
        start_(Field(0) * 16),
        leading_(Field(16) * 16),
        stride_(Field(32) * 16),
        swizzle_(static_cast<int>(bits >> 62)),
        width_(swizzle_ == 0 ? 16 : 256 >> swizzle_),
        rows_are_inner_(rows_are_inner) {}

  std::string Error() const {
    constexpr uint64_t kUndefined =
        3ull << 14 | 3ull << 30 | 7ull << 46 | ((1ull << 62) - (1ull << 52));
    if ((bits_ & kUndefined) != 0) return "has bits that are not defined";
    if ((bits_ >> 49 & 7) != 0) return "has a base offset";
    // The pattern is eight rows of width_. A matrix may begin within the first of them.
    if (swizzle_ != 0 && start_ % (8 * width_) >= width_) return "begins within its swizzle";
    return "";
  }

  // Returns the address of the run of 16 bytes that begins at an element, by its row or column
  // (`outer`) and its inner index, in the canonical layout before the swizzle, and then swizzled.
  int64_t RunAt(int outer, int inner) const {
    int64_t at = start_;
    const int runs = width_ / 16;
    if (!rows_are_inner_) {  // K-major
      at += outer % 8 * width_ + outer / 8 * stride_;
      at += inner / kRun * (swizzle_ == 0 ? leading_ : 16);
    } else if (swizzle_ == 0) {
      at += outer / kRun * stride_ + inner % 8 * 16 + inner / 8 * leading_;
    } else {
      at += outer / kRun % runs * 16 + outer / kRun / runs * leading_;
      at += inner % 8 * width_ + inner / 8 * stride_;
    }
    return at ^ ((at >> 7 & (runs - 1)) << 4);
  }

  // Calls body(address, outer, inner) for each run of 16 bytes of `count` rows or columns.
  template <typename Body>
  void ForRuns(int first, int count, Body body) const {
    for (int outer = first; outer < first + count; outer += rows_are_inner_ ? kRun : 1) {
      for (int inner = 0; inner < kInner; inner += rows_are_inner_ ? 1 : kRun) {
        body(RunAt(outer, inner), outer, inner);
      }
    }
  }

  // Gets the elements of `count` rows or columns.
  void Load(const SharedAccess& shared, int first, int count, float (*to)[kInner]) const {
    ForRuns(first, count, [&](int64_t address, int outer, int inner) {
      BFloat16 run[kRun];
      std::memcpy(run, shared.data() + (address - kSharedAddress), sizeof(run));
      for (int i = 0; i < kRun; ++i) {
        const int along = rows_are_inner_ ? i : 0;
        to[outer - first + along][inner + i - along] = static_cast<float>(run[i]);
      }
    });
  }

 private:
  int64_t Field(int shift) const { return static_cast<int64_t>(bits_ >> shift & 0x3fff); }

  uint64_t bits_;
  int64_t start_, leading_, stride_;
  int swizzle_;
  int width_;  // of a row of the swizzle's pattern, in bytes
  bool rows_are_inner_;
};

int FirstRow(int thread) { return thread / kWarpSize % kWarpsOfGroup * kRows; }

std::string ForRunsOf(const QueuedProduct& product, int thread, SharedAccess& shared, bool begins) {
  std::string wrong;
  const auto check = [&](const Matrix& matrix, int first, int count) {
    if (begins) wrong = matrix.Error();
    if (!wrong.empty()) wrong = "a descriptor " + wrong;
    matrix.ForRuns(first, count, [&](int64_t address, int, int) {
      if (!wrong.empty()) return;
      const int64_t at = address - kSharedAddress;
      if (at < 0 || at + 16 > shared.bytes()) {
        wrong = "a descriptor leads beyond shared memory";
      } else if (const char* error = begins ? shared.BeginProductRead(thread, at, 16)
                                            : shared.EndProductRead(thread, at, 16);
                 error != nullptr) {
        wrong = error;
      }
      if (wrong.empty()) return;
      wrong += " (bytes " + std::to_string(at) + " to " + std::to_string(at + 16) + ")";
    });
  };
  if (product.left == nullptr) check({product.left_matrix, false}, FirstRow(thread), kRows);
  if (wrong.empty()) {
    check({product.right_matrix, product.right_rows_are_inner}, 0, product.columns);
  }
  return wrong;
}

}  // namespace

void WarpgroupProducts::Reset(int threads) {
  const int warps = threads / kWarpSize;
  warps_.assign(warps, {});
  events_.assign((warps + kWarpsOfGroup - 1) / kWarpsOfGroup, {});
  fenced_.assign(threads, {});
}

void WarpgroupProducts::Fence(int thread,
                              const std::initializer_list<Registers>* const lanes[kWarpSize]) {
  const int first = thread / kWarpSize * kWarpSize;
  for (int lane = 0; lane < kWarpSize; ++lane) {
    for (const Registers& registers : *lanes[lane]) {
      const auto* begin = static_cast<const char*>(registers.begin);
      fenced_[first + lane].push_back({begin, {begin, begin + registers.bytes}});
    }
  }
}

bool WarpgroupProducts::IsFenced(int thread, const void* begin, int64_t bytes) const {
  const auto* from = static_cast<const char*>(begin);
  const std::vector<Fenced>& all = fenced_[thread];
  const auto found = std::find_if(all.rbegin(), all.rend(), [&](const Fenced& fenced) {
    return from >= fenced.begin && from + bytes <= fenced.begin + fenced.contents.size();
  });
  return found != all.rend() && std::memcmp(from, found->contents.data() + (from - found->begin),
                                            static_cast<size_t>(bytes)) == 0;
}

bool WarpgroupProducts::Follows(int thread, const QueuedProduct& product) const {
  const std::vector<Pending>& pending = warps_[thread / kWarpSize].pending;
  return std::any_of(pending.begin(), pending.end(), [&](const Pending& other) {
    const QueuedProduct& own = other.lanes[thread % kWarpSize];
    return own.sums == product.sums && own.columns == product.columns;
  });
}

std::string WarpgroupProducts::Agree(int thread, const Event& event) {
  Warp& warp = warps_[thread / kWarpSize];
  std::vector<Event>& events = events_[thread / kWarpSize / kWarpsOfGroup];
  if (warp.events == static_cast<int64_t>(events.size())) events.push_back(event);
  return events[warp.events++] == event ? "" : "the warps of a warpgroup queue other products";
}

std::string WarpgroupProducts::Queue(int thread, const QueuedProduct* const lanes[kWarpSize]) {
  const int first = thread / kWarpSize * kWarpSize;
  const QueuedProduct& product = *lanes[0];
  if (product.columns % 8 != 0 || product.columns < 8 || product.columns > kMaxColumns) {
    return "it has " + std::to_string(product.columns) + " columns";
  }
  if (warps_.size() % kWarpsOfGroup != 0) return "the block has a part of a warpgroup";
  Pending queued = {
      .group = warps_[thread / kWarpSize].groups, .lanes = {}, .left = {}, .sums = {}};
  for (int lane = 0; lane < kWarpSize; ++lane) {
    const QueuedProduct& own = *lanes[lane];
    if (own.left_matrix != product.left_matrix || own.right_matrix != product.right_matrix) {
      return "the lanes have other descriptors";
    }
    queued.lanes[lane] = own;
    if (own.left != nullptr) {
      if (!IsFenced(first + lane, own.left, 4 * sizeof(uint32_t))) {
        return "its registers have changed since wgmma.fence";
      }
      std::copy_n(own.left, 4, queued.left[lane].begin());
    }
    // Products of the same shape need no fence between them.
    if (Follows(first + lane, own)) continue;
    const size_t count = static_cast<size_t>(own.columns) / 2;
    if (!IsFenced(first + lane, own.sums, static_cast<int64_t>(count * sizeof(float)))) {
      return "its sums have changed since wgmma.fence";
    }
    queued.sums[lane].assign(own.sums, own.sums + count);
    std::fill_n(own.sums, count, std::bit_cast<float>(kQueued));
  }
  std::string wrong =
      Agree(thread, {product.site, product.left_matrix, product.right_matrix, product.columns});
  if (wrong.empty()) wrong = ForRunsOf(product, thread, shared_, /*begins=*/true);
  warps_[thread / kWarpSize].pending.push_back(std::move(queued));
  return wrong;
}

void WarpgroupProducts::Compute(int thread, const Pending& product) {
  static thread_local float left[kRows][kInner], right[kMaxColumns][kInner];
  const QueuedProduct& common = product.lanes[0];
  if (common.left == nullptr) {
    Matrix(common.left_matrix, false).Load(shared_, FirstRow(thread), kRows, left);
  } else {
    // Register i of lane L has row L / 4 + 8 (i % 2), and two inner indices from
    // 2 (L % 4) + 8 (i / 2) on.
    for (int lane = 0; lane < kWarpSize; ++lane) {
      for (int i = 0; i < 8; ++i) {
        BFloat16 half;
        half.bits = static_cast<uint16_t>(product.left[lane][i / 2] >> i % 2 * 16);
        left[lane / 4 + i / 2 % 2 * 8][lane % 4 * 2 + i / 4 * 8 + i % 2] = static_cast<float>(half);
      }
    }
  }
  Matrix(common.right_matrix, common.right_rows_are_inner).Load(shared_, 0, common.columns, right);
  for (int lane = 0; lane < kWarpSize; ++lane) {
    float* const sums = product.lanes[lane].sums;
    for (int i = 0; i < common.columns / 2; ++i) {
      const float(&a)[kInner] = left[lane / 4 + i / 2 % 2 * 8];
      const float(&b)[kInner] = right[i / 4 * 8 + lane % 4 * 2 + i % 2];
      float sum = common.accumulates ? sums[i] : 0.0f;
      for (int k = 0; k < kInner; ++k) sum += a[k] * b[k];
      sums[i] = sum;
    }
  }
}

std::string WarpgroupProducts::Finish(int thread, int groups_left, const Site& site) {
  Warp& warp = warps_[thread / kWarpSize];
  std::string wrong = Agree(thread, {site, 0, 0, 0});
  const auto end = std::ranges::partition_point(warp.pending, [&](const Pending& product) {
    return product.group < warp.groups - groups_left;
  });
  const std::span<const Pending> finished(warp.pending.begin(), end);
  for (const Pending& product : finished) {
    for (int lane = 0; lane < kWarpSize; ++lane) {
      const QueuedProduct& own = product.lanes[lane];
      const std::vector<float>& before = product.sums[lane];
      const auto is_changed = [](float x) { return std::bit_cast<uint32_t>(x) != kQueued; };
      if (std::any_of(own.sums, own.sums + before.size(), is_changed) ||
          (own.left != nullptr &&
           !std::equal(own.left, own.left + 4, product.left[lane].begin()))) {
        return "the registers of a product have changed before the wait for it";
      }
      std::copy(before.begin(), before.end(), own.sums);
    }
  }
  for (const Pending& product : finished) {
    if (!wrong.empty()) return wrong;
    Compute(thread, product);
    wrong = ForRunsOf(product.lanes[0], thread, shared_, /*begins=*/false);
  }
  warp.pending.erase(warp.pending.begin(), end);
  const int first = thread / kWarpSize * kWarpSize;
  for (int lane = 0; lane < kWarpSize; ++lane) fenced_[first + lane].clear();
  return wrong;
}

std::string WarpgroupProducts::CheckEnd() const {
  for (size_t warp = 0; warp < warps_.size(); ++warp) {
    const auto& events = events_[warp / kWarpsOfGroup];
    if (warps_[warp].events != static_cast<int64_t>(events.size())) {
      return "the warps of a warpgroup have queued other products";
    }
  }
  return "";
}

}  // namespace tessera::simt::internal
