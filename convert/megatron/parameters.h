#ifndef TESSERA_CONVERT_MEGATRON_PARAMETERS_H_
#define TESSERA_CONVERT_MEGATRON_PARAMETERS_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "convert/core/model_rules.h"
#include "convert/megatron/run.h"

namespace tessera::ckpt::convert {

inline constexpr std::string_view kMegatron = "megatron";

// The model of a run of Megatron-LM, and its parameters by each of their names.
class MegatronParameters {
 public:
  // `where` names the file that has the arguments. Errors: InvalidArgument where there are none, or
  // for a model that `rules` do not have or that the files are too small for.
  static absl::StatusOr<MegatronParameters> Create(const MegatronRun& run, const ModelRules& rules,
                                                   const std::string& where, int64_t tensor_count,
                                                   uint64_t file_bytes);

  const ModelDescription& model() const { return model_; }
  // In the order of the modules, those of the layers also as stacks of all layers.
  const std::vector<ForeignParameter>& all() const { return parameters_; }
  // The parameter of this name in a file whose tensors have `rows` rows in all, padding included:
  // of a padded parameter, rows beyond the model's. Null where there is none.
  const ForeignParameter* Find(std::string_view name, int64_t rows);

  // Whether it is an embedding of which the last pipeline stage has a copy, as the head.
  static bool IsTied(const ForeignParameter& parameter) {
    return parameter.padded && !parameter.other_names.empty();
  }

 private:
  MegatronParameters() = default;

  ModelDescription model_;
  std::vector<ForeignParameter> parameters_;
  std::map<std::string, size_t, std::less<>> by_name_;
};

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_MEGATRON_PARAMETERS_H_
