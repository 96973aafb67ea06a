#ifndef TESSERA_CHECKPOINT_FORMAT_PARSE_COST_H_
#define TESSERA_CHECKPOINT_FORMAT_PARSE_COST_H_

#include <google/protobuf/descriptor.h>

#include <cstdint>
#include <optional>
#include <string_view>

namespace tessera::ckpt {

// An upper bound of the memory that a message of this type takes once it is parsed from `payload`,
// in bytes; nullopt for what is no message at all. The elements are counted on the wire and nothing is allocated for them: two bytes of a
// hostile file can stand for an empty message that takes a hundred. Counting ends above `limit`.
// Cost: about that of a checksum.
std::optional<uint64_t> ParseCost(const google::protobuf::Descriptor& type,
                                  std::string_view payload, uint64_t limit);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_FORMAT_PARSE_COST_H_
