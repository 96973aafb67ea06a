#include "models/registry.h"

#include "glog/logging.h"
#include "models/gpt2/architecture.h"
#include "models/llama3/architecture.h"

namespace tessera {
namespace {

std::vector<const Architecture*>& Registry() {
  static auto& registry =
      *new std::vector<const Architecture*>{&gpt2::kArchitecture, &llama3::kArchitecture};
  return registry;
}

}  // namespace

void RegisterArchitecture(const Architecture& architecture) {
  for (const Architecture* other : Registry()) CHECK(other->name != architecture.name);
  CHECK(!architecture.name.empty() && architecture.value == ModelConfig::OTHER);
  CHECK(architecture.fill_defaults && architecture.validate && architecture.parameter_count &&
        architecture.layer_matrix_weights && architecture.make_model)
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

}  // namespace tessera
