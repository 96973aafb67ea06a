#include "convert/core/meta_config.h"

#include <optional>
#include <string_view>

#include "base/parse_json.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace tessera::ckpt::convert {
namespace {

constexpr uint64_t kMaxJsonBytes = uint64_t{64} << 20;
constexpr std::string_view kEmbeddings = "tok_embeddings.weight";
constexpr const char* kVocabulary = "vocab_size";

int64_t IntegerOf(const nlohmann::json& json, const char* name) {
  const auto field = json.find(name);
  return field != json.end() && field->is_number_integer() ? field->get<int64_t>() : 0;
}

// The rows of the whole table. nullopt where the files have none of this width.
std::optional<int64_t> Rows(std::span<const ForeignTensor> tensors, int64_t columns,
                            int64_t parts) {
  for (const ForeignTensor& tensor : tensors) {
    if (!tensor.name.ends_with(kEmbeddings) || tensor.shape.size() != 2) continue;
    if (tensor.shape[1] == columns && tensor.shape[0] <= INT64_MAX / parts) {
      return tensor.shape[0] * parts;
    }
    if (columns % parts == 0 && tensor.shape[1] == columns / parts) return tensor.shape[0];
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<std::string> ReadMetaConfig(Storage& storage, const std::string& path,
                                           std::span<const ForeignTensor> tensors, int64_t parts) {
  TESSERA_ASSIGN_OR_RETURN(std::string text, ReadAll(storage, path, kMaxJsonBytes));
  nlohmann::json json = ParseJson(text);
  if (!json.is_object() || IntegerOf(json, kVocabulary) != -1) return text;
  const std::optional<int64_t> rows = Rows(tensors, IntegerOf(json, "dim"), parts);
  if (!rows) return text;
  json[kVocabulary] = *rows;
  return json.dump();
}

}  // namespace tessera::ckpt::convert
