#include "checkpoint/format/manifest_codec.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/byte_order.h"
#include "base/crc32c.h"
#include "base/parse_cost.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace tessera::ckpt {
namespace {

constexpr std::string_view kMagic = "TESSERA\n";

// Offsets of the header's fields. Frozen for every future version: a reader must always be able to
// distinguish "newer than this program" from "damaged".
constexpr size_t kMajorAt = 8;
constexpr size_t kMinorAt = 12;
constexpr size_t kPayloadBytesAt = 16;
constexpr size_t kPayloadCrcAt = 24;
constexpr size_t kHeaderCrcAt = 28;
static_assert(kHeaderCrcAt + 4 == kManifestHeaderBytes);

template <typename... Parts>
absl::Status Damaged(uint64_t offset_bytes, const Parts&... parts) {
  return absl::DataLossError(
      absl::StrCat(View(kManifestFileName), ": offset ", offset_bytes, ": ", parts...));
}

std::string Hex(uint32_t value) { return absl::StrCat("0x", absl::Hex(value, absl::kZeroPad8)); }

struct Header {
  uint32_t major;
  uint32_t minor;
  uint64_t payload_bytes;
  uint32_t payload_crc;
};

std::string EncodeHeader(const Header& header) {
  std::string bytes(kMagic);
  AppendLittleEndian(header.major, bytes);
  AppendLittleEndian(header.minor, bytes);
  AppendLittleEndian(header.payload_bytes, bytes);
  AppendLittleEndian(header.payload_crc, bytes);
  AppendLittleEndian(Crc32c(bytes), bytes);
  return bytes;
}

absl::StatusOr<Header> DecodeHeader(std::string_view bytes) {
  if (bytes.size() < kManifestHeaderBytes) {
    return Damaged(bytes.size(), "the file ends inside its header, expected ", kManifestHeaderBytes,
                   " bytes, found ", bytes.size());
  }
  if (bytes.substr(0, kMagic.size()) != kMagic) {
    return Damaged(0, "not a Tessera manifest: the magic bytes are wrong");
  }
  const auto stored_crc = LoadLittleEndian<uint32_t>(bytes.data() + kHeaderCrcAt);
  const uint32_t crc = Crc32c(bytes.substr(0, kHeaderCrcAt));
  if (crc != stored_crc) {
    return Damaged(kHeaderCrcAt, "header checksum: expected ", Hex(stored_crc), ", found ",
                   Hex(crc));
  }
  Header header;
  header.major = LoadLittleEndian<uint32_t>(bytes.data() + kMajorAt);
  header.minor = LoadLittleEndian<uint32_t>(bytes.data() + kMinorAt);
  header.payload_bytes = LoadLittleEndian<uint64_t>(bytes.data() + kPayloadBytesAt);
  header.payload_crc = LoadLittleEndian<uint32_t>(bytes.data() + kPayloadCrcAt);
  return header;
}

absl::Status CheckVersion(uint32_t major, uint32_t minor) {
  if (major == kFormatMajor) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("manifest.pb: offset ", kMajorAt, ": format version ", major, ".", minor,
                   " is unknown, this program reads version ", kFormatMajor));
}

constexpr uint64_t kCostAllowance = uint64_t{1} << 20;

uint64_t CostLimit(std::string_view payload) {
  return kMaxManifestCostRatio * payload.size() + kCostAllowance;
}

std::optional<uint64_t> Cost(std::string_view payload) {
  return ParseCost(*Manifest::descriptor(), payload, CostLimit(payload));
}

}  // namespace

absl::StatusOr<std::string> EncodeManifest(Manifest manifest, Checksums checksums) {
  manifest.set_format_major(kFormatMajor);
  manifest.set_format_minor(kFormatMinor);
  TESSERA_RETURN_IF_ERROR(ValidateManifest(manifest, checksums));
  const uint64_t payload_bytes = manifest.ByteSizeLong();
  if (payload_bytes > kMaxManifestBytes - kManifestHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the manifest has ", payload_bytes, " bytes, at most ", kMaxManifestBytes, " are allowed"));
  }
  std::string payload;
  payload.reserve(payload_bytes);
  {
    google::protobuf::io::StringOutputStream stream(&payload);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);  // maps in the order of their keys
    if (!manifest.SerializeToCodedStream(&coded)) {
      return absl::InvalidArgumentError("the manifest does not serialize");
    }
  }
  if (Cost(payload) > CostLimit(payload)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the manifest of ", payload_bytes, " bytes would take more than ",
                     kMaxManifestCostRatio, " times its size in memory"));
  }
  std::string bytes = EncodeHeader({kFormatMajor, kFormatMinor, payload.size(), Crc32c(payload)});
  bytes += payload;
  return bytes;
}

absl::Status CheckManifestHeader(std::string_view first_bytes, uint64_t file_bytes) {
  TESSERA_ASSIGN_OR_RETURN(const Header header, DecodeHeader(first_bytes));
  TESSERA_RETURN_IF_ERROR(CheckVersion(header.major, header.minor));
  if (header.payload_bytes > kMaxManifestBytes - kManifestHeaderBytes) {
    return Damaged(kPayloadBytesAt, "payload of ", header.payload_bytes, " bytes, at most ",
                   kMaxManifestBytes - kManifestHeaderBytes, " are allowed");
  }
  const uint64_t payload_bytes = file_bytes - kManifestHeaderBytes;
  if (payload_bytes != header.payload_bytes) {
    return Damaged(std::min(file_bytes, kManifestHeaderBytes + header.payload_bytes),
                   "payload: expected ", header.payload_bytes, " bytes, found ", payload_bytes);
  }
  return absl::OkStatus();
}

absl::StatusOr<Manifest> DecodeManifest(std::string_view bytes, Checksums checksums) {
  TESSERA_RETURN_IF_ERROR(CheckManifestHeader(bytes, bytes.size()));
  TESSERA_ASSIGN_OR_RETURN(const Header header, DecodeHeader(bytes));
  const std::string_view payload = bytes.substr(kManifestHeaderBytes);
  const uint32_t crc = Crc32c(payload);
  if (crc != header.payload_crc) {
    return Damaged(kManifestHeaderBytes, "payload checksum over ", payload.size(),
                   " bytes: expected ", Hex(header.payload_crc), ", found ", Hex(crc));
  }
  const std::optional<uint64_t> cost = Cost(payload);
  if (!cost.has_value())
    return Damaged(kManifestHeaderBytes, "the payload is not a Manifest message");
  if (*cost > CostLimit(payload)) {
    return Damaged(kManifestHeaderBytes, "the payload of ", payload.size(),
                   " bytes would take more than ", kMaxManifestCostRatio, " times its size");
  }
  static_assert(kMaxManifestBytes <= std::numeric_limits<int>::max());
  Manifest manifest;
  if (!manifest.ParseFromArray(payload.data(), static_cast<int>(payload.size()))) {
    return Damaged(kManifestHeaderBytes, "the payload is not a Manifest message");
  }
  if (manifest.format_major() != header.major || manifest.format_minor() != header.minor) {
    return Damaged(kMajorAt, "format version: the header has ", header.major, ".", header.minor,
                   ", the payload ", manifest.format_major(), ".", manifest.format_minor());
  }
  if (const absl::Status status = ValidateManifest(manifest, checksums); !status.ok()) {
    return Damaged(kManifestHeaderBytes, status.message());
  }
  return manifest;
}

std::map<std::string_view, std::string_view> MasterNames(const Manifest& manifest) {
  std::map<std::string_view, std::string_view> names;
  for (const OptimizerParameter& parameter : manifest.optimizer().parameters()) {
    const auto master = parameter.states().find(kMasterState);
    if (master != parameter.states().end()) names[parameter.parameter()] = master->second;
  }
  return names;
}

std::vector<Box> ShardBoxes(const LogicalTensor& tensor) {
  std::vector<Box> boxes;
  boxes.reserve(ShardCount(tensor));
  for (int64_t s = 0; s < ShardCount(tensor); ++s) boxes.push_back(ShardBox(tensor, s));
  return boxes;
}

bool HasChecksums(const DataFile& file) {
  return file.chunk_crc32c_size() > 0 || file.size_bytes() == 0;
}

void AddShard(const Box& box, uint32_t file_index, uint64_t file_offset, LogicalTensor& tensor) {
  Shards& shards = *tensor.mutable_shards();
  for (const int64_t offset : box.global_offset) shards.add_global_offset(offset);
  for (const int64_t extent : box.shape) shards.add_shape(extent);
  shards.add_file_index(file_index);
  shards.add_file_offset(file_offset);
}

std::string DataFileName(std::string_view kind, int64_t index, int64_t count) {
  return absl::StrCat(View(kind), "-", absl::Dec(index + 1, absl::kZeroPad5), "-of-",
                      absl::Dec(count, absl::kZeroPad5), ".safetensors");
}

std::string DataFileName(std::string_view planned_name, std::string_view attempt) {
  std::string name(planned_name);
  name.insert(planned_name.rfind('.'), absl::StrCat("-", std::string(attempt)));
  return name;
}

LogicalDigest FromProto(const Digest& proto) { return {proto.lo(), proto.hi()}; }

Digest ToProto(const LogicalDigest& digest) {
  Digest proto;
  proto.set_lo(digest.lo);
  proto.set_hi(digest.hi);
  return proto;
}

std::string DescribeMismatch(const LogicalDigest& expected, const LogicalDigest& found) {
  const auto hex = [](uint64_t bits) { return absl::Hex(bits, absl::kZeroPad16); };
  return absl::StrCat("logical digest: expected ", hex(expected.hi), hex(expected.lo), ", found ",
                      hex(found.hi), hex(found.lo));
}

}  // namespace tessera::ckpt
