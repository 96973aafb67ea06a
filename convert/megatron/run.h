#ifndef TESSERA_CONVERT_MEGATRON_RUN_H_
#define TESSERA_CONVERT_MEGATRON_RUN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "checkpoint/format/manifest.pb.h"
#include "convert/core/reading.h"
#include "convert/pickle/value.h"

namespace tessera::ckpt::convert {

// A tensor's name with the number of its layer taken out: the first part that is a number.
struct LayerName {
  std::string before;  // "decoder.layers."
  int64_t layer = -1;  // -1: the tensor is of no layer, and `before` is the whole name
  std::string after;   // ".mlp.linear_fc1.weight"
};

LayerName SplitLayer(std::string_view name);

// What Megatron-LM stores of a run beside its tensors: its arguments and how far it is.
class MegatronRun {
 public:
  // `state` is the dict that Megatron-LM saves; it must outlive this.
  explicit MegatronRun(const pickle::Value& state);

  bool has_arguments() const { return arguments_.present(); }
  // The arguments that are numbers, texts or truth values, as a JSON object.
  std::string ArgumentsAsJson() const;
  // The value of an argument. nullopt, or false, if it is missing or None.
  std::optional<int64_t> Integer(std::string_view name) const;
  std::optional<std::string> Text(std::string_view name) const;
  bool IsTrue(std::string_view name) const;

  // The elements with which a bucket of the distributed optimizer is full, in the first chunk of
  // the first pipeline stage; 0: never, as in all other chunks.
  int64_t BucketElements() const;

  // Sets the topology, the step and the samples consumed, as far as they are known.
  void Describe(Manifest& manifest) const;

 private:
  pickle::Value state_;
  pickle::Value arguments_;  // a dict
};

// The model that the arguments of a run describe, and its parameters. Names of layers stand both
// for one layer and for stacks of all. `where` names the file that has the arguments.
// InvalidArgument if the run has no arguments, or for a model that is not known here or that
// the files are too small for.
absl::StatusOr<ForeignModel> ReadMegatronModel(const MegatronRun& run, const std::string& where,
                                               int64_t tensor_count, uint64_t file_bytes);

// The parameter of this name in a file whose tensors have `rows` rows in all, padding included: a
// padded parameter gets as many. Null if the model has no such parameter.
const ForeignParameter* FindMegatronParameter(ForeignModel& model, std::string_view name,
                                              int64_t rows);

// Whether it is an embedding of which the last pipeline stage has a copy, as the head.
inline bool IsTiedEmbedding(const ForeignParameter& parameter) {
  return parameter.padded && !parameter.other_names.empty();
}

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_MEGATRON_RUN_H_
