#include "tokenizer/files/load_tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file_descriptor.h"
#include "base/testing.h"
#include "compute/random/philox.h"
#include "tokenizer/byte_tokenizer.h"
#include "tokenizer/files/hugging_face_files.h"
#include "tokenizer/llmc_tokenizer.h"
#include "tokenizer/sentencepiece/sentencepiece_reference.h"
#include "tokenizer/sentencepiece/sentencepiece_tokenizer.h"
#include "tokenizer/sentencepiece/sentencepiece_training.h"
#include "trainer/data/corpus.h"
#include "trainer/data/test_files.h"

namespace tessera {
namespace {

std::string EveryByteTwice() {
  std::string text;
  for (int i = 0; i < 512; ++i) text.push_back(static_cast<char>(i * 37));
  return text;
}

std::string RandomBytes(uint64_t stream, size_t size) {
  std::string text(size, '\0');
  for (size_t i = 0; i < size; ++i) {
    text[i] = static_cast<char>(RandomWord({1, RandomUse::kSampling, stream}, i));
  }
  return text;
}

void ExpectRoundTrip(const Tokenizer& tokenizer, const std::string& text) {
  ASSERT_OK_AND_ASSIGN(const auto ids, tokenizer.Encode(text));
  for (const int32_t id : ids) ASSERT_NE(id, tokenizer.end_of_text());
  ASSERT_OK_AND_ASSIGN(const auto decoded, tokenizer.Decode(ids));
  ASSERT_EQ(decoded, text);
}

// A part of the default corpus, a little more than `bytes`.
std::string RealText(size_t bytes = 100000) {
  std::string text;
  const std::vector<std::string> paths = *Glob(*DefaultCorpusPattern());
  for (const std::string& path : paths) {
    text += *ReadFile(path, 16 << 20);
    if (text.size() > bytes) break;
  }
  return text;
}

// One model for all tests: training takes most of a second.
const std::string& Model() {
  static const std::string* model = [] {
    std::vector<std::string> lines;
    const std::string text = RealText(600000);
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      if (end > begin) lines.push_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
    auto* trained = new std::string;
    std::string error;
    EXPECT_TRUE(TrainSentencePieceModel(lines, 1500, trained, &error)) << error;
    std::string again;
    EXPECT_TRUE(TrainSentencePieceModel(lines, 1500, &again, &error)) << error;
    EXPECT_EQ(again, *trained) << "training is not deterministic";
    return trained;
  }();
  return *model;
}

const std::vector<std::string>& HardTexts() {
  static const auto* texts = new std::vector<std::string>{
      "",
      " ",
      "   leading, trailing   ",
      "\n\n\n",
      "a\n b\n  c\r\n\td\t\te",
      "several   spaces    between     words",
      "caf\xC3\xA9 na\xC3\xAFve \xE2\x82\xAC 100 \xF0\x9F\x98\x80\xF0\x9F\x98\x80",
      "\xE4\xB8\xAD\xE6\x96\x87 \xE4\xB8\xAD",
      "<|endoftext|> <unk> <0x41> </s>",
      std::string("zero\0byte", 9),
      std::string(5000, ' '),
      std::string(5000, 'x'),
  };
  return *texts;
}

TEST(ByteTokenizerTest, LosslessForAnyBytes) {
  const ByteTokenizer tokenizer;
  EXPECT_EQ(tokenizer.vocab_size(), 257);
  ExpectRoundTrip(tokenizer, EveryByteTwice());
  for (const std::string& text : HardTexts()) ExpectRoundTrip(tokenizer, text);
  EXPECT_EQ(*tokenizer.Decode(std::vector<int32_t>{72, 105, 256}), "Hi<|endoftext|>");
  EXPECT_TRUE(absl::IsInvalidArgument(tokenizer.Decode(std::vector<int32_t>{1, 257}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(tokenizer.Decode(std::vector<int32_t>{-1}).status()));
}

TEST(ByteTokenizerTest, SpecialTokens) {
  const ByteTokenizer tokenizer;
  const std::vector<int32_t> ids = {'a', 256, '<', '|', 256};
  EXPECT_EQ(*tokenizer.EncodeWithSpecialTokens("a<|endoftext|><|<|endoftext|>"), ids);
}

TEST(ByteTokenizerTest, SavedFileLoadsAsWhatItIs) {
  const TestFolder folder;
  folder.Write("t", ByteTokenizer().Files().at(0).contents);
  ASSERT_OK_AND_ASSIGN(const auto loaded, LoadTokenizer(folder.File("t")));
  EXPECT_EQ(loaded->kind(), "byte");
  ExpectRoundTrip(*loaded, EveryByteTwice());
}

TEST(LlmcTokenizerTest, BothVersionsDecode) {
  const TestFolder folder;
  const std::string body = "\x02Hi\x06 there\x0d<|endoftext|>";
  folder.Write("v1", Int32Header({20240328, 1, 3}) + body);
  folder.Write("v2", Int32Header({20240328, 2, 3, 2}) + body);
  for (const char* name : {"v1", "v2"}) {
    ASSERT_OK_AND_ASSIGN(const auto tokenizer, LoadTokenizer(folder.File(name)));
    EXPECT_EQ(tokenizer->kind(), "llm.c");
    EXPECT_EQ(tokenizer->vocab_size(), 3);
    EXPECT_EQ(tokenizer->end_of_text(), 2);
    EXPECT_EQ(*tokenizer->Decode(std::vector<int32_t>{0, 1, 2}), "Hi there<|endoftext|>");
    EXPECT_EQ(tokenizer->Encode("Hi").status().code(), absl::StatusCode::kUnimplemented);
    EXPECT_EQ(tokenizer->Files().at(0).contents, Slurp(folder.File("v2")));
  }
}

TEST(LlmcTokenizerTest, EveryFieldIsChecked) {
  const std::string body = "\x02Hi\x01!";
  const auto expect = [&](const std::vector<int32_t>& header, const std::string& tail,
                          const char* part) {
    const auto parsed = LlmcTokenizer::Parse("FILE", Int32Header(header) + tail);
    EXPECT_TRUE(absl::IsDataLoss(parsed.status())) << part;
    EXPECT_NE(MessageOf(parsed.status()).find(part), std::string::npos) << parsed.status();
  };
  ASSERT_OK(LlmcTokenizer::Parse("FILE", Int32Header({20240328, 2, 2, 1}) + body));
  expect({20240329, 2, 2, 1}, body, "FILE at offset 0");
  expect({20240328, 3, 2, 1}, body, "FILE at offset 4");
  expect({20240328, 0, 2, 1}, body, "FILE at offset 4");
  for (const int32_t count : {0, -1, 6, INT32_MAX})
    expect({20240328, 2, count, 1}, body, "FILE at offset 8");
  for (const int32_t id : {-1, 2, INT32_MAX})
    expect({20240328, 2, 2, id}, body, "FILE at offset 12");
  expect({20240328, 2, 3, 1}, body, "FILE at offset 1029");
  expect({20240328, 2, 2, 1}, body + "x", "FILE at offset 1029");
  expect({20240328, 2, 2, 1}, "\x02Hi\xFF!", "FILE at offset 1027");
  const std::string whole = Int32Header({20240328, 2, 2, 1}) + body;
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_TRUE(absl::IsDataLoss(LlmcTokenizer::Parse("FILE", whole.substr(0, size)).status()))
        << size;
  }
}

TEST(SentencePieceTokenizerTest, LosslessForAnyBytes) {
  ASSERT_OK_AND_ASSIGN(const auto tokenizer, SentencePieceTokenizer::Parse("model", Model()));
  EXPECT_EQ(tokenizer->vocab_size(), 1500);
  EXPECT_EQ(tokenizer->end_of_text(), 1);
  ExpectRoundTrip(*tokenizer, RealText());
  for (const std::string& text : HardTexts()) ExpectRoundTrip(*tokenizer, text);
  ExpectRoundTrip(*tokenizer, EveryByteTwice());
  ExpectRoundTrip(*tokenizer, "a \xE2\x96\x81 mark that pieces use for spaces\xE2\x96\x81");
  for (uint64_t stream = 0; stream < 200; ++stream) {
    ExpectRoundTrip(*tokenizer, RandomBytes(stream, stream));
  }
}

TEST(SentencePieceTokenizerTest, EncodesAsTheLibraryDoes) {
  ASSERT_OK_AND_ASSIGN(const auto tokenizer, SentencePieceTokenizer::Parse("model", Model()));
  const auto compare = [&](const std::string& text) {
    const std::vector<int32_t> ids = *tokenizer->Encode(text);
    const std::vector<int> reference = ReferenceEncode(Model(), text);
    ASSERT_EQ(ids.size(), reference.size());
    for (size_t i = 0; i < ids.size(); ++i) ASSERT_EQ(ids[i], reference[i]) << "token " << i;
  };
  compare(RealText());
  for (const std::string& text : HardTexts()) compare(text);
  // Random words, so that merges meet in unusual ways.
  const std::string letters = "etaoinshr    \nABC.,=$";
  for (uint64_t stream = 0; stream < 100; ++stream) {
    std::string text = RandomBytes(stream, 300);
    for (char& c : text) c = letters[static_cast<uint8_t>(c) % letters.size()];
    compare(text);
  }
}

// As in Llama-2's and Mistral's models: a space before every text, tokens before and after it.
TEST(SentencePieceTokenizerTest, ADummyPrefixAsTheLibraryAddsIt) {
  // Appended fields override earlier ones: add_dummy_prefix of the normalizer_spec.
  const std::string model = Model() + "\x1A\x02\x18\x01";
  ASSERT_OK_AND_ASSIGN(const auto tokenizer, SentencePieceTokenizer::Parse("model", model));
  std::vector<std::string> texts = HardTexts();
  texts.push_back(RealText());
  for (const std::string& text : texts) {
    const std::vector<int32_t> ids = *tokenizer->Encode(text);
    const std::vector<int> reference = ReferenceEncode(model, text);
    EXPECT_TRUE(std::equal(ids.begin(), ids.end(), reference.begin(), reference.end()))
        << text.substr(0, 40);
    EXPECT_EQ(*tokenizer->Decode(ids), text);
  }
  EXPECT_EQ(tokenizer->EncodablePrefix("two\nlines"), 0u);
  EXPECT_FALSE(tokenizer->begin_of_text().has_value());
}

// A piece of ModelProto: its text, and its type's number.
std::string PieceField(const std::string& text, char type) {
  const std::string piece =
      std::string("\x0A") + static_cast<char>(text.size()) + text + "\x18" + type;
  return std::string("\x0A") + static_cast<char>(piece.size()) + piece;
}

TEST(SentencePieceTokenizerTest, APrefixEncodesOnItsOwn) {
  const std::string text = RealText().substr(0, 3000) + " \n\n \xE2\x96\x81 \xFF  x\n";
  // The others have pieces with the end of a line, and with a space after another character.
  for (const std::string& suffix :
       {std::string(), PieceField("\n\n", '\1'), PieceField("e\xE2\x96\x81", '\1')}) {
    ASSERT_OK_AND_ASSIGN(const auto tokenizer,
                         SentencePieceTokenizer::Parse("model", Model() + suffix));
    const std::vector<int32_t> whole = *tokenizer->Encode(text);
    int cuts = 0;
    size_t last = 0;
    for (size_t size = 0; size <= text.size(); ++size) {
      const size_t prefix = tokenizer->EncodablePrefix(std::string_view(text).substr(0, size));
      ASSERT_LE(prefix, size);
      if (prefix == std::exchange(last, prefix)) continue;
      std::vector<int32_t> ids = *tokenizer->Encode(text.substr(0, prefix));
      const std::vector<int32_t> rest = *tokenizer->Encode(text.substr(prefix));
      ids.insert(ids.end(), rest.begin(), rest.end());
      ASSERT_EQ(ids, whole) << prefix << " with " << suffix;
      ++cuts;
    }
    EXPECT_GT(cuts, 90);
  }
}

TEST(SentencePieceTokenizerTest, SaveAndLoad) {
  const TestFolder folder;
  folder.Write("m", (*SentencePieceTokenizer::Parse("model", Model()))->Files().at(0).contents);
  ASSERT_OK_AND_ASSIGN(const auto loaded, LoadTokenizer(folder.File("m")));
  EXPECT_EQ(loaded->kind(), "sentencepiece");
  ExpectRoundTrip(*loaded, "the same as before");
  // Its llm.c form decodes to the same text.
  folder.Write("t", *LlmcTokenizerFile(*loaded));
  ASSERT_OK_AND_ASSIGN(const auto table, LoadTokenizer(folder.File("t")));
  std::vector<int32_t> ids = *loaded->Encode(RealText());
  ids.push_back(loaded->end_of_text());
  EXPECT_EQ(*table->Decode(ids), *loaded->Decode(ids));
  EXPECT_EQ(table->end_of_text(), loaded->end_of_text());
}

// What is exported for Hugging Face is read here, too.
TEST(SentencePieceTokenizerTest, WrittenAsTokenizerJsonItHasTheSameIds) {
  for (const std::string suffix : {"", "\x1A\x02\x18\x01"}) {  // the other has a dummy prefix
    const std::string model = Model() + PieceField("<user>", '\3') + suffix;
    ASSERT_OK_AND_ASSIGN(const auto original, SentencePieceTokenizer::Parse("model", model));
    const TestFolder folder;
    ASSERT_OK_AND_ASSIGN(const auto files, HuggingFaceFiles(*original));
    for (const TokenizerFile& file : files) folder.Write(file.name, file.contents);
    ASSERT_OK_AND_ASSIGN(const auto read, LoadTokenizer(folder.path()));
    EXPECT_EQ(read->kind(), "bpe");
    EXPECT_EQ(read->vocab_size(), original->vocab_size());
    EXPECT_EQ(read->end_of_text(), original->end_of_text());
    EXPECT_EQ(read->begin_of_text(), original->begin_of_text());
    std::vector<std::string> texts = HardTexts();
    texts.insert(texts.end(), {RealText(), EveryByteTwice(), RandomBytes(1, 5000)});
    for (const std::string& text : texts) {
      const std::vector<int32_t> ids = *read->Encode(text);
      EXPECT_EQ(ids, *original->Encode(text)) << text.substr(0, 40);
      EXPECT_EQ(*read->Decode(ids), text);
    }
    for (const std::string text : {"", "a<user> <user><user> b <unk>", "<use", "<user>\n x"}) {
      EXPECT_EQ(*read->EncodeWithSpecialTokens(text), *original->EncodeWithSpecialTokens(text));
    }
    // A prompt may have the name that is printed for the end of a text.
    EXPECT_EQ(*original->EncodeWithSpecialTokens("<|endoftext|>"),
              std::vector<int32_t>{original->end_of_text()});
    EXPECT_EQ(original->EncodeWithSpecialTokens("a<user>")->back(), 1500);
  }
}

TEST(SentencePieceTokenizerTest, DamagedModelsGiveErrorsNotCrashes) {
  const TestFolder folder;
  for (const char* text : {"", "not a model", "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF"}) {
    folder.Write("m", text);
    EXPECT_TRUE(absl::IsDataLoss(LoadTokenizer(folder.File("m")).status()));
  }
  // Most truncations cut a field; all leave the byte pieces or the settings incomplete.
  for (size_t size = 0; size < Model().size(); size += 61) {
    const auto parsed = SentencePieceTokenizer::Parse("model", Model().substr(0, size));
    EXPECT_FALSE(parsed.ok()) << size;
  }
  for (size_t at = 0; at < Model().size(); at += 101) {
    std::string damaged = Model();
    damaged[at] ^= 0x55;
    const auto parsed = SentencePieceTokenizer::Parse("model", damaged);
    if (parsed.ok()) EXPECT_OK((*parsed)->Encode("some text"));
  }
}

TEST(SentencePieceTokenizerTest, PiecesThatTheUserDefinedAsInTheLibrary) {
  std::string model = Model();
  for (const char* text : {"<user>", "<us", "s\xE2\x96\x81", "e\xE2\x96\x81t", "\xE2\x98\x83"}) {
    model += PieceField(text, '\4');
  }
  for (const std::string suffix : {"", "\x1A\x02\x18\x01"}) {  // the other has a dummy prefix
    ASSERT_OK_AND_ASSIGN(const auto tokenizer,
                         SentencePieceTokenizer::Parse("model", model + suffix));
    std::vector<std::string> texts = HardTexts();
    texts.insert(texts.end(), {RealText(), "the <user>s <usual  the <us \xE2\x98\x83",
                               "s \xE2\x96\x81s", "e t"});
    for (const std::string& text : texts) {
      const std::vector<int32_t> ids = *tokenizer->Encode(text);
      const std::vector<int> reference = ReferenceEncode(model + suffix, text);
      EXPECT_EQ(reference.empty(), text.empty());
      EXPECT_TRUE(std::equal(ids.begin(), ids.end(), reference.begin(), reference.end()))
          << text.substr(0, 40);
    }
    ExpectRoundTrip(*tokenizer, RealText());
    EXPECT_EQ(tokenizer->EncodablePrefix("two\nlines"), 0u);
  }
}

TEST(SentencePieceTokenizerTest, UnsupportedModelsAreNamed) {
  // Appended fields override earlier ones: trainer_spec (2) or normalizer_spec (3) with one field.
  const std::vector<std::pair<std::string, const char*>> cases = {
      {"\x12\x02\x18\x01", "unigram"},
      {"\x12\x02\x18\x03", "word or char"},
      {std::string("\x12\x03\x98\x02\x00", 5), "byte fallback"},
      {"\x12\x03\xC0\x01\x01", "treat_whitespace_as_suffix"},
      {std::string("\x12\x03\xD0\x02\x00", 5), "end-of-sentence"},
      {"\x1A\x03\x12\x01x", "precompiled_charsmap"},
      {"\x1A\x02\x20\x01", "remove_extra_whitespaces"},
      {std::string("\x1A\x02\x28\x00", 4), "escape_whitespaces"},
      {PieceField("unused", '\5'), "unused pieces"},
  };
  for (const auto& [suffix, part] : cases) {
    const auto parsed = SentencePieceTokenizer::Parse("model", Model() + suffix);
    EXPECT_TRUE(absl::IsInvalidArgument(parsed.status())) << part;
    EXPECT_NE(MessageOf(parsed.status()).find(part), std::string::npos) << parsed.status();
  }
  const auto damaged = SentencePieceTokenizer::Parse("model", Model() + PieceField("\xFF", '\4'));
  EXPECT_TRUE(absl::IsDataLoss(damaged.status())) << damaged.status();
}

TEST(LoadTokenizerTest, MissingFile) {
  EXPECT_TRUE(absl::IsNotFound(LoadTokenizer("/nonexistent/tokenizer").status()));
}

}  // namespace
}  // namespace tessera
