#include "convert/megatron/rank_file.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <string_view>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "convert/megatron/layer_name.h"
#include "convert/pickle/budget.h"

namespace tessera::ckpt::convert {
namespace {

using pickle::Value;

constexpr std::string_view kExtraState = "_extra_state";
constexpr size_t kMaxChunks = 1000;

std::string Shown(std::string_view name) {
  return absl::CHexEscape(absl::string_view(name.data(), std::min<size_t>(name.size(), 200)));
}

absl::StatusOr<RankChunk> ReadChunk(const TorchArchive& archive, const Value& model,
                                    pickle::Budget& budget) {
  if (model.Find("language_model").present()) {
    return absl::UnimplementedError(
        "a model of Megatron-LM before Megatron-Core (\"language_model\"): Megatron-LM's "
        "tools/checkpoint/convert.py makes one of Megatron-Core of it");
  }
  RankChunk chunk;
  std::set<int64_t> layers;
  for (size_t i = 0; i < model.entry_count(); ++i) {
    const auto [key, value] = model.entry(i);
    const std::string_view text = key.AsText().value_or("");
    TESSERA_RETURN_IF_ERROR(budget.Take(sizeof(TorchTensor) + text.size()));
    const std::string name(text);
    if (name.empty() || !IsValidUtf8(name)) {
      return absl::DataLossError("a tensor whose name is empty or not valid UTF-8");
    }
    if (name.ends_with(kExtraState)) {
      if (!value.is(pickle::Kind::kNone)) chunk.left_out.push_back(name);
      continue;
    }
    if (!IsTorchTensor(value)) {
      return absl::DataLossError(absl::StrCat("tensor ", Shown(name), ": no tensor"));
    }
    absl::StatusOr<TorchTensor> tensor = ResolveTorchTensor(archive, value);
    if (!tensor.ok()) {
      return absl::Status(tensor.status().code(),
                          absl::StrCat("tensor ", Shown(name), ": ", tensor.status().message()));
    }
    const int64_t layer = SplitLayer(name).layer;
    if (layer >= 0) layers.insert(layer);
    chunk.tensors.emplace_back(name, *std::move(tensor));
  }
  if (!layers.empty() && *layers.rbegin() + 1 != static_cast<int64_t>(layers.size())) {
    return absl::DataLossError(absl::StrCat(
        "it has ", layers.size(), " layers, of which the last has number ", *layers.rbegin()));
  }
  chunk.layers = static_cast<int64_t>(layers.size());
  return chunk;
}

}  // namespace

absl::StatusOr<std::vector<RankChunk>> ReadRankChunks(const TorchArchive& archive) {
  const Value root = archive.contents.root();
  pickle::Budget budget(archive.contents);
  std::vector<RankChunk> chunks;
  if (const Value model = root.Find("model"); model.present()) {
    TESSERA_ASSIGN_OR_RETURN(RankChunk chunk, ReadChunk(archive, model, budget));
    chunks.push_back(std::move(chunk));
    return chunks;
  }
  while (chunks.size() < kMaxChunks) {
    const std::string key = absl::StrCat("model", chunks.size());
    const Value model = root.Find(key);
    if (!model.present()) break;
    absl::StatusOr<RankChunk> chunk = ReadChunk(archive, model, budget);
    if (!chunk.ok()) {
      return absl::Status(chunk.status().code(), absl::StrCat(key, ": ", chunk.status().message()));
    }
    chunks.push_back(*std::move(chunk));
  }
  if (chunks.empty()) return absl::DataLossError("neither \"model\" nor \"model0\"");
  return chunks;
}

}  // namespace tessera::ckpt::convert
