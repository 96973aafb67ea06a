// The rules of FORMAT.md, "Rules", in the same order.

#include <google/protobuf/message.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/include/manifest.h"
#include "layout/box.h"
#include "layout/coverage.h"
#include "layout/partition.h"

namespace tessera::ckpt {
namespace {

constexpr size_t kMaxNameBytes = 4096;

template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// Checks every string of the message at any depth. The parser refuses invalid text, but the
// serializer would only log it.
absl::Status CheckUtf8(const google::protobuf::Message& message) {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const bool is_text = field->type() == FieldDescriptor::TYPE_STRING;
    const bool is_message = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    if (!is_text && !is_message) continue;
    const int count = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      std::string scratch;
      if (is_message) {
        TESSERA_RETURN_IF_ERROR(CheckUtf8(field->is_repeated()
                                              ? reflection.GetRepeatedMessage(message, field, i)
                                              : reflection.GetMessage(message, field)));
      } else if (!IsValidUtf8(
                     field->is_repeated()
                         ? reflection.GetRepeatedStringReference(message, field, i, &scratch)
                         : reflection.GetStringReference(message, field, &scratch))) {
        return Invalid("field ", field->full_name(), " is not valid UTF-8");
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPath(const std::string& path) {
  const auto wrong = [&](const char* why) { return Invalid("files: path \"", path, "\" ", why); };
  if (path.empty()) return wrong("is empty");
  if (path.size() > kMaxNameBytes) return wrong("is too long");
  if (path == kManifestFileName) return wrong("is the manifest's own");
  size_t begin = 0;
  while (true) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = std::string_view(path).substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") return wrong("is not relative and normal");
    for (const char c : part) {
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F || c == '\\') {
        return wrong("has a forbidden character");
      }
    }
    if (end == path.size()) return absl::OkStatus();
    begin = end + 1;
  }
}

absl::Status CheckFiles(const Manifest& manifest, Checksums checksums) {
  std::set<std::string_view> paths;
  for (const DataFile& file : manifest.files()) {
    TESSERA_RETURN_IF_ERROR(CheckPath(file.path()));
    if (!paths.insert(file.path()).second) {
      return Invalid("files: path \"", file.path(), "\" occurs twice");
    }
    if (file.chunk_bytes() == 0) return Invalid("file ", file.path(), ": chunk_bytes is 0");
    if (checksums == Checksums::kOptional && !HasChecksums(file)) continue;
    const uint64_t chunks = CeilDivide(file.size_bytes(), file.chunk_bytes());
    if (static_cast<uint64_t>(file.chunk_crc32c_size()) != chunks) {
      return Invalid("file ", file.path(), ": ", file.size_bytes(), " bytes in chunks of ",
                     file.chunk_bytes(), " need ", chunks, " checksums, found ",
                     file.chunk_crc32c_size());
    }
  }
  return absl::OkStatus();
}

absl::Status CheckName(const std::string& name) {
  if (name.empty()) return Invalid("tensors: a name is empty");
  if (name.size() > kMaxNameBytes) {
    return Invalid("tensor ", PrintableInLine(name.substr(0, 100)), "...: the name has ",
                   name.size(), " bytes, at most ", kMaxNameBytes);
  }
  // "@[" begins the box in a data file's key; "__metadata__" is a key of safetensors.
  if (name.find("@[") != std::string::npos || name == "__metadata__") {
    return Invalid("tensor ", name, ": the name is reserved");
  }
  for (const char c : name) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      return Invalid("tensor ", PrintableInLine(name), ": the name has a control character");
    }
  }
  return absl::OkStatus();
}

// Converts numbers from a file; bounded because the parsed message already holds them all.
absl::StatusOr<Shape> CheckedShape(const google::protobuf::RepeatedField<uint64_t>& extents) {
  if (extents.size() > kMaxDims) {
    return Invalid("a shape has ", extents.size(), " dims, at most ", kMaxDims, " are allowed");
  }
  Shape shape;
  for (const uint64_t extent : extents) {
    const std::optional<int64_t> value = CheckedCast<int64_t>(extent);
    if (!value) return Invalid("extent ", extent, " is too large");
    shape.push_back(*value);
  }
  return shape;
}

absl::Status CheckShapes(const LogicalTensor& tensor) {
  TESSERA_ASSIGN_OR_RETURN(const Shape shape, CheckedShape(tensor.global_shape()));
  TESSERA_RETURN_IF_ERROR(CheckedByteCount(shape, ElementSize(FromProto(tensor.dtype()))).status());
  if (tensor.padded_shape().empty()) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const Shape padded, CheckedShape(tensor.padded_shape()));
  bool fits = padded.size() == shape.size();
  for (size_t d = 0; fits && d < shape.size(); ++d) fits = padded[d] >= shape[d];
  if (!fits) {
    return Invalid("padded_shape ", ShapeToString(padded), " does not hold global_shape ",
                   ShapeToString(shape));
  }
  return CheckedByteCount(padded, ElementSize(FromProto(tensor.dtype()))).status();
}

// A byte range of a file that belongs to a shard.
struct Extent {
  uint32_t file;
  uint64_t begin;
  uint64_t end;
  int tensor;
  int shard;

  bool operator<(const Extent& other) const {
    return file != other.file ? file < other.file : begin < other.begin;
  }
};

absl::Status CheckColumns(const LogicalTensor& tensor) {
  const Shards& shards = tensor.shards();
  const int64_t count = ShardCount(tensor);
  const int64_t numbers = count * tensor.global_shape_size();
  if (shards.file_offset_size() != count || shards.global_offset_size() != numbers ||
      shards.shape_size() != numbers) {
    return Invalid("shards: ", count, " entries of file_index with ", tensor.global_shape_size(),
                   " dims, but ", shards.file_offset_size(), " of file_offset, ",
                   shards.global_offset_size(), " of global_offset, ", shards.shape_size(),
                   " of shape");
  }
  return absl::OkStatus();
}

// Checks one shard and returns its byte range. Avoids building a Box, because a manifest may hold a
// million shards.
absl::StatusOr<Extent> CheckShard(const Manifest& manifest, const LogicalTensor& tensor,
                                  int shard) {
  const Shards& shards = tensor.shards();
  const int rank = tensor.global_shape_size();
  uint64_t bytes = ElementSize(FromProto(tensor.dtype()));
  for (int d = 0; d < rank; ++d) {
    const uint64_t offset = shards.global_offset(shard * rank + d);
    const uint64_t extent = shards.shape(shard * rank + d);
    if (extent > tensor.global_shape(d) || offset > tensor.global_shape(d) - extent) {
      return Invalid("shard ", shard, ": in dim ", d, " offset ", offset, " and extent ", extent,
                     " leave the global extent ", tensor.global_shape(d));
    }
    bytes *= extent;  // fits, because the whole tensor's bytes do
  }
  const uint32_t file = shards.file_index(shard);
  if (file >= static_cast<uint64_t>(manifest.files_size())) {
    return Invalid("shard ", shard, ": file_index ", file, " of ", manifest.files_size(), " files");
  }
  const uint64_t begin = shards.file_offset(shard);
  const uint64_t size = manifest.files(file).size_bytes();
  if (bytes > size || begin > size - bytes) {
    return Invalid("shard ", shard, ": offset ", begin, " and length ", bytes, " leave file ",
                   manifest.files(file).path(), " of ", size, " bytes");
  }
  return Extent{file, begin, begin + bytes, 0, shard};
}

absl::Status CheckTensor(const Manifest& manifest, int index, std::vector<Extent>& extents) {
  const LogicalTensor& tensor = manifest.tensors(index);
  if (ElementSize(FromProto(tensor.dtype())) == 0) return Invalid("unknown dtype ", tensor.dtype());
  if (FromProto(tensor.role()) == TensorRole::kUnspecified || !RoleProto_IsValid(tensor.role())) {
    return Invalid("unknown role ", tensor.role());
  }
  TESSERA_RETURN_IF_ERROR(CheckShapes(tensor));
  TESSERA_RETURN_IF_ERROR(CheckColumns(tensor));
  if (!tensor.alias_of().empty() &&
      (ShardCount(tensor) != 0 || tensor.has_digest() || tensor.has_partition())) {
    return Invalid("an alias has shards, a digest or a partition of its own");
  }
  if (tensor.has_partition()) {
    TESSERA_RETURN_IF_ERROR(CheckPartition(FromProto(tensor.partition()), GlobalShape(tensor)));
  }
  const int count = static_cast<int>(ShardCount(tensor));
  for (int shard = 0; shard < count; ++shard) {
    TESSERA_ASSIGN_OR_RETURN(Extent extent, CheckShard(manifest, tensor, shard));
    if (extent.begin == extent.end) continue;
    extent.tensor = index;
    extents.push_back(extent);
  }
  return absl::OkStatus();
}

absl::Status CheckOverlaps(const Manifest& manifest, std::vector<Extent>& extents) {
  if (!std::is_sorted(extents.begin(), extents.end())) std::sort(extents.begin(), extents.end());
  for (size_t i = 1; i < extents.size(); ++i) {
    const Extent& a = extents[i - 1];
    const Extent& b = extents[i];
    if (a.file == b.file && b.begin < a.end) {
      return Invalid("file ", manifest.files(a.file).path(), ": tensor ",
                     manifest.tensors(a.tensor).name(), " shard ", a.shard, " and tensor ",
                     manifest.tensors(b.tensor).name(), " shard ", b.shard, " share offset ",
                     b.begin);
    }
  }
  return absl::OkStatus();
}

using TensorByName = std::map<std::string_view, const LogicalTensor*>;

absl::Status CheckAlias(const LogicalTensor& tensor, const TensorByName& by_name) {
  const auto target = by_name.find(tensor.alias_of());
  const auto wrong = [&](const char* why) {
    return Invalid("tensor ", tensor.name(), ": alias_of ", tensor.alias_of(), " ", why);
  };
  if (target == by_name.end()) return wrong("does not exist");
  const LogicalTensor& other = *target->second;
  if (!other.alias_of().empty()) return wrong("is an alias itself");
  if (other.dtype() != tensor.dtype()) return wrong("has another dtype");
  if (!std::equal(other.global_shape().begin(), other.global_shape().end(),
                  tensor.global_shape().begin(), tensor.global_shape().end())) {
    return wrong("has another global_shape");
  }
  return absl::OkStatus();
}

absl::Status CheckTensors(const Manifest& manifest) {
  TensorByName by_name;
  std::vector<Extent> extents;
  for (int i = 0; i < manifest.tensors_size(); ++i) {
    const LogicalTensor& tensor = manifest.tensors(i);
    TESSERA_RETURN_IF_ERROR(CheckName(tensor.name()));
    if (!by_name.emplace(tensor.name(), &tensor).second) {
      return Invalid("tensor ", tensor.name(), ": the name occurs twice");
    }
    if (const absl::Status status = CheckTensor(manifest, i, extents); !status.ok()) {
      return Invalid("tensor ", tensor.name(), ": ", status.message());
    }
  }
  for (const LogicalTensor& tensor : manifest.tensors()) {
    if (!tensor.alias_of().empty()) TESSERA_RETURN_IF_ERROR(CheckAlias(tensor, by_name));
  }
  return CheckOverlaps(manifest, extents);
}

absl::Status CheckOptimizer(const Manifest& manifest) {
  std::set<std::string_view> tensors, parameters, states;
  for (const LogicalTensor& tensor : manifest.tensors()) tensors.insert(tensor.name());
  const OptimizerState& optimizer = manifest.optimizer();
  for (const OptimizerParameter& parameter : optimizer.parameters()) {
    const auto wrong = [&](const auto&... why) {
      return Invalid("optimizer: parameter ", parameter.parameter(), ": ", why...);
    };
    if (parameter.parameter().empty()) return wrong("the name is empty");
    if (!parameters.insert(parameter.parameter()).second) return wrong("the name occurs twice");
    if (parameter.group() >= static_cast<uint64_t>(optimizer.groups_size())) {
      return wrong("group ", parameter.group(), " of ", optimizer.groups_size());
    }
    for (const auto& [state, tensor] : parameter.states()) {
      if (!tensors.contains(tensor)) return wrong("state ", state, ": there is no tensor ", tensor);
      if (!states.insert(tensor).second) {
        return wrong("state ", state, ": tensor ", tensor, " is another state too");
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckCount(std::string_view name, int64_t count) {
  if (count >= 0 && count <= kMaxTrainerCount) return absl::OkStatus();
  return Invalid(View(name), " is ", count, ", expected 0 to ", kMaxTrainerCount);
}

absl::Status CheckTrainer(const TrainerState& trainer) {
  TESSERA_RETURN_IF_ERROR(CheckCount("trainer.step", trainer.step()));
  TESSERA_RETURN_IF_ERROR(
      CheckCount("trainer.data.consumed_samples", trainer.data().consumed_samples()));
  return CheckCount("trainer.data.epoch", trainer.data().epoch());
}

}  // namespace

absl::Status ValidateManifest(const Manifest& manifest, Checksums checksums) {
  if (manifest.format_major() != kFormatMajor) {
    return Invalid("format_major is ", manifest.format_major(), ", expected ", kFormatMajor);
  }
  TESSERA_RETURN_IF_ERROR(CheckUtf8(manifest));
  TESSERA_RETURN_IF_ERROR(CheckFiles(manifest, checksums));
  TESSERA_RETURN_IF_ERROR(CheckTensors(manifest));
  TESSERA_RETURN_IF_ERROR(CheckOptimizer(manifest));
  return CheckTrainer(manifest.trainer());
}

absl::Status ValidateMetadata(const Manifest& manifest) {
  TESSERA_RETURN_IF_ERROR(CheckUtf8(manifest));
  TESSERA_RETURN_IF_ERROR(CheckOptimizer(manifest));
  return CheckTrainer(manifest.trainer());
}

absl::Status ValidateCoverage(const LogicalTensor& tensor) {
  if (!tensor.alias_of().empty()) return absl::OkStatus();
  const std::vector<Box> boxes = ShardBoxes(tensor);
  const std::optional<CoverageProblem> problem = FindCoverageProblem(GlobalShape(tensor), boxes);
  if (!problem) return absl::OkStatus();
  return Invalid("tensor ", tensor.name(), ": ", ToString(*problem, boxes));
}

absl::Status ValidateCoverage(const Manifest& manifest) {
  for (const LogicalTensor& tensor : manifest.tensors()) {
    TESSERA_RETURN_IF_ERROR(ValidateCoverage(tensor));
  }
  return absl::OkStatus();
}

}  // namespace tessera::ckpt
