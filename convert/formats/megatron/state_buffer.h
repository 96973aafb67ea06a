#ifndef TESSERA_CONVERT_FORMATS_MEGATRON_STATE_BUFFER_H_
#define TESSERA_CONVERT_FORMATS_MEGATRON_STATE_BUFFER_H_

// The flat buffers in which Megatron's distributed optimizer keeps its state. A buffer holds the
// parameters that one rank has of one chunk of the model, in the reverse of the module's order.
// Each begins at a multiple of kBufferAlignment, and buckets divide the buffer.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/foreign_layout.h"
#include "convert/core/models.h"
#include "convert/core/optimizer_groups.h"
#include "convert/formats/megatron/rank_file.h"
#include "convert/formats/megatron/run.h"
#include "convert/pickle/torch_archive.h"
#include "convert/pickle/value.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

inline constexpr int64_t kBufferAlignment = 64;

// A rank's part of a parameter.
struct RankParameter {
  const ForeignParameter* parameter = nullptr;
  TensorParallelShare share;
  int64_t elements = 0;
  // Whether the parameter has a bucket of its own: a tied embedding that two pipeline stages have.
  bool has_own_bucket = false;
};

// Elements of a buffer that are stored one after the other.
struct BufferRun {
  int64_t begin = 0;  // in the buffer
  int64_t count = 0;
  ForeignPlace place;
};

// A buffer without the padding at the ends of its buckets.
struct StateBuffer {
  std::string where;                     // for messages
  int64_t elements = 0;                  // of each kind
  std::vector<int64_t> bucket_elements;  // empty if they are not stored
  // The runs of each kind, sorted.
  std::vector<std::pair<ForeignKind, std::vector<BufferRun>>> kinds;
};

// Returns the buffer that was gathered from data-parallel ranks into a file.
StateBuffer BufferOf(const GatheredBuffer& gathered, const std::string& path,
                     const std::string& where);

// Returns where each parameter begins in a buffer, in the order of `parameters`, which is the
// module's. If the buffer does not record its buckets, each ends with the parameter that gives it
// `bucket_elements`; 0: only the last parameter ends one. Nullopt if the buffer does not have the
// resulting size.
std::optional<std::vector<int64_t>> PlaceInBuffer(std::span<const RankParameter> parameters,
                                                  const StateBuffer& buffer,
                                                  int64_t bucket_elements);

// Adds the states of the parameters, which begin at `begins`. Errors: DataLoss, naming file and
// parameter, if a kind lacks elements of a parameter; those of ForeignTensorSet::AddRange().
absl::Status AddBuffer(std::span<const RankParameter> parameters, std::span<const int64_t> begins,
                       const StateBuffer& buffer, ForeignTensorSet& set);

// The part of the model in a chunk of a pipeline stage.
struct ChunkOfModel {
  bool is_first = false;  // of the whole model: with the embeddings
  bool is_last = false;   // with the final norm and the head
  int64_t first_layer = 0;
  int64_t layers = 0;
};

// The parameters of a chunk in the order of its modules, which is not stored. With Transformer
// Engine a norm is a part of the module of the product that follows it; without, the norm comes
// before the block.
class ModuleOrder {
 public:
  // `model`, whose parameters are in the order of modules, must outlive this object.
  ModuleOrder(const ForeignModel& model, bool has_fused_norms);

  int64_t layers() const { return static_cast<int64_t>(layers_.size()); }

  // Returns the parameters of a chunk. Precondition: the layers are the model's. Errors: those of
  // LocalShape().
  absl::StatusOr<std::vector<RankParameter>> Parameters(const ChunkOfModel& chunk,
                                                        const TensorParallelShare& share) const;

 private:
  using List = std::vector<const ForeignParameter*>;

  List head_, tail_;  // before and after the layers
  std::vector<List> layers_;
};

// Checks at a few elements of each weight that it is its fp32 master weight, rounded, which proves
// that states without names were assigned to the right parameters. Tensors without one of the two
// are skipped. Errors, naming tensor and files: DataLoss; Unimplemented if all master weights are
// integers of 16 bits. An optimizer with use_precision_aware_optimizer stores these, the bits that
// the bf16 weights lack.
absl::Status CheckMasterWeights(Storage& storage, const std::vector<ForeignTensor>& tensors);

// State of the distributed optimizer that torch_dist stores by buffer and not by parameter: the
// formats dp_reshardable (a tensor for each bucket) and dp_zero_gather_scatter (an object for each
// rank of the tensor- and pipeline-parallel grid).

// Returns whether a tensor or an object of this name is part of such state.
bool IsBucketState(std::string_view name);

// The buffers of all ranks. A group is a rank of the grid, counted with tensor parallelism fastest;
// it has a buffer for each of its chunks of the model.
class BucketStates {
 public:
  explicit BucketStates(const std::string& folder) : folder_(folder) {}

  bool empty() const { return buckets_.empty() && gathered_.empty(); }

  // Adds a bucket. DataLoss, naming the tensor, if it is not a bucket. Precondition:
  // IsBucketState(tensor.name).
  absl::Status AddTensor(const ForeignTensor& tensor);

  // Adds the buckets in the objects of the folder, and to `facts` what else these tell of the
  // optimizers. Errors: those of ReadDcpMetadata(), ReadGatheredState() and AddOptimizerFacts().
  absl::Status AddObjects(Storage& storage, OptimizerFacts& facts);

  // Adds the states of all parameters, in the order of the modules. Errors: DataLoss, naming group
  // and buffer, if a buffer is missing or its size is not that of its parameters.
  absl::Status AddTo(const MegatronRun& run, const ModuleOrder& order, ForeignTensorSet& set) const;

 private:
  using BufferKey = std::pair<int64_t, int64_t>;  // group, buffer
  // The runs of one bucket of a buffer, by state.
  struct Bucket {
    int64_t elements = 0;
    std::map<std::string, std::pair<ForeignKind, std::vector<BufferRun>>> kinds;
  };

  absl::Status AddGathered(int64_t group, const TorchArchive& archive, const pickle::Value& state,
                           const std::string& path, const std::string& where);
  absl::Status AddSizes(int64_t group, const pickle::Value& sizes, pickle::Budget& budget);
  absl::StatusOr<int64_t> ElementsOf(const BufferKey& key, int64_t index,
                                     const Bucket& bucket) const;
  absl::StatusOr<std::map<BufferKey, StateBuffer>> MakeBuffers() const;

  const std::string folder_;
  std::map<BufferKey, std::map<int64_t, Bucket>> buckets_;
  // Elements of each bucket without the padding at its end, if they are stored.
  std::map<BufferKey, std::vector<int64_t>> sizes_;
  std::map<BufferKey, StateBuffer> gathered_;
};

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_FORMATS_MEGATRON_STATE_BUFFER_H_
