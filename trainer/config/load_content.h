#ifndef TESSERA_TRAINER_CONFIG_LOAD_CONTENT_H_
#define TESSERA_TRAINER_CONFIG_LOAD_CONTENT_H_

#include <string>

#include "absl/status/statusor.h"
#include "trainer/config/config.pb.h"

namespace tessera {

// The parts of a run that a load takes from a checkpoint. The other parts begin anew.
struct LoadContent {
  bool model = true;      // weights
  bool optimizer = true;  // moments and the number of updates; with the model, master weights
  bool scheduler = true;  // the step, and so the learning rate; best loss
  bool sampler = true;    // the position in the data, and the order of the samples
  bool rng = true;        // the seed of dropout and sampling

  // Returns whether any tensors, which must fit the model, are taken.
  bool has_tensors() const { return model || optimizer; }
  // Returns whether anything besides weights is taken.
  bool continues() const { return optimizer || scheduler || sampler || rng; }
};

// Reads "model,optimizer,scheduler,sampler,rng", any of them in any order, or "all".
// InvalidArgument for other words.
absl::StatusOr<LoadContent> ParseLoadContent(const std::string& text);

// Returns the names of the parts that are not loaded: "sampler, rng".
std::string LeftOut(const LoadContent& content);

// Returns the parts for which the settings ask: load_content without the parts that no_load_optim,
// no_load_rng and finetune leave out. Precondition: load_content has been checked, as in a resolved
// config.
LoadContent LoadContentOf(const CheckpointConfig& config);

}  // namespace tessera

#endif  // TESSERA_TRAINER_CONFIG_LOAD_CONTENT_H_
