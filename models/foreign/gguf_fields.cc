#include "models/foreign/gguf_fields.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

std::string Key(std::string_view architecture, std::string_view name) {
  return absl::StrCat(std::string(architecture), ".", std::string(name));
}

}  // namespace

bool IsGgufArchitecture(const JsonFields& fields, std::string_view name) {
  return fields.Text(kGgufArchitecture, "").value_or("") == name;
}

absl::Status ReadGgufSizes(const JsonFields& fields, std::string_view architecture,
                           ModelConfig& config) {
  TESSERA_RETURN_IF_ERROR(fields.Require(Key(architecture, "expert_count"), 0));
  const auto key = [&](const char* name) { return Key(architecture, name); };
  TESSERA_RETURN_IF_ERROR(
      ReadFields(fields,
                 {{key("block_count"), &ModelConfig::set_num_layers},
                  {key("context_length"), &ModelConfig::set_max_position_embeddings},
                  {key("embedding_length"), &ModelConfig::set_hidden_size},
                  {key("feed_forward_length"), &ModelConfig::set_ffn_hidden_size},
                  {key("attention.head_count"), &ModelConfig::set_num_attention_heads},
                  {kGgufEmbedding, &ModelConfig::set_vocab_size}},
                 config));
  const int64_t heads = config.num_attention_heads(), hidden = config.hidden_size();
  for (const char* name :
       {"attention.key_length", "attention.value_length", "rope.dimension_count"}) {
    if (!fields.Has(key(name))) continue;
    TESSERA_ASSIGN_OR_RETURN(const int64_t size, fields.Integer(key(name)));
    if (CheckedMultiply(heads, size) == hidden) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        fields.source(), ": ", key(name), " is ", size, ", but ", heads,
        " heads share an embedding of ", hidden, ": other sizes of heads are not supported"));
  }
  return absl::OkStatus();
}

void WriteGgufSizes(const ModelConfig& config, std::string_view architecture,
                    nlohmann::ordered_json& json) {
  json[kGgufArchitecture] = std::string(architecture);
  json[Key(architecture, "vocab_size")] = config.vocab_size();
  json[Key(architecture, "block_count")] = config.num_layers();
  json[Key(architecture, "context_length")] = config.max_position_embeddings();
  json[Key(architecture, "embedding_length")] = config.hidden_size();
  json[Key(architecture, "feed_forward_length")] = config.ffn_hidden_size();
  json[Key(architecture, "attention.head_count")] = config.num_attention_heads();
}

}  // namespace tessera
