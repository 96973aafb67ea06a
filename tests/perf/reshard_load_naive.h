#ifndef TESSERA_TESTS_PERF_RESHARD_LOAD_NAIVE_H_
#define TESSERA_TESTS_PERF_RESHARD_LOAD_NAIVE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/plan/state_dict.h"
#include "checkpoint/storage/storage.h"

namespace tessera {

// The checkpoint of a program that does not share work: each rank's state, replicas included, in a
// file of its own, without checksums.

// Writes rank `rank`'s file and its index below `directory`, which exists, and drops them from the
// page cache.
absl::Status WriteNaive(const std::string& directory, int rank, const ckpt::StateDict& state);

struct NaiveLoad {
  uint64_t bytes_read = 0;
  int files_read = 0;
};

// Loads one rank's state from the files of `ranks` ranks: whole files, past the page cache, the
// rank's own first, then those that overlap with what is still missing. NotFound where something
// stays missing. `storage` is opened at the directory.
absl::StatusOr<NaiveLoad> LoadNaive(ckpt::Storage& storage, const std::string& directory, int rank,
                                    int ranks, int threads, ckpt::StateDict& state);

}  // namespace tessera

#endif  // TESSERA_TESTS_PERF_RESHARD_LOAD_NAIVE_H_
