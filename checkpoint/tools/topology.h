#ifndef TESSERA_CHECKPOINT_TOOLS_TOPOLOGY_H_
#define TESSERA_CHECKPOINT_TOOLS_TOPOLOGY_H_

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "checkpoint/format/manifest.pb.h"

namespace tessera::ckpt {

// The sizes of the parallel axes. Ranks are numbered with the tensor axis fastest, then data, then
// pipeline.
struct ParallelSizes {
  int tensor = 1;
  int data = 1;
  int pipeline = 1;
  int virtual_pipeline = 1;  // chunks of layers of one pipeline rank
  int zero_stage = 0;

  bool operator==(const ParallelSizes&) const = default;
  int world_size() const { return tensor * data * pipeline; }
  int stages() const { return pipeline * virtual_pipeline; }
};

// "dp4_zero2_tp2_pp2_vpp2", parts in any order, what is left out is 1 or off; "single" for one
// rank. "sp", sequence parallelism, is allowed and means nothing here: it does not change who holds
// what. InvalidArgument: one sentence.
absl::StatusOr<ParallelSizes> ParseTopology(std::string_view text);

// As the manifest records it.
Topology ToManifest(const ParallelSizes& sizes);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_TOOLS_TOPOLOGY_H_
