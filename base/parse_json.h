#ifndef TESSERA_BASE_PARSE_JSON_H_
#define TESSERA_BASE_PARSE_JSON_H_

#include <string_view>

#include "nlohmann/json.hpp"

namespace tessera {

// What programs write nests a few levels; each level costs forty times the byte that opens it.
inline constexpr int kMaxJsonDepth = 64;

// The value in a file that anybody may have written; discarded where the text is not JSON, or nests
// objects and arrays deeper than kMaxJsonDepth.
nlohmann::json ParseJson(std::string_view text);

}  // namespace tessera

#endif  // TESSERA_BASE_PARSE_JSON_H_
