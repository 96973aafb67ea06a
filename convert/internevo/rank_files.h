#ifndef TESSERA_CONVERT_INTERNEVO_RANK_FILES_H_
#define TESSERA_CONVERT_INTERNEVO_RANK_FILES_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::ckpt::convert {

// A file of one rank, such as "optimizer_tp0_pp1_zo0.pt".
struct InternEvoRankFile {
  std::string name;
  int64_t part = 0;  // tensor-parallel rank, or weight-parallel rank
  int64_t pipeline = 0;
  int64_t zero = 0;
};

struct InternEvoRankFiles {
  bool weight_parallel = false;  // "wp" in place of "tp"
  int64_t parts = 1, stages = 1, zero_ranks = 1;
  // All ranks of the grid, by stage, part and ZeRO rank.
  std::vector<InternEvoRankFile> models;
  std::vector<InternEvoRankFile> optimizers;  // empty: none was saved
  // "gpus-8_wp-0_tp-1_dp-0_pp-0_zo-1.pt": how parameters were dealt out to ZeRO ranks.
  std::vector<InternEvoRankFile> plans;
};

// Whether the name is that of a model's file, of any of InternEvo's parallel modes.
bool IsInternEvoModelName(const std::string& name);

// The ranks' files among the names in a folder. Errors, naming files: DataLoss for ranks that are
// missing; Unimplemented for files of experts, of FSDP, and of ranks that are both tensor-parallel
// and weight-parallel.
absl::StatusOr<InternEvoRankFiles> FindInternEvoRankFiles(std::span<const std::string> names);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_INTERNEVO_RANK_FILES_H_
