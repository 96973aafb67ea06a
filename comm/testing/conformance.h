#ifndef TESSERA_COMM_TESTING_CONFORMANCE_H_
#define TESSERA_COMM_TESTING_CONFORMANCE_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "comm/communicator.h"

namespace tessera {

// A test case of the contract of every implementation of Communicator, for any number of ranks. All
// ranks of a world call `run`, which returns an error if the contract is broken. Results are
// compared bit for bit with naive oracles.
struct ConformanceCase {
  std::string name;  // CamelCase
  std::function<absl::Status(Communicator&)> run;
};

std::vector<ConformanceCase> ConformanceCases();

}  // namespace tessera

#endif  // TESSERA_COMM_TESTING_CONFORMANCE_H_
