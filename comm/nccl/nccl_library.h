#ifndef TESSERA_COMM_NCCL_NCCL_LIBRARY_H_
#define TESSERA_COMM_NCCL_NCCL_LIBRARY_H_

#include <climits>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/nccl/nccl_api.h"

namespace tessera {

// Declarations of the library's binary interface, as in NCCL's own header.
namespace nccl_abi {

// ncclConfig_t as of NCCL 2.18. Later versions read only as many bytes as `size` says.
struct Config {
  size_t size = sizeof(Config);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 21800;
  int blocking = 0;
  int cga_cluster_size = INT_MIN;  // INT_MIN and null: NCCL's own choice
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
};

inline constexpr int kInt8 = 0;            // ncclDataType_t
inline constexpr int kNoColor = -1;        // NCCL_SPLIT_NOCOLOR
inline constexpr int kMinVersion = 21800;  // the first with ncclCommSplit

}  // namespace nccl_abi

// Opens libnccl.so.2 at the first of `places` that has it. A place is a path, or a name for the
// dynamic linker to search. The library stays open until the process ends.
//
// Errors: NotFound, in one sentence with every place, if no place has the library;
// FailedPrecondition for a version before 2.18 and for a library without the needed functions.
absl::StatusOr<std::unique_ptr<NcclApi>> OpenNccl(std::span<const std::string> places);

// Returns the places to look for NCCL: $TESSERA_NCCL alone if it is set. Otherwise the dynamic
// linker's own search, the CUDA toolkit ($CUDA_HOME, /usr/local/cuda), and the nvidia-nccl packages
// of PyTorch, as LibraryPlaces() lists them.
std::vector<std::string> NcclPlaces();

}  // namespace tessera

#endif  // TESSERA_COMM_NCCL_NCCL_LIBRARY_H_
