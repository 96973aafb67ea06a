// An S3 server as a program of its own, for tests that start and kill the programs that use it:
//
//   s3_server_main --mirror=DIR
//
// Prints its endpoint and runs until its input ends. The bucket is "bucket", the region us-east-1,
// the access key TESTKEY and its secret a/secret+key.

#include <cstdio>
#include <limits>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "storage/s3/testing/s3_server.h"

ABSL_FLAG(std::string, mirror, "", "Folder in which each object is also a file.");
ABSL_FLAG(
    int, fault_period, 0,
    "Each so many-th request is refused, each so many-th answer lost, torn or slow. 0: none.");

namespace tessera::s3 {
namespace {

void AddFaults(S3Server& server, int period) {
  constexpr int kForEver = std::numeric_limits<int>::max();
  const Fault faults[] = {{.kind = FaultKind::kRefuse, .status = 503, .code = "SlowDown"},
                          {.kind = FaultKind::kLoseAnswer},
                          {.kind = FaultKind::kTear, .method = "GET"},
                          {.kind = FaultKind::kDamageRequest, .method = "PUT"},
                          {.kind = FaultKind::kSlow}};
  int skip = 0;
  for (Fault fault : faults) {
    fault.skip = skip += period / 5;
    fault.period = period;
    fault.times = kForEver;
    server.AddFault(fault);
  }
}

int Main() {
  S3Server server({.region = "us-east-1", .mirror = absl::GetFlag(FLAGS_mirror)});
  if (const int period = absl::GetFlag(FLAGS_fault_period); period > 0) AddFaults(server, period);
  std::printf("%s\n", server.endpoint().c_str());
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  return 0;
}

}  // namespace
}  // namespace tessera::s3

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return tessera::s3::Main();
}
