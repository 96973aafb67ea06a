#ifndef TESSERA_COMPUTE_PARALLEL_GRADIENT_NORM_H_
#define TESSERA_COMPUTE_PARALLEL_GRADIENT_NORM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/communicator.h"
#include "compute/kernels/backend.h"
#include "compute/parallel/gradient_buckets.h"
#include "compute/parallel/gradient_reducer.h"
#include "compute/parallel/replicas.h"
#include "tensor/tensor.h"

namespace tessera {

// The part of a parameter's gradient that a rank owns.
struct GradientPart {
  std::string key;
  int64_t elements = 0;  // of the whole parameter
  int64_t begin = 0;     // first owned element in the parameter: a multiple of kGradientBlock
  TensorView grad;       // contiguous; empty where nothing is owned
};

// Appends the parts of all parameters of one pipeline chunk.
void AppendGradientParts(const GradientLayout& layout, std::span<const OwnedGradient> owned,
                         std::vector<GradientPart>* parts);

// The global norm of the gradients. Squares are summed in fp64 over blocks of kGradientBlock
// elements. These sums are added in the tree over the blocks of their parameter (tree_sum.h), and
// parameters in the order of their keys, each key once. So the bits depend neither on how
// parameters are distributed over ranks nor on the boundaries of a ZeRO owner's range. Every rank
// gets the same bits. A gradient that is not finite makes the norm not finite on every rank.
//
// Where several ranks hold the same gradient, sums of squares that differ in any bit are a
// divergence (replicas.h).
class GradientNorm {
 public:
  // Communicators of the mesh's axes; null where the axis has one rank.
  struct Groups {
    Communicator* data = nullptr;      // ranks with the same parameters
    Communicator* tensor = nullptr;    // ranks with other shards
    Communicator* pipeline = nullptr;  // ranks with other layers
  };

  // Exchanges keys and sizes. `parts` are all parameters of this rank, of all chunks, including
  // parameters whose gradients other ranks own. Internal for inconsistent parts: a key with two
  // sizes, a gap between owners. Collective over the groups, as is Compute(). The backend must
  // outlive the norm.
  static absl::StatusOr<std::unique_ptr<GradientNorm>> Create(Backend& backend,
                                                              std::vector<GradientPart> parts,
                                                              const Groups& groups);

  // Synchronizes the backend, then returns the norm of the current contents of the parts' views.
  // Sends at most 16 log2(blocks) bytes per parameter to each data rank (8 in total where every one
  // owns everything), and 8 per parameter to each tensor and pipeline rank. Errors: also those of
  // `on_divergence`; if it returns OK, one of the copies is used.
  absl::StatusOr<double> Compute(const OnDivergence& on_divergence);

 private:
  // The blocks of a parameter that a rank owns.
  struct Run {
    std::string key;
    int64_t elements = 0;
    int64_t begin_block = 0;
    int64_t end_block = 0;
  };
  using Runs = std::vector<Run>;  // by key
  // A plan that combines values that the ranks of a group have by key, some keys on several ranks,
  // into one value per key.
  struct Exchange {
    Communicator* group = nullptr;  // null: nothing to do
    std::vector<std::string> keys;
    std::vector<int64_t> counts;              // of values by rank
    std::vector<std::vector<size_t>> copies;  // by key: places among the values of all ranks
  };

  GradientNorm(Backend& backend, std::vector<GradientPart> parts)
      : backend_(backend), parts_(std::move(parts)) {}

  absl::StatusOr<Runs> MakeRuns();
  static absl::StatusOr<std::vector<Runs>> ExchangeRuns(const Runs& mine, Communicator* group);
  absl::Status PlanOwners(const std::vector<Runs>& ranks, Communicator* group);
  // Lists the subtrees of the canonical tree that this rank's parts of gradients are, as slices.
  void PlanTrees();
  // Plans an exchange, and replaces this rank's runs by those of the whole group.
  static absl::StatusOr<Exchange> PlanExchange(Communicator* group, Runs* runs);
  // Returns the sums of squares, by part.
  absl::StatusOr<std::vector<double>> ParameterSums();
  // Compares the sums of data ranks that own all gradients. Returns the same sums on all ranks,
  // even if theirs differ.
  absl::StatusOr<std::vector<double>> CompareOwners(std::vector<double> sums,
                                                    const OnDivergence& on_divergence);
  static absl::StatusOr<std::vector<double>> MakeExchange(const Exchange& exchange,
                                                          std::vector<double> mine,
                                                          const OnDivergence& on_divergence);

  Backend& backend_;
  std::vector<GradientPart> parts_;         // by key
  std::vector<TensorView> trees_;           // whose sums of squares this rank contributes
  Communicator* data_ = nullptr;            // null: every rank owns everything
  Exchange replicas_;                       // the data ranks, where that is so
  std::vector<int64_t> data_counts_;        // subtree sums by data rank
  std::vector<std::vector<int64_t>> ends_;  // by part, by data rank: end of its run of blocks
  Exchange tensor_;
  Exchange pipeline_;
};

}  // namespace tessera

#endif  // TESSERA_COMPUTE_PARALLEL_GRADIENT_NORM_H_
