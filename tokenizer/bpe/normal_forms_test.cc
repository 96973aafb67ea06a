#include "tokenizer/bpe/normal_forms.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <unordered_set>

namespace tessera {
namespace {

using Json = nlohmann::json;

constexpr NormalizationForm kForms[] = {NormalizationForm::kNfc, NormalizationForm::kNfd,
                                        NormalizationForm::kNfkc, NormalizationForm::kNfkd};

// make_normal_forms.py: texts, each with its normal forms.
Json Expected() {
  std::ifstream file("tokenizer/bpe/normal_forms.json");
  EXPECT_TRUE(file.is_open());
  return Json::parse(file);
}

TEST(NormalizeTest, FormsAreThoseOfPython) {
  const Json expected = Expected();
  ASSERT_GT(expected.size(), 30000u);
  for (const Json& text : expected) {
    for (size_t i = 0; i < std::size(kForms); ++i) {
      ASSERT_EQ(Normalize(kForms[i], text[0].get<std::string>()), text[i + 1])
          << text[0].dump(-1, ' ', true) << " " << i;
    }
  }
}

TEST(NormalizeTest, NoOtherCharacterIsChanged) {
  std::unordered_set<std::u32string> changed;
  for (const Json& text : Expected()) {
    changed.insert(std::filesystem::path(text[0].get<std::string>()).u32string());
  }
  std::u32string kept;
  for (char32_t c = 0; c < 0x110000; ++c) {
    const bool surrogate = c >= 0xD800 && c < 0xE000, syllable = c >= 0xAC00 && c < 0xD7A4;
    if (surrogate || syllable || changed.contains({c})) continue;
    kept += {c, U' '};
  }
  EXPECT_GT(kept.size(), 2000000u);
  const std::string text = std::filesystem::path(kept).string();
  for (const NormalizationForm form : kForms) EXPECT_TRUE(Normalize(form, text) == text);
}

TEST(NormalizeTest, BytesThatAreNotUtf8StayAndDivideTheText) {
  EXPECT_EQ(Normalize(NormalizationForm::kNfc, "e\xFF\xCC\x81"), "e\xFF\xCC\x81");
  EXPECT_EQ(Normalize(NormalizationForm::kNfc, "e\xCC\x81\xCC"), "\xC3\xA9\xCC");
  EXPECT_EQ(Normalize(NormalizationForm::kNfc, ""), "");
}

}  // namespace
}  // namespace tessera
