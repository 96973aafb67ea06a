#include <cuda_runtime.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "compute/kernels/cuda/simt.h"
#include "compute/kernels/cuda/simt_common.h"

namespace tessera::simt {
namespace {

thread_local std::string first_error;

}  // namespace

void KeepLaunchError(std::string_view pretty_name, Grid grid, int threads, int64_t shared_bytes,
                     cudaError_t error) {
  if (!first_error.empty()) return;
  first_error = ShortKernelName(pretty_name) + ": launched with a grid of (" +
                std::to_string(grid.x) + "," + std::to_string(grid.y) + "," +
                std::to_string(grid.z) + "), blocks of " + std::to_string(threads) + " threads, " +
                std::to_string(shared_bytes) + " bytes of shared memory" +
                LaunchScope::DescribeCurrent() + ": " + cudaGetErrorString(error);
}

std::string TakeLaunchError() { return std::exchange(first_error, ""); }

}  // namespace tessera::simt
