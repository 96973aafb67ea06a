#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/parse_json.h"
#include "base/status_macros.h"
#include "checkpoint/directory/directory.h"
#include "convert/core/models.h"
#include "convert/core/reading.h"
#include "convert/formats/megatron/megatron.h"
#include "convert/formats/megatron/run.h"
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

namespace {

constexpr char kTracker[] = "latest_checkpointed_iteration.txt";
constexpr std::string_view kRankPrefix = "mp_rank_";
constexpr uint64_t kMaxMetadataBytes = uint64_t{1} << 20;
constexpr uint64_t kMaxTrackerBytes = 64;

// The contents of a small file; nullopt where there is no such file, or a larger one.
absl::StatusOr<std::optional<std::string>> ReadSmall(Storage& storage, const std::string& path,
                                                     uint64_t max_bytes) {
  TESSERA_ASSIGN_OR_RETURN(const auto file, OpenIfPresent(storage, path));
  if (file == nullptr || file->size_bytes() > max_bytes) return std::nullopt;
  return ReadPart(*file, 0, file->size_bytes());
}

// Returns the folder of the iteration that a run's folder names; nullopt where it names none.
absl::StatusOr<std::optional<std::string>> LatestIteration(Storage& storage,
                                                           std::string_view folder) {
  TESSERA_ASSIGN_OR_RETURN(const std::optional<std::string> text,
                           ReadSmall(storage, JoinPath(folder, kTracker), kMaxTrackerBytes));
  if (!text) return std::nullopt;
  const std::string name(absl::StripAsciiWhitespace(*text));
  if (name == "release") return JoinPath(folder, name);
  int64_t iteration = 0;
  if (!absl::SimpleAtoi(name, &iteration) || iteration < 0) return std::nullopt;
  return JoinPath(folder, absl::StrFormat("iter_%07d", iteration));
}

// "mp_rank_01" and "mp_rank_01_000", with more parts where there are experts.
bool IsRankFolder(std::string_view name) {
  if (!name.starts_with(kRankPrefix)) return false;
  const std::string_view ranks = name.substr(kRankPrefix.size());
  return !ranks.empty() && ranks.find_first_not_of("0123456789_") == ranks.npos;
}

absl::StatusOr<std::optional<MegatronFolder>> FindOne(Storage& storage, const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(
      const std::optional<std::string> text,
      ReadSmall(storage, JoinPath(path, kMegatronFormatFile), kMaxMetadataBytes));
  if (!text) {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> ranks,
                             FindMegatronRanks(storage, path));
    if (ranks.empty()) return std::nullopt;
    TESSERA_ASSIGN_OR_RETURN(
        const bool has_first,
        Exists(storage, JoinPath(JoinPath(path, ranks.front()), kMegatronRankFile)));
    if (!has_first) return std::nullopt;
    return MegatronFolder{.path = path, .is_legacy = true};
  }
  const nlohmann::json json = ParseJson(*text);
  if (!json.is_object()) return std::nullopt;
  const auto backend = json.find("sharded_backend");
  if (backend == json.end()) return std::nullopt;
  if (*backend == "torch_dist") return MegatronFolder{.path = path};
  if (*backend != "zarr") return std::nullopt;
  return absl::UnimplementedError(
      absl::StrCat(storage.Describe(JoinPath(path, kMegatronFormatFile)),
                   ": the backend zarr is not read; megatron-core converts it to torch_dist"));
}

}  // namespace

absl::StatusOr<std::vector<std::string>> FindMegatronRanks(Storage& storage,
                                                           std::string_view folder) {
  const absl::StatusOr<std::vector<std::string>> names = storage.List(folder);
  if (absl::IsNotFound(names.status())) return std::vector<std::string>();
  TESSERA_RETURN_IF_ERROR(names.status());
  std::vector<std::string> ranks;
  for (const std::string& name : *names) {
    if (name.ends_with('/') && IsRankFolder(std::string_view(name).substr(0, name.size() - 1))) {
      ranks.push_back(name.substr(0, name.size() - 1));
    }
  }
  return ranks;
}

absl::StatusOr<std::optional<MegatronFolder>> FindMegatronFolder(Storage& storage,
                                                                 std::string_view folder) {
  TESSERA_ASSIGN_OR_RETURN(const std::optional<std::string> latest,
                           LatestIteration(storage, folder));
  return FindOne(storage, latest ? *latest : std::string(folder));
}

absl::StatusOr<bool> IsMegatron(Storage& storage) {
  TESSERA_ASSIGN_OR_RETURN(const std::optional<MegatronFolder> found,
                           FindMegatronFolder(storage, ""));
  return found.has_value();
}

absl::StatusOr<ForeignCheckpoint> ReadMegatron(Storage& storage) {
  TESSERA_ASSIGN_OR_RETURN(const std::optional<MegatronFolder> found,
                           FindMegatronFolder(storage, ""));
  if (!found) {
    return absl::NotFoundError(
        absl::StrCat(storage.Describe(""), ": no checkpoint of Megatron-LM"));
  }
  return found->is_legacy ? ReadMegatronLegacy(storage, found->path)
                          : ReadMegatronTorchDist(storage, found->path);
}

}  // namespace tessera::ckpt::convert
