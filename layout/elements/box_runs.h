#ifndef TESSERA_LAYOUT_ELEMENTS_BOX_RUNS_H_
#define TESSERA_LAYOUT_ELEMENTS_BOX_RUNS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "layout/box.h"
#include "layout/elements/copy_elements.h"

namespace tessera {

// Translates between two storages of the elements of a region: "outer" is the row-major storage of
// a box that contains the region, as in a data file; "strided" is any other storage with strides,
// such as a caller's memory. A run is a part of a row. Immutable; thread-safe.
//
// For example, a file holds a box of 4 x 6 elements, and memory with rows of 8 elements holds a
// region of 2 x 3 of them:
//
//   elements of outer        of strided        ForEach(0, 24): {8, 0, 3}, {14, 8, 3}
//    .  .  .  .  .  .                          ForEach(9, 15): {9, 1, 2}, {14, 8, 1}
//    .  .  8  9 10  .        0  1  2
//    .  . 14 15 16  .        8  9 10
//    .  .  .  .  .  .
class BoxRuns {
 public:
  struct Run {
    int64_t outer_element;    // from the beginning of outer's storage
    int64_t strided_element;  // from the element at strided_offset
    int64_t count;
  };

  // `strides` are in elements, one per dim; element 0 of the strided storage has the global
  // coordinates `strided_offset`. Precondition: outer contains region; the region is not empty.
  BoxRuns(const Box& outer, const Box& region, const std::vector<int64_t>& strided_offset,
          const std::vector<int64_t>& strides);

  // Returns the distance between neighbours of a run in the strided storage; in outer's it is 1.
  int64_t run_stride() const { return run_stride_; }

  // Returns the first element, in the strided storage, of the elements [begin, end) of outer's
  // storage, if they are contiguous there, too. Precondition: the region contains all of them.
  std::optional<int64_t> Contiguous(int64_t begin, int64_t end) const;

  // Calls fn(Run) for the region's elements within [begin, end) of outer's storage, in ascending
  // order. Cost: O(dims + runs visited).
  template <typename Function>
  void ForEach(int64_t begin, int64_t end, Function&& fn) const {
    std::vector<int64_t> index(dims_.size(), 0);
    if (!Seek(begin, index)) return;
    int64_t outer = outer_base_, strided = strided_base_;
    for (size_t d = 0; d < dims_.size(); ++d) {
      outer += index[d] * dims_[d].from_stride;
      strided += index[d] * dims_[d].to_stride;
    }
    while (outer < end) {
      const int64_t first = std::max<int64_t>(begin - outer, 0);
      const int64_t last = std::min(end - outer, run_);
      fn(Run{outer + first, strided + first * run_stride_, last - first});
      size_t d = dims_.size();
      while (true) {
        if (d == 0) return;
        --d;
        outer += dims_[d].from_stride;
        strided += dims_[d].to_stride;
        if (++index[d] < dims_[d].extent) break;
        outer -= index[d] * dims_[d].from_stride;
        strided -= index[d] * dims_[d].to_stride;
        index[d] = 0;
      }
    }
  }

 private:
  // Moves `index` to the first run that ends after `begin`; returns false if no run does.
  bool Seek(int64_t begin, std::vector<int64_t>& index) const;

  // Increments the dims before `d` by one step and resets the others.
  bool Carry(std::vector<int64_t>& index, size_t d) const;

  std::vector<StridedDim> dims_;  // outermost first, without the dims inside a run
  int64_t run_ = 1;
  int64_t run_stride_ = 1;
  int64_t outer_base_ = 0;
  int64_t strided_base_ = 0;
};

// A box of a tensor whose elements are bytes [begin, end) of a file, in row-major order.
struct StoredBox {
  uint64_t begin;
  uint64_t end;
  uint32_t tensor;  // an index of the owner's choice
  int64_t element_bytes;
  BoxRuns runs;  // file <-> another storage; for digests, row-major indices of the logical tensor
};

// Calls fn(box, first, last) for each box with elements in bytes [begin, end) of the file, which
// are its elements [first, last). `boxes` are StoredBoxes, or types with the same begin, end and
// element_bytes, ascending by both ends. Precondition: neither begin nor end is inside an element.
template <typename Boxes, typename Function>
void ForEachStored(const Boxes& boxes, uint64_t begin, uint64_t end, Function&& fn) {
  auto box = std::ranges::upper_bound(boxes, begin, {}, [](const auto& b) { return b.end; });
  for (; box != boxes.end() && box->begin < end; ++box) {
    const auto size = static_cast<int64_t>(box->element_bytes);
    const auto first = static_cast<int64_t>(std::max(begin, box->begin) - box->begin) / size;
    const auto last = static_cast<int64_t>(std::min(end, box->end) - box->begin) / size;
    if (first < last) fn(*box, first, last);
  }
}

}  // namespace tessera

#endif  // TESSERA_LAYOUT_ELEMENTS_BOX_RUNS_H_
