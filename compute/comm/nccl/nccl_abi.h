#ifndef TESSERA_COMPUTE_COMM_NCCL_NCCL_ABI_H_
#define TESSERA_COMPUTE_COMM_NCCL_NCCL_ABI_H_

#include <climits>
#include <cstddef>

namespace tessera::nccl_abi {

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

}  // namespace tessera::nccl_abi

#endif  // TESSERA_COMPUTE_COMM_NCCL_NCCL_ABI_H_
