#ifndef TESSERA_TOKENIZER_TEXT_NORMALIZER_H_
#define TESSERA_TOKENIZER_TEXT_NORMALIZER_H_

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/unicode_normalizer.h"

namespace tessera {

// Changes a text before it is cut into pieces, in steps, as the normalizers of Hugging Face's
// tokenizers do. Thread-safe once its steps are added.
class TextNormalizer {
 public:
  void AddForm(NormalizationForm form);
  // Every space becomes U+2581.
  void AddSpaceMarks();
  // U+2581 comes before every text that is not empty.
  void AddPrefix();

  // False where no text is changed.
  bool active() const { return !steps_.empty(); }
  std::string Normalize(std::string_view text) const;

 private:
  std::vector<std::function<std::string(std::string_view)>> steps_;
};

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_TEXT_NORMALIZER_H_
