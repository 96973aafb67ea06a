#ifndef TESSERA_CONVERT_FORMATS_PADDLE_STATE_FILE_H_
#define TESSERA_CONVERT_FORMATS_PADDLE_STATE_FILE_H_

// The files in which PaddleNLP's ranks keep their states, and the states of parameters in them.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/include/manifest.pb.h"
#include "convert/core/foreign_layout.h"
#include "convert/formats/paddle/files.h"
#include "convert/pickle/numpy_array.h"
#include "layout/box.h"
#include "layout/dtype.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

// The entry of a file that maps keys to names of tensors.
inline constexpr char kPaddleTensorNames[] = "StructuredToParameterName@@";

// An array of a state dict that paddle.save() wrote as a pickle of numpy arrays.
struct PaddleArray {
  std::string key;          // in the dict
  std::string tensor_name;  // of the tensor, which the optimizer's names begin with; may be empty
  // The dtype of the elements. BF16 if the array has the dtype uint16: Paddle stores bfloat16 in
  // this way, and has no tensors of uint16.
  DType dtype = DType::kUnspecified;
  Shape shape;
  // The array, or the flat parts of an array beyond 1 GiB, in their order.
  std::vector<pickle::NumpyArray> parts;
};

struct PaddleStateFile {
  std::vector<PaddleArray> arrays;
  std::vector<PaddleArray> master_weights;  // of the nested dict of that name
  std::optional<int64_t> last_epoch;        // of LR_Scheduler: how often it was stepped
  std::string decoded;                      // see ResolveNumpyArray()
};

// Reads a file of paddle.save(). Errors: DataLoss and Unimplemented, with the key, and those of
// ReadPickle().
absl::StatusOr<PaddleStateFile> ReadPaddleStateFile(const ReadableFile& file);

// Returns the kind of a parameter's tensor; nullopt for the powers of betas.
std::optional<ForeignKind> KindOf(PaddleState state);

// One sharding rank's part of a state.
struct PaddleStored {
  const PaddleRankFile* file = nullptr;
  const PaddleArray* array = nullptr;
};

// A parameter in the files of one tensor-parallel rank.
struct PaddleTarget {
  const ForeignParameter* parameter = nullptr;
  TensorParallelShare share;
  ForeignKind kind;
  std::optional<Shape> local_shape;  // if the model's files or metadata record it
};

// Adds a weight or a state, which `stored` has in the order of sharding ranks: whole, once or as
// copies, or as flat slices. Errors: DataLoss and InvalidArgument, naming the files.
absl::Status AddPaddleState(const PaddleTarget& target, const std::vector<PaddleStored>& stored,
                            Storage& storage, ForeignTensorSet& set);

// The step, and AdamW's betas, which several files tell. They have to agree.
class PaddleProgress {
 public:
  // `storage` must outlive this object.
  explicit PaddleProgress(Storage& storage) : storage_(storage) {}

  // Adds the step that a file tells, if it tells one. DataLoss, naming the file, if another file
  // tells another step.
  absl::Status AddStep(std::optional<int64_t> step, std::string_view file);
  // Adds the steps of the scheduler and of the trainer's state, if their files are among these.
  absl::Status ReadSteps(std::span<const std::string> names);
  // Adds beta^(updates + 1), which must be the same for all parameters. DataLoss, naming the file.
  absl::Status AddPower(const std::string& file, const PaddleArray& array, PaddleState state);

  // Sets the step, or adds a note that it is unknown.
  void DescribeStep(ForeignCheckpoint& checkpoint) const;
  // Computes the betas from the step and their powers, which begin with beta itself before the
  // first update.
  void AddBetas(OptimizerState& optimizer) const;

 private:
  struct Power {
    float value = 0;
    std::string file, key;
  };

  Storage& storage_;
  std::optional<int64_t> step_;
  std::string step_file_;
  std::map<PaddleState, Power> powers_;
};

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_FORMATS_PADDLE_STATE_FILE_H_
