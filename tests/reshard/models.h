#ifndef TESSERA_TESTS_RESHARD_MODELS_H_
#define TESSERA_TESTS_RESHARD_MODELS_H_

#include <cstdint>

namespace tessera::testing {

// Small models, in the text format of ModelConfig, with the features that make resharding
// difficult: a vocabulary whose padding depends on the tensor axis, a number of layers that is not
// divisible by the number of stages, eight heads for up to eight tensor ranks.
inline constexpr int64_t kVocabulary = 211;

// Tied.
inline constexpr char kGpt2[] = R"pb(
  size: "gpt2-tiny"
  num_layers: 5
  hidden_size: 32
  num_attention_heads: 8
  vocab_size: 211
  hidden_dropout: 0.1
  attention_dropout: 0.1
)pb";
// Untied, grouped queries: a fused q, k, v of unequal parts.
inline constexpr char kLlama[] = R"pb(
  size: "llama3-tiny"
  num_layers: 5
  hidden_size: 32
  num_attention_heads: 8
  num_query_groups: 4
  vocab_size: 211
  untie_embeddings_and_output_weights: true
)pb";
// Tied, and grouped queries that eight tensor ranks can share.
inline constexpr char kTiedLlama[] = R"pb(
  size: "llama3-tiny"
  num_layers: 5
  hidden_size: 32
  num_attention_heads: 16
  num_query_groups: 8
  vocab_size: 211
)pb";

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_RESHARD_MODELS_H_
