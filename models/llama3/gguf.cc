#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/foreign/gguf_fields.h"
#include "models/layers/decoder_family.h"
#include "models/llama3/foreign.h"
#include "models/llama3/fused_matrices.h"
#include "models/llama3/names.h"

namespace tessera::llama3 {
namespace {

constexpr char kName[] = "llama";
constexpr char kGroups[] = "llama.attention.head_count_kv";
constexpr char kGgufEpsilon[] = "llama.attention.layer_norm_rms_epsilon";
constexpr char kGgufRotaryBase[] = "llama.rope.freq_base";

constexpr char kScalingType[] = "llama.rope.scaling.type";

constexpr char kFactor[] = "tessera.rope_scaling.factor";
constexpr char kLowFactor[] = "tessera.rope_scaling.low_freq_factor";
constexpr char kHighFactor[] = "tessera.rope_scaling.high_freq_factor";
constexpr char kGgufOriginalPositions[] = "tessera.rope_scaling.original_max_position_embeddings";

// Factors are stored as fp32, and computed in fp32 by llama.cpp's converter.
constexpr double kFactorTolerance = 1e-4;

// Returns, for each pair of rows of a head, how much Llama 3.1's scaling slows down its rotation,
// whether the config uses the scaling or not. Precondition: all settings of rotary embeddings are
// set.
std::vector<double> RopeFactors(const ModelConfig& config) {
  const std::shared_ptr<Rope> plain = MakeRope(config, false), scaled = MakeRope(config, true);
  std::vector<double> factors;
  for (size_t i = 0; i < plain->frequencies().size(); ++i) {
    factors.push_back(plain->frequencies()[i] / scaled->frequencies()[i]);
  }
  return factors;
}

bool DescribesGguf(const JsonFields& fields) { return IsGgufArchitecture(fields, kName); }

bool AreFactors(const std::vector<double>& found, const ModelConfig& config) {
  const int64_t heads = config.num_attention_heads();
  if (heads < 1 || config.hidden_size() / heads != 2 * static_cast<int64_t>(found.size())) {
    return false;
  }
  const std::vector<double> factors = RopeFactors(config);
  for (size_t i = 0; i < factors.size(); ++i) {
    if (!(std::abs(found[i] - factors[i]) <= kFactorTolerance * factors[i])) return false;
  }
  return true;
}

// Without a type, llama.cpp divides all frequencies by one of two keys; 0 stands for 1.
absl::Status CheckNoLinearScaling(const JsonFields& fields) {
  TESSERA_RETURN_IF_ERROR(fields.Require(kScalingType, "none"));
  if (fields.Has(kScalingType)) return absl::OkStatus();
  for (const char* const key : {"llama.rope.scaling.factor", "llama.rope.scale_linear"}) {
    TESSERA_ASSIGN_OR_RETURN(const double factor, fields.Real(key, 1));
    if (factor == 0 || factor == 1) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(fields.source(), ": ", key, " is ", factor, ", only 1 is supported"));
  }
  return absl::OkStatus();
}

absl::Status ReadFrequencies(const JsonFields& fields, ModelConfig& config) {
  TESSERA_RETURN_IF_ERROR(CheckNoLinearScaling(fields));
  TESSERA_RETURN_IF_ERROR(
      ReadFields(fields, {{kGgufRotaryBase, &ModelConfig::set_rotary_base, 10000}}, config));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<double> factors, fields.Reals(kGgufRopeFactors));
  config.set_use_rope_scaling(!factors.empty());
  if (factors.empty()) return absl::OkStatus();
  // The slowest pair of a head turns as many times slower as the factor says.
  TESSERA_ASSIGN_OR_RETURN(const double factor, fields.Real(kFactor, factors.back()));
  TESSERA_ASSIGN_OR_RETURN(const double low, fields.Real(kLowFactor, 1));
  TESSERA_ASSIGN_OR_RETURN(const double high, fields.Real(kHighFactor, 4));
  TESSERA_ASSIGN_OR_RETURN(const int64_t original, fields.Integer(kGgufOriginalPositions, 8192));
  config.set_rope_scaling_factor(factor);
  config.set_rope_scaling_low_freq_factor(low);
  config.set_rope_scaling_high_freq_factor(high);
  config.set_rope_scaling_original_max_position_embeddings(original);
  if (AreFactors(factors, config)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      fields.source(), ": ", kGgufRopeFactors, " is not Llama 3's scaling by ", factor, " from ",
      original, " positions between ", low, " and ", high,
      " turns, and the file states no other: convert the model that it was made from"));
}

absl::Status ReadGgufConfig(const JsonFields& fields, ModelConfig& config) {
  TESSERA_RETURN_IF_ERROR(ReadGgufSizes(fields, kName, config));
  TESSERA_RETURN_IF_ERROR(
      ReadFields(fields,
                 {{kGroups, &ModelConfig::set_num_query_groups, config.num_attention_heads()},
                  {kGgufEpsilon, &ModelConfig::set_norm_epsilon}},
                 config));
  TESSERA_ASSIGN_OR_RETURN(const bool has_head, fields.Bool(kGgufHead, false));
  config.set_untie_embeddings_and_output_weights(has_head);
  return ReadFrequencies(fields, config);
}

void WriteGgufConfig(const ModelConfig& config, nlohmann::ordered_json& json) {
  const int64_t head_size = config.hidden_size() / config.num_attention_heads();
  WriteGgufSizes(config, kName, json);
  json[kGroups] = config.num_query_groups();
  json["llama.attention.key_length"] = head_size;
  json["llama.attention.value_length"] = head_size;
  json[kGgufEpsilon] = config.norm_epsilon();
  json["llama.rope.dimension_count"] = head_size;
  json[kGgufRotaryBase] = config.rotary_base();
  if (!config.use_rope_scaling()) return;
  json[kFactor] = config.rope_scaling_factor();
  json[kLowFactor] = config.rope_scaling_low_freq_factor();
  json[kHighFactor] = config.rope_scaling_high_freq_factor();
  json[kGgufOriginalPositions] = config.rope_scaling_original_max_position_embeddings();
  json[kGgufRopeFactors] = RopeFactors(config);
}

constexpr std::pair<const char*, const char*> kGgufLayerTensors[] = {
    {"attn_norm.weight", kNorm1}, {"attn_q.weight", kQuery},    {"attn_k.weight", kKey},
    {"attn_v.weight", kValue},    {"attn_output.weight", kOut}, {"ffn_norm.weight", kNorm2},
    {"ffn_gate.weight", kGate},   {"ffn_up.weight", kUp},       {"ffn_down.weight", kDown}};

std::vector<ForeignParameter> GgufParameters(const ModelConfig& config) {
  const Shape table = {config.vocab_size(), config.hidden_size()};
  std::vector<ForeignParameter> parameters;
  parameters.push_back(SameTensor(kGgufEmbedding, kTokenEmbedding, table));
  for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
    for (const auto& [name, tensor] : kGgufLayerTensors) {
      parameters.push_back(
          PairedTensor(config, layer, tensor, absl::StrCat("blk.", layer, ".", name)));
    }
  }
  parameters.push_back(SameTensor("output_norm.weight", kFinalNorm, {config.hidden_size()}));
  if (config.untie_embeddings_and_output_weights()) {
    parameters.push_back(SameTensor(kGgufHead, kHead, table));
  }
  const int64_t head_size = config.hidden_size() / config.num_attention_heads();
  parameters.push_back({.name = kGgufRopeFactors, .shape = {head_size / 2}});  // computed
  return parameters;
}

}  // namespace

constinit const ForeignFormat kGgufFormat = {.framework = kGguf,
                                             .describes = DescribesGguf,
                                             .read_config = ReadGgufConfig,
                                             .write_config = WriteGgufConfig,
                                             .parameters = GgufParameters};

}  // namespace tessera::llama3
