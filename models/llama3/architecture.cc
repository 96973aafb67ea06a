#include "models/llama3/architecture.h"

#include "models/layers/decoder_family.h"
#include "models/llama3/config.h"
#include "models/llama3/foreign.h"
#include "models/llama3/names.h"

namespace tessera::llama3 {
namespace {

constexpr TensorNames kQkv[] = {{kQuery}, {kKey}, {kValue}};
constexpr TensorNames kGateUp[] = {{kGate}, {kUp}};

constexpr DecoderFamily kFamily = {.normalization = Normalization::kRmsNorm,
                                   .weight_layout = WeightLayout::kOutIn,
                                   .activation = Activation::kSwiGlu,
                                   .rotary = true,
                                   .token_embedding = kTokenEmbedding,
                                   .embedding_dropout = "model.embedding_dropout",
                                   .final_norm = {kFinalNorm},
                                   .head = kHead,
                                   .layer_name = LayerName,
                                   .attention_norm = {kNorm1},
                                   .qkv = kQkv,
                                   .attention_dropout = "self_attn.dropout",
                                   .projection = {kOut},
                                   .projection_dropout = "self_attn.residual_dropout",
                                   .mlp_norm = {kNorm2},
                                   .up = kGateUp,
                                   .down = {kDown},
                                   .down_dropout = "mlp.residual_dropout"};

constexpr const ForeignFormat* kForeignFormats[] = {
    &kGgufFormat,     &kInfiniTrainFormat, &kInternEvoFormat, &kInternEvoPairedFormat,
    &kMegatronFormat, &kMetaFormat,        &kPaddleFormat};

}  // namespace

constinit const Architecture kArchitecture = {.name = "llama3",
                                              .value = ModelConfig::LLAMA3,
                                              .size_names = SizeNames,
                                              .named_size = NamedSize,
                                              .fill_defaults = FillDefaults,
                                              .validate = Validate,
                                              .make_model = DecoderOf<kFamily>::Make,
                                              .declare_parameters = DecoderOf<kFamily>::Declare,
                                              .hugging_face = &kHuggingFaceFormat,
                                              .llmc = &kLlmcFormat,
                                              .foreign_formats = kForeignFormats};

}  // namespace tessera::llama3
