#ifndef TESSERA_TRAINER_APP_RUN_SUMMARY_H_
#define TESSERA_TRAINER_APP_RUN_SUMMARY_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "trainer/app/session.h"
#include "trainer/metrics/metrics.h"
#include "trainer/metrics/progress.h"

namespace tessera {

// 124439808 is "124,439,808".
std::string Grouped(int64_t number);

// Says what the run is, before its first step, and records it as an event: its size, the memory of
// its processes, the least that a step can take, and where it begins. Collective.
absl::Status AnnounceStart(const Session& session, const RateMeter::Options& rates,
                           ProgressLine& progress_line);

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_RUN_SUMMARY_H_
