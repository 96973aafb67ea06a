#include "trainer/config/check_config.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "google/protobuf/descriptor.h"
#include "models/model_config.h"
#include "trainer/config/config.h"
#include "trainer/config/flags.h"
#include "trainer/config/load_content.h"

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
// Limit of all steps.
constexpr int64_t kMaxRunTokens = int64_t{1} << 62;

absl::Status AtLeastOne(const char* name, int64_t value) {
  if (value >= 1) return absl::OkStatus();
  return Wrong(name, "=", value, ": must be at least 1");
}

// Returns " (4 and 8 are)": the nearest multiples of the samples of one pass.
std::string NearestBatches(int64_t global, int64_t micro, int64_t dp) {
  if (global > kMaxTokens || micro > kMaxTokens / dp) return "";
  const int64_t below = global / (micro * dp) * (micro * dp), above = below + micro * dp;
  return below == 0 ? absl::StrCat(" (", above, " is)")
                    : absl::StrCat(" (", below, " and ", above, " are)");
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
                 " * data_parallel_size=", dp,
                 NearestBatches(training.global_batch_size(), training.micro_batch_size(), dp));
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

void CheckTraining(const TrainConfig& config, Problems& problems) {
  const TrainingConfig& training = config.training();
  if (!training.has_train_iters()) {
    problems.Add("train_iters is not set: give the number of steps (0: only evaluate and sample)");
  }
  const absl::Status batches = CheckBatches(config);
  problems.Add(batches);
  if (training.train_iters() > 0 && config.data().train_data_path().empty()) {
    problems.Add("train_iters=", training.train_iters(), " but train_data_path is not set");
  }
  if (training.eval_interval() > 0 && training.eval_iters() == 0) {
    problems.Add("eval_interval=", training.eval_interval(), " but eval_iters=0");
  }
  const int64_t batch_tokens =
      batches.ok() ? training.global_batch_size() * training.seq_length() : 1;
  if (training.train_iters() > kMaxRunTokens / batch_tokens) {
    problems.Add("train_iters=", training.train_iters(), ": must be at most ",
                 kMaxRunTokens / batch_tokens, " with global batches of ", batch_tokens, " tokens");
  }
  if (training.eval_iters() > kMaxTokens / batch_tokens) {
    problems.Add("eval_iters=", training.eval_iters(), ": must be at most ",
                 kMaxTokens / batch_tokens, " with global batches of ", batch_tokens, " tokens");
  }
  if (training.exact_products() && training.bf16()) {
    problems.Add("exact_products is set but bf16=true: it is about products of fp32 numbers");
  }
  if (!training.product_table().empty() && config.parallel().numerics() == Numerics::EXACT) {
    problems.Add("product_table is set but numerics=exact: EXACT products have one algorithm");
  }
  if (!training.product_table().empty() && training.exact_products()) {
    problems.Add("product_table is set but exact_products, too: those have one algorithm");
  }
  if (training.device() == ComputeDevice::CUDA && training.bf16() &&
      config.parallel().numerics() == Numerics::EXACT) {
    problems.Add(
        "numerics=exact and bf16=true, but device=cuda: tensor cores do not add in the "
        "order of processors (docs/exact.md), so that EXACT on GPUs needs bf16=false");
  }
  if (training.threads() > kMaxThreads) {
    problems.Add("threads=", training.threads(), ": must be at most ", kMaxThreads);
  }
  problems.Add(AtLeastOne("log_interval", config.output().log_interval()));
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

void CheckAdam(const OptimizerConfig& optimizer, Problems& problems) {
  if (optimizer.adam_beta1() >= 1) {
    problems.Add("adam_beta1=", optimizer.adam_beta1(), ": must be less than 1");
  }
  if (optimizer.adam_beta2() >= 1) {
    problems.Add("adam_beta2=", optimizer.adam_beta2(), ": must be less than 1");
  }
  constexpr float kSmallest = std::numeric_limits<float>::min();
  if (static_cast<float>(optimizer.adam_eps()) < kSmallest) {
    problems.Add("adam_eps=", optimizer.adam_eps(), ": must be at least 1.2e-38");
  }
}

// A checkpoint of a step without an evaluation is not among the best, whatever its loss.
absl::Status CheckTopK(const TrainConfig& config) {
  const CheckpointConfig& checkpoint = config.checkpoint();
  const int64_t evaluates = config.training().eval_interval(), saves = checkpoint.save_interval();
  if (checkpoint.save_top_k() == 0 || config.data().valid_data_path().empty()) {
    return absl::OkStatus();
  }
  if (evaluates == 0) return Wrong("save_top_k=", checkpoint.save_top_k(), " but eval_interval=0");
  const int64_t steps = config.training().train_iters();
  const bool last_is_both = checkpoint.save_last_step() && steps % evaluates == 0;
  const bool by_steps = saves > 0 && saves < steps && !checkpoint.save_continuously() &&
                        checkpoint.save_interval_minutes() == 0 && !last_is_both &&
                        config.training().exit_interval() == 0;
  // By division: the least common multiple may overflow.
  if (!by_steps || saves / std::gcd(saves, evaluates) <= steps / evaluates) return absl::OkStatus();
  return Wrong("save_top_k=", checkpoint.save_top_k(), " but no step up to train_iters=", steps,
               " is a multiple of both save_interval=", saves, " and eval_interval=", evaluates);
}

void CheckCheckpoint(const CheckpointConfig& checkpoint, Problems& problems) {
  constexpr int64_t kMaxKept = std::numeric_limits<int>::max();
  if (checkpoint.max_checkpoint_keep() > kMaxKept) {
    problems.Add("max_checkpoint_keep=", checkpoint.max_checkpoint_keep(), ": must be at most ",
                 kMaxKept, " (0: all)");
  }
  if (checkpoint.replicate_to_peers() && checkpoint.replicate_interval() == 0) {
    problems.Add("replicate_interval=0: replicate_to_peers needs at least 1");
  }
}

// Checks that learning rates have one origin.
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
  // A run that resumes by itself continues at its step.
  if (!content.scheduler && !checkpoint.finetune() && checkpoint.load().empty() &&
      !checkpoint.save().empty() && checkpoint.auto_resume()) {
    return Wrong("load_content=", checkpoint.load_content(),
                 " begins at step 0 and needs load, which is not set");
  }
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

void CheckSampling(const TrainConfig& config, Problems& problems) {
  const SamplingConfig& sampling = config.sampling();
  if (sampling.top_k() > config.model().vocab_size()) {
    problems.Add("top_k=", sampling.top_k(),
                 " is more than vocab_size=", config.model().vocab_size());
  }
}

absl::Status CheckTraceSteps(const TrainConfig& config) {
  const std::string& text = config.output().trace_steps();
  if (text.empty()) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const StepRange steps, ParseTraceSteps(text));
  if (steps.first <= config.training().train_iters()) return absl::OkStatus();
  return Wrong("trace_steps=", text,
               " begins after the last step, train_iters=", config.training().train_iters());
}

// Checks the topology with the code that splits the model.
absl::Status CheckTopology(const TrainConfig& config) {
  return ValidateTopology(ConfigTopology(config), config.model(), Batches(config.training()),
                          ExactShards(config));
}

}  // namespace

void CheckRanges(const TrainConfig& config, Problems& problems) {
  for (const Setting& setting : AllSettings(*TrainConfig::descriptor())) {
    if (!setting.is_given(config)) continue;
    const Message& group = setting.in(config);
    const FieldDescriptor& field = *setting.field;
    const Reflection& fields = *group.GetReflection();
    const bool is_int = field.cpp_type() == FieldDescriptor::CPPTYPE_INT64;
    // Kernels have reals in fp32.
    const auto is_real = [](double value) {
      return value >= 0 && std::isfinite(static_cast<float>(value));
    };
    if (is_int && fields.GetInt64(group, &field) < 0) {
      problems.Add(field.name(), "=", FieldText(group, field), ": must not be negative");
    }
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE &&
        !is_real(fields.GetDouble(group, &field))) {
      problems.Add(field.name(), "=", FieldText(group, field),
                   ": must be finite in fp32, and not negative");
    }
  }
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

void CheckResolved(const TrainConfig& config, Problems& problems) {
  CheckTraining(config, problems);
  if (CheckBatches(config).ok()) problems.Add(CheckTopology(config));
  // Without a step there is no schedule to contradict.
  if (config.training().train_iters() > 0) problems.Add(CheckSchedule(config.optimizer()));
  CheckAdam(config.optimizer(), problems);
  CheckCheckpoint(config.checkpoint(), problems);
  problems.Add(CheckTopK(config));
  const absl::Status content = CheckLoadContent(config.checkpoint());
  problems.Add(content);
  if (content.ok()) problems.Add(CheckSchedulerChoice(config.checkpoint()));
  problems.Add(CheckTraceSteps(config));
  CheckSampling(config, problems);
}

}  // namespace tessera
