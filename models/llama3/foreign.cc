#include "models/llama3/foreign.h"

#include "absl/strings/str_cat.h"

namespace tessera::llama3 {

absl::Status CheckRopeScaling(const ModelConfig& config, bool states_factor) {
  if (!config.use_rope_scaling()) return absl::OkStatus();
  const struct {
    const char* name;
    double value, only;
  } fields[] = {
      {"rope_scaling_factor", config.rope_scaling_factor(),
       states_factor ? config.rope_scaling_factor() : 8},
      {"rope_scaling_low_freq_factor", config.rope_scaling_low_freq_factor(), 1},
      {"rope_scaling_high_freq_factor", config.rope_scaling_high_freq_factor(), 4},
      {"rope_scaling_original_max_position_embeddings",
       static_cast<double>(config.rope_scaling_original_max_position_embeddings()), 8192},
  };
  for (const auto& field : fields) {
    if (field.value == field.only) continue;
    return absl::InvalidArgumentError(absl::StrCat(field.name, " is ", field.value,
                                                   ": this format has no field for it, and means ",
                                                   field.only));
  }
  return absl::OkStatus();
}

}  // namespace tessera::llama3
