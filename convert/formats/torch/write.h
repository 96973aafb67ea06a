#ifndef TESSERA_CONVERT_FORMATS_TORCH_WRITE_H_
#define TESSERA_CONVERT_FORMATS_TORCH_WRITE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/include/manifest.pb.h"
#include "convert/core/output.h"
#include "convert/core/value.h"
#include "convert/pickle/write.h"
#include "layout/dtype.h"

namespace tessera::ckpt::convert {

// A tensor of a checkpoint in a file of torch. An alias has the index of its tensor.
struct TorchOutputTensor {
  const LogicalTensor* logical = nullptr;
  DType dtype = DType::kUnspecified;
  size_t stored = 0;  // index of the stored tensor, which aliases share
};

// A parameter and the tensors of its states, both moments among them: "exp_avg", ... They are among
// TorchOutputTensors::all.
struct TorchOutputState {
  std::string parameter;
  std::map<std::string, std::string> tensors;
};

// A group of parameters that torch.optim.AdamW updates alike.
struct TorchOutputGroup {
  size_t number = 0;                     // in the manifest
  std::vector<TorchOutputState> states;  // in the order of the modules
};

struct TorchOutputTensors {
  std::vector<TorchOutputGroup> groups;              // that are not empty
  std::vector<TorchOutputTensor> all;                // in the manifest's order
  std::vector<TorchOutputTensor> stored;             // those that are not aliases, by index
  std::map<std::string, TorchOutputTensor> by_name;  // all
};

// Returns a contiguous tensor at that place of a file.
OutputTensor ToOutputTensor(const TorchOutputTensor& tensor, uint64_t offset_bytes);

// A state dict to write.
struct TorchStateDict {
  TorchOutputTensors tensors;
  SavedValue root;  // tensors have their names in the checkpoint
  // Keys of this library, for data that has no place in torch.
  std::vector<std::pair<std::string, SavedValue>> own_keys;
};

// The form of the optimizer's part: as AdamW.load_state_dict() takes it, or flat, by the names of
// the parameters.
enum class OptimizerForm { kNumbered, kFlat };

// The name of a tensor that is there for torch alone: the number of updates, in a flat form.
inline constexpr char kUpdatesTensor[] = "";

// Plans the checkpoint as a state dict. Values have their own places. With moments, the dict has
// "model" and "optimizer", whose groups have the settings in the values for groups of the same
// numbers; values without a place beside these are left out. Without moments, tensors have the
// places that the values give them, and others are at the top.
//
// `module_order` has the names of parameters in the order of the model's modules, in which
// optimizers number them; empty: the order of the manifest. The manifest must outlive the result.
TorchStateDict PlanStateDict(const Manifest& manifest, const PlanOptions& options,
                             OptimizerForm form, const std::vector<std::string>& module_order = {});

// Appends a value. `tensor` appends the tensor of that name.
void WriteValue(const SavedValue& value, pickle::Writer& writer,
                const std::function<void(const std::string&)>& tensor = {});

// Plans one file, checkpoint.pt, with the state dict of PlanStateDict(): a dict of contiguous
// tensors and values, which torch.load() reads with weights_only=True. Tied tensors share their
// storage. If the weight of a parameter was not saved, its master weight is the model's.
std::vector<OutputFile> PlanTorch(const Manifest& manifest, const PlanOptions& options,
                                  const std::vector<std::string>& module_order = {});

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_FORMATS_TORCH_WRITE_H_
