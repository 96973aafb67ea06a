#include "trainer/config/check_config.h"

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "google/protobuf/descriptor.h"
#include "models/model_config.h"
#include "trainer/config/config.h"
#include "trainer/config/flags.h"
#include "trainer/config/load_content.h"
#include "trainer/config/topology.h"

namespace tessera {
namespace {

using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;
using ::google::protobuf::Reflection;

constexpr int64_t kMaxThreads = 1024;
constexpr int64_t kMaxProcesses = int64_t{1} << 20;
constexpr int64_t kMaxTimeoutMinutes = 366 * 24 * 60;
// Limit per step or evaluation: numbers counted in int64 stay far from its limits.
constexpr int64_t kMaxTokens = int64_t{1} << 40;

absl::Status AtLeastOne(const char* name, int64_t value) {
  if (value >= 1) return absl::OkStatus();
  return Wrong(name, "=", value, ": must be at least 1");
}

absl::Status CheckBatches(const TrainConfig& config) {
  const TrainingConfig& training = config.training();
  for (const absl::Status& status : {AtLeastOne("micro_batch_size", training.micro_batch_size()),
                                     AtLeastOne("global_batch_size", training.global_batch_size()),
                                     AtLeastOne("seq_length", training.seq_length())}) {
    if (!status.ok()) return status;
  }
  const int64_t dp = config.parallel().data_parallel_size();
  // By division: the product of two settings may overflow.
  if (training.global_batch_size() % training.micro_batch_size() != 0 ||
      training.global_batch_size() / training.micro_batch_size() % dp != 0) {
    return Wrong("global_batch_size=", training.global_batch_size(),
                 " is not divisible by micro_batch_size=", training.micro_batch_size(),
                 " * data_parallel_size=", dp);
  }
  // By division again.
  if (training.seq_length() > kMaxTokens / training.global_batch_size()) {
    return Wrong("global_batch_size=", training.global_batch_size(),
                 " * seq_length=", training.seq_length(), ": must be at most ", kMaxTokens,
                 " tokens");
  }
  if (training.seq_length() > config.model().max_position_embeddings()) {
    return Wrong("seq_length=", training.seq_length(), " is more than max_position_embeddings=",
                 config.model().max_position_embeddings());
  }
  return absl::OkStatus();
}

absl::Status CheckTraining(const TrainConfig& config) {
  const TrainingConfig& training = config.training();
  if (!training.has_train_iters()) {
    return Wrong("train_iters is not set: give the number of steps (0: only evaluate and sample)");
  }
  TESSERA_RETURN_IF_ERROR(CheckBatches(config));
  if (training.train_iters() > 0 && config.data().train_data_path().empty()) {
    return Wrong("train_iters=", training.train_iters(), " but train_data_path is not set");
  }
  if (training.eval_interval() > 0 && config.data().valid_data_path().empty()) {
    return Wrong("eval_interval=", training.eval_interval(), " but valid_data_path is not set");
  }
  if (training.eval_interval() > 0 && training.eval_iters() == 0) {
    return Wrong("eval_interval=", training.eval_interval(), " but eval_iters=0");
  }
  const int64_t batch_tokens = training.global_batch_size() * training.seq_length();
  if (training.eval_iters() > kMaxTokens / batch_tokens) {
    return Wrong("eval_iters=", training.eval_iters(), ": must be at most ",
                 kMaxTokens / batch_tokens, " with global batches of ", batch_tokens, " tokens");
  }
  if (training.device() == ComputeDevice::CPU &&
      config.checkpoint().async_save_copy_gb_per_second() > 0) {
    return Wrong(
        "async_save_copy_gb_per_second=", config.checkpoint().async_save_copy_gb_per_second(),
        " but device=cpu: it limits copies of a GPU's memory");
  }
  if (training.exact_products() && (training.device() == ComputeDevice::CPU || training.bf16())) {
    return Wrong("exact_products is set but ", training.bf16() ? "bf16=true" : "device=cpu",
                 ": it is about products of fp32 numbers on GPUs");
  }
  if (training.threads() > kMaxThreads) {
    return Wrong("threads=", training.threads(), ": must be at most ", kMaxThreads);
  }
  return AtLeastOne("log_interval", config.output().log_interval());
}

absl::Status CheckSchedule(const OptimizerConfig& optimizer) {
  if (optimizer.min_lr() > optimizer.lr()) {
    return Wrong("min_lr=", optimizer.min_lr(), " is more than lr=", optimizer.lr());
  }
  TESSERA_RETURN_IF_ERROR(AtLeastOne("lr_decay_iters", optimizer.lr_decay_iters()));
  if (optimizer.lr_warmup_iters() >= optimizer.lr_decay_iters()) {
    return Wrong("lr_warmup_iters=", optimizer.lr_warmup_iters(),
                 " must be less than lr_decay_iters=", optimizer.lr_decay_iters());
  }
  if (optimizer.lr_decay_style() != LrDecayStyle::WSD) return absl::OkStatus();
  if (optimizer.lr_wsd_decay_iters() == 0) {
    return Wrong("lr_decay_style=wsd but lr_wsd_decay_iters is not set");
  }
  if (optimizer.lr_wsd_decay_iters() > optimizer.lr_decay_iters() - optimizer.lr_warmup_iters()) {
    return Wrong("lr_wsd_decay_iters=", optimizer.lr_wsd_decay_iters(),
                 " is more than lr_decay_iters=", optimizer.lr_decay_iters(),
                 " - lr_warmup_iters=", optimizer.lr_warmup_iters());
  }
  return absl::OkStatus();
}

absl::Status CheckAdam(const OptimizerConfig& optimizer) {
  if (optimizer.adam_beta1() >= 1) {
    return Wrong("adam_beta1=", optimizer.adam_beta1(), ": must be less than 1");
  }
  if (optimizer.adam_beta2() >= 1) {
    return Wrong("adam_beta2=", optimizer.adam_beta2(), ": must be less than 1");
  }
  if (optimizer.adam_eps() == 0) return Wrong("adam_eps=0: must be more than 0");
  return absl::OkStatus();
}

// Reports settings of a feature that is not in use.
absl::Status CheckIdle(const char* missing,
                       std::initializer_list<std::pair<const char*, bool>> set) {
  for (const auto& [name, is_set] : set) {
    if (is_set) return Wrong(name, " is set but ", missing, " is not");
  }
  return absl::OkStatus();
}

absl::Status CheckCheckpoint(const CheckpointConfig& checkpoint) {
  constexpr int64_t kMaxKept = std::numeric_limits<int>::max();
  if (checkpoint.max_checkpoint_keep() > kMaxKept) {
    return Wrong("max_checkpoint_keep=", checkpoint.max_checkpoint_keep(), ": must be at most ",
                 kMaxKept, " (0: all)");
  }
  if (checkpoint.export_llmc_interval() > 0 && checkpoint.export_llmc().empty()) {
    return Wrong("export_llmc_interval is set but export_llmc is not");
  }
  if (!checkpoint.async_upload()) {
    TESSERA_RETURN_IF_ERROR(
        CheckIdle("async_upload",
                  {{"async_upload_tmp_folder", !checkpoint.async_upload_tmp_folder().empty()}}));
  }
  if (!checkpoint.replicate_to_peers()) {
    TESSERA_RETURN_IF_ERROR(
        CheckIdle("replicate_to_peers",
                  {{"replicate_interval", checkpoint.replicate_interval() > 0},
                   {"replicate_folder", !checkpoint.replicate_folder().empty()},
                   {"replicate_ranks_per_node", checkpoint.replicate_ranks_per_node() > 0}}));
  } else if (checkpoint.replicate_interval() == 0) {
    return Wrong("replicate_interval=0: replicate_to_peers needs at least 1");
  }
  if (!checkpoint.async_save()) {
    TESSERA_RETURN_IF_ERROR(CheckIdle(
        "async_save",
        {{"async_save_memory", checkpoint.async_save_memory() > 0},
         {"async_save_skip", checkpoint.async_save_skip()},
         {"async_save_copy_gb_per_second", checkpoint.async_save_copy_gb_per_second() > 0}}));
  }
  if (checkpoint.save().empty()) {
    TESSERA_RETURN_IF_ERROR(CheckIdle(
        "save",
        {{"save_interval", checkpoint.save_interval() > 0},
         {"non_persistent_save_interval", checkpoint.non_persistent_save_interval() > 0},
         {"save_interval_minutes", checkpoint.save_interval_minutes() > 0},
         {"save_continuously", checkpoint.save_continuously()},
         {"export_hf_interval", checkpoint.export_hf_interval() > 0},
         {"save_retain_interval", checkpoint.save_retain_interval() > 0},
         {"save_top_k", checkpoint.save_top_k() > 0},
         {"save_retain_minutes", checkpoint.save_retain_minutes() > 0},
         {"max_minutes_without_checkpoint", checkpoint.max_minutes_without_checkpoint() > 0},
         {"async_upload", checkpoint.async_upload()},
         {"async_save", checkpoint.async_save()},
         {"replicate_to_peers", checkpoint.replicate_to_peers()},
         {"no_save_optim", checkpoint.no_save_optim()},
         {"no_save_rng", checkpoint.no_save_rng()},
         {"max_checkpoint_keep", checkpoint.max_checkpoint_keep() > 0},
         {"resume_ignore_no_valid_checkpoint", checkpoint.resume_ignore_no_valid_checkpoint()}}));
  }
  // A run that resumes by itself loads from `save`.
  const bool resumes = !checkpoint.save().empty() && checkpoint.auto_resume();
  if (checkpoint.load().empty() && !resumes) {
    return CheckIdle(
        "load",
        {{"ckpt_step", checkpoint.has_ckpt_step()},
         {"consumed_samples", checkpoint.has_consumed_samples()},
         {"finetune", checkpoint.finetune()},
         {"no_load_optim", checkpoint.no_load_optim()},
         {"no_load_rng", checkpoint.no_load_rng()},
         {"exit_on_missing_checkpoint", checkpoint.exit_on_missing_checkpoint()},
         {"allow_missing", checkpoint.allow_missing()},
         {"allow_unexpected", checkpoint.allow_unexpected()},
         {"load_tensors", !checkpoint.load_tensors().empty()},
         {"load_content", checkpoint.load_content() != "all"},
         {"verify_load", checkpoint.verify_load()},
         {"override_opt_param_scheduler", checkpoint.override_opt_param_scheduler()},
         {"use_checkpoint_opt_param_scheduler", checkpoint.use_checkpoint_opt_param_scheduler()}});
  }
  return absl::OkStatus();
}

// One origin of the learning rates.
absl::Status CheckSchedulerChoice(const CheckpointConfig& checkpoint) {
  if (!checkpoint.use_checkpoint_opt_param_scheduler()) return absl::OkStatus();
  for (const auto& [name, is_set] :
       {std::pair("override_opt_param_scheduler", checkpoint.override_opt_param_scheduler()),
        std::pair("finetune", checkpoint.finetune())}) {
    if (is_set)
      return Wrong("use_checkpoint_opt_param_scheduler and ", name, " exclude each other");
  }
  if (LoadContentOf(checkpoint).scheduler) return absl::OkStatus();
  return Wrong("use_checkpoint_opt_param_scheduler is set but load_content=",
               checkpoint.load_content(), " leaves the scheduler out");
}

// A start at step 0 has weights of one origin. (A resumed run may have the file for its sizes, or
// for a start without a checkpoint.)
absl::Status CheckLlmcFile(const CheckpointConfig& checkpoint) {
  if (checkpoint.llmc_filepath().empty() || checkpoint.load().empty()) return absl::OkStatus();
  const LoadContent content = LoadContentOf(checkpoint);
  if (content.scheduler || !content.model) return absl::OkStatus();
  if (checkpoint.finetune()) {
    return Wrong("llmc_filepath and finetune exclude each other: the weights come from load");
  }
  return Wrong("llmc_filepath and load_content=", checkpoint.load_content(),
               " exclude each other: the weights come from load");
}

absl::Status CheckLoadContent(const CheckpointConfig& checkpoint) {
  TESSERA_RETURN_IF_ERROR(ParseLoadContent(checkpoint.load_content()).status());
  if (checkpoint.finetune() && checkpoint.load_content() != "all") {
    return Wrong("finetune and load_content=", checkpoint.load_content(),
                 " exclude each other: finetune is load_content=model");
  }
  const LoadContent content = LoadContentOf(checkpoint);
  if (!content.model && !content.continues()) {
    return Wrong("load_content=", checkpoint.load_content(), " and no_load_",
                 checkpoint.no_load_optim() ? "optim" : "rng", " leave nothing to load");
  }
  if (checkpoint.has_consumed_samples() && !LoadContentOf(checkpoint).sampler) {
    return Wrong("consumed_samples is set but ",
                 checkpoint.finetune() ? "finetune"
                                       : absl::StrCat("load_content=", checkpoint.load_content()),
                 " leaves the position in the data out");
  }
  return CheckLlmcFile(checkpoint);
}

absl::Status CheckSampling(const TrainConfig& config) {
  const SamplingConfig& sampling = config.sampling();
  if (!sampling.prompt().empty() && sampling.num_tokens_to_generate() == 0) {
    return Wrong("prompt is set but num_tokens_to_generate=0");
  }
  if (sampling.print_log_probabilities() && sampling.num_tokens_to_generate() == 0) {
    return Wrong("print_log_probabilities is set but num_tokens_to_generate=0");
  }
  if (sampling.num_tokens_to_generate() > 0 && config.data().tokenizer_model().empty()) {
    return Wrong("num_tokens_to_generate=", sampling.num_tokens_to_generate(),
                 " but tokenizer_model is not set: without it no text can be printed");
  }
  if (sampling.top_k() > config.model().vocab_size()) {
    return Wrong("top_k=", sampling.top_k(),
                 " is more than vocab_size=", config.model().vocab_size());
  }
  return absl::OkStatus();
}

absl::Status CheckTraceSteps(const TrainConfig& config) {
  const std::string& text = config.output().trace_steps();
  if (text.empty()) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const StepRange steps, ParseTraceSteps(text));
  if (config.output().run_dir().empty()) return Wrong("trace_steps is set but run_dir is not");
  if (steps.first <= config.training().train_iters()) return absl::OkStatus();
  return Wrong("trace_steps=", text,
               " begins after the last step, train_iters=", config.training().train_iters());
}

// Which sizes are consistent is decided by the code that splits the model.
absl::Status CheckTopology(const TrainConfig& config) {
  return ValidateTopology(ConfigTopology(config), config.model(), Batches(config.training()),
                          ExactShards(config));
}

}  // namespace

absl::Status CheckRanges(const TrainConfig& config) {
  const Reflection& groups = *config.GetReflection();
  for (int g = 0; g < config.GetDescriptor()->field_count(); ++g) {
    const FieldDescriptor* group_field = config.GetDescriptor()->field(g);
    if (!groups.HasField(config, group_field)) continue;
    const Message& group = groups.GetMessage(config, group_field);
    for (int f = 0; f < group.GetDescriptor()->field_count(); ++f) {
      const FieldDescriptor& field = *group.GetDescriptor()->field(f);
      const Reflection& fields = *group.GetReflection();
      if (!fields.HasField(group, &field)) continue;
      const bool is_int = field.cpp_type() == FieldDescriptor::CPPTYPE_INT64;
      const bool is_double = field.cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE;
      if (is_int && fields.GetInt64(group, &field) < 0) {
        return Wrong(field.name(), "=", FieldText(group, field), ": must not be negative");
      }
      if (is_double && !(fields.GetDouble(group, &field) >= 0 &&
                         std::isfinite(fields.GetDouble(group, &field)))) {
        return Wrong(field.name(), "=", FieldText(group, field),
                     ": must be a finite number that is not negative");
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckParallel(const ParallelConfig& parallel) {
  const std::pair<const char*, int64_t> sizes[] = {
      {"data_parallel_size", parallel.data_parallel_size()},
      {"tensor_model_parallel_size", parallel.tensor_model_parallel_size()},
      {"pipeline_model_parallel_size", parallel.pipeline_model_parallel_size()},
      {"num_virtual_stages_per_pipeline_rank", parallel.num_virtual_stages_per_pipeline_rank()},
      {"exact_tp_shards", parallel.exact_tp_shards()},
  };
  for (const auto& [name, size] : sizes) {
    TESSERA_RETURN_IF_ERROR(AtLeastOne(name, size));
    if (size > kMaxProcesses) return Wrong(name, "=", size, ": must be at most ", kMaxProcesses);
  }
  // By division: the product may overflow.
  if (parallel.data_parallel_size() > kMaxProcesses / parallel.tensor_model_parallel_size() /
                                          parallel.pipeline_model_parallel_size()) {
    return Wrong("data_parallel_size=", parallel.data_parallel_size(),
                 " * tensor_model_parallel_size=", parallel.tensor_model_parallel_size(),
                 " * pipeline_model_parallel_size=", parallel.pipeline_model_parallel_size(),
                 ": must be at most ", kMaxProcesses, " processes");
  }
  if (parallel.zero_stage() > 2) {
    return Wrong("zero_stage=", parallel.zero_stage(), ": expected 0, 1 or 2");
  }
  if (parallel.numerics() == Numerics::FAST && parallel.exact_tp_shards() != 1) {
    return Wrong("exact_tp_shards=", parallel.exact_tp_shards(), " but numerics=fast");
  }
  if (parallel.distributed_timeout_minutes() == 0) {
    return Wrong("distributed_timeout_minutes=0: must be more than 0");
  }
  if (parallel.distributed_timeout_minutes() > kMaxTimeoutMinutes) {
    return Wrong("distributed_timeout_minutes=", parallel.distributed_timeout_minutes(),
                 ": must be at most ", kMaxTimeoutMinutes);
  }
  return AtLeastOne("ddp_bucket_size", parallel.ddp_bucket_size());
}

absl::StatusOr<StepRange> ParseTraceSteps(const std::string& text) {
  const size_t dash = text.find('-', 1);  // the first character may be a sign
  const std::string first = text.substr(0, dash);
  const std::string last = dash == text.npos ? first : text.substr(dash + 1);
  StepRange steps;
  if (!absl::SimpleAtoi(first, &steps.first) || !absl::SimpleAtoi(last, &steps.last)) {
    return Wrong("trace_steps=", text, ": expected a step or a range of steps, as 100-103");
  }
  if (steps.first < 1) return Wrong("trace_steps=", text, ": steps are counted from 1");
  if (steps.last < steps.first) return Wrong("trace_steps=", text, " ends before it begins");
  return steps;
}

BatchSizes Batches(const TrainingConfig& training) {
  return {.micro_batch = training.micro_batch_size(),
          .global_batch = training.global_batch_size(),
          .sequence_length = training.seq_length()};
}

absl::Status CheckResolved(const TrainConfig& config) {
  TESSERA_RETURN_IF_ERROR(CheckTraining(config));
  TESSERA_RETURN_IF_ERROR(CheckTopology(config));
  // Without a step there is no schedule to contradict.
  if (config.training().train_iters() > 0) {
    TESSERA_RETURN_IF_ERROR(CheckSchedule(config.optimizer()));
  }
  TESSERA_RETURN_IF_ERROR(CheckAdam(config.optimizer()));
  TESSERA_RETURN_IF_ERROR(CheckCheckpoint(config.checkpoint()));
  TESSERA_RETURN_IF_ERROR(CheckLoadContent(config.checkpoint()));
  TESSERA_RETURN_IF_ERROR(CheckSchedulerChoice(config.checkpoint()));
  TESSERA_RETURN_IF_ERROR(CheckTraceSteps(config));
  return CheckSampling(config);
}

}  // namespace tessera
