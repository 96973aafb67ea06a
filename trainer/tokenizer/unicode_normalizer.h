#ifndef TESSERA_TRAINER_TOKENIZER_UNICODE_NORMALIZER_H_
#define TESSERA_TRAINER_TOKENIZER_UNICODE_NORMALIZER_H_

#include <string>
#include <string_view>
#include <vector>

namespace tessera {

enum class NormalizationForm { kNfc, kNfd, kNfkc, kNfkd };

// Brings UTF-8 text into normalization forms of Unicode (UAX #15), one after the other, as Hugging
// Face's tokenizers do, whose tables are those of Unicode 9: newer characters stay as they are. So
// does what is no UTF-8. Thread-safe.
class UnicodeNormalizer {
 public:
  void Add(NormalizationForm form) { forms_.push_back(form); }
  // False where no text is changed.
  bool active() const { return !forms_.empty(); }

  std::string Normalize(std::string_view text) const;

 private:
  std::vector<NormalizationForm> forms_;
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_TOKENIZER_UNICODE_NORMALIZER_H_
