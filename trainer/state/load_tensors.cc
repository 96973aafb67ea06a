#include "trainer/state/load_tensors.h"

#include <algorithm>
#include <functional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/include/manifest.h"
#include "convert/core/saved_weights.h"
#include "trainer/config/load_content.h"
#include "trainer/state/describe_saved.h"

namespace tessera {

bool HasRole(const ckpt::Manifest& manifest, ckpt::TensorRole role) {
  for (const ckpt::LogicalTensor& tensor : manifest.tensors()) {
    if (ckpt::FromProto(tensor.role()) == role) return true;
  }
  return false;
}

bool IsOfStatelessOptimizer(const ckpt::Manifest& manifest) {
  return manifest.has_optimizer() && !HasRole(manifest, ckpt::TensorRole::kOptimizerState);
}

namespace {

std::unordered_set<std::string> SavedNames(const ckpt::Manifest& manifest) {
  std::unordered_set<std::string> names;
  for (const ckpt::LogicalTensor& tensor : manifest.tensors()) names.insert(tensor.name());
  return names;
}

// Requests the saved master weight in place of every fp32 weight that was saved rounded. Returns
// whether there was one.
bool TakeWeightsFromMaster(const ckpt::Manifest& manifest, ckpt::StateDict& wanted) {
  std::unordered_map<std::string, const ckpt::LogicalTensor*> saved;
  for (const ckpt::LogicalTensor& tensor : manifest.tensors()) saved[tensor.name()] = &tensor;
  bool any = false;
  for (ckpt::ShardedTensor& tensor : wanted.tensors) {
    if (tensor.role != ckpt::TensorRole::kWeight || tensor.dtype != DType::kF32 ||
        !tensor.alias_of.empty()) {
      continue;
    }
    const auto weight = saved.find(tensor.name);
    const std::string master = StateName(tensor.name, kMaster);
    if (weight == saved.end() || ckpt::FromProto(weight->second->dtype()) == DType::kF32 ||
        !saved.contains(master)) {
      continue;
    }
    any = true;
    tensor.name = master;
    tensor.role = ckpt::TensorRole::kMasterWeight;
  }
  return any;
}

// Whether a requested tensor is a master weight that comes from the saved weight, because it was
// not saved itself.
using FromWeight = std::function<bool(const ckpt::ShardedTensor&)>;

// Returns the parameter of a tensor, which is its weight or its optimizer state.
std::string ParameterOf(std::string_view tensor, bool is_optimizer_state) {
  if (!is_optimizer_state) return std::string(tensor);
  return std::string(tensor.substr(0, tensor.rfind('.')));
}

// Requests weights in place of these master weights: "x.master" becomes "x".
ckpt::StateDict MastersFromWeights(ckpt::StateDict optimizer, const FromWeight& from_weight) {
  ckpt::StateDict masters;
  for (ckpt::ShardedTensor& tensor : optimizer.tensors) {
    if (!from_weight(tensor)) continue;
    tensor.name = ParameterOf(tensor.name, /*is_optimizer_state=*/true);
    tensor.role = ckpt::TensorRole::kWeight;
    masters.tensors.push_back(std::move(tensor));
  }
  return masters;
}

// Returns whether some, and not all, weights were saved with a master weight.
bool LacksSomeMasters(const ckpt::Manifest& manifest) {
  const std::unordered_set<std::string> names = SavedNames(manifest);
  return HasRole(manifest, ckpt::TensorRole::kMasterWeight) &&
         std::ranges::any_of(manifest.tensors(), [&](const ckpt::LogicalTensor& tensor) {
           return ckpt::FromProto(tensor.role()) == ckpt::TensorRole::kWeight &&
                  tensor.alias_of().empty() && !names.contains(StateName(tensor.name(), kMaster));
         });
}

void Append(ckpt::StateDict from, ckpt::StateDict& to) {
  for (ckpt::ShardedTensor& tensor : from.tensors) to.tensors.push_back(std::move(tensor));
}

bool Matches(const LoadPolicy& policy, std::string_view tensor, bool is_optimizer_state) {
  const std::string parameter = ParameterOf(tensor, is_optimizer_state);
  return policy.patterns.empty() ||
         std::any_of(policy.patterns.begin(), policy.patterns.end(),
                     [&](const std::string& p) { return MatchesGlob(p, parameter); });
}

// A second name matches if the first one does.
void KeepMatching(const LoadPolicy& policy, ckpt::StateDict& state) {
  std::erase_if(state.tensors, [&](const ckpt::ShardedTensor& tensor) {
    return !Matches(policy, tensor.alias_of.empty() ? tensor.name : tensor.alias_of,
                    ckpt::BelongsToOptimizer(tensor.role));
  });
}

// Returns all ranks' names, on rank 0; empty on others.
absl::StatusOr<std::set<std::string>> GatherNames(const std::vector<std::string>& mine,
                                                  const RankGroup& group) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> ranks,
                           group.ranks.Gather(absl::StrJoin(mine, "\n"), group.timeout));
  std::set<std::string> names;
  for (const std::string& lines : ranks) {
    for (const absl::string_view name : absl::StrSplit(lines, '\n', absl::SkipEmpty())) {
      names.emplace(name);
    }
  }
  return names;
}

std::vector<std::string> Names(const ckpt::StateDict& state) {
  std::vector<std::string> names;
  for (const ckpt::ShardedTensor& tensor : state.tensors) names.push_back(tensor.name);
  return names;
}

// Saved tensors that no rank requested, except those that are excluded on purpose and weights whose
// master weight some rank requested instead: on rank 0 an error, or a sentence where they are
// allowed.
absl::Status CheckUnexpected(const SavedRun& saved, const ckpt::StateDict& wanted,
                             const std::function<bool(const ckpt::LogicalTensor&)>& left_out,
                             const LoadPolicy& policy, const RankGroup& group, LoadNotes& notes) {
  TESSERA_ASSIGN_OR_RETURN(const std::set<std::string> names, GatherNames(Names(wanted), group));
  if (group.ranks.rank() != 0) return absl::OkStatus();
  if (names.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "load_tensors=", absl::StrJoin(policy.patterns, ","), ": no parameter has such a name"));
  }
  const auto is_wanted = [&names](const ckpt::LogicalTensor& tensor) {
    if (names.contains(tensor.name())) return true;
    return ckpt::FromProto(tensor.role()) == ckpt::TensorRole::kWeight &&
           names.contains(StateName(tensor.name(), kMaster));
  };
  std::vector<std::string> unexpected;
  for (const ckpt::LogicalTensor& tensor : saved.manifest().tensors()) {
    const std::string& name = tensor.alias_of().empty() ? tensor.name() : tensor.alias_of();
    if (!Matches(policy, name, ckpt::BelongsToOptimizer(ckpt::FromProto(tensor.role())))) continue;
    if (!is_wanted(tensor) && !left_out(tensor)) unexpected.push_back(tensor.name());
  }
  if (unexpected.empty()) return absl::OkStatus();
  if (policy.allow_unexpected) {
    notes.sentences.push_back(
        absl::StrCat("skipped, the model does not have it: ", absl::StrJoin(unexpected, ", ")));
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat(saved.Describe(), " holds tensors that this model has no place for: ",
                   JoinFirst(unexpected, ", "), "; --allow-unexpected skips them"));
}

// Moments that are wanted and were not saved, of parameters whose weights were.
struct MissingMoments {
  std::vector<std::string> all;   // of a parameter without any, as one that was frozen
  std::vector<std::string> some;  // of one with others
};

MissingMoments FindMissingMoments(const ckpt::Manifest& manifest, const ckpt::StateDict& wanted) {
  const std::unordered_set<std::string> names = SavedNames(manifest);
  const auto is_saved = [&](std::string_view parameter, std::string_view state) {
    return names.contains(StateName(parameter, state));
  };
  MissingMoments missing;
  for (const ckpt::ShardedTensor& tensor : wanted.tensors) {
    if (tensor.role != ckpt::TensorRole::kOptimizerState || names.contains(tensor.name)) continue;
    const std::string parameter = ParameterOf(tensor.name, /*is_optimizer_state=*/true);
    if (!names.contains(parameter) && !is_saved(parameter, kMaster)) continue;
    const bool has_other = is_saved(parameter, kExpAvg) || is_saved(parameter, kExpAvgSq);
    (has_other ? missing.some : missing.all).push_back(tensor.name);
  }
  return missing;
}

// A parameter must not continue with one of its two moments. One that was frozen has none: they
// start at zero where what is missing is allowed.
absl::Status CheckOptimizerState(const SavedRun& saved, const ckpt::StateDict& wanted,
                                 bool allow_missing) {
  const MissingMoments missing = FindMissingMoments(saved.manifest(), wanted);
  const std::string problem =
      absl::StrCat(saved.Describe(), " holds parameters without their optimizer state (");
  if (allow_missing && !missing.some.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(problem, JoinFirst(missing.some, ", "),
                     "); --no-load-optim starts with a fresh one of all parameters"));
  }
  if (!allow_missing && !missing.all.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(problem, JoinFirst(missing.all, ", "),
                     "), which frozen parameters do not have; --allow-missing starts these "
                     "at zero, --no-load-optim starts all at zero"));
  }
  return absl::OkStatus();
}

absl::Status NoteMissing(const ckpt::LoadReport& report, const SavedRun& saved,
                         const RankGroup& group, LoadNotes& notes) {
  TESSERA_ASSIGN_OR_RETURN(const std::set<std::string> missing, GatherNames(report.missing, group));
  notes.lacks_tensors = !missing.empty();
  const std::unordered_set<std::string> names = SavedNames(saved.manifest());
  std::vector<std::string> moments, others;
  for (const std::string& name : missing) {
    const bool is_moment = names.contains(ParameterOf(name, /*is_optimizer_state=*/true));
    (is_moment ? moments : others).push_back(name);
  }
  if (!others.empty()) {
    notes.sentences.push_back(
        absl::StrCat("not saved, keeps its initial value: ", absl::StrJoin(others, ", ")));
  }
  if (!moments.empty()) {
    notes.sentences.push_back(absl::StrCat("not saved with its parameter, starts at zero: ",
                                           absl::StrJoin(moments, ", ")));
  }
  return absl::OkStatus();
}

// A parameter may be saved as a master weight alone; a second name of one is not counted.
void CountParameters(const ckpt::Manifest& manifest, const LoadPolicy& policy, LoadNotes& notes) {
  std::set<std::string> parameters;
  for (const ckpt::LogicalTensor& tensor : manifest.tensors()) {
    const bool is_master = ckpt::FromProto(tensor.role()) == ckpt::TensorRole::kMasterWeight;
    if ((ckpt::FromProto(tensor.role()) != ckpt::TensorRole::kWeight && !is_master) ||
        !tensor.alias_of().empty())
      continue;
    if (!parameters.insert(ParameterOf(tensor.name(), is_master)).second) continue;
    ++notes.saved_parameters;
    if (Matches(policy, tensor.name(), is_master)) ++notes.matching_parameters;
  }
}

void Add(const ckpt::LoadReport& from, ckpt::LoadReport& to) {
  to.bytes_needed += from.bytes_needed;
  to.bytes_read += from.bytes_read;
  to.bytes_received += from.bytes_received;
  to.bytes_sent += from.bytes_sent;
  to.buffer_bytes = std::max(to.buffer_bytes, from.buffer_bytes);
  to.digests_verified += from.digests_verified;
  to.verify_duration += from.verify_duration;
  to.duration += from.duration;
}

void NoteVerified(const ckpt::LoadReport& report, LoadNotes& notes) {
  notes.sentences.push_back(absl::StrFormat("digests of %d tensors verified in %.2f s",
                                            report.digests_verified,
                                            absl::ToDoubleSeconds(report.verify_duration)));
  if (report.digests_unverified.empty()) return;
  notes.sentences.push_back(
      absl::StrCat("digests not verified: ", absl::StrJoin(report.digests_unverified, "; ")));
}

absl::Status CheckOptimizerIsSaved(const SavedRun& saved, const LoadPolicy& policy,
                                   LoadNotes& notes) {
  if (policy.with_optimizer && !HasRole(saved.manifest(), ckpt::TensorRole::kOptimizerState)) {
    return absl::FailedPreconditionError(absl::StrCat(
        saved.Describe(),
        " was saved without optimizer state; --no-load-optim resumes with a fresh one"));
  }
  if ((saved.is_own && !HasRole(saved.manifest(), ckpt::TensorRole::kOptimizerState)) ||
      IsOfStatelessOptimizer(saved.manifest())) {
    notes.sentences.emplace_back("no optimizer state was saved: the optimizer begins afresh");
  }
  return absl::OkStatus();
}

// Where the master weights of the state come from.
enum class MasterSource { kNotLoaded, kSaved, kAllFromWeights, kMissingFromWeights };

MasterSource FindMasterSource(const ckpt::Manifest& manifest, StateChunks chunks,
                              const LoadPolicy& policy) {
  const bool are_wanted = policy.with_masters || (policy.with_weights && policy.with_optimizer);
  if (!are_wanted || !chunks.front().optimizer->has_master()) return MasterSource::kNotLoaded;
  if (policy.with_masters || !HasRole(manifest, ckpt::TensorRole::kMasterWeight)) {
    return MasterSource::kAllFromWeights;
  }
  return policy.allow_missing && LacksSomeMasters(manifest) ? MasterSource::kMissingFromWeights
                                                            : MasterSource::kSaved;
}

FromWeight MastersFrom(MasterSource source, const ckpt::Manifest& manifest) {
  return [source, names = SavedNames(manifest)](const ckpt::ShardedTensor& tensor) {
    return tensor.role == ckpt::TensorRole::kMasterWeight &&
           (source == MasterSource::kAllFromWeights ||
            (source == MasterSource::kMissingFromWeights && !names.contains(tensor.name)));
  };
}

// Returns what is loaded from saved tensors of the same names and roles, fp32 weights apart.
ckpt::StateDict WantedState(const ckpt::Manifest& manifest, StateChunks chunks,
                            const LoadPolicy& policy, const FromWeight& from_weight,
                            LoadNotes& notes) {
  ckpt::StateDict wanted;
  if (policy.with_weights) wanted = WeightState(chunks);
  if (TakeWeightsFromMaster(manifest, wanted)) {
    notes.sentences.push_back("fp32 weights come from the master weights");
  }
  if (policy.with_optimizer) Append(OptimizerTensors(chunks), wanted);
  std::erase_if(wanted.tensors, [&](const ckpt::ShardedTensor& tensor) {
    return from_weight(tensor) ||
           (!policy.with_weights && tensor.role == ckpt::TensorRole::kMasterWeight);
  });
  KeepMatching(policy, wanted);
  return wanted;
}

absl::StatusOr<LoadNotes> LoadToHost(const SavedRun& saved, StateChunks chunks,
                                     const LoadPolicy& policy, const RankGroup& group) {
  LoadNotes notes;
  CountParameters(saved.manifest(), policy, notes);
  TESSERA_RETURN_IF_ERROR(CheckOptimizerIsSaved(saved, policy, notes));
  if (!policy.with_weights && !policy.with_optimizer) return notes;
  const MasterSource masters_from = FindMasterSource(saved.manifest(), chunks, policy);
  const FromWeight from_weight = MastersFrom(masters_from, saved.manifest());
  const ckpt::StateDict wanted = WantedState(saved.manifest(), chunks, policy, from_weight, notes);
  const auto left_out = [&](const ckpt::LogicalTensor& tensor) {
    const ckpt::TensorRole role = ckpt::FromProto(tensor.role());
    const bool has_saved_master =
        masters_from == MasterSource::kSaved || masters_from == MasterSource::kMissingFromWeights;
    return (!has_saved_master && role == ckpt::TensorRole::kMasterWeight) ||
           (!policy.with_weights && role == ckpt::TensorRole::kWeight) ||
           (!policy.with_optimizer && ckpt::BelongsToOptimizer(role));
  };
  TESSERA_RETURN_IF_ERROR(CheckUnexpected(saved, wanted, left_out, policy, group, notes));
  TESSERA_RETURN_IF_ERROR(CheckOptimizerState(saved, wanted, policy.allow_missing));

  ckpt::LoadOptions options;
  options.allow_missing = policy.allow_missing;
  options.allow_unexpected = true;  // checked above, with what is left out on purpose
  options.verify_digests = policy.verify;
  options.group = &group.ranks;
  options.timeout = group.timeout;
  const absl::StatusOr<ckpt::LoadReport> loaded = saved.checkpoint.Load(wanted, options);
  if (!loaded.ok()) return WithOlderStep(loaded.status(), saved.older_step);
  notes.report = *loaded;
  if (policy.allow_missing) TESSERA_RETURN_IF_ERROR(NoteMissing(*loaded, saved, group, notes));
  const bool all_from_weights = masters_from == MasterSource::kAllFromWeights;
  if (all_from_weights || masters_from == MasterSource::kMissingFromWeights) {
    ckpt::StateDict masters = MastersFromWeights(OptimizerTensors(chunks), from_weight);
    KeepMatching(policy, masters);
    TESSERA_ASSIGN_OR_RETURN(const ckpt::LoadReport report,
                             saved.checkpoint.Load(masters, options));
    Add(report, notes.report);
    notes.sentences.push_back(absl::StrCat(all_from_weights ? "" : "some ",
                                           "master weights come from the saved weights"));
  }
  if (policy.verify) NoteVerified(notes.report, notes);
  return notes;
}

}  // namespace

LoadPolicy PolicyOf(const CheckpointConfig& config, bool has_optimizer) {
  LoadPolicy policy;
  policy.with_weights = LoadContentOf(config).model;
  policy.with_optimizer = has_optimizer && LoadContentOf(config).optimizer;
  policy.allow_missing = config.allow_missing();
  policy.allow_unexpected = config.allow_unexpected();
  policy.verify = config.verify_load();
  for (const absl::string_view pattern :
       absl::StrSplit(config.load_tensors(), ',', absl::SkipEmpty())) {
    policy.patterns.emplace_back(pattern);
  }
  return policy;
}

absl::StatusOr<LoadNotes> LoadTensors(const SavedRun& run, StateChunks chunks,
                                      const LoadPolicy& policy, const RankGroup& group) {
  SavedRun saved = run;
  saved.checkpoint = ckpt::convert::WithStatesNamedByMapping(run.checkpoint);
  DeviceMirror* const mirror = chunks.empty() ? nullptr : chunks.front().mirror;
  if (mirror == nullptr) return LoadToHost(saved, chunks, policy, group);
  // What is not loaded keeps its value.
  mirror->StartDownload();
  TESSERA_RETURN_IF_ERROR(mirror->FinishDownload());
  TESSERA_ASSIGN_OR_RETURN(LoadNotes notes, LoadToHost(saved, chunks, policy, group));
  TESSERA_RETURN_IF_ERROR(mirror->Upload());
  return notes;
}

}  // namespace tessera
