#ifndef TESSERA_BASE_PARSE_JSON_H_
#define TESSERA_BASE_PARSE_JSON_H_

#include <string_view>

#include "nlohmann/json.hpp"

namespace tessera {

// Limit of nested objects and arrays. A level costs forty times the byte that opens it; texts that
// programs write nest a few levels.
inline constexpr int kMaxJsonDepth = 64;

// Returns the value in a text that anybody may have written; a discarded value if the text is not
// JSON or nests deeper than kMaxJsonDepth.
nlohmann::json ParseJson(std::string_view text);

}  // namespace tessera

#endif  // TESSERA_BASE_PARSE_JSON_H_
