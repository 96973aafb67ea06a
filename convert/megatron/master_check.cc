#include "convert/megatron/master_check.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/elements/copy_elements.h"
#include "checkpoint/format/dtype.h"
#include "layout/box.h"

namespace tessera::ckpt::convert {
namespace {

constexpr std::string_view kMasterSuffix = ".master";

// An element of a tensor, as its bytes.
struct Element {
  std::byte bytes[8] = {};
  std::string file;
};

class ElementReader {
 public:
  explicit ElementReader(Storage& storage) : storage_(storage) {}

  // False where no piece has the element.
  absl::StatusOr<bool> Read(const ForeignTensor& tensor, const std::vector<int64_t>& index,
                            Element& element) {
    for (const StoredPiece& piece : tensor.pieces) {
      const Box at = {index, Shape(index.size(), 1)};
      if (!Contains(piece.box, at)) continue;
      const size_t size = DTypeSize(tensor.dtype);
      uint64_t offset = piece.offset_bytes;
      for (size_t d = 0; d < index.size(); ++d) {
        offset +=
            static_cast<uint64_t>((index[d] - piece.box.global_offset[d]) * piece.strides[d]) *
            size;
      }
      std::unique_ptr<ReadableFile>& file = files_[piece.file];
      if (file == nullptr) {
        TESSERA_ASSIGN_OR_RETURN(file, storage_.Open(piece.file));
      }
      TESSERA_RETURN_IF_ERROR(file->ReadAt(offset, std::span(element.bytes, size)));
      element.file = piece.file;
      return true;
    }
    return false;
  }

 private:
  Storage& storage_;
  std::map<std::string, std::unique_ptr<ReadableFile>> files_;
};

// The first, the middle and the last element.
std::set<std::vector<int64_t>> SampleIndices(const Shape& shape) {
  std::vector<int64_t> first, middle, last;
  for (const int64_t extent : shape) {
    if (extent < 1) return {};
    first.push_back(0);
    middle.push_back(extent / 2);
    last.push_back(extent - 1);
  }
  return {first, middle, last};
}

absl::Status Compare(ElementReader& reader, const ForeignTensor& weight,
                     const ForeignTensor& master) {
  const CopyElements round = FindCopy(master.dtype, weight.dtype);
  const size_t size = DTypeSize(weight.dtype);
  if (round == nullptr || weight.shape != master.shape) return absl::OkStatus();
  for (const std::vector<int64_t>& index : SampleIndices(weight.shape)) {
    Element stored, exact;
    TESSERA_ASSIGN_OR_RETURN(const bool has_weight, reader.Read(weight, index, stored));
    TESSERA_ASSIGN_OR_RETURN(const bool has_master, reader.Read(master, index, exact));
    if (!has_weight || !has_master) continue;
    std::byte rounded[8] = {};
    round(exact.bytes, rounded, 1, 1);
    if (std::memcmp(rounded, stored.bytes, size) == 0) continue;
    return absl::DataLossError(absl::StrCat(
        exact.file, ": the fp32 weights of ", weight.name, " do not round to its weights in ",
        stored.file, ", so that which parameters the optimizer's states belong to is not known"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckMasterWeights(Storage& storage, const std::vector<ForeignTensor>& tensors) {
  std::map<std::string_view, const ForeignTensor*> weights;
  for (const ForeignTensor& tensor : tensors) {
    if (tensor.role == WEIGHT) weights[tensor.name] = &tensor;
  }
  ElementReader reader(storage);
  for (const ForeignTensor& tensor : tensors) {
    if (tensor.role != MASTER_WEIGHT || !tensor.name.ends_with(kMasterSuffix)) continue;
    std::string_view name = tensor.name;
    name.remove_suffix(kMasterSuffix.size());
    const auto weight = weights.find(name);
    if (weight == weights.end()) continue;
    TESSERA_RETURN_IF_ERROR(Compare(reader, *weight->second, tensor));
  }
  return absl::OkStatus();
}

}  // namespace tessera::ckpt::convert
