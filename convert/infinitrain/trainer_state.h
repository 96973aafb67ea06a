#ifndef TESSERA_CONVERT_INFINITRAIN_TRAINER_STATE_H_
#define TESSERA_CONVERT_INFINITRAIN_TRAINER_STATE_H_

#include <cstdint>
#include <optional>
#include <string_view>

namespace tessera::ckpt::convert {

// An integer in the text of InfiniTrain's `trainer_state.json`: one "KEY": NUMBER on a line, of
// which some releases leave out a comma, so that it is no JSON. Nullopt where the key is not there,
// is there more than once, or has another value. Pure.
std::optional<int64_t> FindInfiniTrainNumber(std::string_view text, std::string_view key);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_INFINITRAIN_TRAINER_STATE_H_
