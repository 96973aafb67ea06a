#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/directory/directory.h"
#include "convert/core/reading.h"
#include "convert/formats/dcp/metadata.h"
#include "convert/formats/megatron/rank_file.h"
#include "convert/formats/megatron/state_buffer.h"
#include "convert/pickle/torch_archive.h"
#include "convert/pickle/value.h"
#include "layout/box.h"

namespace tessera::ckpt::convert {
namespace {

constexpr std::string_view kGroup = "optimizer.distributed.dp_group_idx_";
constexpr std::string_view kBuffer = ".gbuf_idx_";
constexpr std::string_view kBucket = ".bucket_idx_";
constexpr std::string_view kGathered = ".param_state/";
constexpr std::string_view kOptimizer = ".optimizer/";
constexpr std::string_view kSizes = ".per_bucket_numel_unpadded/";
// Bounds the numbers in names.
constexpr int64_t kMaxIndex = INT32_MAX;
// Bounds the size of a bucket, so that sums of them do not overflow.
constexpr int64_t kMaxElements = int64_t{1} << 40;

// Returns the number that follows `key` in a name.
std::optional<int64_t> NumberAfter(std::string_view name, std::string_view key) {
  const size_t begin = name.find(key);
  if (begin == name.npos) return std::nullopt;
  const std::string_view rest = name.substr(begin + key.size());
  const std::string_view digits = rest.substr(0, rest.find_first_not_of("0123456789"));
  int64_t number = 0;
  if (!absl::SimpleAtoi(View(digits), &number) || number > kMaxIndex) return std::nullopt;
  return number;
}

std::optional<ForeignKind> KindOf(std::string_view name) {
  const std::string_view state = name.substr(name.rfind('.') + 1);
  if (state == "param") return kForeignMaster;
  for (const ForeignKind& kind : {kForeignExpAvg, kForeignExpAvgSq}) {
    if (state == kind.state) return kind;
  }
  return std::nullopt;
}

std::string Name(int64_t group, int64_t buffer) {
  return absl::StrCat("the optimizer's buffer ", buffer, " of dp_group_idx_", group);
}

// torch_dist stores the parts of an object that one rank has as a list: the only part.
pickle::Value OnlyPart(const pickle::Value& root) {
  return root.is(pickle::Kind::kList) && root.size() == 1 ? root[0] : root;
}

// Adds the buffer of a chunk with chunk.layers layers or more, which it sets, but at most `most`.
absl::Status AddBufferOfChunk(const StateBuffer& buffer, const ModuleOrder& order,
                              const TensorParallelShare& share, int64_t bucket_elements,
                              int64_t most, ChunkOfModel& chunk, ForeignTensorSet& set) {
  for (; chunk.layers <= most; ++chunk.layers) {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<RankParameter> parameters,
                             order.Parameters(chunk, share));
    const auto begins = PlaceInBuffer(parameters, buffer, bucket_elements);
    if (begins) return AddBuffer(parameters, *begins, buffer, set);
  }
  return DataLoss(buffer.where, ": ", buffer.elements,
                  " elements are not what whole layers of the model take up in buckets");
}

}  // namespace

bool IsBucketState(std::string_view name) { return name.find(kGroup) != name.npos; }

absl::Status BucketStates::AddTensor(const ForeignTensor& tensor) {
  const std::optional<int64_t> group = NumberAfter(tensor.name, kGroup);
  const std::optional<int64_t> buffer = NumberAfter(tensor.name, kBuffer);
  const std::optional<int64_t> bucket = NumberAfter(tensor.name, kBucket);
  const std::optional<ForeignKind> kind = KindOf(tensor.name);
  const std::string shown = Shown(tensor.name);
  if (!group || !buffer || !bucket || !kind) {
    return Unimplemented("tensor ", shown, ": no state of AdamW in a bucket");
  }
  if (tensor.shape.size() != 1) {
    return Unimplemented("tensor ", shown, ": shape ", ShapeToString(tensor.shape),
                         ", expected a vector; buckets ",
                         "in this form are not read, states by parameter are");
  }
  if (tensor.shape[0] < 0 || tensor.shape[0] > kMaxElements) {
    return DataLoss("tensor ", shown, ": ", tensor.shape[0], " elements");
  }
  Bucket& own = buckets_[{*group, *buffer}][*bucket];
  if (!own.kinds.empty() && own.elements != tensor.shape[0]) {
    return DataLoss("tensor ", shown, ": ", tensor.shape[0],
                    " elements, other states of the bucket have ", own.elements);
  }
  own.elements = tensor.shape[0];
  std::vector<BufferRun> runs;
  for (const StoredPiece& piece : tensor.pieces) {
    const int64_t count = piece.box.shape[0];
    const int64_t begin = piece.box.global_offset[0];
    if (begin < 0 || count < 0 || count > tensor.shape[0] || begin > tensor.shape[0] - count ||
        (count > 1 && piece.strides[0] != 1)) {
      return DataLoss("tensor ", shown, ": the part ", ToString(piece.box),
                      " is outside of it, or not contiguous");
    }
    runs.push_back({begin, count, {piece.file, piece.offset_bytes, tensor.dtype}});
  }
  if (own.kinds.try_emplace(kind->state, *kind, std::move(runs)).second) return absl::OkStatus();
  return Unimplemented("tensor ", shown, ": the states of several optimizers, expected one");
}

// `sizes` has the elements of the buckets of each buffer, by the dtypes of its parameters.
absl::Status BucketStates::AddSizes(int64_t group, const pickle::Value& sizes,
                                    pickle::Budget& budget) {
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i].entry_count() != 1) {
      return Unimplemented("parameters of ", sizes[i].entry_count(), " dtypes, expected 1");
    }
    const pickle::Value buckets = sizes[i].entry(0).second;
    std::vector<int64_t>& own = sizes_[{group, static_cast<int64_t>(i)}];
    for (size_t j = 0; j < buckets.size(); ++j) {
      const std::optional<int64_t> elements = buckets[j].AsInt();
      if (!elements) return DataLoss("no number of elements for each bucket");
      TESSERA_RETURN_IF_ERROR(budget.Take(sizeof(int64_t)));
      own.push_back(*elements);
    }
  }
  return absl::OkStatus();
}

absl::Status BucketStates::AddObjects(Storage& storage, OptimizerFacts& facts) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> metadata_file,
                           storage.Open(JoinPath(folder_, kDcpMetadataFile)));
  TESSERA_ASSIGN_OR_RETURN(const DcpMetadata metadata, ReadDcpMetadata(*metadata_file));
  pickle::Budget budget(metadata_file->size_bytes());  // objects may be in one place
  for (const DcpObject& object : metadata.objects) {
    const std::optional<int64_t> group = NumberAfter(object.name, kGroup);
    const bool is_gathered = object.name.find(kGathered) != object.name.npos;
    const bool is_sizes = object.name.find(kSizes) != object.name.npos;
    const bool is_optimizer = object.name.find(kOptimizer) != object.name.npos;
    if (!group || (!is_gathered && !is_sizes && !is_optimizer)) continue;
    const std::string path = JoinPath(folder_, object.blob.file);
    const std::string where = absl::StrCat(storage.Describe(path), ": object ", Shown(object.name));
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file, storage.Open(path));
    TESSERA_ASSIGN_OR_RETURN(const TorchArchive archive,
                             At(storage, path, ReadTorchArchive(*file, object.blob.part)));
    if (is_optimizer) {
      TESSERA_RETURN_IF_ERROR(In(where, AddOptimizerFacts(*file, archive, facts)));
      continue;
    }
    const pickle::Value value = OnlyPart(archive.contents.root());
    TESSERA_RETURN_IF_ERROR(In(where, is_sizes ? AddSizes(*group, value, budget)
                                               : AddGathered(*group, archive, value, path, where)));
  }
  return absl::OkStatus();
}

absl::Status BucketStates::AddGathered(int64_t group, const TorchArchive& archive,
                                       const pickle::Value& state, const std::string& path,
                                       const std::string& where) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<GatheredBuffer> buffers,
                           ReadGatheredState(archive, state));
  for (size_t i = 0; i < buffers.size(); ++i) {
    const BufferKey key = {group, static_cast<int64_t>(i)};
    if (gathered_.emplace(key, BufferOf(buffers[i], path, where)).second) continue;
    return Unimplemented("the states of several optimizers, expected one");
  }
  return absl::OkStatus();
}

// Returns the elements of a bucket without the padding at its end, which some releases store.
absl::StatusOr<int64_t> BucketStates::ElementsOf(const BufferKey& key, int64_t index,
                                                 const Bucket& bucket) const {
  const auto sizes = sizes_.find(key);
  if (sizes == sizes_.end()) return bucket.elements;
  const std::vector<int64_t>& known = sizes->second;
  const int64_t elements = static_cast<size_t>(index) < known.size() ? known[index] : -1;
  if (elements >= 0 && elements <= bucket.elements) return elements;
  return DataLoss(Name(key.first, key.second), ": bucket ", index, " has ", bucket.elements,
                  " elements, ", elements,
                  " without padding according to per_bucket_numel_unpadded");
}

absl::StatusOr<std::map<BucketStates::BufferKey, StateBuffer>> BucketStates::MakeBuffers() const {
  std::map<BufferKey, StateBuffer> buffers = gathered_;
  for (const auto& [key, buckets] : buckets_) {
    StateBuffer buffer = {.where = Name(key.first, key.second)};
    std::map<std::string, std::pair<ForeignKind, std::vector<BufferRun>>> kinds;
    for (const auto& [index, bucket] : buckets) {
      if (index != static_cast<int64_t>(buffer.bucket_elements.size())) {
        return DataLoss(buffer.where, ": bucket ", buffer.bucket_elements.size(), " is missing");
      }
      TESSERA_ASSIGN_OR_RETURN(const int64_t elements, ElementsOf(key, index, bucket));
      for (const auto& [state, runs] : bucket.kinds) {
        auto& all = kinds[state];
        all.first = runs.first;
        for (BufferRun run : runs.second) {
          run.count = std::min(run.count, elements - run.begin);
          if (run.count <= 0) continue;
          run.begin += buffer.elements;
          all.second.push_back(run);
        }
      }
      buffer.bucket_elements.push_back(elements);
      buffer.elements += elements;
    }
    for (auto& [state, runs] : kinds) {
      std::ranges::sort(runs.second, {}, &BufferRun::begin);
      buffer.kinds.push_back(std::move(runs));
    }
    buffers[key] = std::move(buffer);
  }
  return buffers;
}

absl::Status BucketStates::AddTo(const MegatronRun& run, const ModuleOrder& order,
                                 ForeignTensorSet& set) const {
  TESSERA_ASSIGN_OR_RETURN(const auto buffers, MakeBuffers());
  const int64_t ranks = std::max<int64_t>(run.Integer("tensor_model_parallel_size").value_or(1), 1);
  const int64_t stages =
      std::max<int64_t>(run.Integer("pipeline_model_parallel_size").value_or(1), 1);
  const auto count = static_cast<int64_t>(buffers.size());
  // Divided, since a product of sizes from a file may overflow.
  const int64_t chunks = ranks > count || stages > count / ranks ? 0 : count / ranks / stages;
  if (chunks * ranks * stages != count || chunks == 0) {
    return DataLoss("the optimizer's state has ", count, " buffers, but the run had ", ranks,
                    " tensor-parallel and ", stages, " pipeline-parallel ranks");
  }
  // A virtual pipeline passes through the stages once for each chunk.
  ChunkOfModel chunk;
  for (int64_t index = 0; index < chunks * stages; ++index) {
    chunk = {.is_first = index == 0,
             .is_last = index + 1 == chunks * stages,
             .first_layer = chunk.first_layer + chunk.layers};
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const BufferKey key = {index % stages * ranks + rank, index / stages};
      const auto found = buffers.find(key);
      if (found == buffers.end()) return DataLoss(Name(key.first, key.second), " is missing");
      // How many layers the chunk has is what the size of the first rank's buffer tells.
      const int64_t most = rank == 0 ? order.layers() - chunk.first_layer : chunk.layers;
      TESSERA_RETURN_IF_ERROR(AddBufferOfChunk(found->second, order, {rank, ranks},
                                               chunk.is_first ? run.BucketElements() : 0, most,
                                               chunk, set));
    }
  }
  if (chunk.first_layer + chunk.layers == order.layers()) return absl::OkStatus();
  return DataLoss("the optimizer's buffers hold ", chunk.first_layer + chunk.layers,
                  " layers, the model has ", order.layers());
}

}  // namespace tessera::ckpt::convert
