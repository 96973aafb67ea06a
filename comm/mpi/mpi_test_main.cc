// One rank of the tests in mpi_test.sh: `mpi_test_main CASE [RANK]`.
//   conformance      runs the suite
//   parts            the same, with messages sent in small parts, as those beyond INT_MAX are
//   die RANK, stop RANK      that rank ends, or stops, itself between two operations
//   error RANK       that rank returns an error; "error all": every rank does
//   late RANK        that rank computes for too long
//   slow RANK        that rank computes for long enough to be queried, and then continues
//   absent RANK      that rank does not even start

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "comm/mpi/mpi_world.h"
#include "comm/testing/conformance.h"

namespace tessera {
namespace {

absl::Status Conformance(Communicator& comm) {
  for (const ConformanceCase& each : ConformanceCases()) {
    const absl::Status status = each.run(comm);
    if (!status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat(each.name, ": ", std::string(status.message())));
    }
  }
  if (comm.rank() == 0) std::printf("conformance with %d ranks: passed\n", comm.size());
  return absl::OkStatus();
}

absl::Status Misbehave(const std::string& how) {
  if (how == "die") kill(getpid(), SIGKILL);
  if (how == "stop") kill(getpid(), SIGSTOP);
  if (how == "error") return absl::DataLossError("shard 'x' is damaged");
  if (how == "slow") std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  if (how == "late") std::this_thread::sleep_for(std::chrono::seconds(30));
  return absl::OkStatus();
}

// Looks like training steps to the ranks; after some steps, one rank misbehaves.
absl::Status Steps(Communicator& comm, const std::string& how, int culprit) {
  TESSERA_ASSIGN_OR_RETURN(auto dp, comm.Split(0, comm.rank(), "dp"));
  std::vector<float> gradients(200000, 1.0f);
  for (int step = 0; step < 40; ++step) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (step == 25 && (comm.rank() == culprit || culprit < 0)) {
      TESSERA_RETURN_IF_ERROR(Misbehave(how));
    }
    TESSERA_RETURN_IF_ERROR(dp->AllReduce(gradients, ReduceOp::kMax, {.what = "gradients"}));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  const std::string which = argc > 1 ? argv[1] : "conformance";
  const std::string culprit = argc > 2 ? argv[2] : "all";
  tessera::CommOptions options;
  const bool suite = which == "conformance" || which == "parts";
  const bool is_missed = which == "stop" || which == "late";
  options.timeout = is_missed ? absl::Seconds(4) : absl::Minutes(2);
  if (which == "parts") options.part_bytes = 1000;
  if (which == "absent") {
    options.start_timeout = absl::Seconds(3);
    const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
    if (rank != nullptr && culprit == rank) std::this_thread::sleep_for(std::chrono::minutes(1));
  }
  return tessera::RunMpiRank(options, [&](tessera::Communicator& comm) {
    if (suite) return tessera::Conformance(comm);
    return tessera::Steps(comm, which, culprit == "all" ? -1 : std::atoi(culprit.c_str()));
  });
}
