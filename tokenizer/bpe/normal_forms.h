#ifndef TESSERA_TOKENIZER_BPE_NORMAL_FORMS_H_
#define TESSERA_TOKENIZER_BPE_NORMAL_FORMS_H_

#include <string>
#include <string_view>

namespace tessera {

enum class NormalizationForm { kNfc, kNfd, kNfkc, kNfkd };

// Brings UTF-8 text into a normalization form of Unicode (UAX #15), as Hugging Face's tokenizers
// do. Their tables come from Unicode 9: newer characters stay as they are, and so do bytes that are
// not UTF-8.
std::string Normalize(NormalizationForm form, std::string_view text);

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_BPE_NORMAL_FORMS_H_
