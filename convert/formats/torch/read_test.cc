#include "convert/formats/torch/read.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/include/checkpoint.h"
#include "convert/core/reading.h"
#include "convert/core/saved_values.h"
#include "convert/pickle/torch_archive.h"
#include "convert/pickle/write.h"
#include "convert/testing/memory_meter.h"
#include "convert/testing/string_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/box.h"
#include "layout/dtype.h"
#include "storage/testing/memory_storage.h"
#include "storage/zip.h"

namespace tessera::ckpt::convert {
namespace {

using testing::HasSubstr;

constexpr char kFolder[] = "convert/formats/torch/testdata";

std::string Contents(const std::string& file) {
  return OrFail(ReadWholeFile(absl::StrCat(kFolder, "/", file)));
}

absl::StatusOr<ForeignCheckpoint> Read(const std::string& file) {
  TESSERA_ASSIGN_OR_RETURN(const auto storage, OpenStorage(kFolder));
  return ReadTorch(*storage, std::vector<std::string>{file});
}

std::map<std::string, ForeignTensor> ByName(const ForeignCheckpoint& checkpoint) {
  std::map<std::string, ForeignTensor> tensors;
  for (const ForeignTensor& tensor : checkpoint.tensors) tensors[tensor.name] = tensor;
  return tensors;
}

// The elements of a piece in row-major order, one after another.
std::string Gather(const std::string& file, const StoredPiece& piece, size_t element_bytes) {
  std::string bytes;
  const int64_t count = ElementCount(piece.box.shape);
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i, at = 0;
    for (size_t d = piece.box.shape.size(); d-- > 0;) {
      at += rest % piece.box.shape[d] * piece.strides[d];
      rest /= piece.box.shape[d];
    }
    bytes += file.substr(piece.offset_bytes + at * element_bytes, element_bytes);
  }
  return bytes;
}

TEST(ReadTorchTest, EqualsWhatTorchWroteAsSafetensors) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (entry.path().extension() != ".safetensors") continue;
    SCOPED_TRACE(entry.path());
    const std::string file = entry.path().stem().string() + ".pt";
    const std::string twin = Contents(entry.path().filename());
    ASSERT_OK_AND_ASSIGN(const auto header, ParseSafetensorsHeader(twin, twin.size()));
    ASSERT_OK_AND_ASSIGN(auto checkpoint, Read(file));
    const std::string torch_bytes = Contents(file) + checkpoint.decoded[file];
    const auto tensors = ByName(checkpoint);
    EXPECT_EQ(tensors.size(), header.entries.size());
    for (const SafetensorsEntry& expected : header.entries) {
      ASSERT_TRUE(tensors.contains(expected.key)) << expected.key;
      ForeignTensor tensor = tensors.at(expected.key);
      if (!tensor.alias_of.empty()) tensor = tensors.at(tensor.alias_of);
      EXPECT_EQ(tensor.dtype, expected.dtype) << expected.key;
      EXPECT_EQ(tensor.shape, expected.shape) << expected.key;
      std::string bytes;
      for (const StoredPiece& piece : tensor.pieces) {
        EXPECT_EQ(piece.box, WholeBox(tensor.shape));
        bytes += Gather(torch_bytes, piece, ElementSize(tensor.dtype));
      }
      EXPECT_EQ(bytes, twin.substr(expected.file_offset, expected.length_bytes)) << expected.key;
    }
    ++files;
  }
  EXPECT_EQ(files, 18);
}

TEST(ReadTorchTest, BytesKeepTheirTypesInEveryProtocol) {
  SavedValue::Dict dict;
  for (const bool is_array : {false, true}) {
    for (const std::string& bytes : {std::string(), std::string("\0\xFF", 2)}) {
      dict.Add({absl::StrCat(is_array ? "array" : "bytes", bytes.size())},
               {SavedValue::Bytes{bytes, is_array}});
    }
  }
  const SavedValue expected = {std::move(dict)};
  for (const char* file : {"bytes_protocol2.pt", "bytes_protocol4.pt", "bytes_protocol5.pt"}) {
    ASSERT_OK_AND_ASSIGN(const auto checkpoint, Read(file));
    EXPECT_TRUE(checkpoint.state == expected) << file << StructureToJson(checkpoint.state);
    EXPECT_EQ(absl::StrJoin(checkpoint.notes, "\n"), "") << file;
  }
}

TEST(ReadTorchTest, ScalarsOfNumpyAreValues) {
  for (const std::string file : {"numpy1.pt", "numpy_protocol2.pt", "numpy_protocol5.pt"}) {
    SCOPED_TRACE(file);
    ASSERT_OK_AND_ASSIGN(const auto checkpoint, Read(file));
    const auto values = ValuesByName(checkpoint.state);
    const std::map<std::string, SavedValue> expected = {
        {"metrics.loss", {2.5}},          {"metrics.scale", {double{0.1F}}},
        {"metrics.half", {-1.5}},         {"metrics.negative", {int64_t{-3}}},
        {"metrics.byte", {int64_t{200}}}, {"metrics.good", {true}},
        {"rng.0", {"MT19937"}},           {"rng.2", {int64_t{624}}},
        {"rng.3", {int64_t{0}}},          {"rng.4", {0.0}},
    };
    EXPECT_EQ(values.size(), expected.size());
    for (const auto& [name, value] : expected) {
      ASSERT_TRUE(values.contains(name)) << name;
      EXPECT_TRUE(*values.at(name) == value) << name;
    }
    EXPECT_THAT(checkpoint.notes,
                testing::ElementsAre("Left out: a numpy array of the dtype M8: time, times.",
                                     "Left out: a numpy array of the dtype O8: objects.",
                                     "Left out: a numpy array of the dtype U1: texts.",
                                     "Left out: a numpy array of the dtype c8: complex.",
                                     "Left out: big-endian elements of a numpy array: big_endian.",
                                     "Left out: integers beyond 64 bits: large."));
  }
}

TEST(ReadTorchTest, TensorsWithoutANameOfTheirOwnAreLeftOut) {
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, Read("names.pt"));
  const auto tensors = ByName(checkpoint);
  EXPECT_EQ(tensors.size(), 2);
  EXPECT_EQ(tensors.at("1").shape, Shape({2}));
  EXPECT_EQ(tensors.at("below.").shape, Shape({4}));
  EXPECT_THAT(
      checkpoint.notes,
      testing::ElementsAre("Left out: a tensor that has the name of another one: 1.",
                           "Left out: a tensor whose name is empty or not valid UTF-8: the file."));
}

TEST(ReadTorchTest, TheSameViewIsAnAlias) {
  for (const char* file : {"views.pt", "views_legacy.pt", "python_zip.pt"}) {
    ASSERT_OK_AND_ASSIGN(const auto checkpoint, Read(file));
    for (const auto& [name, tensor] : ByName(checkpoint)) {
      const bool same = name == "same" || name == "same_again";
      EXPECT_EQ(tensor.alias_of, same ? "base" : "") << name;
    }
  }
}

TEST(ReadTorchTest, OptimizerStateHasItsRole) {
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, Read("training.pt"));
  const auto tensors = ByName(checkpoint);
  EXPECT_EQ(tensors.at("optimizer.state.0.exp_avg").role, TensorRole::kOptimizerState);
  EXPECT_EQ(tensors.at("model.0.weight").role, TensorRole::kWeight);
  EXPECT_EQ(tensors.at("model.tied.weight").alias_of, "model.0.weight");
  EXPECT_EQ(tensors.at("parameters.0").alias_of, "model.2.weight");
  const std::string notes = absl::StrJoin(checkpoint.notes, "\n");
  EXPECT_THAT(notes, HasSubstr("objects of argparse.Namespace: args"));
  const auto values = ValuesByName(checkpoint.state);
  EXPECT_EQ(*values.at("shape"),
            (SavedValue{SavedValue::List{{{int64_t{2}}, {int64_t{3}}}, true}}));
  EXPECT_THAT(notes, HasSubstr("key is neither a text nor a number: the file"));
}

TEST(ReadTorchTest, WhatIsNoTensorCanBeLookedUp) {
  const StringFile file(Contents("training.pt"));
  ASSERT_OK_AND_ASSIGN(const auto archive, ReadTorchArchive(file, {0, file.size_bytes()}));
  const pickle::Value root = archive.contents.root();
  EXPECT_EQ(root.Find("step").AsInt(), 2);
  EXPECT_EQ(root.Find("losses")[1].AsFloat(), 0.25);
  EXPECT_EQ(root.Find("args").state().Find("lr").AsFloat(), 1e-3);
  EXPECT_EQ(pickle::DimsOf(root.Find("shape")), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(TorchDType(root.Find("dtype")), DType::kBF16);
  EXPECT_EQ(root.Find("optimizer").Find("param_groups")[0].Find("lr").AsFloat(), 1e-3);
}

TEST(ReadTorchTest, TensorsThatCannotBeReadAreNamed) {
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, Read("unread.pt"));
  ASSERT_EQ(checkpoint.tensors.size(), 1);
  EXPECT_EQ(checkpoint.tensors[0].name, "good");
  EXPECT_THAT(absl::StrJoin(checkpoint.notes, "\n"),
              testing::AllOf(HasSubstr("an expanded tensor: shape [1000,1000]"),
                             HasSubstr("a tensor in a ComplexFloatStorage: complex.")));
  EXPECT_THAT(KeysOf(checkpoint.unread),
              testing::ElementsAre("complex", "expanded", "negated", "quantized", "sparse"));
}

// Those of the second place of a module, and of a second name in it, are the same tensors. The
// weight of the first layer is read under another name.
TEST(ReadTorchTest, TensorsInObjectsThatAreNotReadAreNamed) {
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, Read("modules.pt"));
  ASSERT_EQ(checkpoint.tensors.size(), 2);
  EXPECT_EQ(checkpoint.tensors[1].name, "first");
  EXPECT_THAT(
      KeysOf(checkpoint.unread),
      testing::ElementsAre("model.0.bias", "model.1.0.bias", "model.1.0.num_batches_tracked",
                           "model.1.0.running_mean", "model.1.0.running_var", "model.1.0.weight"));
  EXPECT_EQ(checkpoint.unread.at("model.0.bias"),
            "a tensor in objects of torch.nn.modules.container.Sequential");
}

TEST(ReadTorchTest, TensorsInAnythingThatIsLeftOutAreNamed) {
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, Read("hidden.pt"));
  ASSERT_EQ(checkpoint.tensors.size(), 1);
  EXPECT_EQ(checkpoint.tensors[0].name, "keys.known");
  std::string deep = "deep.lists";
  while (deep.size() < 200) deep += ".0";  // all of a long name that is shown
  EXPECT_THAT(KeysOf(checkpoint.unread),
              testing::ElementsAre(deep, "keys", "keys.w", "objects.4.1", "set.0", "storage"));
  EXPECT_EQ(checkpoint.unread.at("set.0"), "a tensor in values of the kind set");
}

TEST(ReadTorchTest, OfTwoTensorsOfOneNameTheFirstIsRead) {
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, Read("namesakes.pt"));
  EXPECT_EQ(checkpoint.tensors.size(), 2);
  EXPECT_THAT(KeysOf(checkpoint.unread), testing::ElementsAre("a.d.e"));  // a.b.c is one tensor
}

TEST(ReadTorchTest, SeveralFilesAreOneStateDict) {
  ASSERT_OK_AND_ASSIGN(const auto storage, OpenStorage(kFolder));
  ASSERT_OK_AND_ASSIGN(const auto both,
                       ReadTorch(*storage, std::vector<std::string>{"listed.pt", "root.pt"}));
  EXPECT_EQ(both.tensors.size(), 4);
  EXPECT_EQ(both.tensors[3].pieces[0].file, "root.pt");
  const auto twice = ReadTorch(*storage, std::vector<std::string>{"root.pt", "protocol4.pt"});
  EXPECT_EQ(twice.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(twice.status().message()),
              HasSubstr("protocol4.pt: tensor tensor: the name occurs twice"));
}

TEST(FindTorchFilesTest, OneFileOrAllParts) {
  using Names = std::vector<std::string>;
  MemoryStorage none, one, parts, several;
  ASSERT_OK(WriteAll(one, "model.pth", Contents("root_legacy.pt")));
  ASSERT_OK(WriteAll(one, "tokens.bin", "no file of torch"));
  ASSERT_OK(WriteAll(one, "notes.txt", Contents("root.pt")));
  EXPECT_EQ(*FindTorchFiles(one, ""), Names{"model.pth"});
  EXPECT_EQ(*FindTorchFiles(one, "notes.txt"), Names{"notes.txt"});
  EXPECT_EQ(*FindTorchFiles(one, "tokens.bin"), Names{});
  EXPECT_EQ(*FindTorchFiles(none, ""), Names{});
  ASSERT_OK(WriteAll(parts, "model-00001-of-00002.bin", Contents("root.pt")));
  ASSERT_OK(WriteAll(parts, "model-00002-of-00002.bin", Contents("listed.pt")));
  EXPECT_EQ(*FindTorchFiles(parts, ""),
            (Names{"model-00001-of-00002.bin", "model-00002-of-00002.bin"}));
  ASSERT_OK(parts.Delete("model-00002-of-00002.bin"));
  const absl::Status lost = FindTorchFiles(parts, "").status();
  EXPECT_EQ(lost.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(lost.message()), HasSubstr("missing: model-00002-of-00002.bin"));
  EXPECT_EQ(*FindTorchFiles(parts, "model-00001-of-00002.bin"), Names{"model-00001-of-00002.bin"});
  MemoryStorage rank;
  ASSERT_OK(WriteAll(rank, "consolidated.01.pth", Contents("root.pt")));
  EXPECT_THAT(std::string(FindTorchFiles(rank, "").status().message()),
              HasSubstr("consolidated.00.pth is missing, consolidated.01.pth is there"));
  for (const std::string alike : {"best-of-run.bin", "consolidated.pth", "consolidated.0.pth",
                                  "consolidated.500.pth", "checkpoint.pth.tar"}) {
    MemoryStorage alone;
    ASSERT_OK(WriteAll(alone, alike, Contents("root.pt")));
    EXPECT_EQ(*FindTorchFiles(alone, ""), Names{alike});
  }
  ASSERT_OK(WriteAll(several, "a.pt", Contents("root.pt")));
  ASSERT_OK(WriteAll(several, "b.pt", Contents("listed.pt")));
  EXPECT_EQ(FindTorchFiles(several, "").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(FindTorchFiles(several, "").status().message()), HasSubstr("a.pt, b.pt"));
}

TEST(ReadTorchTest, ErrorsNameFileAndTensor) {
  const std::map<std::string, std::string> cases = {
      {"beyond_storage.pt", "beyond_storage.pt: tensor tensor: shape [3,2] at element 1 reaches "},
      {"overflowing_strides.pt", "reaches beyond its storage of 6 elements"},
      {"short_storage.pt", "the storage 0 has 23 bytes, expected 6 elements of 4 bytes"},
      {"no_storage.pt", "the storage 0 is missing"},
      {"big_endian.pt", "storages in the byte order \"big\""},
      {"torchscript.pt", "a TorchScript program"},
      {"exported.pt", "a program of torch.export"},
      {"root.safetensors", "not written by torch.save()"},
      {"none.pt", "none.pt"},
  };
  for (const auto& [file, message] : cases) {
    const auto checkpoint = Read(file);
    EXPECT_FALSE(checkpoint.ok()) << file;
    EXPECT_THAT(std::string(checkpoint.status().message()), HasSubstr(message));
  }
}

absl::Status StatusOf(std::string contents) {
  const StringFile file(std::move(contents));
  return ReadTorchArchive(file, {0, file.size_bytes()}).status();
}

TEST(ReadTorchTest, CutFilesAreErrors) {
  for (const char* name : {"root.pt", "root_legacy.pt", "python_zip.pt"}) {
    const std::string contents = Contents(name);
    for (size_t size = 0; size < contents.size(); ++size) {
      EXPECT_EQ(StatusOf(contents.substr(0, size)).code(), absl::StatusCode::kDataLoss)
          << name << " " << size;
    }
    EXPECT_OK(StatusOf(contents)) << name;
  }
}

// A tar archive ends with an empty header, after which nothing counts.
TEST(ReadTorchTest, DamagedTarArchivesAreErrors) {
  const std::string tar = Contents("before_0_1_10.pt");
  size_t end = 0;
  while (tar[end] != '\0') {
    const auto size = std::stoul(tar.substr(end + 124, 12), nullptr, 8);
    end += 512 + (size + 511) / 512 * 512;
  }
  for (size_t size = 0; size < end + 512; ++size) {
    EXPECT_EQ(StatusOf(tar.substr(0, size)).code(), absl::StatusCode::kDataLoss) << size;
  }
  EXPECT_OK(StatusOf(tar.substr(0, end + 512)));

  const auto changed = [&](size_t at, char by) {
    std::string copy = tar;
    copy[at] = static_cast<char>(copy[at] + by);
    return std::string(StatusOf(copy).message());
  };
  EXPECT_THAT(changed(130, 1), HasSubstr("offset 0: no header of a tar archive"));
  EXPECT_THAT(changed(1024 + 100, 1), HasSubstr("offset 1024: no header of a tar archive"));
  const size_t dims = tar.find(std::string("\2\0\0\0\0\0\0\0\6\0\0\0\0\0\0\0\4", 17));
  ASSERT_NE(dims, tar.npos);  // of the first tensor, of shape [6,4]
  EXPECT_THAT(changed(dims, 40), HasSubstr("tensor 0 has a malformed key or shape"));
  EXPECT_EQ(changed(dims + 8, 1), "");  // the shape of a tensor: an error where it is resolved
  const size_t count = tar.find(std::string("\x18\0\0\0\0\0\0\0", 8));
  ASSERT_NE(count, tar.npos);  // elements of the first storage
  EXPECT_THAT(changed(count + 7, 1), HasSubstr("and the member ends before"));
  EXPECT_THAT(changed(tar.find("little_endian") + 1, 1), "");  // unknown: little-endian
  EXPECT_THAT(changed(tar.find("protocol_version"), 1), HasSubstr("an unknown version"));
}

TEST(ReadTorchTest, ATensorOfATarArchiveBeyondItsStorageIsNamed) {
  std::string tar = Contents("before_0_1_10.pt");
  const size_t dims = tar.find(std::string("\2\0\0\0\0\0\0\0\6\0\0\0\0\0\0\0\4", 17));
  tar[dims + 8] = 7;
  MemoryStorage storage;
  ASSERT_OK(WriteAll(storage, "file.pt", tar));
  const absl::Status status = ReadTorch(storage, std::vector<std::string>{"file.pt"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr("tensor weight: shape [7,4] at element 0 reaches beyond its storage of 24"));
}

// Replaces the n-th occurrence of `from`.
std::string Replaced(std::string text, std::string_view from, std::string_view to, int n = 1) {
  size_t at = text.find(from);
  while (--n > 0) at = text.find(from, at + 1);
  return text.replace(at, from.size(), to);
}

TEST(ZipDirectoryTest, AmbiguousArchivesAreErrors) {
  const std::string zip = Contents("short_storage.pt");  // of Python's zipfile
  ASSERT_OK(StatusOf(zip));
  const std::string central = "PK\x01\x02";
  const size_t first = zip.find(central);
  const auto with_byte = [&](size_t at, char value) {
    std::string changed = zip;
    changed[at] = value;
    return changed;
  };
  const std::map<std::string, std::string> cases = {
      {Replaced(zip, "root/version", "root/versiox"), "directory and local header differ"},
      {Replaced(zip, "root/version", "root/versiox", 2), "directory and local header differ"},
      {with_byte(first + 10, 8), "directory and local header differ"},
      {with_byte(first + 8, 1), "is encrypted"},
      {with_byte(first + 24, 7), "stored, and yet of two sizes"},
      {with_byte(first, 'X'), "no entry of the directory"},
      {zip + "more", "it has no end"},
      {"PK\x03\x04" + zip, "does not match the directory"},
      {with_byte(first + 42, 1), "directory and local header differ"},
      {with_byte(first + 28, '\xFF'), "differ"},
  };
  for (const auto& [contents, message] : cases) {
    const absl::Status status = StatusOf(contents);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
}

TEST(ZipDirectoryTest, DuplicatesAreErrors) {
  // One name becomes that of another member, in its local header and in the directory.
  std::string zip = Contents("views.pt");
  while (zip.find("views/data/1") != zip.npos) zip = Replaced(zip, "views/data/1", "views/data/0");
  EXPECT_THAT(std::string(StatusOf(zip).message()), HasSubstr("views/data/0 occurs twice"));
}

TEST(ZipDirectoryTest, AHoleInPlaceOfTheDirectoryTakesNoMemory) {
  const FileWithHole file(Contents("hole.zip"));
  const MemoryMeter meter(AllowedBytes(0));
  const auto members = ReadZipDirectory(file, {0, file.size_bytes()});
  EXPECT_EQ(members.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(members.status().message()), HasSubstr("no entry of the directory"));
}

// A file of torch.save() with this pickle, and a storage of one float.
std::string TorchFile(std::string pickle) {
  constexpr uint32_t kCrcOfZeros = 0x2144DF1C;
  const uint64_t bytes = sizeof(float);
  const TorchArchiveLayout layout(std::move(pickle), std::span(&bytes, 1));
  std::string file(layout.size_bytes(), '\0');
  for (const OutputBytes& record : layout.Records(std::span(&kCrcOfZeros, 1), 0)) {
    file.replace(record.offset_bytes, record.bytes.size(), record.bytes);
  }
  return file;
}

// The opcodes of one object.
template <typename Write>
std::string Opcodes(Write write) {
  pickle::Writer writer;
  write(writer);
  const std::string pickle = std::move(writer).Finish();
  return pickle.substr(2, pickle.size() - 3);
}
std::string TextOpcodes(const std::string& text) {
  return Opcodes([&](pickle::Writer& writer) { writer.Text(text); });
}

// Dicts in each other, all under one long key, around one of many names of one tensor.
std::string LongNamesPickle(int depth, size_t key_bytes, int tensors) {
  std::string pickle = "\x80\x02";
  for (int i = 0; i < depth; ++i) {
    pickle += i == 0 ? "}" + TextOpcodes(std::string(key_bytes, 'k')) + std::string("q\0", 2)
                     : std::string("}h\0", 3);
  }
  pickle += "}(";
  for (int i = 0; i < tensors; ++i) {
    pickle += TextOpcodes(absl::StrCat("t", i));
    pickle += i > 0 ? "h\1" : Opcodes([](pickle::Writer& writer) {
                                WriteTorchTensor(DType::kF32, {1}, 0, writer);
                              }) + "q\1";
  }
  return pickle + "u" + std::string(depth, 's') + ".";
}

absl::StatusOr<ForeignCheckpoint> ReadContents(const std::string& contents) {
  MemoryStorage storage;
  EXPECT_OK(WriteAll(storage, "file.pt", contents));
  const MemoryMeter meter(AllowedBytes(contents.size()));
  return ReadTorch(storage, std::vector<std::string>{"file.pt"});
}

// Archives that would run code elsewhere: a note names what they call, or an error what is wrong
// (convert/pickle/testing/make_malicious.py).
TEST(ReadTorchTest, MaliciousArchivesAreNamed) {
  std::ifstream lines(std::string(kFolder) + "/malicious.tsv");
  int notes = 0, errors = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> columns = absl::StrSplit(line, '\t');
    ASSERT_EQ(columns.size(), 3) << line;
    SCOPED_TRACE(columns[0]);
    const auto read = ReadContents(absl::HexStringToBytes(columns[2]));
    if (columns[1].starts_with('!')) {
      EXPECT_THAT(std::string(read.status().message()), HasSubstr(columns[1].substr(1)));
      ++errors;
      continue;
    }
    ASSERT_OK(read);
    EXPECT_TRUE(read->tensors.empty());
    EXPECT_THAT(absl::StrJoin(read->notes, "\n"), HasSubstr(columns[1]));
    ++notes;
  }
  EXPECT_GE(notes, 6);
  EXPECT_GE(errors, 15);
}

TEST(ReadTorchTest, SharedKeysTakeNoMoreMemoryThanTheFileAllows) {
  ASSERT_OK_AND_ASSIGN(const auto good, ReadContents(TorchFile(LongNamesPickle(2, 100, 300))));
  ASSERT_EQ(good.tensors.size(), 300);
  EXPECT_EQ(good.tensors[299].name, std::string(100, 'k') + "." + std::string(100, 'k') + ".t299");
  for (const auto& [depth, key_bytes, tensors] :
       {std::tuple(30, 30'000, 3000), std::tuple(60, 1'000'000, 100),
        std::tuple(1, 100, 200'000)}) {
    const std::string contents = TorchFile(LongNamesPickle(depth, key_bytes, tensors));
    const auto read = ReadContents(contents);
    EXPECT_EQ(read.status().code(), absl::StatusCode::kUnimplemented) << contents.size();
    EXPECT_THAT(std::string(read.status().message()), HasSubstr("again and again"));
  }
}

}  // namespace
}  // namespace tessera::ckpt::convert
