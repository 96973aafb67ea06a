// Speed of the checksum and the digest, which process every byte of a checkpoint.

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/crc32c.h"
#include "checkpoint/format/digest.h"

namespace tessera::ckpt {
namespace {

// Larger than a core's own caches, as the staging buffers are.
std::vector<std::byte> Data() {
  std::vector<std::byte> data(8 << 20);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 2654435761u >> 13);
  return data;
}

void BM_Crc32c(benchmark::State& state) {
  const std::vector<std::byte> data = Data();
  for (auto _ : state) benchmark::DoNotOptimize(Crc32c(std::span<const std::byte>(data)));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(data.size()));
}
BENCHMARK(BM_Crc32c);

void BM_Digest(benchmark::State& state) {
  const std::vector<std::byte> data = Data();
  const auto element_bytes = static_cast<size_t>(state.range(0));
  for (auto _ : state) {
    benchmark::DoNotOptimize(DigestRun(5, data.data(), data.size() / element_bytes, element_bytes));
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(data.size()));
}
BENCHMARK(BM_Digest)->ArgName("element_bytes")->RangeMultiplier(2)->Range(1, 8);

void BM_Check(benchmark::State& state) {
  const std::vector<std::byte> data = Data();
  const auto element_bytes = static_cast<size_t>(state.range(0));
  uint32_t crc32c = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        ChecksumRun(5, data.data(), data.size() / element_bytes, element_bytes, crc32c));
  }
  benchmark::DoNotOptimize(crc32c);
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(data.size()));
}
BENCHMARK(BM_Check)->ArgName("element_bytes")->RangeMultiplier(2)->Range(1, 8);

}  // namespace
}  // namespace tessera::ckpt

BENCHMARK_MAIN();
