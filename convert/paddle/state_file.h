#ifndef TESSERA_CONVERT_PADDLE_STATE_FILE_H_
#define TESSERA_CONVERT_PADDLE_STATE_FILE_H_

// What paddle.save() wrote of a state dict: a pickle of numpy arrays.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/format/manifest.pb.h"
#include "checkpoint/include/storage.h"
#include "convert/pickle/numpy_array.h"
#include "layout/box.h"
#include "layout/dtype.h"

namespace tessera::ckpt::convert {

struct PaddleArray {
  std::string key;          // in the dict
  std::string tensor_name;  // of the tensor, which the optimizer's names begin with; may be empty
  // BF16 where the array has the dtype uint16: Paddle has no tensors of that, and stores bfloat16
  // so.
  DType dtype = DType::kUnspecified;
  Shape shape;
  // One, or flat parts of an array beyond 1 GiB, in their order.
  std::vector<pickle::NumpyArray> parts;
};

struct PaddleStateFile {
  std::vector<PaddleArray> arrays;
  std::vector<PaddleArray> master_weights;  // of the nested dict of that name
  std::optional<int64_t> last_epoch;        // of LR_Scheduler: how often it was stepped
};

// Errors: DataLoss and Unimplemented, with the key, and those of ReadPickle().
absl::StatusOr<PaddleStateFile> ReadPaddleStateFile(const ReadableFile& file);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_PADDLE_STATE_FILE_H_
