#ifndef TESSERA_CONVERT_PICKLE_JSON_H_
#define TESSERA_CONVERT_PICKLE_JSON_H_

#include <cstddef>

#include "convert/pickle/value.h"
#include "nlohmann/json.hpp"

namespace tessera::ckpt::pickle {

// Settings of models are short; a pickle may refer to a long text any number of times.
inline constexpr size_t kMaxJsonTextBytes = 200;

// A truth value, number or UTF-8 text. Null for what has no form in JSON, for longer texts, and for
// what contains values.
nlohmann::json ScalarToJson(const Value& value);

}  // namespace tessera::ckpt::pickle

#endif  // TESSERA_CONVERT_PICKLE_JSON_H_
