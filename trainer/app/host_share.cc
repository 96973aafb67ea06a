#include "trainer/app/host_share.h"

#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "compute/kernels/cuda/attention_memory.h"
#include "layout/dtype.h"
#include "layout/topology.h"
#include "models/model_config.h"
#include "tensor/device_runtime.h"
#include "trainer/config/config.h"

namespace tessera {
namespace {

// Returns the processors on which this process may run.
cpu_set_t Processors() {
  cpu_set_t processors;
  CPU_ZERO(&processors);
  if (sched_getaffinity(0, sizeof(processors), &processors) != 0) CPU_SET(0, &processors);
  return processors;
}

// Returns the same name in all processes of a machine, whatever network namespace they are in: the
// kernel's boot id.
std::string MachineName() {
  if (std::string name = BootId(); !name.empty()) return name;
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  return host;
}

// What a rank may use, as others of its machine need to know it.
struct Allowed {
  cpu_set_t processors;
  // The number of the file with the quota's limit, by whatever path a container sees it; 0: none.
  uint64_t quota;
};

Allowed AllowedBy(const ProcessorQuota& quota) {
  struct stat file;
  const bool is_limited = stat(quota.file.c_str(), &file) == 0;
  return {.processors = Processors(), .quota = is_limited ? file.st_ino : 0};
}

// Describes what a rank may use, then its machine.
std::string Describe(const Allowed& allowed) {
  std::string text(reinterpret_cast<const char*>(&allowed), sizeof(allowed));
  return text + MachineName();
}

constexpr CallOptions kCall{.what = "processes of this machine"};

// Returns ", for its 8 processes" where a machine runs several.
std::string ForProcesses(const HostShare& host) {
  return host.ranks() == 1 ? "" : absl::StrCat(" for the ", host.ranks(), " processes here");
}

// Returns each rank's part of the memory that is left if every rank of the machine takes `mine`.
// `who` begins the error, and `more` ends it.
absl::StatusOr<int64_t> PartOfRest(int64_t mine, int64_t available, const HostShare& host,
                                   const std::string& who, const std::string& memory,
                                   const std::string& more = "") {
  TESSERA_ASSIGN_OR_RETURN(const int64_t needed, host.Sum(mine));
  if (needed <= available) return (available - needed) / host.ranks();
  return absl::ResourceExhaustedError(absl::StrCat(who, " ", HumanBytes(needed), " of ", memory,
                                                   ForProcesses(host), ", of which ",
                                                   HumanBytes(available), " are available", more));
}

// Returns whether attention's backward pass may be one kernel on this GPU.
bool AttentionAtOnce(const TrainConfig& config, const TrainingDevice& gpu) {
  return gpu.choices.attention_at_once && config.training().bf16() &&
         config.model().attention_dropout() == 0;
}

// Returns the scratch memory that operations of a GPU need: the most for attention's backward pass,
// for partial sums of columns, or for lists of rows by id.
int64_t ScratchBytes(const TrainConfig& config, const TrainingDevice& gpu) {
  const ModelConfig& model = config.model();
  const int64_t tensor = ConfigTopology(config).tensor;
  const int64_t batch = config.training().micro_batch_size();
  const int64_t sequence = config.training().seq_length(), rows = batch * sequence;
  const int64_t attention = cuda::AttentionScratchBytes(
      batch * model.num_attention_heads() / tensor, sequence,
      model.hidden_size() / model.num_attention_heads(), AttentionAtOnce(config, gpu));
  const int64_t columns = std::max({2 * model.ffn_hidden_size() / tensor, 2 * model.hidden_size(),
                                    3 * model.hidden_size() / tensor});
  const int64_t sums = std::min<int64_t>(1024, rows / 16 + 1) * columns * int64_t{sizeof(float)};
  const int64_t ids = (2 * model.vocab_size() / tensor + 2 * rows + 1) * int64_t{sizeof(int32_t)};
  return std::max({attention, sums, ids});
}

}  // namespace

absl::StatusOr<HostShare> HostShare::Find(Communicator* world, const ProcessorQuota& quota) {
  const Allowed mine = AllowedBy(quota);
  int sharing_processors = 0, sharing_quota = 0;
  const auto threads = [&] {
    return std::max(1, std::min(CPU_COUNT(&mine.processors) / std::max(1, sharing_processors),
                                quota.processors / std::max(1, sharing_quota)));
  };
  if (world == nullptr) return HostShare(nullptr, {0}, threads());
  const std::string description = Describe(mine);
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                           world->AllGatherBytes(description, kCall));
  std::vector<int> on_this_host;
  for (int rank = 0; rank < world->size(); ++rank) {
    const std::string_view other = all[rank];
    if (other.substr(sizeof(mine)) != std::string_view(description).substr(sizeof(mine))) continue;
    on_this_host.push_back(rank);
    Allowed theirs;
    std::memcpy(&theirs, other.data(), sizeof(theirs));
    cpu_set_t common;
    CPU_AND(&common, &mine.processors, &theirs.processors);
    sharing_processors += CPU_COUNT(&common) > 0 ? 1 : 0;
    sharing_quota += theirs.quota == mine.quota ? 1 : 0;
  }
  return HostShare(world, std::move(on_this_host), threads());
}

absl::StatusOr<HostShare::Place> HostShare::Among(const std::string& description) const {
  if (world_ == nullptr) return Place{};
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                           world_->AllGatherBytes(description, kCall));
  Place place{.index = 0, .count = 0};
  for (const int rank : on_this_host_) {
    if (all[rank] != description) continue;
    if (rank < world_->rank()) ++place.index;
    ++place.count;
  }
  return place;
}

absl::StatusOr<int64_t> HostShare::Sum(int64_t mine) const {
  if (world_ == nullptr) return mine;
  std::vector<int64_t> all(world_->size());
  const std::vector<int64_t> own = {mine};
  TESSERA_RETURN_IF_ERROR(
      world_->AllGather(ConstBuffer(own), Buffer(all), {}, {.what = "sizes by rank"}));
  int64_t sum = 0;
  for (const int rank : on_this_host_) sum += all[rank];
  return sum;
}

absl::StatusOr<Trainer::Memory> GpuMemory(const TrainConfig& config, const Trainer& trainer,
                                          TrainingDevice& gpu) {
  Trainer::Memory memory = trainer.memory();
  const int64_t allocated = gpu.context->allocated_bytes();
  TESSERA_ASSIGN_OR_RETURN(const DeviceRuntime::MemoryInfo now, gpu.context->runtime().Memory());
  memory.workspace = std::max<int64_t>(0, allocated - SumOf(memory)) + ScratchBytes(config, gpu);
  memory.driver = std::max<int64_t>(0, now.total_bytes - now.free_bytes - allocated);
  if (!config.data().valid_data_path().empty() && config.training().eval_interval() > 0) {
    memory.evaluation = trainer.EvaluationBytes();
  }
  return memory;
}

int64_t SumOf(const Trainer::Memory& memory) {
  int64_t sum = 0;
  for (const auto& [name, bytes] : kMemoryKinds) sum += memory.*bytes;
  return sum;
}

std::string Describe(const Trainer::Memory& memory) {
  std::vector<std::string> parts;
  for (const auto& [name, bytes] : kMemoryKinds) {
    if (memory.*bytes > 0) parts.push_back(absl::StrCat(name, " ", HumanBytes(memory.*bytes)));
  }
  return absl::StrJoin(parts, ", ");
}

Trainer::Memory EstimateState(const TrainConfig& config, bool trains) {
  const Topology topology = ConfigTopology(config);
  const bool bf16 = config.training().bf16();
  const int64_t here =
      ParameterCount(config.model()) / (int64_t{topology.tensor} * topology.pipeline);
  const int64_t gradient_owners = topology.zero_stage == 2 ? topology.data : 1;
  const int64_t state_owners = topology.zero_stage >= 1 ? topology.data : 1;
  Trainer::Memory bytes{.weights = here * (bf16 ? 2 : 4)};
  if (!trains) return bytes;
  bytes.gradients = here * 4 / gradient_owners;
  if (config.parallel().replay_check_interval() > 0) {
    // ScratchGradients::MaxBytes(): a table of the vocabulary and a layer.
    const ModelConfig& model = config.model();
    const int64_t table = model.vocab_size() * model.hidden_size() / topology.tensor;
    bytes.gradients += std::min(here, table + here * topology.pipeline / model.num_layers()) * 4;
  }
  // Moments; of bf16, master weights.
  bytes.optimizer = here * (bf16 ? 12 : 8) / state_owners;
  return bytes;
}

absl::Status CheckModelFits(const TrainConfig& config, bool trains, int64_t available,
                            const HostShare& host) {
  return PartOfRest(SumOf(EstimateState(config, trains)), available, host,
                    absl::StrCat("a model of ", ParameterCount(config.model()), " weights needs"),
                    trains ? "memory to train" : "memory")
      .status();
}

absl::StatusOr<int64_t> SpareMemory(const Trainer::Memory& mine, int64_t available,
                                    const HostShare& host) {
  return PartOfRest(SumOf(mine), available, host, "the run needs", "memory",
                    absl::StrCat(": ", Describe(mine), host.ranks() == 1 ? "" : " in this process",
                                 "; activations shrink with --micro-batch-size, --seq-length and "
                                 "--recompute-activations"));
}

absl::Status CheckModelFitsGpu(const TrainConfig& config, bool trains, TrainingDevice& gpu) {
  const int64_t head_size = config.model().hidden_size() / config.model().num_attention_heads();
  const int64_t shared =
      cuda::AttentionSharedBytes(config.training().bf16() ? DType::kBF16 : DType::kF32, head_size,
                                 trains, AttentionAtOnce(config, gpu));
  if (shared > gpu.shared_bytes_of_block) {
    return absl::FailedPreconditionError(absl::StrCat(
        "attention with heads of ", head_size, " in ", config.training().bf16() ? "bf16" : "fp32",
        " needs ", shared, " bytes of shared memory in a block, of which this GPU (", gpu.type,
        ") has ", gpu.shared_bytes_of_block,
        config.training().bf16() ? "" : ": --bf16 needs half of it"));
  }
  TESSERA_ASSIGN_OR_RETURN(const DeviceRuntime::MemoryInfo memory, gpu.context->runtime().Memory());
  const Trainer::Memory state = EstimateState(config, trains);
  if (SumOf(state) <= memory.free_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "a model of ", ParameterCount(config.model()), " weights needs ", HumanBytes(SumOf(state)),
      " of GPU memory in this process", trains ? " to train" : "", " (", Describe(state),
      "), of which ", HumanBytes(memory.free_bytes), " are free: the GPU (", gpu.type, ") has ",
      HumanBytes(memory.total_bytes),
      "; more GPUs share a model with --tensor-model-parallel-size, "
      "--pipeline-model-parallel-size and --zero-stage"));
}

absl::StatusOr<int64_t> SpareBesideStaging(int64_t staged, int64_t available,
                                           const HostShare& host) {
  return PartOfRest(staged, available, host, "checkpoints need",
                    "pinned host memory for copies of GPU state");
}

}  // namespace tessera
