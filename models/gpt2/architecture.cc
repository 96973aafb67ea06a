#include "models/gpt2/architecture.h"

#include "models/gpt2/config.h"
#include "models/gpt2/foreign.h"
#include "models/gpt2/model.h"
#include "models/gpt2/sharding.h"

namespace tessera::gpt2 {
namespace {

constexpr const ForeignFormat* kForeignFormats[] = {&kInfiniTrainFormat, &kMegatronFormat};

int64_t LayerMatrixWeights(const ModelConfig& config) {
  const int64_t c = config.hidden_size(), f = config.ffn_hidden_size();
  return 4 * c * c + 2 * c * f;
}

int64_t ParameterCount(const ModelConfig& config) {
  const int64_t c = config.hidden_size(), f = config.ffn_hidden_size();
  const int64_t biases = 3 * c + c + f + c, norms = 4 * c;
  return (config.vocab_size() + config.max_position_embeddings()) * c +
         config.num_layers() * (LayerMatrixWeights(config) + biases + norms) + 2 * c;
}

void Declare(const ModelConfig& config, const ModelOptions& options, ParameterSet& set) {
  DeclareParameters(config, options, set);
}

}  // namespace

constinit const Architecture kArchitecture = {.name = "gpt2",
                                              .value = ModelConfig::GPT2,
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

}  // namespace tessera::gpt2
