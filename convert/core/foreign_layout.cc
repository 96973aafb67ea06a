#include "convert/core/foreign_layout.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>

#include "absl/strings/str_join.h"
#include "base/checked_math.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/include/manifest.h"
#include "convert/core/reading.h"

namespace tessera::ckpt::convert {
namespace {

template <typename... Parts>
absl::Status DamagedParameter(const ForeignPlace& place, const ForeignParameter& parameter,
                              const Parts&... problem) {
  return DataLoss(place.file, ": ", parameter.name, ": ", problem...);
}

// Consecutive indices of one dim of a parameter, and where the first is in the rank's share.
struct Run {
  int64_t begin, count;
  int64_t local_begin;
};

// Returns the parameter's indices of indices [begin, begin + count) of the rank's share.
std::vector<Run> ToWholeDim(const ForeignParameter& parameter, const TensorParallelShare& share,
                            size_t dim, int64_t begin, int64_t count) {
  if (static_cast<int>(dim) != parameter.tensor_parallel_dim) return {{begin, count, begin}};
  const int64_t section = parameter.shape[dim] / parameter.sections;
  const int64_t part = section / share.size;
  std::vector<Run> runs;
  for (int64_t at = begin; at < begin + count;) {
    const int64_t end = std::min(begin + count, (at / part + 1) * part);
    runs.push_back({at / part * section + share.rank * part + at % part, end - at, at});
    at = end;
  }
  return runs;
}

// The elements of a block along one dim of its parameter that lie in [begin, begin + count) there.
struct Overlap {
  int64_t first = 0;  // index in the block
  int64_t count = 0;
};

Overlap OverlapWith(int64_t block_begin, int64_t block_count, int64_t step, int64_t begin,
                    int64_t count) {
  const int64_t end = begin + count;
  Overlap overlap;
  if (begin > block_begin) overlap.first = (begin - block_begin + step - 1) / step;
  if (end <= block_begin) return overlap;
  const int64_t last = std::min(block_count, (end - block_begin + step - 1) / step);
  overlap.count = std::max<int64_t>(last - overlap.first, 0);
  return overlap;
}

// Returns the logical dim of a parameter's dim; nullopt if the tensor has no such dim.
std::optional<size_t> LogicalDim(const ForeignBlock& block, size_t foreign_rank, size_t dim) {
  const size_t rank = block.shape.size(), extra = foreign_rank - rank;
  if (dim < extra) return std::nullopt;
  const size_t logical = dim - extra;
  if (!block.transposed || logical + 2 < rank) return logical;
  return logical + 1 == rank ? rank - 2 : rank - 1;
}

// Returns the piece that a block and a stored box of its parameter have in common.
std::optional<StoredPiece> PieceOf(const ForeignBlock& block, const Box& stored,
                                   const ForeignPlace& place, const std::vector<int64_t>& strides) {
  const size_t foreign_rank = stored.shape.size(), rank = block.shape.size();
  StoredPiece piece = {.box = {std::vector<int64_t>(rank), Shape(rank)},
                       .file = place.file,
                       .strides = std::vector<int64_t>(rank)};
  int64_t elements = 0;
  for (size_t dim = 0; dim < foreign_rank; ++dim) {
    const std::optional<size_t> logical = LogicalDim(block, foreign_rank, dim);
    const int64_t step = block.foreign_step.empty() ? 1 : block.foreign_step[dim];
    const int64_t begin = block.foreign_offset[dim];
    const Overlap overlap = OverlapWith(begin, logical ? block.shape[*logical] : 1, step,
                                        stored.global_offset[dim], stored.shape[dim]);
    if (overlap.count == 0) return std::nullopt;
    elements += (begin + overlap.first * step - stored.global_offset[dim]) * strides[dim];
    if (!logical) continue;
    piece.box.global_offset[*logical] = block.offset[*logical] + overlap.first;
    piece.box.shape[*logical] = overlap.count;
    piece.strides[*logical] = strides[dim] * step;
  }
  piece.offset_bytes = place.After(elements).offset_bytes;
  return piece;
}

// Checks that strides, and the distances of elements from the first one, do not overflow in bytes.
// Whether they lie in the file is checked once the file is known.
absl::Status CheckStrides(const ForeignParameter& parameter, const ForeignPlace& place,
                          const Box& box, const std::vector<int64_t>& strides) {
  if (strides.size() != box.shape.size()) {
    return DamagedParameter(place, parameter, strides.size(), " strides for ", box.shape.size(),
                            " dims");
  }
  // With one index more along each dim, the stride of a dim with a single one counts, too.
  Shape beyond = box.shape;
  for (int64_t& extent : beyond) extent = std::max<int64_t>(extent, 1) + 1;
  std::optional<int64_t> bytes = LastElement(beyond, strides);
  if (bytes) bytes = CheckedMultiply(*bytes, std::max<int64_t>(ElementSize(place.dtype), 1));
  // Steps of blocks multiply the strides once more.
  if (bytes && *bytes < INT64_MAX / 1024) return absl::OkStatus();
  return DamagedParameter(place, parameter, "box ", ToString(box), " with strides [",
                          absl::StrJoin(strides, ","), "] ends beyond what a file can hold");
}

}  // namespace

absl::Status CheckModelFits(const ModelDescription& model, uint64_t file_bytes) {
  std::optional<int64_t> elements = 0;
  for (const LogicalParameter& parameter : model.parameters) {
    const absl::StatusOr<int64_t> count = CheckedElementCount(parameter.shape);
    elements = count.ok() ? CheckedAdd(*elements, *count) : std::nullopt;
    if (!elements || static_cast<uint64_t>(*elements) > file_bytes) {
      return InvalidArgument("the configuration's model has more parameters than the files' ",
                             file_bytes, " bytes can hold");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Shape> LocalShape(const ForeignParameter& parameter, int64_t tensor_parallel_size) {
  Shape shape = parameter.shape;
  const int dim = parameter.tensor_parallel_dim;
  if (dim < 0) return shape;
  if (static_cast<size_t>(dim) >= shape.size()) {
    return InvalidArgument(parameter.name, ": dim ", dim, " of ", ShapeToString(shape));
  }
  const std::optional<int64_t> parts = CheckedMultiply(parameter.sections, tensor_parallel_size);
  if (!parts || *parts < 1 || shape[dim] % *parts != 0) {
    return InvalidArgument(parameter.name, ": ", parameter.sections, " parts for each of ",
                           tensor_parallel_size, " tensor-parallel ranks do not divide dim ", dim,
                           " of ", ShapeToString(shape));
  }
  shape[dim] /= tensor_parallel_size;
  return shape;
}

Box ForeignBox(const ForeignParameter& parameter, const ForeignBlock& block) {
  const size_t rank = parameter.shape.size();
  Box box = {block.foreign_offset, Shape(rank, 1)};
  for (size_t dim = 0; dim < rank; ++dim) {
    const std::optional<size_t> logical = LogicalDim(block, rank, dim);
    if (logical) box.shape[dim] = block.shape[*logical];
  }
  return box;
}

std::vector<StoredPiece> BlockPieces(const ForeignBlock& block, const Box& box, int64_t begin,
                                     int64_t end, DType dtype) {
  const std::vector<int64_t> strides = ContiguousStrides(box.shape);
  std::vector<StoredPiece> pieces;
  ForeignPlace place = {.dtype = dtype};
  for (const Box& stored : FlatRangeToBoxes(box, begin, end)) {
    std::optional<StoredPiece> piece = PieceOf(block, stored, place, strides);
    if (piece) pieces.push_back(*std::move(piece));
    place = place.After(ElementCount(stored.shape));
  }
  return pieces;
}

OutputTensor WholeParameter(const ForeignParameter& parameter, const LogicalParameter& logical,
                            const ForeignKind& kind, DType dtype) {
  const std::string name = kind.NameOf(logical.name);
  const int64_t count = ElementCount(parameter.shape);
  return {.name = name,
          .source_name = name,
          .role = kind.role,
          .dtype = dtype,
          .shape = logical.shape,
          .elements = count,
          .pieces = [blocks = parameter.blocks, box = WholeBox(parameter.shape), count, dtype](
                        int64_t begin, int64_t end) {
            std::vector<StoredPiece> pieces;
            for (const ForeignBlock& block : blocks) {
              std::ranges::move(
                  BlockPieces(block, box, std::min(begin, count), std::min(end, count), dtype),
                  std::back_inserter(pieces));
            }
            return pieces;
          }};
}

ForeignTensorSet::ForeignTensorSet(const ModelDescription& model) : model_(model) {
  for (size_t i = 0; i < model.parameters.size(); ++i) parameters_[model.parameters[i].name] = i;
}

absl::StatusOr<ForeignTensorSet::Entry*> ForeignTensorSet::FindEntry(
    const ForeignParameter& parameter, const std::string& name, const ForeignKind& kind,
    const ForeignPlace& place) {
  const auto index = parameters_.find(name);
  if (index == parameters_.end()) {
    return absl::InternalError(absl::StrCat(parameter.name, ": the model has no parameter ", name));
  }
  const auto [at, is_new] = entries_.try_emplace({index->second, kind.state});
  Entry& entry = at->second;
  if (is_new) {
    const LogicalParameter& logical = model_.parameters[index->second];
    entry = {.tensor = {.name = kind.NameOf(name),
                        .role = kind.role,
                        .dtype = place.dtype,
                        .shape = logical.shape,
                        .foreign_name = parameter.name,
                        .partition = logical.partition},
             .state = kind.state};
  }
  if (entry.tensor.dtype == place.dtype) return &entry;
  return DamagedParameter(place, parameter, ProtoName(place.dtype), ", but other parts of ",
                          entry.tensor.name, " are ", ProtoName(entry.tensor.dtype));
}

absl::Status ForeignTensorSet::AddForeignBox(const ForeignParameter& parameter,
                                             const ForeignKind& kind, const Box& box,
                                             const ForeignPlace& place,
                                             const std::vector<int64_t>& strides) {
  for (const ForeignBlock& block : parameter.blocks) {
    std::optional<StoredPiece> piece = PieceOf(block, box, place, strides);
    if (!piece) continue;
    TESSERA_ASSIGN_OR_RETURN(Entry* const entry, FindEntry(parameter, block.name, kind, place));
    entry->tensor.pieces.push_back(*std::move(piece));
  }
  return absl::OkStatus();
}

absl::Status ForeignTensorSet::AddBox(const ForeignParameter& parameter,
                                      const TensorParallelShare& share, const ForeignKind& kind,
                                      const Box& local, const ForeignPlace& place,
                                      const std::vector<int64_t>& strides) {
  TESSERA_ASSIGN_OR_RETURN(const Shape shape, LocalShape(parameter, share.size));
  if (const absl::Status inside = CheckBoxInside(shape, local); !inside.ok()) {
    return DamagedParameter(place, parameter, inside.message());
  }
  TESSERA_RETURN_IF_ERROR(CheckStrides(parameter, place, local, strides));
  const int dim = parameter.tensor_parallel_dim;
  if (dim < 0) return AddForeignBox(parameter, kind, local, place, strides);
  const auto d = static_cast<size_t>(dim);
  for (const Run& run : ToWholeDim(parameter, share, d, local.global_offset[d], local.shape[d])) {
    Box box = local;
    box.global_offset[d] = run.begin;
    box.shape[d] = run.count;
    const int64_t skipped = (run.local_begin - local.global_offset[d]) * strides[d];
    TESSERA_RETURN_IF_ERROR(AddForeignBox(parameter, kind, box, place.After(skipped), strides));
  }
  return absl::OkStatus();
}

absl::Status ForeignTensorSet::AddRange(const ForeignParameter& parameter,
                                        const TensorParallelShare& share, const ForeignKind& kind,
                                        int64_t begin, int64_t end, const ForeignPlace& place) {
  TESSERA_ASSIGN_OR_RETURN(const Shape shape, LocalShape(parameter, share.size));
  TESSERA_ASSIGN_OR_RETURN(const int64_t count, CheckedElementCount(shape));
  if (begin < 0 || begin > end || end > count) {
    return DamagedParameter(place, parameter, "elements [", begin, ", ", end, ") of ",
                            ShapeToString(shape));
  }
  // The boxes of a range follow each other in the file, and each has the strides of the whole.
  const std::vector<int64_t> strides = ContiguousStrides(shape);
  ForeignPlace at = place;
  for (const Box& box : FlatRangeToBoxes(WholeBox(shape), begin, end)) {
    TESSERA_RETURN_IF_ERROR(AddBox(parameter, share, kind, box, at, strides));
    at = at.After(ElementCount(box.shape));
  }
  return absl::OkStatus();
}

absl::Status ForeignTensorSet::AddWhole(const ForeignParameter& parameter,
                                        const TensorParallelShare& share, const ForeignKind& kind,
                                        const Shape& shape, const ForeignPlace& place,
                                        const std::vector<int64_t>& strides) {
  TESSERA_ASSIGN_OR_RETURN(const Shape expected, LocalShape(parameter, share.size));
  if (shape != expected) {
    return DamagedParameter(place, parameter, "shape ", ShapeToString(shape), ", expected ",
                            ShapeToString(expected));
  }
  return AddBox(parameter, share, kind, WholeBox(shape), place, strides);
}

absl::Status ForeignTensorSet::AddPieces(const ForeignParameter& parameter, const ForeignKind& kind,
                                         const ForeignTensor& tensor) {
  for (const StoredPiece& piece : tensor.pieces) {
    TESSERA_RETURN_IF_ERROR(AddBox(parameter, {}, kind, piece.box,
                                   {piece.file, piece.offset_bytes, tensor.dtype}, piece.strides));
  }
  return absl::OkStatus();
}

absl::Status ForeignTensorSet::CheckComplete() const {
  std::set<std::string> states = {""};
  for (const auto& [key, entry] : entries_) states.insert(entry.state);
  std::vector<std::string> missing;
  for (const std::string& state : states) {
    for (size_t i = 0; i < model_.parameters.size(); ++i) {
      if (entries_.contains({i, state})) continue;
      missing.push_back(ForeignKind{.state = state}.NameOf(model_.parameters[i].name));
    }
  }
  if (missing.empty()) return absl::OkStatus();
  return DataLoss("no file has ", JoinFirst(missing, ", "));
}

void ForeignTensorSet::DescribeOptimizer(std::string_view framework,
                                         ForeignCheckpoint& checkpoint) {
  std::vector<std::string> single;
  for (const bool is_first : {true, false}) {
    const ForeignKind& moment = is_first ? kForeignExpAvg : kForeignExpAvgSq;
    const ForeignKind& other = is_first ? kForeignExpAvgSq : kForeignExpAvg;
    std::erase_if(entries_, [&](const auto& item) {
      const auto& [index, state] = item.first;
      if (state != moment.state || entries_.contains({index, other.state})) return false;
      single.push_back(item.second.tensor.name);
      return true;
    });
  }
  NoteLeftOut("moments of AdamW without their counterparts", single, checkpoint.notes);
  // An optimizer whose moments are left out is not taken for one without state.
  if (std::ranges::none_of(entries_, [&](const auto& item) {
        return single.empty() ? !item.second.state.empty()
                              : item.second.state == kForeignExpAvg.state;
      })) {
    return;
  }
  OptimizerState& optimizer = *checkpoint.description.mutable_optimizer();
  optimizer.set_algorithm("adamw");
  optimizer.add_groups();
  optimizer.add_groups();
  OptimizerParameter* parameter = nullptr;
  std::optional<size_t> last;
  for (const auto& [key, entry] : entries_) {
    if (entry.state.empty()) continue;
    const LogicalParameter& logical = model_.parameters[key.first];
    if (last != key.first) {
      parameter = optimizer.add_parameters();
      parameter->set_parameter(logical.name);
      parameter->set_group(logical.weight_decay ? 0 : 1);
      (*parameter->mutable_foreign_names())[std::string(framework)] = entry.tensor.foreign_name;
      last = key.first;
    }
    (*parameter->mutable_states())[entry.state] = entry.tensor.name;
  }
}

absl::Status ForeignTensorSet::MoveTo(std::string_view framework, const std::string& where,
                                      ForeignCheckpoint& checkpoint) && {
  TESSERA_RETURN_IF_ERROR(In(where, CheckComplete()));
  *checkpoint.description.mutable_model() = model_.config;
  DescribeOptimizer(framework, checkpoint);
  checkpoint.tensors = std::move(*this).Finish();
  return absl::OkStatus();
}

std::vector<ForeignTensor> ForeignTensorSet::Finish() && {
  std::vector<ForeignTensor> weights, states;
  for (auto& [key, entry] : entries_) {
    if (!entry.state.empty()) {
      states.push_back(std::move(entry.tensor));
      continue;
    }
    const LogicalParameter& logical = model_.parameters[key.first];
    weights.push_back(std::move(entry.tensor));
    if (logical.tied_name.empty()) continue;
    const ForeignTensor& tied = weights.back();
    weights.push_back({.name = logical.tied_name,
                       .dtype = tied.dtype,
                       .shape = tied.shape,
                       .foreign_name = tied.foreign_name,
                       .alias_of = tied.name});
  }
  std::move(states.begin(), states.end(), std::back_inserter(weights));
  return weights;
}

}  // namespace tessera::ckpt::convert
