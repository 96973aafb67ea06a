#ifndef TESSERA_CONVERT_MEGATRON_MODULE_ORDER_H_
#define TESSERA_CONVERT_MEGATRON_MODULE_ORDER_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "convert/core/foreign_layout.h"
#include "convert/core/model_rules.h"
#include "convert/megatron/parameters.h"
#include "convert/megatron/state_buffer.h"

namespace tessera::ckpt::convert {

// What a rank of a pipeline stage has, in a chunk of the model.
struct ChunkOfModel {
  bool is_first = false;  // of the whole model: with the embeddings
  bool is_last = false;   // with the final norm and the head
  int64_t first_layer = 0;
  int64_t layers = 0;
};

// The parameters of a chunk in the order in which its modules have them, which is not stored. With
// Transformer Engine a norm is a part of the module of the product that follows it; without, it
// stands before the block.
class ModuleOrder {
 public:
  // `parameters` must outlive this.
  ModuleOrder(const MegatronParameters& parameters, bool has_fused_norms);

  int64_t layers() const { return static_cast<int64_t>(layers_.size()); }

  // Errors: those of LocalShape(). Precondition: the layers are the model's.
  absl::StatusOr<std::vector<RankParameter>> Parameters(const ChunkOfModel& chunk,
                                                        const TensorParallelShare& share) const;

 private:
  using List = std::vector<const ForeignParameter*>;

  List head_, tail_;  // before and after the layers
  std::vector<List> layers_;
};

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_MEGATRON_MODULE_ORDER_H_
