#ifndef TESSERA_CONVERT_CORE_FOREIGN_LAYOUT_H_
#define TESSERA_CONVERT_CORE_FOREIGN_LAYOUT_H_

// Parameters that another framework transposes, fuses and cuts among its ranks, as pieces of
// logical tensors. Pure: nothing here reads a file.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/include/state_dict.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/models.h"
#include "convert/core/output_file.h"
#include "layout/box.h"
#include "layout/dtype.h"

namespace tessera::ckpt::convert {

// Returns InvalidArgument if the model's parameters have more elements than the files have bytes.
// Call before allocating anything in proportion to the model's sizes.
absl::Status CheckModelFits(const ModelDescription& model, uint64_t file_bytes);

// The share of a tensor-parallel rank.
struct TensorParallelShare {
  int64_t rank = 0;
  int64_t size = 1;
};

// Returns the shape of a rank's part of a parameter. InvalidArgument, naming the parameter: a dim
// that it does not have, or an extent that ranks and sections do not divide.
absl::StatusOr<Shape> LocalShape(const ForeignParameter& parameter, int64_t tensor_parallel_size);

// The kind of a parameter's piece: the weight itself, or a state of the optimizer.
struct ForeignKind {
  TensorRole role = TensorRole::kWeight;
  std::string state;  // "exp_avg", "exp_avg_sq", "master"; empty for the weight

  // Returns the name of a parameter's tensor of this kind.
  std::string NameOf(const std::string& parameter) const {
    return state.empty() ? parameter : absl::StrCat(parameter, ".", state);
  }
};

inline const ForeignKind kForeignWeight = {};
inline const ForeignKind kForeignMaster = {TensorRole::kMasterWeight, "master"};
inline const ForeignKind kForeignExpAvg = {TensorRole::kOptimizerState, "exp_avg"};
inline const ForeignKind kForeignExpAvgSq = {TensorRole::kOptimizerState, "exp_avg_sq"};

// The place of stored elements. `offset_bytes` is where the first of them begins in the file.
struct ForeignPlace {
  std::string file;
  uint64_t offset_bytes = 0;
  DType dtype = DType::kUnspecified;

  // Returns the place that is so many elements further on.
  ForeignPlace After(int64_t elements) const {
    return {
        file,
        offset_bytes + static_cast<uint64_t>(elements) * static_cast<uint64_t>(ElementSize(dtype)),
        dtype};
  }
};

// Returns the box of the whole block in its parameter. Precondition: neighbours in the block are
// neighbours in the parameter.
Box ForeignBox(const ForeignParameter& parameter, const ForeignBlock& block);

// Returns elements [begin, end) of the row-major form of `box`, a box of the parameter, as pieces
// of the block's tensor; elements outside the block are left out. Offsets count from `begin`.
std::vector<StoredPiece> BlockPieces(const ForeignBlock& block, const Box& box, int64_t begin,
                                     int64_t end, DType dtype);

// Returns a logical tensor of this kind, written as the framework's parameter, which has all of it
// and nothing else, under the logical name. If a caller adds elements at its end, they are padding.
OutputTensor WholeParameter(const ForeignParameter& parameter, const LogicalParameter& logical,
                            const ForeignKind& kind, DType dtype);

// Collects the tensors of a model: its weights under the logical names, states of its optimizer
// under "<logical name>.<state>". Coverage, bounds of the files and copies are checked by
// ForeignStorage::Create(), not here.
//
//   ForeignTensorSet set(model);
//   for (each file) for (each parameter in it) set.AddRange(...) or set.AddBox(...);
//   std::move(set).MoveTo(framework, folder, checkpoint);
class ForeignTensorSet {
 public:
  // `model` must outlive the set.
  explicit ForeignTensorSet(const ModelDescription& model);

  // Adds elements [begin, end) of the row-major form of the rank's part of the parameter, stored
  // one after the other. Errors: DataLoss, naming file and parameter, for a range outside the part,
  // and for a dtype that differs from the tensor's other pieces; those of LocalShape().
  absl::Status AddRange(const ForeignParameter& parameter, const TensorParallelShare& share,
                        const ForeignKind& kind, int64_t begin, int64_t end,
                        const ForeignPlace& place);

  // Adds a box of the rank's part of the parameter, stored with strides in elements, as AddRange().
  absl::Status AddBox(const ForeignParameter& parameter, const TensorParallelShare& share,
                      const ForeignKind& kind, const Box& local, const ForeignPlace& place,
                      const std::vector<int64_t>& strides);

  // Adds the rank's whole part, stored row-major with this shape, which is checked.
  absl::Status AddWhole(const ForeignParameter& parameter, const TensorParallelShare& share,
                        const ForeignKind& kind, const Shape& shape, const ForeignPlace& place,
                        const std::vector<int64_t>& strides);

  // Does the same for a tensor of a file, which may be of any format.
  template <typename Tensor>
  absl::Status AddWhole(const ForeignParameter& parameter, const TensorParallelShare& share,
                        const ForeignKind& kind, const std::string& file, const Tensor& tensor) {
    return AddWhole(parameter, share, kind, tensor.shape, {file, tensor.offset_bytes, tensor.dtype},
                    tensor.strides);
  }

  // Adds the pieces of a tensor that is the whole parameter.
  absl::Status AddPieces(const ForeignParameter& parameter, const ForeignKind& kind,
                         const ForeignTensor& tensor);

  // Returns DataLoss, listing the parameters that lack a weight, or a state that another one has.
  absl::Status CheckComplete() const;

  // Describes AdamW with the states that were added, if there are any: group 0 has weight decay,
  // group 1 has none. `framework` is the key of the parameters' names in that framework. May be
  // called once, before Finish(). AdamW needs both moments of a parameter: a single one is left
  // out, with a note.
  void DescribeOptimizer(std::string_view framework, ForeignCheckpoint& checkpoint);

  // Sets the checkpoint's model, tensors and, if there are states, optimizer. Returns the error of
  // CheckComplete(), after `where`, if the model is not complete.
  absl::Status MoveTo(std::string_view framework, const std::string& where,
                      ForeignCheckpoint& checkpoint) &&;

  // Returns the tensors in the model's order: weights with the second names of tied ones; states.
  std::vector<ForeignTensor> Finish() &&;

 private:
  struct Entry {
    ForeignTensor tensor;
    std::string state;
  };

  absl::StatusOr<Entry*> FindEntry(const ForeignParameter& parameter, const std::string& name,
                                   const ForeignKind& kind, const ForeignPlace& place);
  // Adds a box of the parameter that is stored with these strides.
  absl::Status AddForeignBox(const ForeignParameter& parameter, const ForeignKind& kind,
                             const Box& box, const ForeignPlace& place,
                             const std::vector<int64_t>& strides);

  const ModelDescription& model_;
  std::map<std::string, size_t> parameters_;  // index in model_.parameters, by name
  // Entries by index in model_.parameters, and by state.
  std::map<std::pair<size_t, std::string>, Entry> entries_;
};

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_FOREIGN_LAYOUT_H_
