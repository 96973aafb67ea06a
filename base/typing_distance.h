#ifndef TESSERA_BASE_TYPING_DISTANCE_H_
#define TESSERA_BASE_TYPING_DISTANCE_H_

#include <string_view>

namespace tessera {

// Edit distance in which a swap of neighbours counts once, as a typing error does. Time and memory:
// the product of the sizes.
int TypingDistance(std::string_view a, std::string_view b);

}  // namespace tessera

#endif  // TESSERA_BASE_TYPING_DISTANCE_H_
