#include "base/status_macros.h"
#include "models/gpt2/foreign.h"

namespace tessera::gpt2 {
namespace {

bool DescribesNanoGpt(const JsonFields& fields) {
  return fields.Has("block_size") && fields.Has("n_layer") && fields.Has("n_embd");
}

absl::Status ReadNanoGptConfig(const JsonFields& fields, ModelConfig& config) {
  // Other programs have added settings of their own, and compute another model with them.
  TESSERA_RETURN_IF_ERROR(fields.HasOnly(
      {"vocab_size", "n_layer", "n_embd", "n_head", "block_size", "dropout", "bias"}));
  TESSERA_RETURN_IF_ERROR(ReadFields(fields,
                                     {{"vocab_size", &ModelConfig::set_vocab_size},
                                      {"n_layer", &ModelConfig::set_num_layers},
                                      {"n_embd", &ModelConfig::set_hidden_size},
                                      {"n_head", &ModelConfig::set_num_attention_heads},
                                      {"block_size", &ModelConfig::set_max_position_embeddings},
                                      {"dropout", &ModelConfig::set_hidden_dropout, 0.0},
                                      {"dropout", &ModelConfig::set_attention_dropout, 0.0}},
                                     config));
  TESSERA_ASSIGN_OR_RETURN(const bool has_biases, fields.Bool("bias", true));
  if (!has_biases) config.set_use_biases(false);
  return absl::OkStatus();
}

}  // namespace

constinit const ForeignFormat kNanoGptFormat = {.framework = kNanoGpt,
                                                .describes = DescribesNanoGpt,
                                                .read_config = ReadNanoGptConfig,
                                                .parameters = OutByInParameters};

}  // namespace tessera::gpt2
