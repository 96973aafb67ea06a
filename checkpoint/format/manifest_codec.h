#ifndef TESSERA_CHECKPOINT_FORMAT_MANIFEST_CODEC_H_
#define TESSERA_CHECKPOINT_FORMAT_MANIFEST_CODEC_H_

// The manifest codec: Manifest message <-> bytes of manifest.pb, as specified by FORMAT.md. Pure:
// no I/O.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/format/digest.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/include/manifest.pb.h"
#include "layout/box.h"

namespace tessera::ckpt {

inline constexpr uint32_t kFormatMajor = 1;
inline constexpr uint32_t kFormatMinor = 3;
inline constexpr std::string_view kManifestFileName = "manifest.pb";
// The signature, beside a signed manifest. It belongs to this manifest and to no other attempt.
inline constexpr std::string_view kManifestSignatureFileName = "manifest.sig";
inline constexpr size_t kManifestHeaderBytes = 32;
inline constexpr uint64_t kMaxManifestBytes = uint64_t{1} << 30;  // header and payload

// Limit of the memory of a decoded manifest, relative to its bytes, plus a megabyte. Saved
// manifests take about seven times their bytes; a file that would take more than the limit is
// refused before it is parsed.
inline constexpr uint64_t kMaxManifestCostRatio = 16;

// The largest step, number of samples and epoch of a trainer state. A double has every integer up
// to this one, so that every tool can print it, and additions of a trainer do not overflow.
inline constexpr int64_t kMaxTrainerCount = int64_t{1} << 53;

// Whether the data files of a manifest must have checksums. Files of a manifest on a disk must;
// files of a manifest that was made in memory, over files of another format, need not.
enum class Checksums { kRequired, kOptional };

// Returns the bytes of manifest.pb. Stores this version in the message; equal messages yield equal
// bytes. Errors: InvalidArgument if ValidateManifest() reports an error or the result exceeds
// kMaxManifestBytes or kMaxManifestCostRatio.
absl::StatusOr<std::string> EncodeManifest(Manifest manifest,
                                           Checksums checksums = Checksums::kRequired);

// Decodes the bytes of manifest.pb. Any flipped byte and any truncation is detected before the
// payload is parsed. Errors: DataLoss with offset, expected and found, for damaged or invalid
// bytes; Unimplemented for a major version that this program does not know. Cost: one million
// shards in well under a second.
absl::StatusOr<Manifest> DecodeManifest(std::string_view bytes,
                                        Checksums checksums = Checksums::kRequired);

// Checks the header as DecodeManifest() does, before a reader reads on or allocates memory.
// `first_bytes` are the file's first bytes, `file_bytes` its length, which the header must match.
absl::Status CheckManifestHeader(std::string_view first_bytes, uint64_t file_bytes);

// Checks the rules that hold for every manifest (FORMAT.md, "Rules"), except coverage.
// InvalidArgument, naming the field.
absl::Status ValidateManifest(const Manifest& manifest, Checksums checksums = Checksums::kRequired);

// Checks the remaining rules, for tensors and files that are known to be valid: text, optimizer,
// trainer state.
absl::Status ValidateMetadata(const Manifest& manifest);

// Proves that the shards of every tensor hold every element exactly once. InvalidArgument, naming
// tensor, element and shards.
absl::Status ValidateCoverage(const Manifest& manifest);
absl::Status ValidateCoverage(const LogicalTensor& tensor);

// The state of an optimizer that is a parameter's master weight.
inline constexpr char kMasterState[] = "master";

// Returns the names of the master weights, by parameter. The manifest must outlive the result.
std::map<std::string_view, std::string_view> MasterNames(const Manifest& manifest);

// Returns the boxes of all shards of a tensor.
std::vector<Box> ShardBoxes(const LogicalTensor& tensor);

// Convert a digest to the manifest's message, and back.
LogicalDigest FromProto(const Digest& proto);
Digest ToProto(const LogicalDigest& digest);

// Returns "logical digest: expected ..., found ...".
std::string DescribeMismatch(const LogicalDigest& expected, const LogicalDigest& found);

// Returns false for a file that has bytes, but no checksums: see Checksums.
bool HasChecksums(const DataFile& file);

// Appends one shard to a tensor's columns.
void AddShard(const Box& box, uint32_t file_index, uint64_t file_offset, LogicalTensor& tensor);

// Returns "model-00003-of-00016.safetensors" for kind "model", index 2 of 16.
std::string DataFileName(std::string_view kind, int64_t index, int64_t count);

// Returns "model-00003-of-00016-1a2b3c4d.safetensors", the name of such a file in save attempt
// "1a2b3c4d". No two attempts write to the same file.
std::string DataFileName(std::string_view planned_name, std::string_view attempt);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_FORMAT_MANIFEST_CODEC_H_
