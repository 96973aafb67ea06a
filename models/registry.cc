#include "models/registry.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "glog/logging.h"
#include "models/gpt2/architecture.h"
#include "models/llama3/architecture.h"
#include "models/model_config.h"

namespace tessera {
namespace {

std::vector<const Architecture*>& Registry() {
  static auto& registry =
      *new std::vector<const Architecture*>{&gpt2::kArchitecture, &llama3::kArchitecture};
  return registry;
}

// Checks that the virtual shards have equal numbers of heads and columns.
absl::Status CheckShards(const ModelConfig& config, int shards) {
  const struct {
    const char* name;
    int64_t value;
  } fields[] = {{"num_attention_heads", config.num_attention_heads()},
                {"num_query_groups", config.num_query_groups()},
                {"ffn_hidden_size", config.ffn_hidden_size()}};
  for (const auto& field : fields) {
    if (field.value % shards == 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(field.name, " is ", field.value,
                                                   ": the number of tensor-parallel shards (",
                                                   shards, ") must divide it"));
  }
  return absl::OkStatus();
}

}  // namespace

void RegisterArchitecture(const Architecture& architecture) {
  for (const Architecture* other : Registry()) CHECK(other->name != architecture.name);
  CHECK(!architecture.name.empty() && architecture.value == ModelConfig::OTHER);
  CHECK(architecture.fill_defaults && architecture.validate && architecture.make_model &&
        architecture.declare_parameters)
      << std::string(architecture.name);
  Registry().push_back(&architecture);
}

std::vector<const Architecture*> Architectures() { return Registry(); }

const Architecture* FindArchitecture(const ModelConfig& config) {
  for (const Architecture* architecture : Registry()) {
    if (architecture->value != config.architecture()) continue;
    if (architecture->value != ModelConfig::OTHER ||
        architecture->name == config.other_architecture()) {
      return architecture;
    }
  }
  return nullptr;
}

absl::StatusOr<std::unique_ptr<Model>> MakeModel(const ModelConfig& config,
                                                 const ModelOptions& options, Backend& backend) {
  TESSERA_ASSIGN_OR_RETURN(ModelConfig resolved, ResolveModelConfig(config));
  const DType dtype = options.compute_dtype;
  if (dtype != DType::kF32 && dtype != DType::kBF16 && dtype != DType::kF64) {
    return absl::InvalidArgumentError(absl::StrCat(
        "compute_dtype is ", std::string(DTypeName(dtype)), ": it must be a floating type"));
  }
  ModelOptions whole = options;
  if (!whole.stage.has_value()) whole.stage = AllLayers(resolved.num_layers());
  const ChunkLayers& stage = *whole.stage;
  if (stage.first < 0 || stage.first > stage.last || stage.last > resolved.num_layers()) {
    return absl::InvalidArgumentError(absl::StrCat("layers [", stage.first, ", ", stage.last,
                                                   ") of a stage: num_layers is ",
                                                   resolved.num_layers()));
  }
  if (whole.tensor_parallel == nullptr) whole.tensor_parallel = &kNoTensorParallel;
  TESSERA_RETURN_IF_ERROR(CheckShards(resolved, whole.tensor_parallel->shards()));
  return FindArchitecture(resolved)->make_model(resolved, whole, backend);
}

}  // namespace tessera
