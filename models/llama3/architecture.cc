#include "models/llama3/architecture.h"

#include "models/llama3/config.h"
#include "models/llama3/foreign.h"
#include "models/llama3/model.h"
#include "models/llama3/sharding.h"

namespace tessera::llama3 {
namespace {

constexpr const ForeignFormat* kForeignFormats[] = {
    &kInfiniTrainFormat, &kInternEvoFormat, &kInternEvoPairedFormat,
    &kMegatronFormat,    &kMetaFormat,      &kPaddleFormat};

int64_t LayerMatrixWeights(const ModelConfig& config) {
  const int64_t c = config.hidden_size(), f = config.ffn_hidden_size();
  const int64_t kv = c / config.num_attention_heads() * config.num_query_groups();
  return 2 * c * c + 2 * c * kv + 3 * c * f;
}

int64_t ParameterCount(const ModelConfig& config) {
  const int64_t c = config.hidden_size();
  const int64_t tables = config.untie_embeddings_and_output_weights() ? 2 : 1;
  return tables * config.vocab_size() * c +
         config.num_layers() * (LayerMatrixWeights(config) + 2 * c) + c;
}

void Declare(const ModelConfig& config, const ModelOptions& options, ParameterSet& set) {
  DeclareParameters(config, options, set);
}

}  // namespace

constinit const Architecture kArchitecture = {.name = "llama3",
                                              .value = ModelConfig::LLAMA3,
                                              .size_names = SizeNames,
                                              .named_size = NamedSize,
                                              .fill_defaults = FillDefaults,
                                              .validate = Validate,
                                              .parameter_count = ParameterCount,
                                              .layer_matrix_weights = LayerMatrixWeights,
                                              .make_model = MakeModel,
                                              .declare_parameters = Declare,
                                              .hugging_face = &kHuggingFaceFormat,
                                              .llmc = &kLlmcFormat,
                                              .foreign_formats = kForeignFormats};

}  // namespace tessera::llama3
