#ifndef TESSERA_CONVERT_TORCH_WRITE_H_
#define TESSERA_CONVERT_TORCH_WRITE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/format/manifest.pb.h"
#include "convert/core/output.h"
#include "convert/pickle/write.h"
#include "convert/torch/zip.h"
#include "layout/box.h"
#include "layout/dtype.h"

namespace tessera::ckpt::convert {

// A zip archive as torch.save() writes it: the pickle of an object, and the storages that its
// tensors show. Where everything goes is known before any storage is.
class TorchArchiveLayout {
 public:
  TorchArchiveLayout(std::string pickle, std::span<const uint64_t> storage_bytes);

  // Where the first byte of a storage is, in bytes from the beginning of the archive.
  uint64_t storage_offset(size_t storage) const { return storage_offsets_[storage]; }
  uint64_t size_bytes() const { return size_bytes_; }

  // Everything but the storages, for an archive that begins at `offset_bytes` of its file.
  // `crc32`: of the storages.
  std::vector<OutputBytes> Records(std::span<const uint32_t> crc32, uint64_t offset_bytes) const;

  // The same in two parts: what is directly before a storage, and all the rest.
  OutputBytes StorageHeader(size_t storage, uint32_t crc32, uint64_t offset_bytes) const;
  std::vector<OutputBytes> OtherRecords(std::span<const uint32_t> crc32,
                                        uint64_t offset_bytes) const;

 private:
  ZipLayout zip_;
  std::vector<std::string> texts_;  // contents of the first members
  std::vector<uint64_t> text_offsets_;
  std::vector<uint64_t> storage_offsets_;
  uint64_t size_bytes_ = 0;
};

// Appends a contiguous tensor that is all of a storage of the archive.
void WriteTorchTensor(DType dtype, const Shape& shape, size_t storage, pickle::Writer& writer);

// Appends a torch.dtype. Precondition: ElementSize(dtype) > 0.
void WriteTorchDType(DType dtype, pickle::Writer& writer);

struct TorchOutputOptions {
  DType dtype = DType::kUnspecified;  // of floating weights; unspecified: as they are saved
  bool weights_only = false;          // no optimizer state, no master weights
  // Names of parameters in the order in which the model's modules have them, which is that in which
  // optimizers number them. Empty: that of the manifest.
  std::vector<std::string> module_order;
};

// A tensor of a checkpoint as a file of torch has it. An alias has the index of its tensor.
struct TorchOutputTensor {
  const LogicalTensor* logical = nullptr;
  std::string key;  // in the state dict, see TorchOutputTensors
  DType dtype = DType::kUnspecified;
  size_t stored = 0;  // index of what is stored, which aliases share
};

// A parameter with Adam's moments, as indices into TorchOutputTensors::all.
struct TorchOutputState {
  std::string parameter;
  size_t exp_avg = 0, exp_avg_sq = 0;
};

// A group of parameters that torch.optim.AdamW updates alike.
struct TorchOutputGroup {
  const ParameterGroup* options = nullptr;
  bool decays = true;                    // whether weights do, where the options do not tell
  std::vector<TorchOutputState> states;  // in the order of the modules
};

// With moments, the state dict describes a model and its optimizer: the key of a weight is
// "model.NAME", that of a moment "optimizer.state.NAME.exp_avg", and what torch has no place for
// keeps its name. Where the weight of a parameter was not saved, its master weight is the model's.
// Without moments, the keys are the names.
struct TorchOutputTensors {
  std::vector<TorchOutputGroup> groups;   // that are not empty
  std::vector<TorchOutputTensor> all;     // in the manifest's order
  std::vector<TorchOutputTensor> stored;  // those that are not aliases, by index
};

// The tensors that the options select, with the aliases of those. The manifest must outlive them.
TorchOutputTensors SelectTensors(const Manifest& manifest, const TorchOutputOptions& options);

uint64_t StoredBytes(const TorchOutputTensor& tensor);

// A contiguous tensor at that place of a file.
OutputTensor ToOutputTensor(const TorchOutputTensor& tensor, uint64_t offset_bytes);

// What tensors other than weights are to training, for ReadTorchRoles(). Other programs ignore it.
bool HasRoles(const TorchOutputTensors& tensors);
void WriteRoles(const TorchOutputTensors& tensors, pickle::Writer& writer);

// The names of tensors by their keys, where those are others: kTorchNamesKey. `hidden`: keys of
// tensors that are there for torch alone.
bool HasNames(const TorchOutputTensors& tensors);
void WriteNames(const TorchOutputTensors& tensors, std::span<const std::string> hidden,
                pickle::Writer& writer);

// The settings of a group as torch.optim.AdamW has them in its param_groups, with its defaults for
// those that the manifest does not tell.
struct TorchSetting {
  const char* name;
  std::function<void(pickle::Writer&)> write;
};
std::vector<TorchSetting> SettingsOf(const TorchOutputGroup& group, const Manifest& manifest);

// How often the optimizer has updated the weights.
double UpdatesOf(const Manifest& manifest);

// The state of the trainer, kTorchTrainerKey. None with the weights alone, or where it is unknown.
bool HasTrainer(const Manifest& manifest, const TorchOutputOptions& options);
void WriteTrainer(const TrainerState& trainer, pickle::Writer& writer);

// One file, checkpoint.pt, of a dict of contiguous tensors, which torch.load() reads with
// weights_only=True. Without moments: from the names of all tensors. With them: "model" is the dict
// for the model's load_state_dict(), "optimizer" that for torch.optim.AdamW's, whose groups are the
// manifest's, and kTorchNamesKey has the names. Tied tensors share their storage. Where there are
// others than weights, kTorchRolesKey is one more key, and so is kTorchTrainerKey.
std::vector<OutputFile> PlanTorch(const Manifest& manifest, const TorchOutputOptions& options);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_TORCH_WRITE_H_
