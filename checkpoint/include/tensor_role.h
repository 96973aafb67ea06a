#ifndef TESSERA_CHECKPOINT_INCLUDE_TENSOR_ROLE_H_
#define TESSERA_CHECKPOINT_INCLUDE_TENSOR_ROLE_H_

namespace tessera::ckpt {

// What a tensor is to training. The numbers are the same as in the manifest's RoleProto: never
// renumber.
enum class TensorRole {
  kUnspecified = 0,
  kWeight = 1,
  kMasterWeight = 2,
  kOptimizerState = 3,
  kBuffer = 4,
};

// Whether a tensor is state of the optimizer: what a program that starts a fresh one leaves out.
inline bool BelongsToOptimizer(TensorRole role) {
  return role == TensorRole::kMasterWeight || role == TensorRole::kOptimizerState;
}

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_INCLUDE_TENSOR_ROLE_H_
