#ifndef TESSERA_BASE_PARSE_COST_H_
#define TESSERA_BASE_PARSE_COST_H_

#include <google/protobuf/descriptor.h>

#include <cstdint>
#include <optional>
#include <string_view>

namespace tessera {

// Returns an upper bound of the memory, in bytes, that a message of this type takes once it is
// parsed from `payload`; nullopt if `payload` is not a message. Counts the elements on the wire
// without allocating: two bytes of a hostile file can encode an empty message that takes a hundred.
// Counting stops above `limit`. Cost: about that of a checksum.
std::optional<uint64_t> ParseCost(const google::protobuf::Descriptor& type,
                                  std::string_view payload, uint64_t limit);

}  // namespace tessera

#endif  // TESSERA_BASE_PARSE_COST_H_
