#include "trainer/app/launch.h"

#include <cstdlib>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

std::optional<int> NumberFrom(const char* variable) {
  const char* text = std::getenv(variable);
  int number = 0;
  if (text == nullptr || !absl::SimpleAtoi(text, &number)) return std::nullopt;
  return number;
}

}  // namespace

Launch DetectLaunch() {
  Launch launch;
  // Variables of Open MPI's own launcher, then of srun's ways to offer its processes to MPI.
  for (const char* rank : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}) {
    if (const std::optional<int> number = NumberFrom(rank); number.has_value()) {
      launch.in_world = true;
      launch.rank = *number;
      break;
    }
  }
  // srun without PMI: MPI would not see the other processes, and the world's size would be wrong.
  if (!launch.in_world && NumberFrom("SLURM_STEP_NUM_TASKS").value_or(1) > 1) {
    launch.in_world = true;
    launch.rank = NumberFrom("SLURM_PROCID").value_or(0);
  }
  // A rank's own stdout may be a pseudo-terminal whatever the launcher's stdout is.
  if (launch.in_world) launch.terminal_columns = NumberFrom("TESSERA_TERMINAL_COLUMNS").value_or(0);
  return launch;
}

absl::Status CheckWorldSize(const Topology& topology, int processes) {
  if (processes == topology.world_size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "data_parallel_size=", topology.data, " * tensor_model_parallel_size=", topology.tensor,
      " * pipeline_model_parallel_size=", topology.pipeline, " needs ", topology.world_size(),
      topology.world_size() == 1 ? " process, but " : " processes, but ", processes,
      processes == 1 ? " was started: " : " were started: ",
      topology.world_size() == 1 ? "start it without mpirun"
                                 : absl::StrCat("use mpirun -n ", topology.world_size())));
}

}  // namespace tessera
