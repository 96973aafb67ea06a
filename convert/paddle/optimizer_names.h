#ifndef TESSERA_CONVERT_PADDLE_OPTIMIZER_NAMES_H_
#define TESSERA_CONVERT_PADDLE_OPTIMIZER_NAMES_H_

#include <optional>
#include <string>
#include <string_view>

namespace tessera::ckpt::convert {

// Adam's states of a tensor.
enum class PaddleState { kMoment1, kMoment2, kBeta1Power, kBeta2Power, kMasterWeight };

// "moment1", ..., "master_weights", for messages.
std::string_view PaddleStateName(PaddleState state);

// What a key of an optimizer's state dict says: "slice@linear_0.w_0_fp32_master_0_moment1_0".
struct PaddleStateKey {
  std::string tensor_name;  // "linear_0.w_0"
  PaddleState state;
  bool sliced = false;  // by stage 3
};

// nullopt for a key that is not of this form. It is taken apart from its end, so that no name
// ("linear_1.w_0") is mistaken for the beginning of another ("linear_10.w_0").
std::optional<PaddleStateKey> ParsePaddleStateKey(std::string_view key);

// The same of a key of master_weights, which is the tensor's name.
PaddleStateKey ParsePaddleMasterKey(std::string_view key);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_PADDLE_OPTIMIZER_NAMES_H_
