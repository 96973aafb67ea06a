#include "convert/llmc/pieces.h"

#include <algorithm>
#include <utility>

#include "layout/box.h"
#include "layout/flat_range.h"

namespace tessera::ckpt::convert {
namespace {

// The pieces of a range whose first element, `begin`, is at byte `begin_bytes`.
class PieceMaker {
 public:
  PieceMaker(const LlmcTensorDescription& tensor, const LlmcPlace& place, int64_t begin,
             uint64_t begin_bytes, std::vector<StoredPiece>& pieces)
      : tensor_(tensor), place_(place), begin_(begin), begin_bytes_(begin_bytes), pieces_(pieces) {}

  // Rows of the file that are consecutive, less those that are padding.
  void Add(Box box) {
    const int64_t first = box.global_offset[0];
    box.shape[0] = std::min(first + box.shape[0], tensor_.real_rows) - first;
    if (box.shape[0] <= 0) return;
    if (tensor_.interleaved_head_size == 0) {
      AddRows(box, 1, first);
    } else {
      AddHeads(box);
    }
  }

 private:
  // Splits rows by heads and, in each, by those of even and of odd number.
  void AddHeads(const Box& box) {
    const int64_t size = tensor_.interleaved_head_size;
    const int64_t end = box.global_offset[0] + box.shape[0];
    for (int64_t first = box.global_offset[0]; first < end; first += size - first % size) {
      const int64_t head = first - first % size, last = std::min(end, head + size);
      for (int64_t row = first; row < std::min(first + 2, last); ++row) {
        const int64_t in_head = row - head;
        AddRows({{row, box.global_offset[1]}, {(last - row + 1) / 2, box.shape[1]}}, 2,
                head + in_head % 2 * (size / 2) + in_head / 2);
      }
    }
  }

  // Rows of the file from that of the box on, `step` apart, which are consecutive logical ones.
  void AddRows(const Box& box, int64_t step, int64_t logical_row) {
    const int64_t element = box.global_offset[0] * tensor_.columns + box.global_offset[1] - begin_;
    StoredPiece piece = {
        .box = {{logical_row, box.global_offset[1]}, box.shape},
        .file = place_.file,
        .offset_bytes = begin_bytes_ + static_cast<uint64_t>(element) * place_.element_bytes,
        .strides = {step * tensor_.columns, 1}};
    for (std::vector<int64_t>* numbers :
         {&piece.box.global_offset, &piece.box.shape, &piece.strides}) {
      if (tensor_.transposed) std::swap((*numbers)[0], (*numbers)[1]);
      if (place_.is_vector) numbers->erase(numbers->begin());
    }
    pieces_.push_back(std::move(piece));
  }

  const LlmcTensorDescription& tensor_;
  const LlmcPlace& place_;
  const int64_t begin_;
  const uint64_t begin_bytes_;
  std::vector<StoredPiece>& pieces_;
};

}  // namespace

void AddLlmcPieces(const LlmcTensorDescription& tensor, const LlmcPlace& place, int64_t begin,
                   int64_t end, uint64_t begin_bytes, std::vector<StoredPiece>& pieces) {
  PieceMaker maker(tensor, place, begin, begin_bytes, pieces);
  for (Box& box : FlatRangeToBoxes(WholeBox({tensor.rows, tensor.columns}), begin, end)) {
    maker.Add(std::move(box));
  }
}

}  // namespace tessera::ckpt::convert
