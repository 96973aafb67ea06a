#ifndef TESSERA_CHECKPOINT_INCLUDE_TENSOR_ROLE_H_
#define TESSERA_CHECKPOINT_INCLUDE_TENSOR_ROLE_H_

namespace tessera::ckpt {

// The role of a tensor in training. The numbers are the same as in the manifest's RoleProto: never
// renumber.
enum class TensorRole {
  kUnspecified = 0,
  kWeight = 1,
  kMasterWeight = 2,
  kOptimizerState = 3,
  kBuffer = 4,
};

// Returns whether a tensor is state of the optimizer, which a program with a fresh optimizer does
// not load.
inline bool BelongsToOptimizer(TensorRole role) {
  return role == TensorRole::kMasterWeight || role == TensorRole::kOptimizerState;
}

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_INCLUDE_TENSOR_ROLE_H_
