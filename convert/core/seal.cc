#include "convert/core/seal.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "absl/strings/str_join.h"
#include "base/byte_order.h"
#include "base/checked_math.h"
#include "base/crc32c.h"
#include "base/errors.h"
#include "base/parse_cost.h"
#include "base/status_macros.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/include/manifest.h"

namespace tessera::ckpt::convert {
namespace {

constexpr std::string_view kSealMagic = "TSEAL\r\n\x1a";
constexpr size_t kSealVersionAt = 8, kSealCrcAt = 12, kSealHeaderBytes = 16;
constexpr uint64_t kSealCostRatio = 32, kSealCostAllowance = uint64_t{1} << 20;
constexpr size_t kMaxNamedTogether = 4;

uint32_t SealCrc(std::string_view bytes) {
  const std::string_view payload = bytes.substr(kSealHeaderBytes);
  return ExtendCrc32c(Crc32c(bytes.substr(0, kSealCrcAt)), std::as_bytes(std::span(payload)));
}

absl::Status CheckFile(const SealedFile& sealed) {
  const DataFile& file = sealed.file();
  if (file.path().empty()) return InvalidArgument("a file has no name");
  if (file.chunk_bytes() == 0) return InvalidArgument(file.path(), ": chunks of 0 bytes");
  const uint64_t chunks = CeilDivide(file.size_bytes(), file.chunk_bytes());
  if (static_cast<uint64_t>(file.chunk_crc32c_size()) != chunks ||
      sealed.chunk_sha256().size() != chunks * kSha256Bytes) {
    return InvalidArgument(file.path(), ": ", file.chunk_crc32c_size(), " checksums and ",
                           sealed.chunk_sha256().size(), " bytes of SHA-256 for ", chunks,
                           " chunks");
  }
  return absl::OkStatus();
}

absl::Status CheckSealedTensor(const SealedTensor& tensor, const Seal& seal) {
  if (tensor.name().empty()) return InvalidArgument("a tensor has no name");
  const int ranges = tensor.file_index_size();
  if (tensor.begin_size() != ranges || tensor.end_size() != ranges) {
    return InvalidArgument("tensor ", tensor.name(), ": columns of different lengths");
  }
  for (int i = 0; i < ranges; ++i) {
    const uint32_t index = tensor.file_index(i);
    if (index >= static_cast<uint32_t>(seal.files_size()) || tensor.begin(i) >= tensor.end(i) ||
        tensor.end(i) > seal.files(static_cast<int>(index)).file().size_bytes()) {
      return InvalidArgument("tensor ", tensor.name(), ": bytes [", tensor.begin(i), ", ",
                             tensor.end(i), ") of file ", index, " are in no file");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSeal(const Seal& seal) {
  if (seal.files().empty()) return InvalidArgument("no files are sealed");
  for (int f = 0; f < seal.files_size(); ++f) {
    TESSERA_RETURN_IF_ERROR(CheckFile(seal.files(f)));
    if (f > 0 && seal.files(f - 1).file().path() >= seal.files(f).file().path()) {
      return InvalidArgument(seal.files(f).file().path(), ": the files are not in order");
    }
  }
  std::set<std::string_view> names;
  for (const SealedTensor& tensor : seal.tensors()) {
    TESSERA_RETURN_IF_ERROR(CheckSealedTensor(tensor, seal));
    if (!names.insert(tensor.name()).second) {
      return InvalidArgument("tensor ", tensor.name(), " occurs twice");
    }
  }
  return absl::OkStatus();
}

// A place at which a range of a tensor begins or ends in a file.
struct Edge {
  uint64_t at;
  int tensor;
  int change;  // of the number of the tensor's ranges there
};

// Returns the names of some tensors; of many, the first ones.
std::string NamesTogether(const Seal& seal, const std::map<int, int>& tensors) {
  std::vector<std::string> names;
  for (const auto& [tensor, ranges] : tensors) {
    if (names.size() == kMaxNamedTogether) return absl::StrJoin(names, ", ") + " and others";
    names.push_back(seal.tensors(tensor).name());
  }
  return absl::StrJoin(names, ", ");
}

}  // namespace

absl::StatusOr<std::string> EncodeSeal(const Seal& seal) {
  TESSERA_RETURN_IF_ERROR(CheckSeal(seal));
  const uint64_t payload_bytes = seal.ByteSizeLong();
  if (payload_bytes > kMaxSealBytes - kSealHeaderBytes) {
    return InvalidArgument("the seal has ", payload_bytes, " bytes, at most ", kMaxSealBytes,
                           " are allowed");
  }
  std::string bytes(kSealMagic);
  AppendLittleEndian(kSealVersion, bytes);
  AppendLittleEndian(uint32_t{0}, bytes);
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    if (!seal.SerializeToCodedStream(&coded)) return InvalidArgument("the seal does not serialize");
  }
  StoreLittleEndian(SealCrc(bytes), bytes.data() + kSealCrcAt);
  return bytes;
}

absl::StatusOr<Seal> DecodeSeal(std::string_view bytes) {
  if (bytes.size() < kSealHeaderBytes) {
    return DataLoss("a seal has at least ", kSealHeaderBytes, " bytes, this one has ",
                    bytes.size());
  }
  if (!bytes.starts_with(kSealMagic)) return DataLoss("not a seal: the magic bytes are wrong");
  const auto expected = LoadLittleEndian<uint32_t>(bytes.data() + kSealCrcAt);
  if (const uint32_t found = SealCrc(bytes); found != expected) {
    return DataLoss("checksum of the seal's ", bytes.size(), " bytes: expected ",
                    absl::Hex(expected, absl::kZeroPad8), ", found ",
                    absl::Hex(found, absl::kZeroPad8), ": it was changed or cut short");
  }
  const auto version = LoadLittleEndian<uint32_t>(bytes.data() + kSealVersionAt);
  if (version != kSealVersion) {
    return Unimplemented("a seal of version ", version, ", this program reads version ",
                         kSealVersion);
  }
  const std::string_view payload = bytes.substr(kSealHeaderBytes);
  const uint64_t limit = kSealCostRatio * payload.size() + kSealCostAllowance;
  const std::optional<uint64_t> cost = ParseCost(*Seal::descriptor(), payload, limit);
  Seal seal;
  if (payload.size() > kMaxSealBytes || !cost.has_value() || *cost > limit ||
      !seal.ParseFromArray(payload.data(), static_cast<int>(payload.size()))) {
    return DataLoss("its contents are not a Seal message");
  }
  if (const absl::Status valid = CheckSeal(seal); !valid.ok()) return DataLoss(valid.message());
  return seal;
}

Manifest ToScannedManifest(const Seal& seal) {
  Manifest manifest;
  std::vector<std::vector<Edge>> edges(seal.files_size());
  for (const SealedFile& file : seal.files()) *manifest.add_files() = file.file();
  for (int t = 0; t < seal.tensors_size(); ++t) {
    const SealedTensor& tensor = seal.tensors(t);
    for (int i = 0; i < tensor.file_index_size(); ++i) {
      edges[tensor.file_index(i)].push_back({tensor.begin(i), t, 1});
      edges[tensor.file_index(i)].push_back({tensor.end(i), t, -1});
    }
  }
  std::map<std::string, int> by_name;
  const auto add_range = [&](uint32_t file, uint64_t begin, uint64_t end, const std::string& name) {
    const auto [at, is_new] = by_name.emplace(name, manifest.tensors_size());
    LogicalTensor& tensor =
        is_new ? *manifest.add_tensors() : *manifest.mutable_tensors(at->second);
    if (is_new) {
      tensor.set_name(name);
      tensor.set_dtype(ToProto(DType::kU8));
      tensor.add_global_shape(0);
    }
    AddShard({{0}, {static_cast<int64_t>(end - begin)}}, file, begin, tensor);
  };
  for (uint32_t f = 0; f < edges.size(); ++f) {
    std::ranges::sort(edges[f], {}, &Edge::at);
    std::map<int, int> here;  // ranges of each tensor
    uint64_t begin = 0;
    for (const Edge& edge : edges[f]) {
      if (edge.at > begin && !here.empty()) add_range(f, begin, edge.at, NamesTogether(seal, here));
      begin = edge.at;
      if ((here[edge.tensor] += edge.change) == 0) here.erase(edge.tensor);
    }
  }
  return manifest;
}

}  // namespace tessera::ckpt::convert
