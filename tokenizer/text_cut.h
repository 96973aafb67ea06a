#ifndef TESSERA_TOKENIZER_TEXT_CUT_H_
#define TESSERA_TOKENIZER_TEXT_CUT_H_

#include <cstddef>
#include <string_view>

namespace tessera {

// The length of the longest prefix of a text that ends after a line or, where no line ends, between
// two characters. Positive unless the text is empty.
size_t LastCut(std::string_view text);

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_TEXT_CUT_H_
