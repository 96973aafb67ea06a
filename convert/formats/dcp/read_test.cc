#include "convert/formats/torch/read.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/byte_order.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/include/checkpoint.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/foreign_storage.h"
#include "convert/core/value.h"
#include "convert/formats/dcp/dcp.h"
#include "convert/formats/dcp/metadata.h"
#include "convert/pickle/torch_archive.h"
#include "convert/pickle/write.h"
#include "convert/testing/memory_meter.h"
#include "convert/testing/packed_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/dtype.h"

namespace tessera::ckpt::convert {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

constexpr char kFolder[] = "convert/formats/dcp/testdata";

std::string Contents(const std::string& file) {
  return OrFail(ReadWholeFile(absl::StrCat(kFolder, "/", file)));
}

std::shared_ptr<Storage> Folder() { return OrFail(OpenStorage(kFolder)); }

// The checkpoint in a storage as one of this library.
absl::StatusOr<std::unique_ptr<ForeignStorage>> Present(std::shared_ptr<Storage> storage) {
  TESSERA_ASSIGN_OR_RETURN(ForeignCheckpoint read, ReadDcp(*storage, ""));
  return ForeignStorage::Create(std::move(storage), std::move(read));
}

// Loads one tensor in equal parts along `dim`, each at its place in row-major memory.
std::string LoadInParts(const Checkpoint& checkpoint, const TensorInfo& info, size_t dim,
                        int64_t parts) {
  const int64_t element_bytes = ElementSize(info.dtype);
  std::string bytes(ElementCount(info.global_shape) * element_bytes, '\x55');
  const std::vector<int64_t> strides = ContiguousStrides(info.global_shape);
  for (int64_t part = 0; part < parts; ++part) {
    Box box = WholeBox(info.global_shape);
    if (dim < box.shape.size()) {
      const int64_t extent = box.shape[dim];
      box.global_offset[dim] = extent * part / parts;
      box.shape[dim] = extent * (part + 1) / parts - box.global_offset[dim];
    } else if (part > 0) {
      continue;
    }
    if (box.empty()) continue;
    int64_t at = 0;
    for (size_t d = 0; d < strides.size(); ++d) at += box.global_offset[d] * strides[d];
    const Shard shard = {.box = box,
                         .data = bytes.data() + at * element_bytes,
                         .strides = strides,
                         .dtype = info.dtype};
    EXPECT_OK(checkpoint.LoadTensor(info.name, shard));
  }
  return bytes;
}

void ExpectEqualsTwin(ForeignStorage& storage, const std::string& twin_file) {
  const std::string twin = Contents(twin_file);
  ASSERT_OK_AND_ASSIGN(const auto header, ParseSafetensorsHeader(twin, twin.size()));
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, Checkpoint::Open(storage, ""));
  EXPECT_EQ(checkpoint.tensors().size(), header.entries.size());
  for (const SafetensorsEntry& expected : header.entries) {
    ASSERT_OK_AND_ASSIGN(const auto info, checkpoint.Find(expected.key));
    EXPECT_EQ(info.dtype, expected.dtype) << expected.key;
    EXPECT_EQ(info.global_shape, expected.shape) << expected.key;
    if (expected.length_bytes == 0) continue;
    for (const auto& [dim, parts] :
         std::vector<std::pair<size_t, int64_t>>{{0, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3}}) {
      EXPECT_EQ(LoadInParts(checkpoint, info, dim, parts),
                twin.substr(expected.file_offset, expected.length_bytes))
          << expected.key << " in " << parts << " parts of dim " << dim;
    }
  }
}

TEST(ReadDcpTest, EqualsWhatTorchSavedUnderEverySharding) {
  for (const char* name : {"one", "objects", "blobs_of_safetensors", "sharded", "fsdp"}) {
    SCOPED_TRACE(name);
    ASSERT_OK_AND_ASSIGN(const auto storage,
                         Present(OrFail(OpenStorage(absl::StrCat(kFolder, "/", name)))));
    ExpectEqualsTwin(*storage, absl::StrCat(name, ".safetensors"));
  }
}

TEST(ReadDcpTest, ShardsArePieces) {
  ASSERT_OK_AND_ASSIGN(const auto read, ReadDcp(*Folder(), "sharded"));
  std::map<std::string, size_t> pieces;
  for (const ForeignTensor& tensor : read.tensors) pieces[tensor.name] = tensor.pieces.size();
  EXPECT_EQ(pieces, (std::map<std::string, size_t>{{"rows", 4},
                                                   {"columns", 4},
                                                   {"few", 2},
                                                   {"both", 4},
                                                   {"twice", 4},
                                                   {"replicated", 1},
                                                   {"half", 2},
                                                   {"plain", 1}}));
  const auto values = ValuesByName(read.state);
  ASSERT_EQ(values.size(), 1);
  EXPECT_EQ(*values.at("rank_independent")->As<std::string>(), "text");
  EXPECT_TRUE(read.notes.empty()) << absl::StrJoin(read.notes, "\n");
}

TEST(ReadDcpTest, ArraysAndTensorsInObjectsAreTensors) {
  ASSERT_OK_AND_ASSIGN(const auto read, ReadDcp(*Folder(), "objects"));
  EXPECT_TRUE(read.notes.empty()) << absl::StrJoin(read.notes, "\n");
  const auto values = ValuesByName(read.state);
  EXPECT_EQ(values.size(), 6);
  EXPECT_TRUE(*values.at("loss") == SavedValue{2.5});
  EXPECT_TRUE(*values.at("rng.0") == SavedValue{"MT19937"});
  EXPECT_TRUE(*values.at("ema.1") == SavedValue{0.5});
  std::vector<std::string> notes;
  ASSERT_OK_AND_ASSIGN(const auto alone, ReadDcpTensors(*Folder(), "objects", &notes));
  ASSERT_EQ(alone.size(), 1);
  EXPECT_EQ(alone[0].name, "w");
  EXPECT_THAT(notes, ElementsAre("Left out: objects that are not tensors: ema.1, loss, rng.0, "
                                 "rng.2, rng.3, rng.4, rng.1, ema.0."));
}

TEST(ReadDcpTest, OptimizerStateHasItsRole) {
  ASSERT_OK_AND_ASSIGN(const auto read, ReadDcp(*Folder(), "fsdp"));
  for (const ForeignTensor& tensor : read.tensors) {
    EXPECT_EQ(tensor.role, tensor.name.starts_with("optim.state.") ? TensorRole::kOptimizerState
                                                                   : TensorRole::kWeight)
        << tensor.name;
  }
}

// Moments of torchao are of a class of their own.
TEST(ReadDcpTest, WhatIsNotReadIsNamedOnce) {
  const auto archive_of = [](const char* module, const char* name) {
    pickle::Writer object;
    object.Global(module, name);
    object.IntTuple({});
    object.Call();
    return TorchObjectFile("", std::move(object).Finish()).header;
  };
  pickle::Writer lr;
  WriteTorchTensor(DType::kF32, {}, 0, lr);
  std::string data;
  const auto add = [&](const std::string& archive) {
    data += archive;
    return DcpBlob{"__0_0.distcp", {data.size() - archive.size(), archive.size()}};
  };
  DcpMetadata metadata;
  const DcpBlob of_torchao = add(archive_of("torch._tensor", "_rebuild_from_type_v2"));
  metadata.tensors.push_back({.name = "optim.state.w.exp_avg",
                              .dtype = DType::kF32,
                              .shape = {4},
                              .chunks = {{WholeBox({4}), of_torchao}}});
  const DcpBlob of_lr = add(TorchObjectFile("", std::move(lr).Finish(), "\1\2\3\4").header);
  metadata.tensors.push_back({.name = "optim.param_groups.w.lr",
                              .dtype = DType::kF32,
                              .shape = {},
                              .chunks = {{WholeBox({}), of_lr}}});
  metadata.objects.push_back({.name = "args", .blob = add(archive_of("argparse", "Namespace"))});
  metadata.objects.push_back({.name = "other", .blob = add("no pickle")});
  metadata.objects.push_back({.name = "swa", .blob = of_torchao});
  const auto storage =
      FolderOf({{".metadata", DcpMetadataPickle(metadata)}, {"__0_0.distcp", data}});
  ASSERT_OK_AND_ASSIGN(const auto read, ReadDcp(*storage, ""));
  ASSERT_EQ(read.tensors.size(), 1);
  EXPECT_EQ(read.tensors[0].name, "optim.param_groups.w.lr");
  EXPECT_EQ(read.tensors[0].role, TensorRole::kOptimizerState);
  EXPECT_EQ(LeavesOf(read.state).size(), 1);
  EXPECT_THAT(read.notes, ElementsAre("Left out: tensors of dtypes or kinds that are not read: "
                                      "optim.state.w.exp_avg.",
                                      "Left out: a tensor of the kind : swa.",
                                      "Left out: objects of argparse.Namespace: args.",
                                      "Left out: objects that are not tensors: other."));
  const char* const why = "a tensor of the kind ";
  EXPECT_THAT(read.unread, ElementsAre(Pair("optim.state.w.exp_avg", why), Pair("swa", why)));

  // Formats that need each tensor do not go on without it, nor is a weight left out.
  const auto expect_refused = [&](const absl::Status& status, const std::string& tensor) {
    EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(tensor), HasSubstr(why)));
  };
  expect_refused(ReadDcpTensors(*storage, "").status(), "tensor optim.state.w.exp_avg: ");
  metadata.tensors[0].name = "model.w";
  const auto weight =
      FolderOf({{".metadata", DcpMetadataPickle(metadata)}, {"__0_0.distcp", data}});
  expect_refused(ReadDcp(*weight, "").status(), "__0_0.distcp: tensor model.w[");
}

// What precedes the limit is read. Tensors beyond it count as not read.
TEST(ReadDcpTest, ObjectsBeyondLimitsAreLeftOut) {
  for (const bool has_tensors : {false, true}) {
    pickle::Writer lists;
    constexpr int kDepth = 80;
    lists.BeginList();
    if (has_tensors) WriteTorchTensor(DType::kF32, {1}, 0, lists);
    for (int i = 0; i < kDepth; ++i) lists.BeginList();
    for (int i = 0; i <= kDepth; ++i) lists.EndList();
    const char* const storage = has_tensors ? "\1\2\3\4" : "";
    const std::string archive = TorchObjectFile("", std::move(lists).Finish(), storage).header;
    DcpMetadata metadata;
    metadata.objects.push_back({.name = "deep", .blob = {"__0_0.distcp", {0, archive.size()}}});
    ASSERT_OK_AND_ASSIGN(
        const auto read,
        ReadDcp(*FolderOf({{".metadata", DcpMetadataPickle(metadata)}, {"__0_0.distcp", archive}}),
                ""));
    EXPECT_THAT(read.notes, ElementsAre("Left out: objects that are not tensors: deep."));
    EXPECT_EQ(read.tensors.size(), has_tensors ? 1 : 0);
    EXPECT_EQ(read.unread.size(), has_tensors ? 1 : 0);
  }
}

TEST(ReadDcpTest, DamagedObjectsAreErrors) {
  pickle::Writer list;
  list.BeginList();
  list.Text("warmup");
  list.EndList();
  const std::string archive = TorchObjectFile("", std::move(list).Finish()).header;
  DcpMetadata metadata;
  metadata.objects.push_back({.name = "phases", .blob = {"__0_0.distcp", {0, archive.size()}}});
  const auto read = [&](const std::string& data) {
    return ReadDcp(*FolderOf({{".metadata", DcpMetadataPickle(metadata)}, {"__0_0.distcp", data}}),
                   "");
  };
  ASSERT_OK_AND_ASSIGN(const auto good, read(archive));
  EXPECT_TRUE(good.notes.empty());
  const absl::Status lost = read(std::string(archive.size(), '\0')).status();
  EXPECT_THAT(std::string(lost.message()), HasSubstr("object phases: "));
  EXPECT_TRUE(absl::IsDataLoss(lost)) << lost;
  for (const size_t at : {size_t{0}, archive.find("warmup"), archive.size() - 22}) {
    std::string damaged = archive;
    damaged[at] ^= 1;
    const absl::Status status = read(damaged).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << at << " " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("__0_0.distcp: object phases: ")) << at;
  }
}

// The same in a file of torch.save() as in DCP's folders.
TEST(ReadDcpTest, OnlyStateAndGroupsBelongToAnOptimizer) {
  pickle::Writer writer;
  writer.BeginDict();
  for (const char* name : {"state", "param_groups", "model"}) {
    writer.Text(name);
    WriteTorchTensor(DType::kF32, {}, 0, writer);
  }
  writer.EndDict();
  const std::string file = "all.pt";
  const auto storage =
      FolderOf({{file, TorchObjectFile("", std::move(writer).Finish(), "\1\2\3\4").header}});
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, ReadTorch(*storage, std::span(&file, 1)));
  ASSERT_EQ(checkpoint.tensors.size(), 3);
  for (const ForeignTensor& tensor : checkpoint.tensors) {
    const bool is_weight = tensor.name == "model";
    EXPECT_EQ(tensor.role, is_weight ? TensorRole::kWeight : TensorRole::kOptimizerState)
        << tensor.name;
  }
}

TEST(ReadDcpTest, FoldersOfDcpAreFound) {
  const auto storage = Folder();
  EXPECT_EQ(*IsDcp(*storage, "one"), true);
  EXPECT_EQ(*IsDcp(*storage, ""), false);
  EXPECT_EQ(*IsDcp(*storage, "none"), false);
}

// The checkpoint "one" with other metadata.
std::shared_ptr<Storage> WithMetadata(const std::string& metadata) {
  return FolderOf({{".metadata", metadata}, {"__0_0.distcp", Contents("one/__0_0.distcp")}});
}

TEST(ReadDcpTest, PropertiesOfOlderReleases) {
  ASSERT_OK_AND_ASSIGN(const auto storage,
                       Present(WithMetadata(Contents("old_properties.metadata"))));
  ExpectEqualsTwin(*storage, "one.safetensors");
}

TEST(ReadDcpTest, ErrorsNameFileAndTensor) {
  const std::map<std::string, std::string> cases = {
      {"absolute", "scalar: stored in \"/etc/passwd\", which is not a file in the folder"},
      {"outside", "scalar: stored in \"../one/__0_0.distcp\", which is not a file in the folder"},
      {"beyond", "tensor scalar[]: a chunk of 4611686018427387904 bytes at offset"},
      {"elsewhere", "tensor scalar[]: the metadata says F64 [], the chunk is BF16 [5]"},
      {"not_stored", "scalar@[]: not stored in any file"},
      {"overlapping", "model.b"},
      {"too_large", "model.b: no size, or one that is too large"},
      {"transformed", "scalar is transformed before it is stored, by \"zstd\""},
  };
  for (const auto& [name, message] : cases) {
    const auto storage = Present(WithMetadata(Contents("bad_" + name + ".metadata")));
    EXPECT_FALSE(storage.ok()) << name;
    EXPECT_THAT(std::string(storage.status().message()), HasSubstr(message)) << name;
  }
}

TEST(ReadDcpTest, DamagedMetadataIsAnError) {
  const std::string metadata = Contents("one/.metadata");
  for (size_t size = 0; size < metadata.size(); size += 7) {
    const auto read = ReadDcp(*WithMetadata(metadata.substr(0, size)), "");
    EXPECT_EQ(read.status().code(), absl::StatusCode::kDataLoss) << size;
  }
  const auto other = ReadDcp(*WithMetadata("}."), "");
  EXPECT_THAT(std::string(other.status().message()), HasSubstr("not written by DCP"));
}

// Metadata whose storage data has one long name with many offsets, all for one object.
std::string LongNamesMetadata(size_t name_bytes, int entries) {
  const auto text = [](const std::string& text) {
    std::string opcodes = "X";
    AppendLittleEndian(static_cast<uint32_t>(text.size()), opcodes);
    return opcodes + text;
  };
  const std::string module = "ctorch.distributed.checkpoint.metadata\n";
  std::string pickle = module + "Metadata\n)\x81}(" + text("state_dict_metadata") + "}" +
                       text("storage_data") + "}(";
  for (int i = 0; i < entries; ++i) {
    const auto once = [&](char number, const std::string& opcodes) {
      return i == 0 ? opcodes + "q" + number : std::string("h") + number;
    };
    pickle += once('\1', module + "MetadataIndex\n") + ")\x81}(" + once('\2', text("fqn")) +
              once('\3', text(std::string(name_bytes, 'n'))) + once('\4', text("offset")) + "(J";
    AppendLittleEndian(static_cast<uint32_t>(i), pickle);
    pickle += "tubN";
  }
  return pickle + "uub.";
}

TEST(ReadDcpTest, SharedNamesTakeNoMoreMemoryThanTheFileAllows) {
  const std::string metadata = LongNamesMetadata(500'000, 20'000);
  const auto storage = WithMetadata(metadata);
  const MemoryMeter meter(AllowedBytes(metadata.size()));
  ASSERT_OK_AND_ASSIGN(const auto read, ReadDcp(*storage, ""));
  EXPECT_TRUE(read.tensors.empty());
}

TEST(ReadDcpTest, MissingFilesAreNamed) {
  const auto read = ReadDcp(*FolderOf({{".metadata", Contents("one/.metadata")}}), "");
  EXPECT_EQ(read.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(read.status().message()), HasSubstr("__0_0.distcp"));
}

}  // namespace
}  // namespace tessera::ckpt::convert
