#include "convert/formats/megatron/state_buffer.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <memory>
#include <set>

#include "base/checked_math.h"
#include "base/status_macros.h"
#include "convert/core/reading.h"
#include "layout/box.h"
#include "layout/dtype.h"
#include "layout/elements/copy_elements.h"

namespace tessera::ckpt::convert {
namespace {

int64_t Aligned(int64_t at) { return RoundUp(at, kBufferAlignment); }

// Returns the elements that each bucket has, as Megatron divides a buffer.
std::vector<int64_t> DivideIntoBuckets(std::span<const RankParameter> parameters,
                                       int64_t bucket_elements) {
  std::vector<int64_t> buckets;
  int64_t end = 0;  // of the last parameter, in the bucket that is being filled
  for (size_t i = parameters.size(); i > 0; --i) {
    const RankParameter& parameter = parameters[i - 1];
    if (parameter.has_own_bucket && end > 0) {
      buckets.push_back(Aligned(end));
      end = 0;
    }
    end = Aligned(end) + parameter.elements;
    const bool is_full = bucket_elements > 0 && end >= bucket_elements;
    if (!is_full && !parameter.has_own_bucket && i > 1) continue;
    buckets.push_back(end);
    end = 0;
  }
  return buckets;
}

// The same parameters, norms before the others of the module that their first names tell.
std::vector<const ForeignParameter*> WithFusedNorms(
    const std::vector<const ForeignParameter*>& layer) {
  std::vector<const ForeignParameter*> order, norms;
  for (const ForeignParameter* const parameter : layer) {
    (parameter->other_names.empty() ? order : norms).push_back(parameter);
  }
  for (const ForeignParameter* const norm : norms) {
    const std::string module = norm->name.substr(0, norm->name.rfind('.') + 1);
    const auto at = std::ranges::find_if(order, [&](const ForeignParameter* parameter) {
      return parameter->other_names.empty() && parameter->name.starts_with(module);
    });
    order.insert(at, norm);
  }
  return order;
}

constexpr std::string_view kMasterSuffix = ".master";

// An element of a tensor, as its bytes.
struct Element {
  std::byte bytes[8] = {};
  std::string file;
};

class ElementReader {
 public:
  explicit ElementReader(Storage& storage) : storage_(storage) {}

  // False if no piece has the element.
  absl::StatusOr<bool> Read(const ForeignTensor& tensor, const std::vector<int64_t>& index,
                            Element& element) {
    for (const StoredPiece& piece : tensor.pieces) {
      const Box at = {index, Shape(index.size(), 1)};
      if (!Contains(piece.box, at)) continue;
      const size_t size = ElementSize(tensor.dtype);
      const uint64_t offset =
          piece.offset_bytes + static_cast<uint64_t>(OffsetInPiece(piece, index)) * size;
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

// Returns the first, the middle and the last element.
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

// What was found of master weights.
struct Masters {
  bool are_integers = true;  // of 16 bits
  absl::Status rounding;     // of the first one that its weight is not, rounded
};

absl::Status Compare(ElementReader& reader, const ForeignTensor& weight,
                     const ForeignTensor& master, Masters& masters) {
  const CopyElements round = FindCopy(master.dtype, weight.dtype);
  const CopyElements widen = FindCopy(master.dtype, DType::kF32);
  const bool is_integer = master.dtype == DType::kI16;
  if (weight.shape != master.shape || (!is_integer && (round == nullptr || widen == nullptr))) {
    return absl::OkStatus();
  }
  for (const std::vector<int64_t>& index : SampleIndices(weight.shape)) {
    Element stored, exact;
    TESSERA_ASSIGN_OR_RETURN(const bool has_weight, reader.Read(weight, index, stored));
    TESSERA_ASSIGN_OR_RETURN(const bool has_master, reader.Read(master, index, exact));
    if (!has_weight || !has_master) continue;
    if (!is_integer) {
      float value = 0;
      widen(exact.bytes, reinterpret_cast<std::byte*>(&value), 1, 1);
      masters.are_integers &= value == std::trunc(value) && std::abs(value) <= 0x8000;
      std::byte rounded[8] = {};
      round(exact.bytes, rounded, 1, 1);
      if (std::memcmp(rounded, stored.bytes, ElementSize(weight.dtype)) == 0) continue;
    }
    masters.rounding.Update(DataLoss(
        exact.file, ": the fp32 weights of ", weight.name, " do not round to its weights in ",
        stored.file, ", so it cannot be told which parameters the optimizer's states belong to"));
  }
  return absl::OkStatus();
}

}  // namespace

StateBuffer BufferOf(const GatheredBuffer& gathered, const std::string& path,
                     const std::string& where) {
  StateBuffer buffer = {.where = where, .elements = gathered.elements};
  for (const auto& [kind, tensor] : gathered.vectors) {
    const BufferRun run = {0, gathered.elements, {path, tensor.offset_bytes, tensor.dtype}};
    buffer.kinds.emplace_back(kind, std::vector<BufferRun>{run});
  }
  return buffer;
}

std::optional<std::vector<int64_t>> PlaceInBuffer(std::span<const RankParameter> parameters,
                                                  const StateBuffer& buffer,
                                                  int64_t bucket_elements) {
  const std::vector<int64_t> buckets = buffer.bucket_elements.empty()
                                           ? DivideIntoBuckets(parameters, bucket_elements)
                                           : buffer.bucket_elements;
  std::vector<int64_t> begins(parameters.size());
  size_t bucket = 0;
  int64_t bucket_begin = 0, end = 0;  // of the bucket in the buffer; of parameters in the bucket
  const auto is_full = [&] { return end == buckets[bucket] || Aligned(end) == buckets[bucket]; };
  for (size_t i = parameters.size(); i > 0; --i) {
    const int64_t elements = parameters[i - 1].elements;
    if (bucket == buckets.size()) return std::nullopt;
    if (end > 0 && Aligned(end) + elements > buckets[bucket]) {
      if (!is_full()) return std::nullopt;
      bucket_begin += buckets[bucket++];
      end = 0;
      if (bucket == buckets.size()) return std::nullopt;
    }
    if (Aligned(end) + elements > buckets[bucket]) return std::nullopt;
    begins[i - 1] = bucket_begin + Aligned(end);
    end = Aligned(end) + elements;
  }
  if (buckets.empty()) return buffer.elements == 0 ? std::optional(begins) : std::nullopt;
  if (bucket + 1 != buckets.size() || end != buckets[bucket]) return std::nullopt;
  if (bucket_begin + end != buffer.elements) return std::nullopt;
  return begins;
}

absl::Status AddBuffer(std::span<const RankParameter> parameters, std::span<const int64_t> begins,
                       const StateBuffer& buffer, ForeignTensorSet& set) {
  for (const auto& [kind, runs] : buffer.kinds) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      const RankParameter& own = parameters[i];
      const int64_t begin = begins[i], end = begin + own.elements;
      auto run = std::ranges::upper_bound(runs, begin, {}, &BufferRun::begin);
      if (run != runs.begin()) --run;
      int64_t at = begin;
      for (; at < end && run != runs.end() && run->begin <= at; ++run) {
        const int64_t skipped = at - run->begin;
        const int64_t count = std::min(run->count - skipped, end - at);
        if (count <= 0) continue;
        TESSERA_RETURN_IF_ERROR(set.AddRange(*own.parameter, own.share, kind, at - begin,
                                             at - begin + count, run->place.After(skipped)));
        at += count;
      }
      if (at == end) continue;
      return DataLoss(buffer.where, ": element ", at, " of ", buffer.elements,
                      ", which is part of ", own.parameter->name, ", is missing");
    }
  }
  return absl::OkStatus();
}

ModuleOrder::ModuleOrder(const ForeignModel& model, bool has_fused_norms) {
  std::set<std::string> stacks;
  for (const ForeignParameter& parameter : model.parameters()) {
    const LayerName name = SplitLayer(parameter.name);
    if (name.layer < 0) continue;
    stacks.insert(name.before.substr(0, name.before.size() - 1) + name.after);
    if (name.layer >= layers()) layers_.resize(static_cast<size_t>(name.layer) + 1);
    layers_[static_cast<size_t>(name.layer)].push_back(&parameter);
  }
  bool is_after_layers = false;
  for (const ForeignParameter& parameter : model.parameters()) {
    if (SplitLayer(parameter.name).layer >= 0) {
      is_after_layers = true;
    } else if (!stacks.contains(parameter.name)) {
      (is_after_layers ? tail_ : head_).push_back(&parameter);
    }
  }
  if (!has_fused_norms) return;
  for (List& layer : layers_) layer = WithFusedNorms(layer);
}

absl::StatusOr<std::vector<RankParameter>> ModuleOrder::Parameters(
    const ChunkOfModel& chunk, const TensorParallelShare& share) const {
  List order;
  const auto append = [&](const List& list) {
    order.insert(order.end(), list.begin(), list.end());
  };
  if (chunk.is_first) append(head_);
  for (int64_t i = 0; i < chunk.layers; ++i) {
    append(layers_[static_cast<size_t>(chunk.first_layer + i)]);
  }
  if (chunk.is_last) append(tail_);
  const bool is_whole = chunk.is_first && chunk.is_last;
  if (chunk.is_last && !is_whole) {
    std::ranges::copy_if(head_, std::back_inserter(order), [](const ForeignParameter* parameter) {
      return IsTiedEmbedding(*parameter);
    });
  }
  std::vector<RankParameter> parameters;
  for (const ForeignParameter* const parameter : order) {
    TESSERA_ASSIGN_OR_RETURN(const Shape shape, LocalShape(*parameter, share.size));
    parameters.push_back({.parameter = parameter,
                          .share = share,
                          .elements = ElementCount(shape),
                          .has_own_bucket = !is_whole && IsTiedEmbedding(*parameter)});
  }
  return parameters;
}

absl::Status CheckMasterWeights(Storage& storage, const std::vector<ForeignTensor>& tensors) {
  std::map<std::string_view, const ForeignTensor*> weights;
  for (const ForeignTensor& tensor : tensors) {
    if (tensor.role == TensorRole::kWeight) weights[tensor.name] = &tensor;
  }
  ElementReader reader(storage);
  Masters masters;
  for (const ForeignTensor& tensor : tensors) {
    if (tensor.role != TensorRole::kMasterWeight || !tensor.name.ends_with(kMasterSuffix)) continue;
    std::string_view name = tensor.name;
    name.remove_suffix(kMasterSuffix.size());
    const auto weight = weights.find(name);
    if (weight == weights.end()) continue;
    TESSERA_RETURN_IF_ERROR(Compare(reader, *weight->second, tensor, masters));
  }
  if (masters.rounding.ok() || !masters.are_integers) return masters.rounding;
  return Unimplemented(masters.rounding.message(),
                       ": they are 16-bit remainders (use_precision_aware_optimizer); in the "
                       "format fully_reshardable states have names, and are read without these");
}

}  // namespace tessera::ckpt::convert
