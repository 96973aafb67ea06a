#ifndef TESSERA_TESTS_SUPPORT_SESSION_RUN_H_
#define TESSERA_TESTS_SUPPORT_SESSION_RUN_H_

// Runs of the trainer's own session and loop in this process, with threads as ranks.

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compute/device/compute_devices.h"
#include "trainer/app/session.h"
#include "trainer/config/config.pb.h"

namespace tessera::testing {

using SessionBody = std::function<absl::Status(Session&)>;

// Builds sessions for all ranks of the config's topology, on threads, and runs `body` in each.
// Returns rank 0's notes about the origin of its state, or the error of the rank that failed first.
absl::StatusOr<std::string> RunSessions(const TrainConfig& resolved_config, ComputeDevices& devices,
                                        const SessionBody& body);

// The parts of TrainSession(), for a body that acts between two steps. OpenRecords() opens rank 0's
// records in output.run_dir, as the command does; TrainUntil() takes the steps up to `last`,
// with the saves that are due in them.
absl::Status OpenRecords(Session& session);
absl::Status TrainUntil(Session& session, int64_t last);

// A body that trains as the command does, and records losses in metrics.jsonl of output.run_dir. If
// no steps are left, rank 0's notes say "nothing left to train".
absl::Status TrainSession(Session& session);

// Calls RunSessions() on the processors.
absl::StatusOr<std::string> TrainOnProcessors(const TrainConfig& resolved_config,
                                              const SessionBody& body = TrainSession);

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_SUPPORT_SESSION_RUN_H_
