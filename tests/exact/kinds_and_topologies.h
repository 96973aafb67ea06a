#ifndef TESSERA_TESTS_EXACT_KINDS_AND_TOPOLOGIES_H_
#define TESSERA_TESTS_EXACT_KINDS_AND_TOPOLOGIES_H_

// The runs that are compared with one another: kinds of models on topologies.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/testing.h"
#include "gtest/gtest.h"
#include "tests/support/training.h"

namespace tessera {

inline constexpr int kExactShards = 4;
inline constexpr int64_t kSteps = 5;

struct Kind {
  std::string name;
  std::string model;  // text format
  bool bf16 = false;
};

inline const std::vector<Kind>& Kinds() {
  static const auto& kinds = *new std::vector<Kind>{{"Gpt2Fp32", testing::kGpt2, false},
                                                    {"Gpt2Bf16", testing::kGpt2, true},
                                                    {"LlamaFp32", testing::kLlama, false},
                                                    {"LlamaBf16", testing::kLlama, true},
                                                    {"TiedLlamaFp32", testing::kTiedLlama, false}};
  return kinds;
}

// A topology, the micro-batches of its global batch, and the kinds that it trains by default.
struct TopologyCase {
  std::string topology;
  int64_t micro_batches;
  std::vector<std::string> kinds;
};

// Each kind has replicas, ZeRO, tensor ranks, a pipeline and all of them together.
inline const std::vector<TopologyCase>& TopologyCases() {
  static const auto& cases = *new std::vector<TopologyCase>{
      {"dp2", 8, {"Gpt2Fp32", "LlamaFp32"}},
      {"dp3", 12, {"Gpt2Bf16", "LlamaBf16"}},
      {"dp4_zero1", 8, {"LlamaFp32", "TiedLlamaFp32"}},
      {"dp4_zero2", 8, {"Gpt2Fp32", "LlamaBf16"}},
      {"dp2_zero2", 6, {"Gpt2Bf16", "TiedLlamaFp32"}},
      {"tp2", 8, {"Gpt2Fp32", "LlamaFp32"}},
      {"tp4", 8, {"Gpt2Bf16", "LlamaBf16"}},
      {"tp2_sp", 8, {"Gpt2Fp32", "TiedLlamaFp32"}},
      {"pp2", 8, {"Gpt2Fp32", "LlamaBf16"}},
      {"pp4", 8, {"Gpt2Bf16", "TiedLlamaFp32"}},
      {"pp2_vpp2", 8, {"Gpt2Fp32", "LlamaFp32"}},
      {"dp2_tp2_pp2", 8, {"Gpt2Bf16", "LlamaBf16"}},
      {"dp2_zero2_tp2_pp2_vpp2_sp", 8, {"Gpt2Bf16", "LlamaFp32", "TiedLlamaFp32"}},
      {"dp4_zero2_tp2_pp2", 8, {"Gpt2Fp32", "LlamaBf16"}}};
  return cases;
}

struct KindOnTopology {
  Kind kind;
  std::string topology;
  int64_t micro_batches;
  bool repeats = true;  // in FAST numerics, for the bits
};

inline std::ostream& operator<<(std::ostream& out, const KindOnTopology& one) {
  return out << one.kind.name << " on " << one.topology;
}

// Returns the pairs of TopologyCases(); every kind with every topology if TESSERA_EVERY_PAIR is in
// the environment. Then all of them repeat; else half, one with each topology at least.
inline std::vector<KindOnTopology> Pairs() {
  const bool every_pair = std::getenv("TESSERA_EVERY_PAIR") != nullptr;
  std::vector<KindOnTopology> pairs;
  for (const TopologyCase& one : TopologyCases()) {
    for (const Kind& kind : Kinds()) {
      if (!every_pair && std::ranges::find(one.kinds, kind.name) == one.kinds.end()) continue;
      const size_t number = pairs.size();
      pairs.push_back({kind, one.topology, one.micro_batches,
                       every_pair || number % 4 == 0 || number % 4 == 3});
    }
  }
  return pairs;
}

inline std::string NameOfPair(const ::testing::TestParamInfo<KindOnTopology>& info) {
  return absl::StrCat(info.param.kind.name, "_", info.param.topology);
}

// Trains with micro-batches of two sequences.
inline testing::TrainedRun TrainPair(const KindOnTopology& pair, bool exact) {
  const std::string tokens = ::testing::TempDir() + "/tokens.bin";
  EXPECT_OK(testing::WriteTokens(tokens, testing::kVocabulary, 6000));
  return OrFail(testing::TrainOnThreads(
      OrFail(testing::MakeConfig({.model = pair.kind.model,
                                  .tokens = tokens,
                                  .topology = pair.topology,
                                  .exact_shards = exact ? kExactShards : 0,
                                  .bf16 = pair.kind.bf16,
                                  .global_batch_size = 2 * pair.micro_batches,
                                  .steps = kSteps,
                                  .decay_steps = kSteps}))));
}

// Returns the run on one process with which a pair is compared; trained once.
inline const testing::TrainedRun& OnOneProcess(const KindOnTopology& pair, bool exact) {
  static auto& runs = *new std::map<std::tuple<std::string, int64_t, bool>, testing::TrainedRun>;
  const auto [run, is_new] = runs.try_emplace({pair.kind.name, pair.micro_batches, exact});
  if (is_new) run->second = TrainPair({pair.kind, "single", pair.micro_batches}, exact);
  return run->second;
}

}  // namespace tessera

#endif  // TESSERA_TESTS_EXACT_KINDS_AND_TOPOLOGIES_H_
