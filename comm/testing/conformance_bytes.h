#ifndef TESSERA_COMM_TESTING_CONFORMANCE_BYTES_H_
#define TESSERA_COMM_TESTING_CONFORMANCE_BYTES_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "comm/communicator.h"

namespace tessera::conformance {

// Cases that compare the bytes that each rank sends with the theory.
absl::Status ReductionBytes(Communicator& comm);
absl::Status MovementBytes(Communicator& comm);
absl::Status ControlBytes(Communicator& comm);

// Returns an error that names `what`, unless the two are equal.
absl::Status ExpectEqual(std::string_view what, int64_t expected, int64_t found);

// Returns the sizes of the ranks' pieces, which differ, and some of which are 0.
std::vector<int64_t> UnevenCounts(int ranks, int64_t unit);
int64_t Sum(const std::vector<int64_t>& counts);

}  // namespace tessera::conformance

#endif  // TESSERA_COMM_TESTING_CONFORMANCE_BYTES_H_
