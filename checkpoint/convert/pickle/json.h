#ifndef TESSERA_CHECKPOINT_CONVERT_PICKLE_JSON_H_
#define TESSERA_CHECKPOINT_CONVERT_PICKLE_JSON_H_

#include "checkpoint/convert/pickle/value.h"
#include "nlohmann/json.hpp"

namespace tessera::ckpt::pickle {

// A truth value, number or UTF-8 text. Null for what has no form in JSON, and for what contains
// values.
nlohmann::json ScalarToJson(const Value& value);

}  // namespace tessera::ckpt::pickle

#endif  // TESSERA_CHECKPOINT_CONVERT_PICKLE_JSON_H_
