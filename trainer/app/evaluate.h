#ifndef TESSERA_TRAINER_APP_EVALUATE_H_
#define TESSERA_TRAINER_APP_EVALUATE_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "models/model.h"
#include "trainer/data/batch_loader.h"
#include "trainer/metrics/metrics.h"
#include "trainer/tensor/tensor.h"

namespace tessera {

// Mean loss over the first samples of a data set: the same ones every time, in the same order,
// without dropout.
class Evaluator {
 public:
  // Evaluates `samples` sequences (fewer where there are not as many; whole micro-batches) in
  // passes of [batch, sequence]. All must outlive the evaluator. Buffers are allocated by the first
  // Run() and kept.
  Evaluator(Model& model, const BatchLoader& loader, int64_t samples, int64_t batch,
            int64_t sequence);

  // Fills loss, tokens and seconds. Errors: those of the data.
  absl::StatusOr<EvalMetrics> Run();

 private:
  Model& model_;
  const BatchLoader& loader_;
  const int64_t samples_;
  const int64_t batch_;
  const int64_t sequence_;
  Tensor ids_;
  Tensor targets_;
  std::unique_ptr<Activations> activations_;
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_EVALUATE_H_
