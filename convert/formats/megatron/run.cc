#include "convert/formats/megatron/run.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "convert/formats/megatron/megatron.h"
#include "convert/pickle/value.h"
#include "nlohmann/json.hpp"

namespace tessera::ckpt::convert {

using pickle::Value;

MegatronRun::MegatronRun(const Value& state) : state_(state) {
  const Value args = state.Find("args");
  if (args.IsObjectOf("argparse.Namespace") || args.IsObjectOf("types.SimpleNamespace")) {
    arguments_ = args.state();
  }
}

std::string MegatronRun::ArgumentsAsJson() const { return pickle::DictToJson(arguments_).dump(); }

std::optional<int64_t> MegatronRun::Integer(std::string_view name) const {
  return arguments_.Find(name).AsInt();
}

std::optional<std::string> MegatronRun::Text(std::string_view name) const {
  const auto text = arguments_.Find(name).AsText();
  return text ? std::optional<std::string>(*text) : std::nullopt;
}

bool MegatronRun::IsTrue(std::string_view name) const {
  return arguments_.Find(name).AsBool().value_or(false);
}

int64_t MegatronRun::BucketElements() const {
  constexpr int64_t kDefault = 40'000'000, kPerRank = 1'000'000;
  if (!IsTrue("overlap_grad_reduce")) return 0;
  const std::optional<int64_t> stated = Integer("ddp_bucket_size");
  if (stated && *stated > 0) return *stated;
  const int64_t ranks = Integer("data_parallel_size").value_or(1);
  return std::max(kDefault, kPerRank * std::clamp<int64_t>(ranks, 1, INT32_MAX));
}

void MegatronRun::Describe(Manifest& manifest) const {
  manifest.mutable_producer()->set_program("Megatron-LM");
  const auto size = [&](std::string_view name) { return Integer(name).value_or(1); };
  SetTopology({.data = size("data_parallel_size"),
               .tensor = size("tensor_model_parallel_size"),
               .pipeline = size("pipeline_model_parallel_size"),
               .virtual_pipeline = size("virtual_pipeline_model_parallel_size"),
               .zero_stage = IsTrue("use_distributed_optimizer") ? 1u : 0},
              manifest);
  const std::optional<int64_t> step = state_.Find("iteration").AsInt();
  if (!step || *step < 0) return;
  SetProgress(*step, Integer("consumed_train_samples"), manifest);
}

absl::StatusOr<ForeignModel> ReadMegatronModel(const MegatronRun& run, const std::string& where,
                                               int64_t tensor_count, uint64_t file_bytes) {
  if (!run.has_arguments()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": no arguments of the run (\"args\"), which describe the model"));
  }
  return In(where, ForeignModel::Read(kMegatron, run.ArgumentsAsJson(), tensor_count, file_bytes));
}

const ForeignParameter* FindMegatronParameter(ForeignModel& model, std::string_view name,
                                              int64_t rows) {
  ForeignParameter* const parameter = model.Find(name);
  if (parameter == nullptr) return nullptr;
  if (parameter->padded && rows > parameter->shape[0]) parameter->shape[0] = rows;
  return parameter;
}

}  // namespace tessera::ckpt::convert
