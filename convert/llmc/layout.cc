#include <algorithm>
#include <bit>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "checkpoint/format/dtype.h"
#include "convert/llmc/llmc.h"
#include "layout/box.h"
#include "models/layers/architecture.h"
#include "models/registry.h"

namespace tessera::ckpt::convert {
namespace {

static_assert(std::endian::native == std::endian::little, "the files are little-endian");

constexpr int32_t kVersionF32 = 3;
constexpr int32_t kVersionBF16 = 5;

LlmcDescription Describe(const ModelConfig& config, const LlmcFormat& format, DType dtype,
                         const LlmcHeader& header) {
  return {
      .model = DescribeModel(config), .dtype = dtype, .tensors = format.tensors(config, header)};
}

// The pieces of a range whose first element, `begin`, is at byte `begin_bytes`.
class PieceMaker {
 public:
  PieceMaker(const LlmcTensor& tensor, const LlmcPlace& place, int64_t begin, uint64_t begin_bytes,
             std::vector<StoredPiece>& pieces)
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

  const LlmcTensor& tensor_;
  const LlmcPlace& place_;
  const int64_t begin_;
  const uint64_t begin_bytes_;
  std::vector<StoredPiece>& pieces_;
};

}  // namespace

absl::StatusOr<LlmcDescription> ReadLlmcHeader(LlmcFile& file, const ModelProto* model) {
  std::vector<std::string> known;
  for (const Architecture* const architecture : Architectures()) {
    const LlmcFormat* const format = architecture->llmc;
    if (format == nullptr) continue;
    known.push_back(absl::StrCat(format->magic, " (", std::string(format->model), ")"));
    if (format->magic != file.header[0]) continue;
    const int32_t version = file.header[1];
    if (version != kVersionF32 && version != kVersionBF16) {
      return file.Corrupt(absl::StrCat("unknown version: expected ", kVersionF32, " (fp32) or ",
                                       kVersionBF16, " (bf16), found ", version));
    }
    const DType dtype = version == kVersionF32 ? DType::kF32 : DType::kBF16;
    file.element_bytes = ElementSize(dtype);
    TESSERA_ASSIGN_OR_RETURN(ModelConfig config, format->read_config(file));
    if (model != nullptr) {
      const absl::StatusOr<ModelConfig> wanted = ConfigOf(*model);
      if (wanted.ok() && wanted->architecture() == config.architecture() &&
          wanted->has_untie_embeddings_and_output_weights()) {
        config.set_untie_embeddings_and_output_weights(
            wanted->untie_embeddings_and_output_weights());
      }
    }
    return Describe(config, *format, dtype, file.header);
  }
  return file.Corrupt(absl::StrCat("wrong magic number: expected ", absl::StrJoin(known, " or "),
                                   ", found ", file.header[0]));
}

absl::StatusOr<LlmcOutput> WriteLlmcHeader(const ModelProto& model, DType dtype) {
  if (dtype != DType::kF32 && dtype != DType::kBF16) {
    return absl::InvalidArgumentError(
        absl::StrCat("a llm.c file has F32 or BF16, not ", ProtoName(dtype)));
  }
  TESSERA_ASSIGN_OR_RETURN(const ModelConfig config, ConfigOf(model));
  const LlmcFormat* const format = FindArchitecture(config)->llmc;
  if (format == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("a llm.c file has GPT-2 or Llama-3, not ", ArchitectureName(config)));
  }
  TESSERA_ASSIGN_OR_RETURN(LlmcHeader header, format->make_header(config));
  header[0] = format->magic;
  header[1] = dtype == DType::kF32 ? kVersionF32 : kVersionBF16;
  const auto bytes = std::as_bytes(std::span(header));
  return LlmcOutput{{reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                    Describe(config, *format, dtype, header)};
}

void AddLlmcPieces(const LlmcTensor& tensor, const LlmcPlace& place, int64_t begin, int64_t end,
                   uint64_t begin_bytes, std::vector<StoredPiece>& pieces) {
  PieceMaker maker(tensor, place, begin, begin_bytes, pieces);
  for (Box& box : FlatRangeToBoxes(WholeBox({tensor.rows, tensor.columns}), begin, end)) {
    maker.Add(std::move(box));
  }
}

}  // namespace tessera::ckpt::convert
