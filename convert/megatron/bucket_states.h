#ifndef TESSERA_CONVERT_MEGATRON_BUCKET_STATES_H_
#define TESSERA_CONVERT_MEGATRON_BUCKET_STATES_H_

// State of the distributed optimizer that torch_dist stores by buffer and not by parameter: the
// formats dp_reshardable (a tensor for each bucket) and dp_zero_gather_scatter (an object for each
// rank of the tensor- and pipeline-parallel grid).

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/include/storage.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/foreign_layout.h"
#include "convert/megatron/run.h"
#include "convert/megatron/state_buffer.h"
#include "convert/pickle/budget.h"
#include "convert/pickle/value.h"
#include "convert/torch/archive.h"

namespace tessera::ckpt::convert {

// Whether a tensor or an object of this name is part of such state.
bool IsBucketState(std::string_view name);

// The buffers of all ranks. A group is a rank of the grid, counted with tensor parallelism fastest;
// it has a buffer for each of its chunks of the model.
class BucketStates {
 public:
  explicit BucketStates(const std::string& folder) : folder_(folder) {}

  bool empty() const { return buckets_.empty() && gathered_.empty(); }

  // DataLoss, naming the tensor, if it is not a bucket. Precondition: IsBucketState(tensor.name).
  absl::Status AddTensor(const ForeignTensor& tensor);

  // Takes what there is of the objects of the folder. Errors: those of ReadDcpMetadata() and
  // ReadGatheredState().
  absl::Status AddObjects(Storage& storage);

  // Adds the states of all parameters, in the order of the modules. Errors: DataLoss, naming group
  // and buffer, where one is missing or its size is not what its parameters take up.
  absl::Status AddTo(const MegatronRun& run, const ModuleOrder& order, ForeignTensorSet& set) const;

 private:
  using BufferKey = std::pair<int64_t, int64_t>;  // group, buffer
  // Of a buffer, the runs of each bucket and state.
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
  // Elements of each bucket without the padding at its end, where they are stored.
  std::map<BufferKey, std::vector<int64_t>> sizes_;
  std::map<BufferKey, StateBuffer> gathered_;
};

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_MEGATRON_BUCKET_STATES_H_
