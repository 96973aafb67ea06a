#ifndef TESSERA_CONVERT_INTERNEVO_PARAMETERS_H_
#define TESSERA_CONVERT_INTERNEVO_PARAMETERS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/storage/storage.h"
#include "convert/core/model_rules.h"
#include "layout/box.h"

namespace tessera::ckpt::convert {

inline constexpr std::string_view kInternEvo = "internevo";

// The model of a run of InternEvo, and its parameters.
class InternEvoParameters {
 public:
  // Those of the model that model_config.pt in the folder describes. `tensor_count` and
  // `file_bytes` are those of all files that hold tensors. Errors, naming the file: InvalidArgument
  // where it is missing, does not tell the order of rotary rows, or describes a model that the
  // rules do not have or that the files are too small for; DataLoss; those of the storage.
  static absl::StatusOr<InternEvoParameters> Read(Storage& storage, std::string_view folder,
                                                  const ModelRules& rules, int64_t tensor_count,
                                                  uint64_t file_bytes);

  const ModelDescription& model() const { return model_; }

  // The parameter of which each of `parts` ranks has a tensor with this name and shape. Releases
  // gave the same names to different parameters, and cut them along different dims: shapes settle
  // it. Errors, naming the tensor: InvalidArgument for an unknown name, and where several
  // parameters have that shape; DataLoss for another shape.
  absl::StatusOr<const ForeignParameter*> Find(const std::string& name, const Shape& shape,
                                               int64_t parts) const;

 private:
  InternEvoParameters() = default;

  ModelDescription model_;
  std::vector<ForeignParameter> parameters_;
  std::multimap<std::string, size_t> by_name_;
};

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_INTERNEVO_PARAMETERS_H_
