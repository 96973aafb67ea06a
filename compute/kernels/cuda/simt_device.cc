#include <cuda_runtime.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "compute/kernels/cuda/simt.h"
#include "compute/kernels/cuda/simt_common.h"

namespace tessera::simt {
namespace {

struct FirstError {
  std::mutex mutex;
  std::string text;
};

// Never destroyed: launches may end after every other static.
FirstError& ThisProcess() {
  static FirstError* const error = new FirstError;
  return *error;
}

}  // namespace

void KeepLaunchError(std::string_view pretty_name, Grid grid, int threads, int64_t shared_bytes,
                     cudaError_t error) {
  FirstError& first = ThisProcess();
  const std::lock_guard<std::mutex> lock(first.mutex);
  if (!first.text.empty()) return;
  first.text = ShortKernelName(pretty_name) + ": launched with a grid of (" +
               std::to_string(grid.x) + "," + std::to_string(grid.y) + "," +
               std::to_string(grid.z) + "), blocks of " + std::to_string(threads) + " threads, " +
               std::to_string(shared_bytes) + " bytes of shared memory" +
               LaunchScope::DescribeCurrent() + ": " + cudaGetErrorString(error);
}

std::string TakeLaunchError() {
  FirstError& first = ThisProcess();
  const std::lock_guard<std::mutex> lock(first.mutex);
  return std::exchange(first.text, "");
}

}  // namespace tessera::simt
