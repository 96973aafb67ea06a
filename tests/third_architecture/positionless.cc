#include "tests/third_architecture/positionless.h"

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "models/config/config_checks.h"
#include "models/layers/decoder_family.h"

namespace tessera::testing {
namespace {

std::string LayerName(int64_t layer, std::string_view tensor) {
  return absl::StrCat("net.", layer, ".", absl::string_view(tensor.data(), tensor.size()));
}

constexpr TensorNames kQkv[] = {{"qkv"}};
constexpr TensorNames kUp[] = {{"up"}};

constexpr DecoderFamily kFamily = {
    .token_embedding = "words",
    .embedding_dropout = "words_dropout",
    .final_norm = {"final_norm.scale", "final_norm.shift"},
    .head = "answers",
    .layer_name = LayerName,
    .attention_norm = {"attention_norm.scale", "attention_norm.shift"},
    .qkv = kQkv,
    .attention_dropout = "attention_dropout",
    .projection = {"projection"},
    .projection_dropout = "attention_end",
    .mlp_norm = {"mlp_norm.scale", "mlp_norm.shift"},
    .up = kUp,
    .down = {"down"},
    .down_dropout = "mlp_end"};

void FillDefaults(ModelConfig& config) {
  if (!config.has_ffn_hidden_size()) config.set_ffn_hidden_size(2 * config.hidden_size());
  if (!config.has_make_vocab_size_divisible_by()) config.set_make_vocab_size_divisible_by(1);
  if (!config.has_untie_embeddings_and_output_weights()) {
    config.set_untie_embeddings_and_output_weights(false);
  }
  if (!config.has_init_method_std()) config.set_init_method_std(0.05);
  FillCommonDefaults(config);
}

}  // namespace

constinit const Architecture kPositionless = {.name = "positionless",
                                              .fill_defaults = FillDefaults,
                                              .validate = CheckCommonFields,
                                              .make_model = DecoderOf<kFamily>::Make,
                                              .declare_parameters = DecoderOf<kFamily>::Declare};

}  // namespace tessera::testing
