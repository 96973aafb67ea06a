// All-reduce and reduce-scatter of the MPI communicator against Open MPI's own blocking calls, fp32
// sums, alternating so that both see the same load. Started by mpirun; prints lines
//   figure comm.allreduce.<bytes>.ratio <our time / Open MPI's> ratio
//   figure comm.reduce_scatter.<bytes>.ratio ...
// Each is the median over rounds of the ratio within a round; a round's time is the slowest rank's.
// The best times are more meaningful where other programs disturb the ranks.

#include <mpi/mpi.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "comm/communicator.h"
#include "comm/mpi/mpi_world.h"
#include "tests/perf/harness.h"

ABSL_FLAG(int64_t, max_bytes, int64_t{256} << 20, "Largest size.");
ABSL_FLAG(int, rounds, 25, "Rounds behind each median.");

namespace tessera {
namespace {

// Bytes moved per round, so that small sizes take long enough to be measured.
constexpr int64_t kRoundBytes = 16 << 20;
constexpr int64_t kMaxCalls = 2000;

double Best(const std::vector<double>& values) {
  return *std::min_element(values.begin(), values.end());
}

// Duration in seconds of one call on the slowest rank.
double TimeRound(int64_t calls, const std::function<void()>& call) {
  MPI_Barrier(MPI_COMM_WORLD);
  const absl::Duration start = SteadyNow();
  for (int64_t i = 0; i < calls; ++i) call();
  double seconds = SecondsSince(start) / calls;
  MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return seconds;
}

void Compare(const Communicator& comm, const char* name, int64_t bytes,
             const std::function<void()>& ours, const std::function<void()>& theirs) {
  const int64_t calls = std::clamp<int64_t>(kRoundBytes / bytes, 1, kMaxCalls);
  std::vector<double> ours_s, theirs_s, ratios;
  for (int round = -1; round < absl::GetFlag(FLAGS_rounds); ++round) {
    // The order alternates.
    double first = TimeRound(calls, round % 2 == 0 ? ours : theirs);
    double second = TimeRound(calls, round % 2 == 0 ? theirs : ours);
    if (round < 0) continue;  // warm-up of buffers and connections
    if (round % 2 != 0) std::swap(first, second);
    ours_s.push_back(first);
    theirs_s.push_back(second);
    ratios.push_back(first / second);
  }
  if (comm.rank() != 0) return;
  std::printf("%-16s %10lld bytes: %10.1f us (best %.1f), Open MPI %10.1f us (best %.1f)\n", name,
              static_cast<long long>(bytes), Median(ours_s) * 1e6, Best(ours_s) * 1e6,
              Median(theirs_s) * 1e6, Best(theirs_s) * 1e6);
  PrintFigure(absl::StrCat("comm.", name, ".", bytes, ".ratio"), Median(ratios));
}

absl::Status Measure(Communicator& comm) {
  absl::Status status;
  const auto note = [&](absl::Status result) {
    if (status.ok()) status = std::move(result);
  };
  for (int64_t bytes = 1 << 10; bytes <= absl::GetFlag(FLAGS_max_bytes) && status.ok();
       bytes *= 4) {
    const int64_t each = bytes / sizeof(float) / comm.size();
    std::vector<float> data(each * comm.size()), piece(each);
    const std::vector<int> counts(comm.size(), static_cast<int>(each));
    const int elements = static_cast<int>(data.size());
    Compare(
        comm, "allreduce", bytes, [&] { note(comm.AllReduce(data, ReduceOp::kSum)); },
        [&] {
          MPI_Allreduce(MPI_IN_PLACE, data.data(), elements, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        });
    Compare(
        comm, "reduce_scatter", bytes,
        [&] { note(comm.ReduceScatter(data, piece, ReduceOp::kSum)); },
        [&] {
          MPI_Reduce_scatter(data.data(), piece.data(), counts.data(), MPI_FLOAT, MPI_SUM,
                             MPI_COMM_WORLD);
        });
  }
  return status;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return tessera::RunMpiRank({}, tessera::Measure);
}
