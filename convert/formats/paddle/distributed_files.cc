#include "convert/formats/paddle/distributed_files.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/directory/directory.h"
#include "convert/core/rank_grid.h"
#include "convert/core/reading.h"
#include "convert/pickle/read.h"
#include "convert/pickle/value.h"
#include "convert/pickle/write.h"

namespace tessera::ckpt::convert {
namespace {

using pickle::Value;
using pickle::Writer;

RankPattern MetadataNames() { return RankPattern("{1}.metadata"); }

// Starts with the rank; then comes the number of the metadata file.
RankPattern ShardNames() { return RankPattern("{1}_{1}.distcp"); }

struct PaddleDType {
  std::string_view name;
  DType dtype;
};
constexpr PaddleDType kPaddleDTypes[] = {{"float64", DType::kF64},   {"float32", DType::kF32},
                                         {"bfloat16", DType::kBF16}, {"float16", DType::kF16},
                                         {"int64", DType::kI64},     {"int32", DType::kI32},
                                         {"int16", DType::kI16},     {"int8", DType::kI8},
                                         {"uint8", DType::kU8},      {"bool", DType::kBool}};

// Returns whether an object is of the class that Paddle calls by this name. Its module was renamed
// by version 3.2.
bool IsOfPaddle(const Value& object, std::string_view class_name) {
  const std::string name = object.callable().GlobalName();
  return name.starts_with("paddle.distributed.") &&
         name.ends_with(absl::StrCat(".metadata.", View(class_name)));
}

// Reads the lists of shards first, by key and offset, then the files of these.
class PaddleMetadataReader {
 public:
  explicit PaddleMetadataReader(const pickle::Pickle& contents)
      : root_(contents.root()), budget_(contents) {}

  absl::StatusOr<std::vector<PaddleShard>> Read() {
    if (!IsOfPaddle(root_, "Metadata")) return DataLoss("not written by Paddle");
    const Value tensors = root_.state().Find("state_dict_metadata");
    for (const auto& [key, shards] : tensors.entries()) {
      TESSERA_ASSIGN_OR_RETURN(const std::string name, KeyOf(key));
      for (size_t j = 0; j < shards.size(); ++j) {
        TESSERA_RETURN_IF_ERROR(In(Shown(name), AddShard(name, shards[j])));
      }
    }
    const Value files = root_.state().Find("storage_metadata");
    for (const auto& [index, file] : files.entries()) {
      TESSERA_ASSIGN_OR_RETURN(const std::string name, KeyOf(index.state().Find("tensor_key")));
      TESSERA_RETURN_IF_ERROR(In(Shown(name), SetFile(name, index, file)));
    }
    for (const PaddleShard& shard : shards_) {
      if (shard.file.empty()) {
        return DataLoss(Shown(shard.key), ": no file has the shard at ",
                        ShapeToString(shard.box.global_offset));
      }
    }
    return std::move(shards_);
  }

 private:
  absl::StatusOr<std::string> KeyOf(const Value& value) {
    const std::string_view name = value.AsText().value_or("");
    if (name.empty() || !IsValidUtf8(name)) {
      return DataLoss("a tensor's key is empty or not valid UTF-8");
    }
    TESSERA_RETURN_IF_ERROR(budget_.Take(sizeof(PaddleShard) + name.size()));
    return std::string(name);
  }

  absl::Status AddShard(const std::string& key, const Value& shard) {
    if (!IsOfPaddle(shard, "LocalTensorMetadata")) return DataLoss("no list of shards");
    if (shard.state().Find("is_flattened").AsBool().value_or(false)) {
      return Unimplemented("a shard that is a flat range");
    }
    std::optional<std::vector<int64_t>> offset =
        pickle::DimsOf(shard.state().Find("global_offset"));
    std::optional<Shape> shape = pickle::DimsOf(shard.state().Find("local_shape"));
    if (!offset || !shape || offset->size() != shape->size()) {
      return DataLoss("the place of a shard is malformed");
    }
    const std::string_view dtype = shard.state().Find("dtype").AsText().value_or("");
    const auto known = std::ranges::find(kPaddleDTypes, dtype, &PaddleDType::name);
    if (known == std::end(kPaddleDTypes)) return Unimplemented("the dtype ", Shown(dtype));
    // A list is of a few bytes, and a pickle may have it any number of times.
    TESSERA_RETURN_IF_ERROR(budget_.Take(sizeof(PaddleShard) + key.size()));
    const auto [at, is_new] = by_offset_.emplace(std::pair(key, *offset), shards_.size());
    if (!is_new) return DataLoss("two shards begin at the same place");
    shards_.push_back({key, {*std::move(offset), *std::move(shape)}, known->dtype, ""});
    return absl::OkStatus();
  }

  absl::Status SetFile(const std::string& key, const Value& index, const Value& file) {
    // Replica 0 is in the list without a number, too.
    if (index.state().Find("replica_id").AsInt().value_or(0) != 0) return absl::OkStatus();
    const std::optional<std::vector<int64_t>> offset =
        pickle::DimsOf(index.state().Find("global_offset"));
    const auto at = offset ? by_offset_.find(std::pair(key, *offset)) : by_offset_.end();
    if (at == by_offset_.end()) return DataLoss("a file of a shard that is not listed");
    const std::string name(file.AsText().value_or(""));
    if (!ShardNames().Parse(name)) return DataLoss("\"", Shown(name), "\" is not a file name");
    TESSERA_RETURN_IF_ERROR(budget_.Take(name.size()));
    shards_[at->second].file = name;
    return absl::OkStatus();
  }

  const Value root_;
  pickle::Budget budget_;
  std::vector<PaddleShard> shards_;
  std::map<std::pair<std::string, std::vector<int64_t>>, size_t> by_offset_;
};

// The module's name since version 3.2.
constexpr char kPaddleMetadataModule[] = "paddle.distributed.flex_checkpoint.dcp.metadata";

// Writes the fields in which a shard's description and its index agree.
void WritePlace(const PaddleShard& shard, Writer& writer) {
  writer.Text("global_offset").IntTuple(shard.box.global_offset);
  writer.Text("local_shape").IntTuple(shard.box.shape);
  writer.Text("is_flattened").Bool(false);
  writer.Text("flattened_range").None();
}

void WriteShard(const PaddleShard& shard, Writer& writer) {
  writer.BeginObject(kPaddleMetadataModule, "LocalTensorMetadata");
  WritePlace(shard, writer);
  writer.Text("dtype").Text(
      std::ranges::find(kPaddleDTypes, shard.dtype, &PaddleDType::dtype)->name);
  writer.Text("global_shape").IntTuple(shard.box.shape);
  writer.EndObject();
}

void WriteIndex(const PaddleShard& shard, Writer& writer) {
  writer.BeginObject(kPaddleMetadataModule, "LocalTensorIndex");
  writer.Text("tensor_key").Text(shard.key);
  WritePlace(shard, writer);
  writer.Text("replica_id").None();
  writer.EndObject();
}

// Writes the keys of the nested state dict that a flat key stands for.
void WriteKeys(std::string_view flat, Writer& writer) {
  writer.BeginTuple();
  for (const std::string_view prefix :
       {kPaddleModelPrefix, kPaddleOptimizerPrefix, kPaddleMasterPrefix}) {
    if (!flat.starts_with(prefix)) continue;
    writer.Text(prefix.substr(0, prefix.size() - 1));
    flat.remove_prefix(prefix.size());
  }
  writer.Text(flat);
  writer.EndTuple();
}

}  // namespace

PaddleShardKey ParsePaddleShardKey(std::string_view key) {
  const auto remove = [&](std::string_view prefix) {
    const bool is_there = key.starts_with(prefix);
    if (is_there) key.remove_prefix(prefix.size());
    return is_there;
  };
  if (remove(kPaddleModelPrefix)) return {std::string(key), std::nullopt};
  remove(kPaddleOptimizerPrefix);
  if (remove(kPaddleMasterPrefix)) return {std::string(key), PaddleState::kMasterWeight};
  if (const std::optional<PaddleStateKey> state = ParsePaddleStateKey(key)) {
    return {state->tensor_name, state->state};
  }
  // A compiled program has master weights beside the other states; sharded_state_dict() calls them
  // "llama.norm.weight.w_0".
  constexpr std::string_view kCompiled = "_fp32_master_0", kSharded = ".w_0";
  if (key.ends_with(kCompiled)) {
    return {std::string(key.substr(0, key.size() - kCompiled.size())), PaddleState::kMasterWeight};
  }
  if (key.ends_with(".weight.w_0") || key.ends_with(".bias.w_0")) {
    return {std::string(key.substr(0, key.size() - kSharded.size())), PaddleState::kMasterWeight};
  }
  return {std::string(key), std::nullopt};
}

absl::StatusOr<std::string> FindPaddleMetadata(Storage& storage) {
  for (const std::string folder : {"", kPaddleShardsFolder}) {
    TESSERA_ASSIGN_OR_RETURN(const auto names, IfPresent(storage.List(folder)));
    if (!names) continue;
    int64_t newest = -1;
    for (const std::string& name : *names) {
      if (const auto number = MetadataNames().Parse(name)) newest = std::max(newest, (*number)[0]);
    }
    if (newest >= 0) return JoinPath(folder, MetadataNames().Name(std::array{newest}));
    const auto is_shard = [](const std::string& name) {
      return ShardNames().Parse(name).has_value();
    };
    if (std::ranges::any_of(*names, is_shard)) {
      return Damaged(storage, folder, "there are files of shards, but no ", kPaddleMetadataFile);
    }
  }
  return "";
}

absl::StatusOr<std::vector<PaddleShard>> ReadPaddleMetadata(const ReadableFile& file) {
  TESSERA_ASSIGN_OR_RETURN(const pickle::Pickle contents,
                           pickle::ReadPickle(file, {0, file.size_bytes()}));
  return PaddleMetadataReader(contents).Read();
}

bool IsPaddleDType(DType dtype) {
  return std::ranges::count(kPaddleDTypes, dtype, &PaddleDType::dtype) > 0;
}

std::string PaddleMetadataPickle(const std::vector<PaddleShard>& shards) {
  Writer writer;
  writer.BeginObject(kPaddleMetadataModule, "Metadata");
  writer.Text("state_dict_metadata").BeginDict();
  for (const PaddleShard& shard : shards) {
    writer.Text(shard.key).BeginList();
    WriteShard(shard, writer);
    writer.EndList();
  }
  writer.EndDict();
  writer.Text("storage_metadata").BeginDict();
  for (const PaddleShard& shard : shards) {
    WriteIndex(shard, writer);
    writer.Text(shard.file);
  }
  writer.EndDict();
  writer.Text("flat_mapping").BeginDict();
  for (const PaddleShard& shard : shards) {
    writer.Text(shard.key);
    WriteKeys(shard.key, writer);
  }
  writer.EndDict();
  writer.EndObject();
  return std::move(writer).Finish();
}

}  // namespace tessera::ckpt::convert
