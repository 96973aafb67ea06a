#include "trainer/app/step_agreement.h"

#include <array>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status_macros.h"
#include "compute/comm/communicator.h"
#include "glog/logging.h"

namespace tessera {
namespace {

constexpr std::array<std::string_view, 5> kGroups = {"tp", "dp", "pp", "tied", "world"};
// Shares and seconds are sent as integers, so that one sum carries everything.
constexpr double kShareUnits = 1e9;
constexpr std::array<double TimeSplit::*, 4> kTimeFields = {
    &TimeSplit::compute, &TimeSplit::communication, &TimeSplit::waiting, &TimeSplit::saving};

// Summed over ranks.
struct Counts {
  enum {
    kInterrupts,
    kTerminations,
    kWaitShare,
    kHostMemory,
    kGpuMemory,
    kTime,
    kTimeEnd = kTime + static_cast<int>(kTimeFields.size()) - 1,
    // Rank 0 alone sends these; the others send zero.
    kElapsedMicroseconds,
    kStopStep,
    kStopVersion,
    kSaveInFlight,
    kSaveTrouble,
    kFolderIsTaken,
    kRecordsFail,
    kTraffic
  };
  std::array<int64_t, kTraffic + kGroups.size()* kCommOpCount> values = {};

  int64_t& Traffic(size_t group, int op) { return values[kTraffic + group * kCommOpCount + op]; }
};

size_t GroupIndex(std::string_view name) {
  for (size_t i = 0; i < kGroups.size(); ++i) {
    if (kGroups[i] == name) return i;
  }
  LOG(FATAL) << "no group of ranks is called " << name;
}

void AddLeader(const LeaderState& leader, Counts& counts) {
  counts.values[Counts::kElapsedMicroseconds] = absl::ToInt64Microseconds(leader.elapsed);
  counts.values[Counts::kStopStep] = leader.stop_file.step;
  counts.values[Counts::kStopVersion] = leader.stop_file.version;
  counts.values[Counts::kSaveInFlight] = leader.save_in_flight ? 1 : 0;
  counts.values[Counts::kSaveTrouble] = static_cast<int64_t>(leader.save_trouble);
  counts.values[Counts::kFolderIsTaken] = leader.folder_is_taken ? 1 : 0;
  counts.values[Counts::kRecordsFail] = leader.records_fail ? 1 : 0;
}

LeaderState LeaderOf(const Counts& counts) {
  return {
      .elapsed = absl::Microseconds(counts.values[Counts::kElapsedMicroseconds]),
      .stop_file = {.step = counts.values[Counts::kStopStep],
                    .version = counts.values[Counts::kStopVersion]},
      .save_in_flight = counts.values[Counts::kSaveInFlight] != 0,
      .save_trouble = static_cast<ckpt::SaveTrouble>(counts.values[Counts::kSaveTrouble]),
      .folder_is_taken = counts.values[Counts::kFolderIsTaken] != 0,
      .records_fail = counts.values[Counts::kRecordsFail] != 0,
  };
}

std::vector<WireBytes> WireOf(Counts& counts) {
  std::vector<WireBytes> wire;
  for (size_t group = 0; group < kGroups.size(); ++group) {
    for (int op = 0; op < kCommOpCount; ++op) {
      const int64_t bytes = counts.Traffic(group, op);
      if (bytes == 0) continue;
      wire.push_back({.axis = std::string(kGroups[group]),
                      .operation = std::string(CommOpName(static_cast<CommOp>(op))),
                      .bytes = bytes});
    }
  }
  return wire;
}

}  // namespace

absl::StatusOr<StepAgreement> AgreeOnStep(Mesh& mesh, int stop_signal, double pipeline_wait_share,
                                          const LeaderState& leader, const TimeSplit& time,
                                          const UsedMemory& memory) {
  StepAgreement agreement{
      .stop_signal = stop_signal, .leader = leader, .memory = memory, .time = time};
  if (mesh.world() == nullptr || mesh.world()->size() == 1) return agreement;
  Counts counts;
  counts.values[Counts::kInterrupts] = stop_signal == SIGINT ? 1 : 0;
  counts.values[Counts::kTerminations] = stop_signal == SIGTERM ? 1 : 0;
  counts.values[Counts::kWaitShare] = std::llround(pipeline_wait_share * kShareUnits);
  counts.values[Counts::kHostMemory] = memory.host;
  counts.values[Counts::kGpuMemory] = memory.gpu;
  for (size_t i = 0; i < kTimeFields.size(); ++i) {
    counts.values[Counts::kTime + i] = std::llround(time.*kTimeFields[i] * kShareUnits);
  }
  if (mesh.rank() == 0) AddLeader(leader, counts);
  for (const WireTraffic& traffic : mesh.TakeTraffic()) {
    counts.Traffic(GroupIndex(traffic.group), static_cast<int>(traffic.op)) += traffic.bytes_sent;
  }
  TESSERA_RETURN_IF_ERROR(mesh.world()->AllReduce(std::span<int64_t>(counts.values), ReduceOp::kSum,
                                                  {.what = "signals and counters of a step"}));
  agreement.stop_signal = counts.values[Counts::kInterrupts] > 0     ? SIGINT
                          : counts.values[Counts::kTerminations] > 0 ? SIGTERM
                                                                     : 0;
  agreement.leader = LeaderOf(counts);
  agreement.memory = {.host = counts.values[Counts::kHostMemory],
                      .gpu = counts.values[Counts::kGpuMemory]};
  if (mesh.pipeline() != nullptr) {
    agreement.pipeline_wait_share =
        static_cast<double>(counts.values[Counts::kWaitShare]) / kShareUnits / mesh.world()->size();
  }
  for (size_t i = 0; i < kTimeFields.size(); ++i) {
    agreement.time.*kTimeFields[i] =
        static_cast<double>(counts.values[Counts::kTime + i]) / kShareUnits / mesh.world()->size();
  }
  agreement.wire = WireOf(counts);
  return agreement;
}

}  // namespace tessera
