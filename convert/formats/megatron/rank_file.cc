#include "convert/formats/megatron/rank_file.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "convert/core/reading.h"

namespace tessera::ckpt::convert {
namespace {

using pickle::Value;

constexpr std::string_view kExtraState = "_extra_state";
constexpr size_t kMaxChunks = 1000;

absl::StatusOr<RankChunk> ReadChunk(const TorchArchive& archive, const Value& model,
                                    pickle::Budget& budget) {
  if (model.Find("language_model").present()) {
    return Unimplemented(
        "a model of Megatron-LM before Megatron-Core (\"language_model\"): Megatron-LM's "
        "tools/convert.py makes one of Megatron-Core of it");
  }
  RankChunk chunk;
  std::set<int64_t> layers;
  for (const auto& [key, value] : model.entries()) {
    TESSERA_ASSIGN_OR_RETURN(const std::string name, ReadTorchName(key, budget));
    if (name.ends_with(kExtraState)) {
      if (!value.is(pickle::Kind::kNone)) chunk.left_out.push_back(name);
      continue;
    }
    if (!IsTorchTensor(value)) return DataLoss("tensor ", Shown(name), ": no tensor");
    TESSERA_ASSIGN_OR_RETURN(TorchTensor tensor, In(absl::StrCat("tensor ", Shown(name)),
                                                    ResolveTorchTensor(archive, value)));
    const int64_t layer = SplitLayer(name).layer;
    if (layer >= 0) layers.insert(layer);
    chunk.tensors.emplace_back(name, std::move(tensor));
  }
  if (!layers.empty() && *layers.rbegin() + 1 != static_cast<int64_t>(layers.size())) {
    return DataLoss("it has ", layers.size(), " layers, but the last one is number ",
                    *layers.rbegin());
  }
  chunk.layers = static_cast<int64_t>(layers.size());
  return chunk;
}

// An archive, and how much may be made of what several places of it share.
struct Source {
  const TorchArchive& archive;
  pickle::Budget budget{archive.contents};
};

absl::Status AddTensor(Source& source, const ForeignKind& kind, const Value& value,
                       StateVectors& vectors) {
  if (!IsTorchTensor(value)) return DataLoss("no tensor");
  TESSERA_ASSIGN_OR_RETURN(TorchTensor tensor, ResolveTorchTensor(source.archive, value));
  TESSERA_RETURN_IF_ERROR(
      source.budget.Take(sizeof(TorchTensor) + 2 * tensor.shape.size() * sizeof(int64_t)));
  vectors.emplace_back(kind, std::move(tensor));
  return absl::OkStatus();
}

absl::StatusOr<GatheredBuffer> ReadBuffer(Source& source, const Value& by_dtype) {
  if (by_dtype.entry_count() != 1) {
    return Unimplemented("parameters of ", by_dtype.entry_count(), " dtypes, expected 1");
  }
  const Value stored = by_dtype.entry(0).second;
  GatheredBuffer buffer;
  const std::pair<const char*, const ForeignKind&> kinds[] = {
      {"param", kForeignMaster}, {"exp_avg", kForeignExpAvg}, {"exp_avg_sq", kForeignExpAvgSq}};
  for (const auto& [key, kind] : kinds) {
    TESSERA_RETURN_IF_ERROR(source.budget.Take(sizeof(TorchTensor) + 2 * sizeof(int64_t)));
    TESSERA_ASSIGN_OR_RETURN(TorchTensor tensor,
                             In(key, ResolveTorchVector(source.archive, stored.Find(key))));
    if (buffer.vectors.empty()) buffer.elements = tensor.shape[0];
    if (tensor.shape[0] != buffer.elements) {
      return DataLoss(key, ": ", tensor.shape[0], " elements, param has ", buffer.elements);
    }
    buffer.vectors.emplace_back(kind, std::move(tensor));
  }
  return buffer;
}

// Returns the values of a dict whose keys are numbers, by these.
using ValuesByNumber = std::map<int64_t, Value>;
ValuesByNumber ByNumber(const Value& dict) {
  ValuesByNumber values;
  for (const auto& [key, value] : dict.entries()) {
    if (const std::optional<int64_t> number = key.AsInt()) values[*number] = value;
  }
  return values;
}

absl::StatusOr<StateVectors> ReadMoments(Source& source, int64_t number,
                                         const ValuesByNumber& states) {
  const auto found = states.find(number);
  if (found == states.end()) return DataLoss("no state");
  StateVectors vectors;
  for (const ForeignKind& kind : {kForeignExpAvg, kForeignExpAvgSq}) {
    TESSERA_RETURN_IF_ERROR(
        In(kind.state, AddTensor(source, kind, found->second.Find(kind.state), vectors)));
  }
  return vectors;
}

absl::StatusOr<MegatronGroup> ReadGroup(Source& source, const Value& group,
                                        const ValuesByNumber& states, const Value& masters) {
  const Value numbers = group.Find("params"), multiplier = group.Find("wd_mult");
  const std::optional<double> decay =
      multiplier.AsInt() ? std::optional<double>(*multiplier.AsInt()) : multiplier.AsFloat();
  if (!decay || group.Find("is_decoupled_lr").AsBool().value_or(false)) {
    return Unimplemented(
        "whether a parameter has weight decay does not tell alone which group it is in");
  }
  if (masters.present() && masters.size() != numbers.size()) {
    return Unimplemented(masters.size(), " of ", numbers.size(),
                         " parameters have fp32 copies, expected all");
  }
  MegatronGroup read = {.has_weight_decay = *decay != 0};
  for (size_t i = 0; i < numbers.size(); ++i) {
    const int64_t number = numbers[i].AsInt().value_or(-1);
    absl::StatusOr<StateVectors> vectors = ReadMoments(source, number, states);
    absl::Status status = vectors.status();
    if (status.ok() && masters.present()) {
      status = AddTensor(source, kForeignMaster, masters[i], *vectors);
    }
    if (!status.ok()) return In(absl::StrCat("parameter ", number), status);
    read.parameters.push_back(*std::move(vectors));
  }
  return read;
}

// Bounds sizes that come from a file, so that their products do not overflow.
constexpr int64_t kMaxSize = 1 << 15;

int64_t Bounded(int64_t size) { return std::clamp<int64_t>(size, 1, kMaxSize); }

// Returns the ranks that write the files where the stages are `stride` ranks apart.
std::vector<int64_t> RanksOf(size_t files, int64_t tensor_ranks, int64_t stride) {
  std::vector<int64_t> ranks(files);
  for (size_t i = 0; i < files; ++i) {
    const auto file = static_cast<int64_t>(i);
    ranks[i] = file / tensor_ranks * stride + file % tensor_ranks;
  }
  return ranks;
}

size_t CountEqual(std::span<const int64_t> a, std::span<const int64_t> b) {
  size_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) count += a[i] == b[i] ? 1 : 0;
  return count;
}

// Returns the rank that belongs in each place; empty if that is not known.
std::vector<int64_t> ExpectedRanks(std::span<const int64_t> ranks, const RankGrid& grid) {
  const int64_t tensor_ranks = Bounded(grid.tensor_ranks);
  const int64_t before_data = tensor_ranks * Bounded(grid.context_ranks);
  for (const int64_t stride : {before_data * Bounded(grid.data_ranks), before_data}) {
    std::vector<int64_t> expected = RanksOf(ranks.size(), tensor_ranks, stride);
    if (2 * CountEqual(ranks, expected) > ranks.size()) return expected;
  }
  std::vector<int64_t> sorted(ranks.begin(), ranks.end());
  std::ranges::sort(sorted);
  if (std::ranges::adjacent_find(sorted) != sorted.end()) sorted.clear();
  return sorted;
}

}  // namespace

absl::StatusOr<std::vector<RankChunk>> ReadRankChunks(const TorchArchive& archive) {
  const Value root = archive.contents.root();
  pickle::Budget budget(archive.contents);
  std::vector<RankChunk> chunks;
  if (const Value model = root.Find("model"); model.present()) {
    TESSERA_ASSIGN_OR_RETURN(chunks.emplace_back(), ReadChunk(archive, model, budget));
    return chunks;
  }
  while (chunks.size() < kMaxChunks) {
    const std::string key = absl::StrCat("model", chunks.size());
    const Value model = root.Find(key);
    if (!model.present()) break;
    TESSERA_ASSIGN_OR_RETURN(RankChunk chunk, In(key, ReadChunk(archive, model, budget)));
    chunks.push_back(std::move(chunk));
  }
  if (chunks.empty()) return DataLoss("neither \"model\" nor \"model0\"");
  return chunks;
}

absl::StatusOr<std::vector<GatheredBuffer>> ReadGatheredState(const TorchArchive& archive,
                                                              const Value& state) {
  if (state.is(pickle::Kind::kList)) {
    return Unimplemented("the states of several optimizers, expected one");
  }
  if (!state.Find("buckets_coalesced").AsBool().value_or(false)) {
    return Unimplemented(
        "the buckets are stored apart, as by Megatron-Core 0.7 and earlier, or this is no state "
        "of its distributed optimizer");
  }
  Source source{archive};
  std::vector<GatheredBuffer> buffers;
  for (const auto& [index, value] : ByNumber(state)) {
    if (index != static_cast<int64_t>(buffers.size())) {
      return DataLoss("buffer ", buffers.size(), " is missing");
    }
    TESSERA_ASSIGN_OR_RETURN(buffers.emplace_back(),
                             In(absl::StrCat("buffer ", index), ReadBuffer(source, value)));
  }
  return buffers;
}

bool HasNumberedState(const Value& optimizer) {
  return optimizer.Find("state").present() || optimizer.Find("optimizer").Find("state").present();
}

absl::StatusOr<std::vector<MegatronGroup>> ReadNumberedState(const TorchArchive& archive,
                                                             const Value& optimizer) {
  const Value inner = optimizer.Find("optimizer");
  const Value plain = inner.Find("state").present() ? inner : optimizer;
  const Value masters = optimizer.Find("fp32_from_fp16_params");
  const ValuesByNumber states = ByNumber(plain.Find("state"));
  const Value groups = plain.Find("param_groups");
  Source source{archive};
  std::vector<MegatronGroup> read;
  for (size_t i = 0; i < groups.size(); ++i) {
    if (groups[i].Find("params").size() == 0) continue;
    TESSERA_ASSIGN_OR_RETURN(read.emplace_back(),
                             In(absl::StrCat("group ", i, " of the optimizer"),
                                ReadGroup(source, groups[i], states, masters[i])));
  }
  return read;
}

std::optional<MisplacedFile> FindMisplacedFile(std::span<const int64_t> ranks,
                                               const RankGrid& grid) {
  const std::vector<int64_t> expected = ExpectedRanks(ranks, grid);
  for (size_t i = 0; i < expected.size(); ++i) {
    if (ranks[i] == expected[i]) continue;
    const auto place = std::ranges::find(expected, ranks[i]);
    if (place == expected.end()) continue;
    return MisplacedFile{.file = i, .place = static_cast<size_t>(place - expected.begin())};
  }
  return std::nullopt;
}

}  // namespace tessera::ckpt::convert
