#ifndef TESSERA_CHECKPOINT_CONVERT_TORCH_WRITE_H_
#define TESSERA_CHECKPOINT_CONVERT_TORCH_WRITE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "checkpoint/convert/output.h"
#include "checkpoint/convert/pickle/write.h"
#include "checkpoint/format/manifest.pb.h"

namespace tessera::ckpt::convert {

struct TorchOutputOptions {
  DType dtype = DTYPE_UNSPECIFIED;  // of floating weights; unspecified: as they are saved
  bool weights_only = false;        // no optimizer state, no master weights
};

// A tensor of a checkpoint as a file of torch has it. An alias has the index of its tensor.
struct TorchOutputTensor {
  const LogicalTensor* logical = nullptr;
  DType dtype = DTYPE_UNSPECIFIED;
  size_t stored = 0;  // index of what is stored, which aliases share
};

struct TorchOutputTensors {
  std::vector<TorchOutputTensor> all;     // in the manifest's order
  std::vector<TorchOutputTensor> stored;  // those that are no aliases, by index
};

// The tensors that the options select, with the aliases of those. The manifest must outlive them.
TorchOutputTensors SelectTensors(const Manifest& manifest, const TorchOutputOptions& options);

uint64_t StoredBytes(const TorchOutputTensor& tensor);

// A contiguous tensor at that place of a file.
OutputTensor ToOutputTensor(const TorchOutputTensor& tensor, uint64_t offset_bytes);

// What tensors other than weights are to training, for ReadTorchRoles(). Other programs ignore it.
bool HasRoles(const TorchOutputTensors& tensors);
void WriteRoles(const TorchOutputTensors& tensors, pickle::Writer& writer);

// The state of the trainer, kTorchTrainerKey. None with the weights alone, or where it is unknown.
bool HasTrainer(const Manifest& manifest, const TorchOutputOptions& options);
void WriteTrainer(const TrainerState& trainer, pickle::Writer& writer);

// One file, checkpoint.pt, of a dict from the names of all tensors to contiguous tensors, which
// torch.load() reads with weights_only=True. Tied tensors share their storage. Where there are
// others than weights, kTorchRolesKey is one more key, and so is kTorchTrainerKey.
std::vector<OutputFile> PlanTorch(const Manifest& manifest, const TorchOutputOptions& options);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CHECKPOINT_CONVERT_TORCH_WRITE_H_
