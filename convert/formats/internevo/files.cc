#include "convert/formats/internevo/files.h"

#include <algorithm>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "convert/core/foreign_layout.h"
#include "convert/core/rank_grid.h"
#include "convert/pickle/torch_archive.h"
#include "convert/pickle/value.h"

namespace tessera::ckpt::convert {
namespace {

using pickle::Value;

constexpr size_t kMaxDigits = 6;

// A kind of files: what their names have for tensor-parallel ranks and, in other runs, for
// weight-parallel ones.
struct FileKind {
  std::string_view stem;
  RankPattern by_mode[2];
};
const FileKind kModels = {
    "model_", {RankPattern("model_tp{1}_pp{1}.pt"), RankPattern("model_wp{1}_pp{1}.pt")}};
const FileKind kOptimizers = {
    "optimizer_",
    {RankPattern("optimizer_tp{1}_pp{1}_zo{1}.pt"), RankPattern("optimizer_wp{1}_pp{1}_zo{1}.pt")}};

// Returns the rank on an axis in a name that has "_tp0" or "_tp-0"; nullopt for other names.
std::optional<int64_t> AxisRank(std::string_view name, std::string_view axis) {
  const std::string key = "_" + std::string(axis);
  const size_t at = name.find(key);
  if (at == name.npos) return std::nullopt;
  name.remove_prefix(at + key.size());
  if (name.starts_with('-')) name.remove_prefix(1);
  name = name.substr(0, name.find_first_not_of("0123456789"));
  int64_t rank = 0;
  if (name.size() > kMaxDigits || !absl::SimpleAtoi(View(name), &rank)) return std::nullopt;
  return rank;
}

// Returns an error for parallel modes whose files are not read.
absl::Status Unsupported(const std::string& name) {
  const char* what = "an unknown parallel mode";
  if (name.starts_with("model_moe_layer") || name.starts_with("optimizer_ep")) {
    what = "experts";
  } else if (AxisRank(name, "tp") && AxisRank(name, "wp")) {
    what = "a rank that is both tensor-parallel and weight-parallel";
  } else if (name.starts_with(kModels.stem) && (AxisRank(name, "dp") || AxisRank(name, "zo"))) {
    what = "FSDP";
  }
  return Unimplemented(name, " is a file of ", what, ", which is not read");
}

// Returns all files of a kind; those that are absent are added to `missing`.
absl::StatusOr<std::vector<InternEvoRankFile>> FilesOf(const FileKind& kind,
                                                       const InternEvoRankFiles& files,
                                                       std::span<const std::string> names,
                                                       std::vector<std::string>& missing) {
  // Parts are tensor-parallel or weight-parallel ranks; stages are the second axis in names.
  const int64_t extents[] = {files.parts, files.stages, files.zero_ranks};
  const RankPattern& pattern = kind.by_mode[files.weight_parallel ? 1 : 0];
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<RankFile> grid,
      CompleteGrid(pattern, std::span(extents, pattern.axes()), names, missing));
  std::vector<InternEvoRankFile> all;
  for (const RankFile& file : grid) {
    all.push_back({.name = file.name,
                   .part = file.ranks[0],
                   .pipeline = file.ranks[1],
                   .zero = file.ranks.size() > 2 ? file.ranks[2] : 0});
  }
  std::ranges::stable_sort(all, {}, &InternEvoRankFile::pipeline);
  return all;
}

constexpr std::string_view kModelConfig = "model_config.pt";
// The parameters of a model whose rotary embedding turns neighbouring rows.
constexpr std::string_view kPairedRows = "internevo.qk_interleaved";

// Returns whether the rotary embedding turns neighbouring rows of a head. Releases before
// `qk_interleaved` had `adapt_hf`, which means the opposite.
absl::StatusOr<bool> HasPairedRows(const Value& config) {
  if (const auto paired = config.Find("qk_interleaved").AsBool()) return *paired;
  if (const auto halves = config.Find("adapt_hf").AsBool()) return !*halves;
  return InvalidArgument(
      "neither qk_interleaved nor adapt_hf, whose defaults differ between releases: add the one "
      "that the run had");
}

absl::StatusOr<ForeignModel> MakeModel(const Value& config, int64_t tensor_count,
                                       uint64_t file_bytes) {
  if (config.entry_count() == 0) return DataLoss("no dict of the model's settings");
  TESSERA_ASSIGN_OR_RETURN(const bool paired, HasPairedRows(config));
  return ForeignModel::Read(paired ? kPairedRows : kInternEvo, pickle::DictToJson(config).dump(),
                            tensor_count, file_bytes);
}

// Returns whether both are the same elements of the same tensors, however ranks cut them.
bool AreSame(const ForeignParameter& a, const ForeignParameter& b) {
  return std::ranges::equal(a.blocks, b.blocks, [](const auto& one, const auto& other) {
    return one.name == other.name && one.offset == other.offset && one.shape == other.shape;
  });
}

constexpr std::string_view kContext = "context.pt", kSampler = "sampler.pt",
                           kScheduler = "schedulder.pt";  // as InternEvo spells it
constexpr int64_t kMaxCount = int64_t{1} << 40;           // of batches, of samples in one, of ranks

// Returns a number in a file of the run; nullopt if it is absent or impossible.
std::optional<int64_t> CountIn(const Value& dict, std::string_view name) {
  const std::optional<int64_t> count = dict.Find(name).AsInt();
  return count && *count >= 0 && *count <= kMaxCount ? count : std::nullopt;
}

// What the batches of a data-parallel rank are made of: `size` samples, or, where the run began
// with smaller ones, `first` samples and `more` after every `every` batches.
struct Batches {
  int64_t size = 0;
  int64_t first = 0, more = 0, every = 0;  // 0: all are of the full size

  // Returns the samples of the first `count` batches; nullopt for too many.
  std::optional<int64_t> Samples(int64_t count) const {
    using Wide = __int128;
    Wide samples = 0;
    int64_t left = count;
    if (every > 0) {
      const Wide steps = std::min<Wide>(count / every, (Wide{size} - first + more - 1) / more);
      samples = every * (steps * first + Wide{more} * steps * (steps - 1) / 2);
      left -= static_cast<int64_t>(steps) * every;
      if (first + steps * more < size) {
        samples += left * (first + steps * more);
        left = 0;
      }
    }
    samples += Wide{left} * size;
    if (samples > INT64_MAX / 2) return std::nullopt;
    return static_cast<int64_t>(samples);
  }
};

// "192 24 8": the first size, by how much it grows, and after how many batches.
std::optional<Batches> ParseBatches(const Value& sampler) {
  const std::optional<int64_t> size = CountIn(sampler, "batch_size");
  if (!size || *size == 0) return std::nullopt;
  Batches batches = {.size = *size};
  const std::optional<std::string_view> ramp = sampler.Find("raw_rampup_batch_size").AsText();
  if (!ramp || ramp->empty()) return batches;
  const std::vector<std::string> words = absl::StrSplit(View(*ramp), ' ', absl::SkipEmpty());
  if (words.size() != 3 || !absl::SimpleAtoi(words[0], &batches.first) ||
      !absl::SimpleAtoi(words[1], &batches.more) || !absl::SimpleAtoi(words[2], &batches.every)) {
    return std::nullopt;
  }
  const bool is_ramp = batches.first > 0 && batches.first <= batches.size && batches.more > 0 &&
                       batches.more <= kMaxCount && batches.every > 0 && batches.every <= kMaxCount;
  return is_ramp ? std::optional(batches) : std::nullopt;
}

// Returns the samples that all data-parallel ranks have read in `batches` batches of each, all
// epochs counted. nullopt for samplers of other kinds, and where a second epoch has begun with
// small batches again. DataLoss, a phrase, for a position in the epoch that is beyond that.
absl::StatusOr<std::optional<int64_t>> ConsumedSamples(const Value& sampler, int64_t batches) {
  const std::optional<Batches> kind = ParseBatches(sampler);
  const std::optional<int64_t> ranks = CountIn(sampler, "data_world_size");
  const std::optional<int64_t> in_epoch = CountIn(sampler, "num_consumed_samples_in_epoch");
  if (!kind || !ranks || *ranks == 0 || !in_epoch) return std::nullopt;
  const std::optional<int64_t> samples = kind->Samples(batches);
  if (!samples || *samples > INT64_MAX / *ranks) return std::nullopt;
  if (kind->every > 0 && CountIn(sampler, "batch_count") != batches) return std::nullopt;
  if (*in_epoch > *samples) {
    return DataLoss("num_consumed_samples_in_epoch is ", *in_epoch, ", but ", batches,
                    " batches have ", *samples, " samples");
  }
  return *samples * *ranks;
}

// What the scheduler of the learning rate says of the step. One with a warmup hands over to another
// one, and InternEvo overwrites its own number when it resumes: neither of the two is ahead.
struct SchedulerSteps {
  std::optional<int64_t> exact;
  int64_t least = 0;
};

SchedulerSteps StepsOf(const Value& scheduler) {
  const std::optional<int64_t> own = CountIn(scheduler, "last_epoch");
  const Value after = scheduler.Find("after_scheduler_dict");
  SchedulerSteps steps = {.least = own.value_or(0)};
  if (!after.present()) steps.exact = own;
  steps.least = std::max(steps.least, CountIn(after, "last_epoch").value_or(0));
  return steps;
}

// Reads the step from context.pt and from the scheduler's file, which must agree; nullopt if
// neither tells it.
absl::StatusOr<std::optional<int64_t>> ReadStep(Storage& storage,
                                                const std::optional<TorchArchive>& context,
                                                const std::optional<TorchArchive>& scheduler) {
  SchedulerSteps scheduled;
  if (scheduler) scheduled = StepsOf(scheduler->contents.root());
  if (!context) return scheduled.exact;
  const Value root = context->contents.root();
  std::optional<int64_t> step = CountIn(root, "step_count");
  // Early releases count batches alone, from 0 on.
  const std::optional<int64_t> batches = CountIn(root, "batch_count");
  if (!step && batches) step = *batches + 1;
  if (!step) return Damaged(storage, kContext, "no number of steps (\"step_count\")");
  if (scheduled.least > *step || (scheduled.exact && scheduled.exact != step)) {
    return Damaged(storage, kScheduler, "step ", scheduled.least, " (\"last_epoch\"), ", kContext,
                   " says ", *step);
  }
  return step;
}

}  // namespace

bool IsInternEvoModelName(const std::string& name) {
  return name.starts_with(kModels.stem) && name.ends_with(".pt") &&
         (AxisRank(name, "tp") || AxisRank(name, "wp")) && AxisRank(name, "pp");
}

absl::StatusOr<InternEvoRankFiles> FindInternEvoRankFiles(std::span<const std::string> names) {
  InternEvoRankFiles files;
  bool has_optimizers = false;
  bool has_mode[2] = {false, false};
  for (const std::string& name : names) {
    if (name.starts_with("gpus-") && name.ends_with(".pt")) {
      const auto rank = [&](std::string_view axis) { return AxisRank(name, axis).value_or(0); };
      files.plans.push_back({name, std::max(rank("tp"), rank("wp")), rank("pp"), rank("zo")});
      continue;
    }
    bool is_known = false;
    for (const FileKind* const kind : {&kModels, &kOptimizers}) {
      for (const int mode : {0, 1}) {
        const std::optional<std::vector<int64_t>> ranks = kind->by_mode[mode].Parse(name);
        if (!ranks) continue;
        is_known = has_mode[mode] = true;
        has_optimizers = has_optimizers || kind == &kOptimizers;
        files.parts = std::max(files.parts, (*ranks)[0] + 1);
        files.stages = std::max(files.stages, (*ranks)[1] + 1);
        if (ranks->size() > 2) files.zero_ranks = std::max(files.zero_ranks, (*ranks)[2] + 1);
      }
      const bool is_of_ranks = name.starts_with("model_moe_layer") ||
                               name.starts_with("optimizer_ep") || AxisRank(name, "pp");
      if (!is_known && is_of_ranks && name.starts_with(kind->stem)) return Unsupported(name);
    }
  }
  if (has_mode[0] && has_mode[1]) {
    return DataLoss(
        "there are files of tensor-parallel ranks (tp) and of weight-parallel ones (wp): leave "
        "those of one checkpoint in the folder");
  }
  files.weight_parallel = has_mode[1];
  std::vector<std::string> missing;
  TESSERA_ASSIGN_OR_RETURN(files.models, FilesOf(kModels, files, names, missing));
  if (has_optimizers) {
    TESSERA_ASSIGN_OR_RETURN(files.optimizers, FilesOf(kOptimizers, files, names, missing));
  }
  if (missing.empty()) return files;
  return DataLoss("missing: ", JoinFirst(missing, ", "));
}

InternEvoLocalName ParseInternEvoName(std::string_view name) {
  constexpr std::string_view kWrapper = "model.";
  int64_t chunk = 0;
  const LayerName first = SplitLayer(name);
  if (first.layer >= 0 && first.before.empty() && !first.after.empty()) {
    chunk = first.layer;
    name = std::string_view(first.after).substr(1);
  }
  if (name.starts_with(kWrapper)) name.remove_prefix(kWrapper.size());
  return {SplitLayer(name), chunk};
}

void InternEvoLayers::Add(int64_t stage, const InternEvoLocalName& name) {
  std::set<int64_t>& layers = layers_[{name.chunk, stage}];
  if (name.layer >= 0) layers.insert(name.layer);
}

int64_t InternEvoLayers::chunks() const {
  return layers_.empty() ? 1 : layers_.rbegin()->first.first + 1;
}

absl::StatusOr<std::string> InternEvoLayers::GlobalName(int64_t stage,
                                                        const InternEvoLocalName& name) const {
  if (name.layer < 0) return name.before;
  int64_t number = name.layer;
  for (const auto& [place, layers] : layers_) {
    const auto count = static_cast<int64_t>(layers.size());
    if (count > 0 && *layers.rbegin() != count - 1) {
      return DataLoss("stage ", place.second, " has ", count, " layers in chunk ", place.first,
                      ", but also number ", *layers.rbegin());
    }
    if (place >= std::pair(name.chunk, stage)) break;
    number += count;
  }
  return absl::StrCat(name.before, number, name.after);
}

absl::StatusOr<ForeignModel> ReadInternEvoModel(Storage& storage, int64_t tensor_count,
                                                uint64_t file_bytes) {
  TESSERA_ASSIGN_OR_RETURN(const auto archive, IfPresent(ReadTorchFile(storage, kModelConfig)));
  if (!archive) {
    return InvalidArgument(storage.Describe(kModelConfig), " is missing: it describes the model");
  }
  return At(storage, kModelConfig, MakeModel(archive->contents.root(), tensor_count, file_bytes));
}

absl::StatusOr<const ForeignParameter*> FindInternEvoParameter(ForeignModel& model,
                                                               const std::string& name,
                                                               const Shape& shape, int64_t parts) {
  const std::vector<ForeignParameter*> candidates = model.Named(name);
  if (candidates.empty()) {
    return InvalidArgument("tensor ", Shown(name),
                           " belongs to no parameter of the model that model_config.pt describes");
  }
  const ForeignParameter* found = nullptr;
  std::set<std::string> expected;
  for (const ForeignParameter* const candidate : candidates) {
    const ForeignParameter& parameter = *candidate;
    const absl::StatusOr<Shape> local = LocalShape(parameter, parts);
    if (!local.ok()) continue;
    expected.insert(ShapeToString(*local));
    if (*local != shape) continue;
    if (found != nullptr && !AreSame(*found, parameter)) {
      return InvalidArgument(
          "tensor ", name, ": by its shape ", ShapeToString(shape), " it could be ",
          found->blocks.front().name, " or ", parameter.blocks.front().name,
          ", which releases of InternEvo name differently; convert the checkpoint with the one "
          "that wrote it");
    }
    if (found == nullptr) found = &parameter;
  }
  if (found != nullptr) return found;
  return DataLoss("tensor ", name, ": shape ", ShapeToString(shape), ", expected ",
                  expected.empty() ? absl::StrCat("one that ", parts, " ranks divide")
                                   : absl::StrJoin(expected, " or "));
}

absl::Status DescribeInternEvoRun(Storage& storage, ForeignCheckpoint& checkpoint) {
  Manifest& manifest = checkpoint.description;
  TESSERA_ASSIGN_OR_RETURN(const auto context, IfPresent(ReadTorchFile(storage, kContext)));
  TESSERA_ASSIGN_OR_RETURN(const auto scheduler, IfPresent(ReadTorchFile(storage, kScheduler)));
  TESSERA_ASSIGN_OR_RETURN(const auto sampler, IfPresent(ReadTorchFile(storage, kSampler)));
  std::vector<std::string> missing;
  if (!context) missing.emplace_back(kContext);
  if (!sampler) missing.emplace_back(kSampler);
  if (context || scheduler || sampler) {
    NoteLeftOut("what these missing files know of the run's position", missing, checkpoint.notes);
  }
  TESSERA_ASSIGN_OR_RETURN(const std::optional<int64_t> step,
                           ReadStep(storage, context, scheduler));
  if (!step) return absl::OkStatus();
  // Batches of early releases are steps; later ones may skip some.
  std::optional<int64_t> batches = *step, tokens;
  if (context) {
    const std::optional<int64_t> last = CountIn(context->contents.root(), "batch_count");
    if (last) batches = *last + 1;
    tokens = context->contents.root().Find("num_consumed_tokens").AsInt();
  }
  std::optional<int64_t> samples;
  if (sampler) {
    TESSERA_ASSIGN_OR_RETURN(
        samples, At(storage, kSampler, ConsumedSamples(sampler->contents.root(), *batches)));
  }
  SetProgress(*step, samples, manifest);
  if (!tokens || *tokens < 0) return absl::OkStatus();
  std::string note = absl::StrCat("The run has consumed ", *tokens, " tokens");
  if (samples && *samples > 0 && *tokens % *samples == 0) {
    const int64_t length = *tokens / *samples;
    manifest.mutable_trainer()->mutable_data()->set_sequence_length(length);
    absl::StrAppend(&note, ", which are ", *samples, " samples of ", length);
  }
  checkpoint.notes.push_back(absl::StrCat(
      note, samples
                ? "; their order is that of its own loader, which packs samples."
                : "; its position in the data is that of its own loader, which packs samples."));
  return absl::OkStatus();
}

}  // namespace tessera::ckpt::convert
