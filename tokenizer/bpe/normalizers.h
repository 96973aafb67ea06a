#ifndef TESSERA_TOKENIZER_BPE_NORMALIZERS_H_
#define TESSERA_TOKENIZER_BPE_NORMALIZERS_H_

// The changes that Hugging Face's tokenizers make to a text before it is cut into pieces.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/bpe/normal_forms.h"

namespace tessera {

// Changes a text before it is cut into pieces, in steps, as the normalizers of Hugging Face's
// tokenizers do. Thread-safe once its steps are added.
class TextNormalizer {
 public:
  void AddForm(NormalizationForm form);
  // Adds the step that replaces every space by U+2581.
  void AddSpaceMarks();
  // Adds the step that puts U+2581 before every text that is not empty.
  void AddPrefix();

  // Returns false if no text is changed.
  bool active() const { return !steps_.empty(); }
  std::string Normalize(std::string_view text) const;

 private:
  std::vector<std::function<std::string(std::string_view)>> steps_;
};

// Hugging Face's pre-tokenizer of this name: in the text between added tokens, spaces become
// U+2581, and one is put before.
struct Metaspace {
  enum class Prefix { kNever, kFirst, kAlways };

  Prefix prefix = Prefix::kAlways;  // kFirst: only at the beginning of the text
  // Whether U+2581 begins a piece.
  bool split = true;

  // Marks the spaces of a part of a text. A part that begins with a space gets no other one before
  // it.
  std::string Apply(std::string_view part, bool first) const;
};

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_BPE_NORMALIZERS_H_
