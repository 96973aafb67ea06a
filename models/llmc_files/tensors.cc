#include "models/llmc_files/tensors.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace tessera {
namespace {

constexpr int64_t kBlockElements = 1 << 20;

// A piece of a parameter, as a matrix: a vector is one row.
struct Target {
  int64_t first_row, rows;        // of the logical tensor
  int64_t first_column, columns;  // of the logical tensor
  int64_t base;                   // flat element of the piece's first
  int64_t stride;                 // of a row, in elements
  TensorView flat;                // the buffer that `base` counts in
};

using Targets = std::multimap<std::string, Target>;

// `wanted` (may be null) selects parameters.
void FindTargets(const ParameterSet& parameters, const TensorView& flat,
                 const std::function<bool(const Parameter&)>& wanted, Targets* targets) {
  for (const Parameter* parameter : parameters.parameters()) {
    if (wanted != nullptr && !wanted(*parameter)) continue;
    for (const ParameterPiece& piece : parameter->pieces) {
      const bool vector = piece.shape.size() == 1;
      CHECK(vector || piece.shape.size() == 2) << piece.name;
      Target target{.flat = flat};
      target.first_row = vector ? 0 : piece.global_offset[0];
      target.rows = vector ? 1 : piece.shape[0];
      target.first_column = piece.global_offset.back();
      target.columns = piece.shape.back();
      target.stride = parameter->shape.back();
      target.base = parameter->flat_offset + piece.local_offset.back() +
                    (vector ? 0 : piece.local_offset[0] * target.stride);
      targets->emplace(piece.name, target);
      if (!parameter->tied_name.empty()) targets->emplace(parameter->tied_name, target);
    }
  }
}

// A rectangle of the file's matrix, dense in a buffer.
struct Block {
  int64_t begin_row, end_row;
  int64_t begin_column, end_column;
  int64_t elements() const { return (end_row - begin_row) * (end_column - begin_column); }
};

// Splits [rows, columns] into blocks that are consecutive in the file: of whole rows if one fits.
absl::Status ForEachBlock(int64_t rows, int64_t columns,
                          const std::function<absl::Status(const Block&)>& visit) {
  const int64_t height = std::max<int64_t>(1, kBlockElements / columns);
  const int64_t width = std::min(columns, kBlockElements);
  for (int64_t row = 0; row < rows; row += height) {
    for (int64_t column = 0; column < columns; column += width) {
      const Block block = {row, std::min(rows, row + height), column,
                           std::min(columns, column + width)};
      if (auto status = visit(block); !status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

int64_t LogicalRow(const LlmcTensor& tensor, int64_t row) {
  const int64_t size = tensor.interleaved_head_size;
  if (size == 0) return row;
  const int64_t in_head = row % size;
  return row - in_head + (in_head % 2) * (size / 2) + in_head / 2;
}

// Calls visit(index in the block's buffer, flat element) for every element of the block that the
// target holds. The inner loop follows the order of memory.
template <typename Visit>
void ForEachCommonElement(const LlmcTensor& tensor, const Block& block, const Target& target,
                          const Visit& visit) {
  const int64_t width = block.end_column - block.begin_column;
  const int64_t end_row = std::min(block.end_row, tensor.real_rows);
  if (!tensor.transposed) {
    const int64_t begin = std::max(block.begin_column, target.first_column);
    const int64_t end = std::min(block.end_column, target.first_column + target.columns);
    for (int64_t row = block.begin_row; row < end_row; ++row) {
      const int64_t local_row = LogicalRow(tensor, row) - target.first_row;
      if (local_row < 0 || local_row >= target.rows) continue;
      const int64_t from = (row - block.begin_row) * width - block.begin_column;
      const int64_t to = target.base + local_row * target.stride - target.first_column;
      for (int64_t column = begin; column < end; ++column) visit(from + column, to + column);
    }
    return;
  }
  const int64_t begin = std::max(block.begin_column, target.first_row);
  const int64_t end = std::min(block.end_column, target.first_row + target.rows);
  const int64_t begin_row = std::max(block.begin_row, target.first_column);
  const int64_t last_row = std::min(end_row, target.first_column + target.columns);
  for (int64_t column = begin; column < end; ++column) {
    const int64_t from = column - block.begin_column - block.begin_row * width;
    const int64_t to =
        target.base + (column - target.first_row) * target.stride - target.first_column;
    for (int64_t row = begin_row; row < last_row; ++row) visit(from + row * width, to + row);
  }
}

// Calls use(pointer to the flat buffer's elements).
template <typename Use>
void WithElements(const TensorView& flat, const Use& use) {
  switch (flat.dtype()) {
    case DType::kF32:
      return use(flat.as<float>());
    case DType::kBF16:
      return use(flat.as<BFloat16>());
    case DType::kF64:
      return use(flat.as<double>());
    case DType::kI32:
      break;
  }
  LOG(FATAL) << "weights of type " << DTypeName(flat.dtype());
}

// Zeroes the rows of a block that are padding.
void ClearPadding(const LlmcTensor& tensor, const Block& block, float* values) {
  const int64_t width = block.end_column - block.begin_column;
  const int64_t first = std::max(block.begin_row, tensor.real_rows);
  if (first >= block.end_row) return;
  std::fill(values + (first - block.begin_row) * width,
            values + (block.end_row - block.begin_row) * width, 0.0f);
}

// The values of one block, as fp32 and in the file's dtype.
class BlockBuffer {
 public:
  explicit BlockBuffer(DType dtype) : dtype_(dtype) { CHECK(dtype != DType::kF64); }

  std::span<std::byte> Bytes(int64_t elements) {
    bytes_.resize(elements * ElementSize(dtype_));
    values_.resize(elements);
    return bytes_;
  }
  std::vector<float>& values() { return values_; }

  void Decode() {
    if (dtype_ == DType::kF32) {
      std::memcpy(values_.data(), bytes_.data(), bytes_.size());
      return;
    }
    for (size_t i = 0; i < values_.size(); ++i) {
      BFloat16 value;
      std::memcpy(&value, bytes_.data() + i * sizeof(value), sizeof(value));
      values_[i] = static_cast<float>(value);
    }
  }
  void Encode() {
    if (dtype_ == DType::kF32) {
      std::memcpy(bytes_.data(), values_.data(), bytes_.size());
      return;
    }
    for (size_t i = 0; i < values_.size(); ++i) {
      const BFloat16 value(values_[i]);
      std::memcpy(bytes_.data() + i * sizeof(value), &value, sizeof(value));
    }
  }

 private:
  DType dtype_;
  std::vector<std::byte> bytes_;
  std::vector<float> values_;
};

}  // namespace

absl::Status ImportLlmcTensors(const LlmcReader& reader, DType file_dtype,
                               const std::vector<LlmcTensor>& tensors,
                               const ParameterSet& parameters, const TensorView& flat) {
  Targets targets;
  FindTargets(parameters, flat, nullptr, &targets);
  BlockBuffer buffer(file_dtype);
  int64_t offset = kLlmcHeaderBytes;
  for (const LlmcTensor& tensor : tensors) {
    const auto [first, last] = targets.equal_range(tensor.name);
    const int64_t begin = offset;
    offset += tensor.rows * tensor.columns * ElementSize(file_dtype);
    if (first == last) continue;
    const auto place = [&, first = first, last = last](const Block& block) {
      const int64_t at = block.begin_row * tensor.columns + block.begin_column;
      auto status =
          reader.ReadAt(begin + at * ElementSize(file_dtype), buffer.Bytes(block.elements()));
      if (!status.ok()) return status;
      buffer.Decode();
      const float* values = buffer.values().data();
      for (auto it = first; it != last; ++it) {
        WithElements(flat, [&](auto* elements) {
          using Element = std::remove_pointer_t<decltype(elements)>;
          ForEachCommonElement(tensor, block, it->second, [&](int64_t from, int64_t to) {
            elements[to] = static_cast<Element>(values[from]);
          });
        });
      }
      return absl::OkStatus();
    };
    if (auto status = ForEachBlock(tensor.rows, tensor.columns, place); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status ExportLlmcTensors(LlmcWriter& writer, DType file_dtype,
                               const std::vector<LlmcTensor>& tensors,
                               const ParameterSet& parameters, const TensorView& flat) {
  Targets targets;
  FindTargets(parameters, flat, nullptr, &targets);
  for (const LlmcTensor& tensor : tensors) {
    const auto [first, last] = targets.equal_range(tensor.name);
    int64_t held = 0;
    for (auto it = first; it != last; ++it) held += it->second.rows * it->second.columns;
    if (held != tensor.real_rows * tensor.columns) {
      return absl::InvalidArgumentError(
          absl::StrCat(tensor.name, ": ", held, " of ", tensor.real_rows * tensor.columns,
                       " elements are here; only a whole model can be exported"));
    }
  }
  const LlmcPart part{.parameters = &parameters, .flat = flat};
  return ExportLlmcTensors(&writer, file_dtype, tensors, std::span(&part, 1), {});
}

absl::Status ExportLlmcTensors(LlmcWriter* writer, DType file_dtype,
                               const std::vector<LlmcTensor>& tensors,
                               std::span<const LlmcPart> parts, const LlmcRanks& ranks) {
  Targets targets;
  for (const LlmcPart& part : parts) {
    FindTargets(*part.parameters, part.flat, ranks.gives, &targets);
  }
  // Adding this changes no number, not even a negative zero.
  constexpr float kNothing = -0.0f;
  BlockBuffer buffer(file_dtype);
  for (const LlmcTensor& tensor : tensors) {
    const auto [first, last] = targets.equal_range(tensor.name);
    const auto write = [&, first = first, last = last](const Block& block) {
      const std::span<std::byte> bytes = buffer.Bytes(block.elements());
      std::fill(buffer.values().begin(), buffer.values().end(), kNothing);
      float* values = buffer.values().data();
      for (auto it = first; it != last; ++it) {
        WithElements(it->second.flat, [&](const auto* elements) {
          ForEachCommonElement(tensor, block, it->second, [&](int64_t to, int64_t from) {
            values[to] = static_cast<float>(elements[from]);
          });
        });
      }
      if (ranks.sum != nullptr) {
        if (auto status = ranks.sum(buffer.values()); !status.ok()) return status;
      }
      if (writer == nullptr) return absl::OkStatus();
      ClearPadding(tensor, block, values);
      buffer.Encode();
      return writer->Append(bytes);
    };
    if (auto status = ForEachBlock(tensor.rows, tensor.columns, write); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace tessera
