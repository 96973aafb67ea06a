// Trains a model: `train --config FILE --flag=value ...`, see --help. Runs as a single process, or
// as one of those that mpirun or srun has started; trainer/configs/launch.py starts as many as the
// settings need, which it queries with `train --print-launch ...`. `train --dry-run ...` says what
// the run would be.

#include <unistd.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/cpu_level.h"
#include "base/invocation_dir.h"
#include "base/program.h"
#include "base/status_macros.h"
#include "comm/communicator.h"
#include "comm/mpi/mpi_world.h"
#include "compute/device/compute_devices.h"
#include "compute/device/cuda_device.h"
#include "glog/logging.h"
#include "layout/topology.h"
#include "nlohmann/json.hpp"
#include "trainer/app/dry_run.h"
#include "trainer/app/launch.h"
#include "trainer/app/memory_reserve.h"
#include "trainer/app/run.h"
#include "trainer/app/signals.h"
#include "trainer/config/config.h"
#include "trainer/state/saved_model.h"

namespace tessera {
namespace {

constexpr int kWrongSettings = 2;
constexpr unsigned kSecondsForRank0 = 5;

// Prints one sentence for an error that every process of a world detects by itself: rank 0 prints
// it. The others wait until it has, because a launcher may end them all with the first one; a
// process that is still running afterwards was the only one with the error.
int Refuse(const absl::Status& status, const Launch& launch) {
  std::string who = "train";
  if (launch.in_world && launch.rank != 0) {
    sleep(kSecondsForRank0);
    who = "rank " + std::to_string(launch.rank);
  }
  PrintError(who, std::string(status.message()));
  return absl::IsInvalidArgument(status) ? kWrongSettings : 1;
}

absl::StatusOr<TrainConfig> Resolve(const CommandLine& given, int processes = 1) {
  absl::StatusOr<TrainConfig> config = ResolveConfig(
      given.config,
      {.processes = processes, .origins = given.origins, .saved_model = FindSavedModel});
  if (!config.ok()) return config;
  TESSERA_RETURN_IF_ERROR(CheckLoadFormat(config->checkpoint()));
  return config;
}

// Returns the number of this machine's GPUs; 0 if it has no GPUs, or the run does not use them.
size_t CountGpus(const TrainConfig& config) {
  if (config.training().device() != ComputeDevice::CUDA) return 0;
  const absl::StatusOr<std::vector<std::string>> gpus = MakeCudaDevices()->Find();
  return gpus.ok() ? gpus->size() : 0;
}

// Resolves settings that may still lack training data.
absl::StatusOr<TrainConfig> ResolveWithoutData(CommandLine line) {
  const DataConfig given = line.config.data();
  if (!given.train_data_path().empty()) return Resolve(line);
  line.config.mutable_data()->set_train_data_path("to be found");
  line.config.mutable_data()->set_valid_data_path("likewise");
  line.config.mutable_data()->set_tokenizer_model("likewise");
  absl::StatusOr<TrainConfig> resolved = Resolve(line);
  if (resolved.ok()) *resolved->mutable_data() = given;
  return resolved;
}

absl::Status PrintDryRun(const CommandLine& line) {
  TESSERA_ASSIGN_OR_RETURN(const TrainConfig resolved, ResolveWithoutData(line));
  TESSERA_ASSIGN_OR_RETURN(const std::string text, DescribeDryRun(resolved));
  Print(text);
  return absl::OkStatus();
}

// Prints the answer to launch.py as JSON.
absl::Status PrintLaunch(const CommandLine& line) {
  const TrainConfig& config = line.config;
  const bool has_data = !config.data().train_data_path().empty();
  TESSERA_ASSIGN_OR_RETURN(const TrainConfig resolved, ResolveWithoutData(line));
  const nlohmann::json launch = {
      // 0: as many as there is room for.
      {"processes", HasAutoTopology(config) ? 0 : ConfigTopology(resolved).world_size()},
      {"gpus", CountGpus(resolved)},
      {"needs_data", !has_data && resolved.training().train_iters() > 0},
      {"valid_data_path", config.data().valid_data_path()},
      {"tokenizer_model", config.data().tokenizer_model()},
      {"vocab_size", resolved.model().vocab_size()},
  };
  Print(launch.dump() + "\n");
  return absl::OkStatus();
}

// Returns an error that says what this machine lacks. Every process finds it by itself.
absl::Status CheckDevices(ComputeDevices& devices) {
  const absl::Status found = devices.Find().status();
  if (found.ok()) return found;
  return absl::Status(found.code(), std::string("device=cuda: ") + std::string(found.message()));
}

CommOptions WorldOptions(const TrainConfig& config) {
  CommOptions options;
  options.timeout = absl::Minutes(config.parallel().distributed_timeout_minutes());
  return options;
}

// Runs a rank. `given`: the user's settings; the topology may depend on the world.
int RunInWorld(const CommandLine& given, const Launch& launch, ComputeDevices& devices) {
  int stopped_by = 0;
  const int code = RunMpiRank(WorldOptions(given.config), [&](Communicator& world) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const TrainConfig config, Resolve(given, world.size()));
    TESSERA_RETURN_IF_ERROR(CheckWorldSize(ConfigTopology(config), world.size()));
    return RunRank(config, launch, &world, devices, &stopped_by);
  });
  return code == 0 && stopped_by != 0 ? 128 + stopped_by : code;
}

int RunAlone(const TrainConfig& config, const Launch& launch, ComputeDevices& devices) {
  int stopped_by = 0;
  absl::Status status = CheckWorldSize(ConfigTopology(config), 1);
  if (status.ok()) status = RunRank(config, launch, nullptr, devices, &stopped_by);
  if (!status.ok()) return Refuse(status, launch);
  return stopped_by == 0 ? 0 : 128 + stopped_by;
}

int Main(std::vector<const char*> arguments) {
  ChdirToInvocationDir();
  const Launch launch = DetectLaunch();
  if (const absl::Status level = CheckCpuLevel(); !level.ok()) return Refuse(level, launch);
  const auto take = [&](const std::string& word) {
    return std::erase_if(arguments, [&](const char* argument) { return argument == word; }) > 0;
  };
  const bool print_launch = take("--print-launch");
  const bool dry_run = take("--dry-run") || take("--dry_run");
  const absl::StatusOr<CommandLine> line =
      ParseCommandLine(static_cast<int>(arguments.size()), arguments.data());
  if (!line.ok()) return Refuse(line.status(), launch);
  if (!line->help.empty()) {
    if (launch.rank == 0) Print(line->help);
    return 0;
  }
  if (print_launch) {
    const absl::Status printed = PrintLaunch(*line);
    return printed.ok() ? 0 : Refuse(printed, launch);
  }
  if (dry_run) {
    const absl::Status printed = PrintDryRun(*line);
    return printed.ok() ? 0 : Refuse(printed, launch);
  }
  const absl::StatusOr<TrainConfig> config = Resolve(*line);
  if (!config.ok()) return Refuse(config.status(), launch);
  const std::unique_ptr<ComputeDevices> devices = MakeCudaDevices();
  if (config->training().device() == ComputeDevice::CUDA) {
    const absl::Status found = CheckDevices(*devices);
    if (!found.ok()) return Refuse(found, launch);
  }
  CatchStopSignals();
  return launch.in_world ? RunInWorld(*line, launch, *devices)
                         : RunAlone(*config, launch, *devices);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  return tessera::RunProgram({.name = "train"}, [&] {
    tessera::HoldMemoryBack();
    if (const absl::Status started = tessera::StartSignalThread(); !started.ok()) {
      return tessera::Refuse(started, tessera::DetectLaunch());
    }
    google::InitGoogleLogging(argv[0]);
    FLAGS_logtostderr = true;
    return tessera::Main(std::vector<const char*>(argv, argv + argc));
  });
}
