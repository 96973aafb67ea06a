#ifndef TESSERA_CONVERT_CORE_WRAPPED_NAMES_H_
#define TESSERA_CONVERT_CORE_WRAPPED_NAMES_H_

// Additions of programs to the names of a model's tensors, in files of any format.

#include <string>
#include <string_view>
#include <vector>

namespace tessera::ckpt::convert {

// Returns a tensor's name without the additions of torch's wrappers: torch.compile ("_orig_mod"),
// FSDP ("_fsdp_wrapped_module") and activation checkpointing ("_checkpoint_wrapped_module")
// anywhere in the name, DistributedDataParallel ("module.") and peft ("base_model.model.") at its
// beginning.
std::string WithoutWrappers(std::string_view name);

// Returns some of the names, for messages: "a, b, c and 14 more".
std::string SomeOf(const std::vector<std::string>& names);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_WRAPPED_NAMES_H_
