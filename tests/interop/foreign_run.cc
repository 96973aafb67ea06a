#include "tests/interop/foreign_run.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <sstream>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/internal/known_checkpoint.h"
#include "comm/communicator.h"
#include "comm/threads/thread_world.h"
#include "convert/core/foreign_storage.h"
#include "convert/open_foreign.h"
#include "tests/support/command.h"
#include "tools/ckpt/commands.h"
#include "trainer/config/config.h"
#include "trainer/data/token_file.h"
#include "trainer/state/communicator_group.h"
#include "trainer/state/load_tensors.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMaster = ".master";

absl::Status AddFp32Tensors(const fs::path& path, LogicalState& state) {
  const std::string file = ReadFile(path);
  TESSERA_ASSIGN_OR_RETURN(const uint64_t header_bytes,
                           ckpt::SafetensorsHeaderBytes(file.substr(0, 8), file.size()));
  TESSERA_ASSIGN_OR_RETURN(
      const ckpt::SafetensorsHeader header,
      ckpt::ParseSafetensorsHeader(std::string_view(file).substr(0, header_bytes), file.size()));
  for (const ckpt::SafetensorsEntry& entry : header.entries) {
    if (entry.dtype != DType::kF32) continue;
    std::string name = entry.key;
    const bool is_master = name.ends_with(kMaster);
    if (is_master) name.resize(name.size() - kMaster.size());
    if (!is_master && state.contains(name)) continue;
    LogicalTensor& tensor = state[name];
    tensor.shape = entry.shape;
    tensor.bytes.resize(entry.length_bytes);
    std::memcpy(tensor.bytes.data(), file.data() + entry.file_offset, entry.length_bytes);
  }
  return absl::OkStatus();
}

// Sets the state of a rank, which has zeros, to that with which the run begins.
using SetRank = std::function<absl::Status(Communicator& comm, TrainingRank& rank)>;

absl::StatusOr<ContinuedRun> Continue(const TrainConfig& config, int64_t step, const SetRank& set) {
  ContinuedRun continued;
  StateCollector collector;
  ThreadWorld world(ConfigTopology(config).world_size());
  TESSERA_RETURN_IF_ERROR(world.Run([&](Communicator& comm) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<TrainingRank> rank,
                             TrainingRank::Create(config, 1, &comm, nullptr));
    TESSERA_RETURN_IF_ERROR(set(comm, *rank));
    TESSERA_RETURN_IF_ERROR(collector.Add(rank->trainer().chunks()));
    Progress progress = rank->progress();
    progress.step = progress.updates = step;
    rank->set_progress(progress);
    rank->trainer().set_updates(progress.updates);
    for (int i = 0; i < 2; ++i) {
      TESSERA_ASSIGN_OR_RETURN(const StepResult result, rank->Step());
      if (comm.rank() == 0) continued.losses.push_back(result.loss);
    }
    return absl::OkStatus();
  }));
  TESSERA_RETURN_IF_ERROR(collector.CheckComplete());
  continued.state = collector.Take();
  return continued;
}

// The state with a zero for each moment of its weights that it lacks.
LogicalState WithMoments(const LogicalState& state) {
  LogicalState complete = state;
  for (const auto& [name, tensor] : state) {
    if (tensor.dtype != DType::kF32 || name.ends_with(".exp_avg") || name.ends_with(".exp_avg_sq"))
      continue;
    std::string parameter = name;
    if (parameter.ends_with(kMaster)) parameter.resize(parameter.size() - kMaster.size());
    LogicalTensor zeros = tensor;
    zeros.bytes.assign(zeros.bytes.size(), std::byte{0});
    complete.emplace(absl::StrCat(parameter, ".exp_avg"), zeros);
    complete.emplace(absl::StrCat(parameter, ".exp_avg_sq"), zeros);
  }
  return complete;
}

}  // namespace

absl::StatusOr<SavedRun> OpenForeignRun(const std::string& folder, const ckpt::ModelProto* model,
                                        const std::string& names) {
  TESSERA_ASSIGN_OR_RETURN(
      std::unique_ptr<ckpt::convert::ForeignStorage> storage,
      ckpt::convert::OpenForeign(folder, {.parameter_names_file = names, .model = model}));
  TESSERA_ASSIGN_OR_RETURN(ckpt::Manifest manifest, ckpt::ReadManifest(*storage, ""));
  return SavedRun{.checkpoint =
                      ckpt::CheckpointOfManifest(std::move(storage), "", std::move(manifest))};
}

absl::StatusOr<LogicalState> ReadFp32State(const std::string& path) {
  LogicalState state;
  if (!fs::is_directory(path)) {
    TESSERA_RETURN_IF_ERROR(AddFp32Tensors(path, state));
  } else {
    for (const auto& entry : fs::directory_iterator(path)) {
      if (entry.path().extension() != ".safetensors") continue;
      TESSERA_RETURN_IF_ERROR(AddFp32Tensors(entry.path(), state));
    }
  }
  if (state.empty()) return absl::NotFoundError(absl::StrCat(path, ": no fp32 tensor"));
  return state;
}

absl::StatusOr<ContinuedRun> ContinueRun(const SavedRun& saved, const TrainConfig& config) {
  const LoadPolicy policy = {
      .with_optimizer = std::ranges::any_of(saved.manifest().tensors(), [](const auto& tensor) {
        return ckpt::FromProto(tensor.role()) == ckpt::TensorRole::kOptimizerState;
      })};
  const auto load = [&](Communicator& comm, TrainingRank& rank) {
    const std::unique_ptr<ckpt::ProcessGroup> group = MakeProcessGroup(&comm);
    return LoadTensors(saved, rank.state(), policy, {.ranks = *group}).status();
  };
  return Continue(config, saved.manifest().trainer().step(), load);
}

absl::StatusOr<ContinuedRun> ContinueRun(const LogicalState& state, int64_t step,
                                         const TrainConfig& config) {
  const LogicalState complete = WithMoments(state);
  return Continue(config, step, [&complete](Communicator&, TrainingRank& rank) {
    return SetState(rank.trainer().chunks(), complete);
  });
}

void ForeignTest::SetUp() {
  std::mt19937 random(3);
  std::vector<int32_t> tokens(3000);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 20);
  SetTokens(tokens);
}

void ForeignTest::SetTokens(std::span<const int32_t> tokens) const {
  ASSERT_OK_AND_ASSIGN(auto writer,
                       TokenFileWriter::Create(data_.File("tokens.bin"), TokenFormat::kGpt2));
  ASSERT_OK(writer->Append(tokens));
  ASSERT_OK(writer->Close());
}

std::string ForeignTest::CopyOf(const std::string& checkpoint, const std::string& name) const {
  const fs::path copy = folder_ / (name.empty() ? fs::path(checkpoint).filename() : fs::path(name));
  fs::remove_all(copy);
  fs::copy(checkpoint, copy, fs::copy_options::recursive);
  for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
    fs::permissions(entry.path(), fs::perms::owner_all);
  }
  return copy.string();
}

int ForeignTest::Run(const std::vector<std::string>& arguments) {
  std::ostringstream out, err;
  const int exit_code = ckpt::RunCkpt(arguments, {out, err, nullptr});
  out_ = out.str();
  err_ = err.str();
  return exit_code;
}

RunSettings ForeignTest::Settings(const std::string& model, const std::string& topology,
                                  bool bf16) const {
  return {.model = model,
          .tokens = data_.File("tokens.bin"),
          .topology = topology,
          .exact_shards = 2,
          .bf16 = bf16,
          .micro_batch_size = 1,
          .global_batch_size = 4,
          .seq_length = 12,
          .bucket_elements = 500};
}

absl::StatusOr<TrainConfig> ForeignTest::Config(const RunSettings& settings) const {
  return MakeConfig(settings);
}

absl::StatusOr<ContinuedRun> ForeignTest::Load(const SavedRun& saved, const std::string& topology,
                                               bool bf16) const {
  TESSERA_ASSIGN_OR_RETURN(const TrainConfig config,
                           Config(Settings(saved.manifest().model().text(), topology, bf16)));
  return ContinueRun(saved, config);
}

absl::StatusOr<ContinuedRun> ForeignTest::Load(const std::string& checkpoint,
                                               const std::string& topology, bool bf16) const {
  TESSERA_ASSIGN_OR_RETURN(const SavedRun saved, OpenForeignRun(checkpoint));
  return Load(saved, topology, bf16);
}

}  // namespace tessera::testing
