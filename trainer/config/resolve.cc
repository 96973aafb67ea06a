// Computes defaults that depend on other fields.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/files.h"
#include "base/flag_options.pb.h"
#include "base/status_macros.h"
#include "google/protobuf/descriptor.h"
#include "models/model_config.h"
#include "trainer/config/check_config.h"
#include "trainer/config/choose_topology.h"
#include "trainer/config/config.h"
#include "trainer/config/dependents.h"
#include "trainer/config/flags.h"
#include "trainer/config/load_content.h"
#include "trainer/config/problems.h"

namespace tessera {
namespace {

using ::google::protobuf::FieldDescriptor;

constexpr int64_t kDefaultSequence = 1024;
constexpr int64_t kDefaultEvalInterval = 1000;

// Writes every declared default but the model's explicitly, so that the saved config does not
// change with a later version's defaults.
void FillDeclaredDefaults(TrainConfig* config) {
  for (const Setting& setting : AllSettings(*TrainConfig::descriptor())) {
    const bool is_of_model = setting.group->message_type() == ModelConfig::descriptor();
    const bool has_text = setting.field->options().HasExtension(default_text);
    if (is_of_model || has_text || setting.is_given(*config)) continue;
    setting.Set(DefaultText(*setting.field), config);
  }
}

void FillSave(TrainConfig* config) {
  CheckpointConfig& checkpoint = *config->mutable_checkpoint();
  if (checkpoint.has_save()) return;
  const std::string& run_dir = config->output().run_dir();
  const bool saves = checkpoint.save_interval() > 0 && !run_dir.empty();
  checkpoint.set_save(saves ? run_dir + "/checkpoints" : "");
}

// Precondition: defaults are not filled in, so that a save_interval of 0 is the user's.
void FillSaveLastStep(CheckpointConfig* checkpoint) {
  if (checkpoint->has_save_last_step()) return;
  checkpoint->set_save_last_step(!checkpoint->has_save_interval() ||
                                 checkpoint->save_interval() > 0);
}

void FillDependentDefaults(TrainConfig* config) {
  TrainingConfig& training = *config->mutable_training();
  if (!training.has_global_batch_size()) {
    training.set_global_batch_size(training.micro_batch_size() *
                                   config->parallel().data_parallel_size());
  }
  if (!training.has_seq_length()) {
    training.set_seq_length(
        std::min<int64_t>(kDefaultSequence, config->model().max_position_embeddings()));
  }
  if (!training.has_eval_interval()) {
    training.set_eval_interval(config->data().valid_data_path().empty() ? 0 : kDefaultEvalInterval);
  }
  CheckpointConfig& checkpoint = *config->mutable_checkpoint();
  if (checkpoint.async_upload()) checkpoint.set_async_save(true);
  if (!checkpoint.has_non_persistent_save_interval()) {
    checkpoint.set_non_persistent_save_interval(checkpoint.save_interval() / 2);
  }
  if (!checkpoint.has_replicate_interval()) {
    checkpoint.set_replicate_interval(checkpoint.replicate_to_peers()
                                          ? std::max<int64_t>(checkpoint.save_interval() / 10, 1)
                                          : 0);
  }
  OptimizerConfig& optimizer = *config->mutable_optimizer();
  if (!optimizer.has_lr_decay_iters()) optimizer.set_lr_decay_iters(training.train_iters());
  if (!optimizer.has_lr_wsd_decay_iters() && optimizer.lr_decay_style() != LrDecayStyle::WSD) {
    optimizer.set_lr_wsd_decay_iters(0);
  }
}

// load_ckpt_folder, or load_ckpt_info, becomes load, load_content and ckpt_type, which may be given
// beside it where they say the same. A setting that a flag states is not taken from the folder. An
// empty load, such as the flag --load= states, replaces the folder.
absl::Status ReplaceLoadCkptFolder(const Origins& origins, CheckpointConfig* checkpoint) {
  const bool is_info = checkpoint->has_load_ckpt_info();
  if (!checkpoint->has_load_ckpt_folder() && !is_info) return absl::OkStatus();
  const LoadCkptFolder folder =
      is_info ? checkpoint->load_ckpt_info() : checkpoint->load_ckpt_folder();
  if (is_info && checkpoint->has_load_ckpt_folder()) {
    return Wrong("load_ckpt_folder and load_ckpt_info are two names of one setting: give one");
  }
  const char* const name = is_info ? "load_ckpt_info" : "load_ckpt_folder";
  if (folder.path().empty()) return Wrong(name, " is set but its path is not");
  checkpoint->clear_load_ckpt_folder();
  checkpoint->clear_load_ckpt_info();
  if (checkpoint->has_load() && checkpoint->load().empty()) return absl::OkStatus();
  const struct {
    std::string name, value, setting, other_name;
  } parts[] = {{"path", folder.path(), "load", ""},
               {"content", absl::StrJoin(folder.content(), ","), "load_content", ""},
               {"ckpt_type", folder.ckpt_type(), "ckpt_type", "load_format"}};
  const auto& reflection = *checkpoint->GetReflection();
  for (const auto& part : parts) {
    const bool by_flag = IsByFlag(origins, part.setting) || IsByFlag(origins, part.other_name);
    if (part.value.empty() || by_flag) continue;
    const FieldDescriptor* const field =
        CheckpointConfig::descriptor()->FindFieldByName(part.setting);
    const std::string given = reflection.GetString(*checkpoint, field);
    if (reflection.HasField(*checkpoint, field) && given != part.value) {
      return Wrong(part.setting, "=", given, " and ", name, ".", part.name, "=", part.value,
                   " exclude each other");
    }
    reflection.SetString(checkpoint, field, part.value);
  }
  return absl::OkStatus();
}

// Replaces save_optimizer_state by no_save_optim.
absl::Status ReplaceSaveOptimizerState(CheckpointConfig* checkpoint) {
  if (!checkpoint->has_save_optimizer_state()) return absl::OkStatus();
  const bool saves = checkpoint->save_optimizer_state();
  if (checkpoint->has_no_save_optim() && checkpoint->no_save_optim() == saves) {
    const char* const value = saves ? "true" : "false";
    return Wrong("save_optimizer_state=", value, " and no_save_optim=", value,
                 " exclude each other");
  }
  checkpoint->set_no_save_optim(!saves);
  checkpoint->clear_save_optimizer_state();
  return absl::OkStatus();
}

// Replaces InfiniTrain's dtype by bf16, and its total_batch_size by global_batch_size.
absl::Status ReplaceInfiniTrainsNames(TrainingConfig* training) {
  if (training->has_dtype()) {
    const std::string dtype = training->dtype();
    const bool bf16 = dtype == "bfloat16";
    if (!bf16 && dtype != "float32") {
      return Wrong("dtype=", dtype, ": expected float32 or bfloat16");
    }
    if (training->has_bf16() && training->bf16() != bf16) {
      return Wrong("dtype=", dtype, " and bf16=", bf16 ? "false" : "true", " exclude each other");
    }
    training->set_bf16(bf16);
    training->clear_dtype();
  }
  if (!training->has_total_batch_size()) return absl::OkStatus();
  const int64_t tokens = training->total_batch_size(), length = training->seq_length();
  if (length < 1) return Wrong("total_batch_size is set but seq_length is not");
  if (tokens < 1 || tokens % length != 0) {
    return Wrong("total_batch_size=", tokens, " is not a multiple of seq_length=", length);
  }
  const int64_t sequences = tokens / length;
  if (training->has_global_batch_size() && training->global_batch_size() != sequences) {
    return Wrong("total_batch_size=", tokens,
                 " and global_batch_size=", training->global_batch_size(), " exclude each other");
  }
  training->set_global_batch_size(sequences);
  training->clear_total_batch_size();
  return absl::OkStatus();
}

// Returns whether `load` names a model file of llm.c, rather than a run's folder or its file of a
// step.
bool IsLlmcModelFile(const std::string& load) {
  if (load.find("://") != std::string::npos) return false;
  std::error_code error;
  const std::filesystem::path path(load);
  return !std::filesystem::is_directory(path, error) &&
         !MatchesGlob("model_[0-9]*.bin", path.filename());
}

// The map of names is for checkpoints of PaddleNLP alone.
absl::Status CheckParameterNames(CheckpointConfig* checkpoint) {
  const std::string& file = checkpoint->parameter_to_structured_name();
  if (file.empty()) return absl::OkStatus();
  const std::string& format = checkpoint->load_format();
  if (format.empty() || format == "paddle") return absl::OkStatus();
  return Wrong("parameter_to_structured_name=", file, " and load_format=", format,
               " exclude each other: it is for the format paddle");
}

// ckpt_type is another name of load_format, but InternEvo's types for its own checkpoints stand for
// whichever format the checkpoint has. llmc_filepath names a single model file of llm.c.
absl::Status ReplaceCkptType(CheckpointConfig* checkpoint) {
  if (checkpoint->ckpt_type() == "internlm" || checkpoint->ckpt_type() == "internevo") {
    checkpoint->clear_ckpt_type();
  }
  const char* const name = checkpoint->has_ckpt_type() ? "ckpt_type" : "load_format";
  const std::string format =
      checkpoint->has_ckpt_type() ? checkpoint->ckpt_type() : checkpoint->load_format();
  if (checkpoint->has_load_format() && checkpoint->load_format() != format) {
    return Wrong("load_format=", checkpoint->load_format(), " and ckpt_type=", format,
                 " exclude each other");
  }
  checkpoint->clear_ckpt_type();
  if (!format.empty()) checkpoint->set_load_format(format);
  if (format.empty() || format == kTesseraFormat || checkpoint->load().empty()) {
    return absl::OkStatus();
  }
  if (format != "llmc" || !IsLlmcModelFile(checkpoint->load())) return absl::OkStatus();
  if (!checkpoint->llmc_filepath().empty()) {
    return Wrong(name, "=llmc and llmc_filepath exclude each other: load is the file");
  }
  const std::string& content = checkpoint->load_content();
  if (content != "all" && content != "model") {
    return Wrong("load_content=", content, ": an llm.c model file holds the model alone");
  }
  checkpoint->set_llmc_filepath(checkpoint->load());
  checkpoint->clear_load();
  checkpoint->clear_load_content();
  checkpoint->clear_load_format();
  return absl::OkStatus();
}

// InvalidArgument for a field of `model` that differs from the saved one, unless weights that are
// trained anew, or left out, allow for it.
absl::Status CheckSetFields(const ModelConfig& model, const SavedModel& saved,
                            const CheckpointConfig& checkpoint) {
  if (checkpoint.allow_missing() || checkpoint.allow_unexpected() ||
      !checkpoint.load_tensors().empty()) {
    return absl::OkStatus();
  }
  ModelConfig wanted = saved.config;
  wanted.MergeFrom(model);
  for (const FieldDifference& difference : ModelDifferences(saved.config, wanted)) {
    const FieldDescriptor& field = *ModelConfig::descriptor()->FindFieldByName(difference.name);
    const auto text = [&field](const ModelConfig& config) {
      const bool is_set = config.GetReflection()->HasField(config, &field);
      return is_set ? FieldText(config, field) : DefaultText(field);
    };
    // A default that the architecture leaves unset.
    if (text(model) == text(saved.config)) continue;
    return Wrong(field.name(), "=", text(model), ", but the model in ", saved.place, " has ",
                 field.name(), "=", text(saved.config));
  }
  return absl::OkStatus();
}

// A model that is not described at all is taken from llmc_filepath; what is set overrides it. What
// else is missing is taken from the checkpoint that the run begins with.
absl::StatusOr<ModelConfig> ChooseModel(const TrainConfig& config, const ResolveOptions& options) {
  const ModelConfig& model = config.model();
  const std::string& file = config.checkpoint().llmc_filepath();
  const bool is_described = !model.size().empty() || model.has_num_layers() ||
                            model.has_hidden_size() || model.architecture() == ModelConfig::OTHER;
  if (!file.empty() && !is_described) {
    CheckpointConfig alone;
    alone.set_load(file);
    alone.set_load_format("llmc");
    absl::StatusOr<std::optional<SavedModel>> saved{std::optional<SavedModel>()};
    if (options.saved_model != nullptr) saved = options.saved_model(alone);
    if (!saved.ok() || !saved->has_value()) {
      const absl::Status problem =
          saved.ok() ? absl::NotFoundError(absl::StrCat(file, ": no model file of llm.c"))
                     : saved.status();
      return absl::Status(problem.code(), absl::StrCat("llmc_filepath, for the model's sizes: ",
                                                       problem.message()));
    }
    ModelConfig chosen = (*saved)->config;
    chosen.MergeFrom(model);
    return chosen;
  }
  if (options.saved_model == nullptr || !model.size().empty() || ResolveModelConfig(model).ok()) {
    return model;
  }
  TESSERA_ASSIGN_OR_RETURN(const std::optional<SavedModel> saved,
                           options.saved_model(config.checkpoint()));
  if (!saved.has_value()) return model;
  TESSERA_RETURN_IF_ERROR(CheckSetFields(model, *saved, config.checkpoint()));
  ModelConfig chosen = saved->config;
  chosen.MergeFrom(model);
  return chosen;
}

void SetTopology(const Topology& topology, ParallelConfig* parallel) {
  parallel->set_tensor_model_parallel_size(topology.tensor);
  parallel->set_data_parallel_size(topology.data);
  parallel->set_pipeline_model_parallel_size(topology.pipeline);
  parallel->set_num_virtual_stages_per_pipeline_rank(topology.virtual_pipeline);
  parallel->set_zero_stage(topology.zero_stage);
  parallel->set_sequence_parallel(topology.sequence_parallel);
}

// A ZeRO stage, and the setting that states it.
struct StatedStage {
  std::string text;  // for messages
  int64_t stage = 0;
  bool is_flag = false;
};

// Returns the stage to use: a flag's rather than the file's.
absl::StatusOr<StatedStage> Stronger(const StatedStage& one,
                                     const std::optional<StatedStage>& other) {
  if (!other.has_value()) return one;
  if (one.is_flag != other->is_flag) return one.is_flag ? one : *other;
  if (one.stage == other->stage) return one;
  return Wrong(one.text, " and ", other->text, " exclude each other");
}

// Returns "; dp2_tp4 has 4": the name of the topology with this size of `given` and the others of
// `named`. Returns nothing if there is no such topology.
std::string NameWithSize(ParallelConfig named, const FieldDescriptor& size, ParallelConfig given) {
  const std::string value = FieldText(given, size);
  named.GetReflection()->SwapFields(&named, &given, {&size});
  TrainConfig config;
  *config.mutable_parallel() = named;
  const std::string name = ToString(ConfigTopology(config));
  const absl::StatusOr<Topology> topology = ParseTopology(name);
  if (!topology.ok()) return "";
  // A size that no int holds is another one by now.
  SetTopology(*topology, &named);
  return FieldText(named, size) == value ? absl::StrCat("; ", name, " has ", value) : "";
}

// Replaces a name such as "dp4_zero2_tp2_pp2" by the sizes. A flag's name replaces the sizes of the
// file, and a flag's size that of the file's name; what is given together must not differ.
absl::Status ReplaceTopology(const Origins& origins, ParallelConfig* parallel) {
  TESSERA_ASSIGN_OR_RETURN(const Topology topology, ParseTopology(parallel->topology()));
  ParallelConfig named;
  SetTopology(topology, &named);
  const bool name_is_flag = IsByFlag(origins, "topology");
  std::vector<const FieldDescriptor*> sizes;
  named.GetReflection()->ListFields(named, &sizes);
  for (const FieldDescriptor* size : sizes) {
    if (!parallel->GetReflection()->HasField(*parallel, size)) continue;
    const std::string value = FieldText(*parallel, *size), of_name = FieldText(named, *size);
    const bool size_is_flag = IsByFlag(origins, size->name());
    if (value == of_name || (name_is_flag && !size_is_flag)) continue;
    if (name_is_flag == size_is_flag) {
      return Wrong(size->name(), "=", value, ", but topology=", parallel->topology(), " has ",
                   of_name, NameWithSize(named, *size, *parallel));
    }
    named.GetReflection()->ClearField(&named, size);
  }
  parallel->MergeFrom(named);
  parallel->set_topology("");
  return absl::OkStatus();
}

absl::StatusOr<StatedStage> StageOfStrategy(const std::string& strategy, bool is_flag) {
  constexpr std::string_view kStrategies[] = {"no_shard", "optim", "optim_grads"};
  const std::string text = "data_parallel_sharding_strategy=" + strategy;
  const auto* const found = std::ranges::find(kStrategies, strategy);
  if (found == std::end(kStrategies)) {
    return Wrong(text, ": expected no_shard, optim or optim_grads");
  }
  return StatedStage{.text = text, .stage = found - kStrategies, .is_flag = is_flag};
}

// Replaces Megatron-LM's ways of stating the ZeRO stage by zero_stage, whose own value is `stage`.
absl::Status ReplaceShardingStrategy(const Origins& origins, std::optional<StatedStage> stage,
                                     ParallelConfig* parallel) {
  bool is_strategy = false;
  if (parallel->has_data_parallel_sharding_strategy()) {
    TESSERA_ASSIGN_OR_RETURN(const StatedStage strategy,
                             StageOfStrategy(parallel->data_parallel_sharding_strategy(),
                                             IsByFlag(origins, "data_parallel_sharding_strategy")));
    TESSERA_ASSIGN_OR_RETURN(stage, Stronger(strategy, stage));
    is_strategy = stage->text == strategy.text;
  }
  if (parallel->has_use_distributed_optimizer()) {
    const bool wanted = parallel->use_distributed_optimizer();
    const StatedStage optimizer = {
        .text = absl::StrCat("use_distributed_optimizer=", wanted ? "true" : "false"),
        .stage = wanted ? 1 : 0,
        .is_flag = IsByFlag(origins, "use_distributed_optimizer")};
    // In Megatron-LM, no_shard is a strategy of the distributed optimizer.
    const bool is_no_shard = is_strategy && wanted && stage->is_flag == optimizer.is_flag;
    const bool agrees = stage.has_value() && ((stage->stage > 0) == wanted || is_no_shard);
    if (!agrees) {
      TESSERA_ASSIGN_OR_RETURN(stage, Stronger(optimizer, stage));
    }
  }
  if (stage.has_value()) parallel->set_zero_stage(stage->stage);
  parallel->clear_use_distributed_optimizer();
  parallel->clear_data_parallel_sharding_strategy();
  return absl::OkStatus();
}

// Replaces the settings that state other settings of the topology.
absl::Status ReplaceTopologyNames(const Origins& origins, ParallelConfig* parallel) {
  const std::string name = parallel->topology();
  const bool is_named = !name.empty() && name != "auto";
  if (is_named) TESSERA_RETURN_IF_ERROR(ReplaceTopology(origins, parallel));
  std::optional<StatedStage> stage;
  if (parallel->has_zero_stage()) {
    const int64_t number = parallel->zero_stage();
    const bool by_flag = IsByFlag(origins, "zero_stage");
    stage = {.text = is_named && !by_flag
                         ? absl::StrCat("topology=", name, " (ZeRO stage ", number, ")")
                         : absl::StrCat("zero_stage=", number),
             .stage = number,
             .is_flag = by_flag || (is_named && IsByFlag(origins, "topology"))};
  }
  return ReplaceShardingStrategy(origins, std::move(stage), parallel);
}

absl::Status ReplaceAutoTopology(int processes, TrainConfig* config) {
  TESSERA_ASSIGN_OR_RETURN(const Topology topology,
                           ChooseTopology(ConfigTopology(*config), processes, config->model(),
                                          Batches(config->training()), ExactShards(*config)));
  SetTopology(topology, config->mutable_parallel());
  config->mutable_parallel()->set_topology("");
  return absl::OkStatus();
}

// Fills in the model, all defaults and the sizes of an automatic topology.
absl::Status Complete(const ResolveOptions& options, TrainConfig* resolved) {
  for (const auto replace : {ReplaceCkptType, CheckParameterNames}) {
    TESSERA_RETURN_IF_ERROR(replace(resolved->mutable_checkpoint()));
  }
  TESSERA_ASSIGN_OR_RETURN(ModelConfig model, ChooseModel(*resolved, options));
  TESSERA_ASSIGN_OR_RETURN(*resolved->mutable_model(), ResolveModelConfig(std::move(model)));
  FillSaveLastStep(resolved->mutable_checkpoint());
  FillDeclaredDefaults(resolved);
  const bool is_auto = HasAutoTopology(*resolved);
  if (is_auto && !resolved->training().has_global_batch_size()) {
    return Wrong("topology=auto: global_batch_size must be set, so that it does not depend on the ",
                 "number of processes");
  }
  TESSERA_RETURN_IF_ERROR(CheckParallel(resolved->parallel()));
  FillDependentDefaults(resolved);
  return is_auto ? ReplaceAutoTopology(options.processes, resolved) : absl::OkStatus();
}

}  // namespace

Topology ConfigTopology(const TrainConfig& config) {
  const ParallelConfig& parallel = config.parallel();
  return {.tensor = static_cast<int>(parallel.tensor_model_parallel_size()),
          .data = static_cast<int>(parallel.data_parallel_size()),
          .pipeline = static_cast<int>(parallel.pipeline_model_parallel_size()),
          .virtual_pipeline = static_cast<int>(parallel.num_virtual_stages_per_pipeline_rank()),
          .zero_stage = static_cast<int>(parallel.zero_stage()),
          .sequence_parallel = parallel.sequence_parallel()};
}

int ExactShards(const TrainConfig& config) {
  if (config.parallel().numerics() == Numerics::FAST) return 0;
  return static_cast<int>(config.parallel().exact_tp_shards());
}

bool HasAutoTopology(const TrainConfig& config) { return config.parallel().topology() == "auto"; }

absl::StatusOr<TrainConfig> ResolveConfig(const TrainConfig& config,
                                          const ResolveOptions& options) {
  Problems problems(options.origins);
  // Before the model's own checks, which would report the same field in other words.
  CheckRanges(config, problems);
  if (!problems.empty()) return problems.ToStatus();
  TrainConfig resolved = config;
  OverrideOtherNames(options.origins, &resolved);
  TESSERA_RETURN_IF_ERROR(
      problems.With(ReplaceLoadCkptFolder(options.origins, resolved.mutable_checkpoint())));
  TESSERA_RETURN_IF_ERROR(problems.With(ReplaceSaveOptimizerState(resolved.mutable_checkpoint())));
  TESSERA_RETURN_IF_ERROR(problems.With(ReplaceInfiniTrainsNames(resolved.mutable_training())));
  TESSERA_RETURN_IF_ERROR(
      problems.With(ReplaceTopologyNames(options.origins, resolved.mutable_parallel())));
  FillSave(&resolved);
  SettleDependents(options.origins, &resolved, problems);
  if (const absl::Status complete = Complete(options, &resolved); !complete.ok()) {
    return problems.With(complete);
  }
  CheckResolved(resolved, problems);
  TESSERA_RETURN_IF_ERROR(problems.ToStatus());
  return resolved;
}

}  // namespace tessera
