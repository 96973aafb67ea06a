#include "convert/pickle/read.h"

#include <algorithm>
#include <bit>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/files.h"
#include "base/testing.h"
#include "convert/testing/string_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::ckpt::pickle {
namespace {

using convert::StringFile;
using std::string_view_literals::operator""sv;
using testing::HasSubstr;

constexpr char kFolder[] = "convert/pickle/testdata";

std::string Contents(const std::filesystem::path& path) { return OrFail(ReadWholeFile(path)); }

absl::StatusOr<Pickle> Read(const StringFile& file, const ReadOptions& options = {}) {
  return ReadPickle(file, {0, file.size_bytes()}, options);
}

absl::Status StatusOf(std::string contents, const ReadOptions& options = {}) {
  return Read(StringFile(std::move(contents)), options).status();
}

// As make_testdata.py renders what Python's own unpickler read.
class Renderer {
 public:
  explicit Renderer(const StringFile& file) : file_(file) {}

  std::string operator()(const Value& value) {
    switch (value.kind()) {
      case Kind::kNone:
        return "None";
      case Kind::kBool:
        return *value.AsBool() ? "True" : "False";
      case Kind::kInt:
        if (value.AsInt()) return absl::StrCat(*value.AsInt());
        return value.AsUint() ? absl::StrCat(*value.AsUint()) : "bigint";
      case Kind::kFloat:
        return absl::StrCat("f",
                            absl::Hex(std::bit_cast<uint64_t>(*value.AsFloat()), absl::kZeroPad16));
      case Kind::kText:
        return Quoted(*value.AsText());
      case Kind::kBytes:
      case Kind::kByteArray:
        return absl::StrCat("b",
                            Quoted(std::string_view(file_.contents())
                                       .substr(value.extent()->offset, value.extent()->length)));
      case Kind::kGlobal:
        return absl::StrCat("<", value.GlobalName(), ">");
      case Kind::kPersistentId:
        return absl::StrCat("pid(", (*this)(value.persistent_id()), ")");
      default:
        return Container(value);
    }
  }

 private:
  static std::string Quoted(std::string_view raw) {
    std::string text = "\"";
    for (const char c : raw) {
      const auto byte = static_cast<uint8_t>(c);
      if (byte >= 32 && byte < 127 && c != '"' && c != '\\') {
        text.push_back(c);
      } else {
        absl::StrAppend(&text, "\\x", absl::Hex(byte, absl::kZeroPad2));
      }
    }
    return text + "\"";
  }

  std::string Container(const Value& value) {
    if (value.is(Kind::kTuple) && value.size() == 0) return "()";
    const auto [found, is_new] = numbers_.try_emplace(value.id(), numbers_.size());
    if (!is_new) return absl::StrCat("#", found->second);
    const std::string number = absl::StrCat("#", found->second, "=");
    if (value.is(Kind::kTuple)) return absl::StrCat(number, "(", Elements(value), ")");
    if (value.is(Kind::kList)) return absl::StrCat(number, "[", Elements(value), "]");
    if (value.is(Kind::kSet)) return absl::StrCat(number, "{", Sorted(value), "}");
    if (value.is(Kind::kDict)) return absl::StrCat(number, "{", Entries(value), "}");
    std::string text = absl::StrCat(number, "new ", (*this)(value.callable()), " ");
    absl::StrAppend(&text, (*this)(value.arguments()));
    if (value.keyword_arguments().present()) {
      absl::StrAppend(&text, " kwargs ", (*this)(value.keyword_arguments()));
    }
    if (value.state().present() && !value.state().is(Kind::kNone)) {
      absl::StrAppend(&text, " state ", (*this)(value.state()));
    }
    if (value.size() > 0) absl::StrAppend(&text, " items ", Elements(value));
    if (value.entry_count() > 0) absl::StrAppend(&text, " entries ", Entries(value));
    return text;
  }

  std::string Elements(const Value& value) {
    std::vector<std::string> texts;
    for (size_t i = 0; i < value.size(); ++i) texts.push_back((*this)(value[i]));
    return absl::StrJoin(texts, ",");
  }

  std::string Sorted(const Value& value) {
    std::vector<std::string> texts;
    for (size_t i = 0; i < value.size(); ++i) texts.push_back((*this)(value[i]));
    std::sort(texts.begin(), texts.end());
    return absl::StrJoin(texts, ",");
  }

  std::string Entries(const Value& value) {
    std::vector<std::string> texts;
    for (size_t i = 0; i < value.entry_count(); ++i) {
      const std::string key = (*this)(value.entry(i).first);
      texts.push_back(absl::StrCat(key, ":", (*this)(value.entry(i).second)));
    }
    return absl::StrJoin(texts, ",");
  }

  const StringFile& file_;
  std::map<NodeId, size_t> numbers_;
};

TEST(ReadPickleTest, EqualsWhatPythonReads) {
  int compared = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (entry.path().extension() != ".txt") continue;
    const StringFile file(Contents(std::filesystem::path(entry.path()).replace_extension(".pkl")));
    const auto read = Read(file);
    ASSERT_OK(read) << entry.path();
    EXPECT_EQ(Renderer(file)(read->root()) + "\n", Contents(entry.path())) << entry.path();
    ++compared;
  }
  EXPECT_GT(compared, 25);
}

TEST(ReadPickleTest, CutAtEveryByteIsAnError) {
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (entry.path().extension() != ".pkl") continue;
    const std::string contents = Contents(entry.path());
    const StringFile file(contents);
    const auto whole = Read(file);
    ASSERT_OK(whole) << entry.path();
    const size_t end = whole->end_offset();
    EXPECT_TRUE(end == contents.size() || entry.path().stem() == "trailing") << entry.path();
    for (size_t size = 0; size < end; size += 1 + end / 2000) {
      EXPECT_EQ(StatusOf(contents.substr(0, size)).code(), absl::StatusCode::kDataLoss)
          << entry.path() << " " << size;
    }
  }
}

// Whatever a pickle would call is a record with its name, or the reader ends at an opcode that the
// error names (make_malicious.py).
TEST(ReadPickleTest, MaliciousPicklesAreNamed) {
  std::ifstream lines(absl::StrCat(kFolder, "/malicious.tsv"));
  int records = 0, errors = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> columns = absl::StrSplit(line, '\t');
    ASSERT_EQ(columns.size(), 3) << line;
    SCOPED_TRACE(columns[0]);
    const StringFile file(absl::HexStringToBytes(columns[2]));
    const auto read = Read(file);
    if (columns[1].starts_with('!')) {
      EXPECT_TRUE(absl::IsDataLoss(read.status())) << read.status();
      EXPECT_THAT(std::string(read.status().message()), HasSubstr(columns[1].substr(1)));
      ++errors;
      continue;
    }
    ASSERT_OK(read);
    bool is_named = false;
    for (size_t i = 0; i < read->node_count(); ++i) {
      is_named |= read->at(static_cast<NodeId>(i)).IsGlobal(columns[1]);
    }
    EXPECT_TRUE(is_named) << columns[1];
    ++records;
  }
  EXPECT_GT(records, 120);
  EXPECT_GT(errors, 20);
}

TEST(ReadPickleTest, RecordsAreKnownByWholeNames) {
  const StringFile file("cos\nsystem\n(U\x02rmtR.");
  ASSERT_OK_AND_ASSIGN(const auto read, Read(file));
  EXPECT_TRUE(read.root().IsObjectOf("os.system"));
  EXPECT_TRUE(read.root().arguments()[0].IsText("rm"));
  EXPECT_FALSE(read.root().IsObjectOf("os.syste"));
  EXPECT_FALSE(read.root().IsObjectOf("os_system"));
  EXPECT_FALSE(read.root().IsObjectOf("s.system"));
}

TEST(ReadPickleTest, AMillionfoldDocumentIsSmall) {
  const StringFile file(Contents(std::filesystem::path(kFolder) / "evil_laughs.pkl"));
  ASSERT_OK_AND_ASSIGN(const auto read, Read(file));
  EXPECT_LE(read.node_count(), file.size_bytes());
  Value value = read.root();
  for (int level = 0; level < 30; ++level) {
    ASSERT_EQ(value.size(), 10);
    EXPECT_EQ(value[0].id(), value[9].id());
    value = value[3];
  }
  EXPECT_EQ(value[0].AsInt(), 1);
}

TEST(ReadPickleTest, DeepNestingCostsNoStack) {
  constexpr int kDepth = 3'000'000;
  const StringFile file(")" + std::string(kDepth, '\x85') + ".");
  ASSERT_OK_AND_ASSIGN(const auto read, Read(file));
  Value value = read.root();
  for (int depth = 0; depth < kDepth; ++depth) value = value[0];
  EXPECT_EQ(value.size(), 0);
}

TEST(ReadPickleTest, LargeBytesAreNotRead) {
  const std::string large(8'000'000, 'x');
  const StringFile file(std::string("\x80\x03(B\x00\x12\x7a\x00", 8) + large + "K\x07t.");
  ASSERT_OK_AND_ASSIGN(const auto read, Read(file));
  EXPECT_EQ(read.root()[0].extent(), (Extent{8, 8'000'000}));
  EXPECT_EQ(read.root()[1].AsInt(), 7);
  EXPECT_LT(file.bytes_read(), 200'000);
  EXPECT_LT(read.memory_bytes(), 2'000);
}

TEST(ReadPickleTest, LargeTextsStayInTheFile) {
  const StringFile file(std::string("X\x00\x12\x7a\x00", 5) + std::string(8'000'000, 'x') + ".");
  ASSERT_OK_AND_ASSIGN(const auto read, Read(file));
  EXPECT_TRUE(read.root().is(Kind::kText));
  EXPECT_EQ(read.root().AsText(), std::nullopt);
  EXPECT_EQ(read.root().extent(), (Extent{5, 8'000'000}));
}

TEST(ReadPickleTest, HostileLengthsAllocateNothing) {
  const std::string max4(4, '\xFF'), max8(8, '\xFF');
  for (const std::string& contents :
       {"X" + max4 + "a.", "T" + max4 + "a.", "B" + max4 + "a.", "\x8D" + max8 + "a.",
        "\x8E" + max8 + "a.", "\x96" + max8 + "a.", "\x8B" + max4 + "a.", "\x95" + max8 + "N.",
        std::string("X\x00\x00\x10\x00 a.", 8)}) {
    const absl::Status status = StatusOf(contents);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  }
}

TEST(ReadPickleTest, ReadsWithinAPartOfAFile) {
  const StringFile file("junkK\x05.K\x06.");
  ASSERT_OK_AND_ASSIGN(const auto first, ReadPickle(file, {4, 6}));
  EXPECT_EQ(first.root().AsInt(), 5);
  EXPECT_EQ(first.end_offset(), 7);
  ASSERT_OK_AND_ASSIGN(const auto second, ReadPickle(file, {first.end_offset(), 3}));
  EXPECT_EQ(second.root().AsInt(), 6);
  EXPECT_FALSE(ReadPickle(file, {4, 2}).ok());
  EXPECT_EQ(ReadPickle(file, {4, 7}).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ReadPickle(file, {11, 0}).status().code(), absl::StatusCode::kDataLoss);
}

struct WrongCase {
  std::string contents;
  std::string message;
};

TEST(ReadPickleTest, ErrorsNameOffsetAndOpcode) {
  const std::vector<WrongCase> cases = {
      {"", "offset 0: expected 1 more bytes, found 0"},
      {"N\xFF.", "offset 1: pickle opcode 0xff is not supported"},
      {"\x82\x01.", "offset 0: pickle opcode 0x82 (EXT1) is not supported"},
      {"\x97.", "(NEXT_BUFFER) is not supported"},
      {"\x80\x06.", "offset 0: pickle opcode PROTO: protocol 6, at most 5 is known"},
      {"N0.", "offset 2: pickle opcode STOP: nothing is on the stack"},
      {"N(.", "STOP: nothing is on the stack"},
      {"Nt.", "TUPLE: no mark is on the stack"},
      {"N(a.", "APPEND: too little is on the stack"},
      {"N\x86.", "TUPLE2: too little is on the stack"},
      {"(e.", "APPENDS: nothing is on the stack"},
      {"N(Ne.", "APPENDS: cannot add to a None"},
      {"}(Ne.", "APPENDS: cannot add to a dict"},
      {"](N\x90.", "ADDITEMS: cannot add to a list"},
      {"](NNu.", "SETITEMS: cannot set an item of a list"},
      {"}(Nu.", "SETITEMS: a key without a value"},
      {"(Nd.", "DICT: a key without a value"},
      {"h\x05.", "BINGET: no object has the number 5"},
      {"q\x05.", "BINPUT: nothing is on the stack"},
      {"]Nb.", "BUILD: a list has no state to set"},
      {"cm\nn\n)R}b}b.", "BUILD: the state of an object is set twice"},
      {"NN\x93.", "STACK_GLOBAL: module and name are not texts"},
      {"(o.", "OBJ: nothing is on the stack"},
      {"c" + std::string(kMaxTextBytes + 1, 'm') + "\nn\n.", "a line of more than 1048576 bytes"},
  };
  for (const WrongCase& wrong : cases) {
    const absl::Status status = StatusOf(wrong.contents);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(wrong.message));
  }
}

TEST(ReadPickleTest, TextFormsAreRefusedByName) {
  // What pickle.dump(value, file, protocol) writes for the value in the comment.
  for (const std::string_view contents : {
           "I7\n."sv,                     // 7, protocol 0
           "L5000000000L\n."sv,           // 5000000000, protocol 0 and 1
           "F1.5\n."sv,                   // 1.5, protocol 0
           "Va\np0\n."sv,                 // "a", protocol 0
           "S'a'\n."sv,                   // "a" by Python 2, protocol 0
           "(lp0\nI01\na."sv,             // [True], protocol 0
           "]q\0I01\na."sv,               // [True], protocol 1
           "(dg0\n."sv,                   // a value that occurs twice, protocol 0
           "(iargparse\nNamespace\n."sv,  // an object by Python 2, protocol 0
           "Pstorage 0\n."sv,             // a persistent id, protocol 0
       }) {
    const absl::Status status = StatusOf(std::string(contents));
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("text forms of pickle protocols 0 and 1"));
  }
}

// What CPython loads is read, unless it has text forms, and so is what fails in a call, which a
// reader of data does not make; what CPython finds malformed is an error.
TEST(ReadPickleTest, AgreesWithTheTestsOfCPythonsUnpickler) {
  std::ifstream lines(absl::StrCat(kFolder, "/pickletester.tsv"));
  int read = 0, text = 0, malformed = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> columns = absl::StrSplit(line, '\t');
    ASSERT_EQ(columns.size(), 2) << line;
    const absl::Status status = StatusOf(absl::HexStringToBytes(columns[1]));
    EXPECT_TRUE(status.ok() || absl::IsDataLoss(status)) << line << ": " << status;
    if (absl::StrContains(status.message(), "text forms of pickle protocols")) {
      ++text;
    } else {
      EXPECT_EQ(status.ok(), columns[0] != "malformed") << line << ": " << status;
      ++(status.ok() ? read : malformed);
    }
  }
  EXPECT_GT(read, 70);
  EXPECT_GT(text, 20);
  EXPECT_GT(malformed, 100);
}

TEST(ReadPickleTest, TheNumberOfNodesIsBounded) {
  const std::string contents = "(" + std::string(100, 'N') + "t.";
  EXPECT_OK(StatusOf(contents, {.max_nodes = 101}));
  const absl::Status status = StatusOf(contents, {.max_nodes = 100});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
}

TEST(ReadPickleTest, AccessorsOfOtherKindsReturnNothing) {
  const Value absent;
  EXPECT_EQ(absent.kind(), Kind::kAbsent);
  EXPECT_FALSE(absent.callable().arguments()[3].state().persistent_id().present());
  EXPECT_EQ(absent.size() + absent.entry_count(), 0);
  const StringFile file(
      "}(U\x01"
      "aK\x01U\x01"
      "aK\x02u.");
  ASSERT_OK_AND_ASSIGN(const auto read, Read(file));
  const Value dict = read.root();
  EXPECT_EQ(dict.Find("a").AsInt(), 2);  // the last one, as in Python
  EXPECT_FALSE(dict.Find("b").present());
  EXPECT_EQ(dict.AsInt(), std::nullopt);
  EXPECT_EQ(dict.AsText(), std::nullopt);
  EXPECT_EQ(dict.GlobalName(), "");
}

}  // namespace
}  // namespace tessera::ckpt::pickle
