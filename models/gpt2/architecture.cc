#include "models/gpt2/architecture.h"

#include "models/gpt2/config.h"
#include "models/gpt2/foreign.h"
#include "models/gpt2/names.h"
#include "models/layers/decoder_family.h"

namespace tessera::gpt2 {
namespace {

constexpr TensorNames kQkv[] = {{kQkvWeight, kQkvBias}};
constexpr TensorNames kUp[] = {{kUpWeight, kUpBias}};

constexpr DecoderFamily kFamily = {.normalization = Normalization::kLayerNorm,
                                   .weight_layout = WeightLayout::kInOut,
                                   .activation = Activation::kGelu,
                                   .token_embedding = kTokenEmbedding,
                                   .position_embedding = kPositionEmbedding,
                                   .embedding_dropout = "transformer.drop",
                                   .final_norm = {kFinalNormWeight, kFinalNormBias},
                                   .head = kHead,
                                   .layer_name = LayerName,
                                   .attention_norm = {kNorm1Weight, kNorm1Bias},
                                   .qkv = kQkv,
                                   .attention_dropout = "attn.attn_dropout",
                                   .projection = {kProjectionWeight, kProjectionBias},
                                   .projection_dropout = "attn.resid_dropout",
                                   .mlp_norm = {kNorm2Weight, kNorm2Bias},
                                   .up = kUp,
                                   .down = {kDownWeight, kDownBias},
                                   .down_dropout = "mlp.dropout"};

constexpr const ForeignFormat* kForeignFormats[] = {
    &kGgufFormat, &kInfiniTrainFormat, &kMegatronFormat, &kNanoGptFormat, &kPaddleFormat};

}  // namespace

constinit const Architecture kArchitecture = {.name = "gpt2",
                                              .value = ModelConfig::GPT2,
                                              .size_names = SizeNames,
                                              .named_size = NamedSize,
                                              .fill_defaults = FillDefaults,
                                              .validate = Validate,
                                              .make_model = DecoderOf<kFamily>::Make,
                                              .declare_parameters = DecoderOf<kFamily>::Declare,
                                              .hugging_face = &kHuggingFaceFormat,
                                              .llmc = &kLlmcFormat,
                                              .foreign_formats = kForeignFormats};

}  // namespace tessera::gpt2
