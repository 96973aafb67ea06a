#ifndef TESSERA_TOKENIZER_UNICODE_NORMALIZER_H_
#define TESSERA_TOKENIZER_UNICODE_NORMALIZER_H_

#include <string>
#include <string_view>

namespace tessera {

enum class NormalizationForm { kNfc, kNfd, kNfkc, kNfkd };

// Brings UTF-8 text into a normalization form of Unicode (UAX #15), as Hugging Face's tokenizers
// do, whose tables are those of Unicode 9: newer characters stay as they are. So does what is no
// UTF-8.
std::string Normalize(NormalizationForm form, std::string_view text);

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_UNICODE_NORMALIZER_H_
