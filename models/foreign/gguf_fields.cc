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
  const auto integer = [&](const char* name) { return fields.Integer(Key(architecture, name)); };
  TESSERA_RETURN_IF_ERROR(fields.Require(Key(architecture, "expert_count"), 0));
  TESSERA_ASSIGN_OR_RETURN(const int64_t layers, integer("block_count"));
  TESSERA_ASSIGN_OR_RETURN(const int64_t positions, integer("context_length"));
  TESSERA_ASSIGN_OR_RETURN(const int64_t hidden, integer("embedding_length"));
  TESSERA_ASSIGN_OR_RETURN(const int64_t ffn, integer("feed_forward_length"));
  TESSERA_ASSIGN_OR_RETURN(const int64_t heads, integer("attention.head_count"));
  TESSERA_ASSIGN_OR_RETURN(const int64_t vocabulary, fields.Integer(kGgufEmbedding));
  for (const char* name :
       {"attention.key_length", "attention.value_length", "rope.dimension_count"}) {
    if (!fields.Has(Key(architecture, name))) continue;
    TESSERA_ASSIGN_OR_RETURN(const int64_t size, integer(name));
    if (CheckedMultiply(heads, size) == hidden) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        fields.source(), ": ", Key(architecture, name), " is ", size, ", but ", heads,
        " heads share an embedding of ", hidden, ": other sizes of heads are not supported"));
  }
  config.set_num_layers(layers);
  config.set_max_position_embeddings(positions);
  config.set_hidden_size(hidden);
  config.set_ffn_hidden_size(ffn);
  config.set_num_attention_heads(heads);
  config.set_vocab_size(vocabulary);
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
