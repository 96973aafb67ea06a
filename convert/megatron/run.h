#ifndef TESSERA_CONVERT_MEGATRON_RUN_H_
#define TESSERA_CONVERT_MEGATRON_RUN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/format/manifest.pb.h"
#include "convert/pickle/value.h"

namespace tessera::ckpt::convert {

// What Megatron-LM stores of a run beside its tensors: its arguments and how far it is.
class MegatronRun {
 public:
  // `state` is the dict that Megatron-LM saves; it must outlive this.
  explicit MegatronRun(const pickle::Value& state);

  bool has_arguments() const { return arguments_.present(); }
  // The arguments that are numbers, texts or truth values, as a JSON object.
  std::string ArgumentsAsJson() const;
  // Of an argument. nullopt where there is none, or None.
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

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_MEGATRON_RUN_H_
