#include "checkpoint/convert/output.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/format/dtype.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/layout/copy_box.h"
#include "checkpoint/layout/flat_range.h"
#include "checkpoint/load/load.h"
#include "checkpoint/load/options.h"
#include "checkpoint/plan/rank_state.h"
#include "checkpoint/plan/state_dict.h"
#include "zlib.h"

namespace tessera::ckpt::convert {
namespace {

constexpr int64_t kBlockBytes = int64_t{32} << 20;

// Reads blocks of one tensor after the other. A load costs time for each tensor of its manifest:
// each block is loaded from a manifest of its tensor alone.
class BlockReader {
 public:
  BlockReader(const OutputSource& source, int io_threads) : source_(source) {
    options_.io_threads = io_threads;
    options_.allow_unexpected = true;
    for (const LogicalTensor& tensor : source.manifest.tensors()) tensors_[tensor.name()] = &tensor;
  }

  // Reads the elements of `pieces`, whose offsets are those in `block`, and adds their digests.
  absl::Status Read(const OutputTensor& tensor, const std::vector<StoredPiece>& pieces,
                    std::span<std::byte> block, LogicalDigest& digest) {
    if (current_ != tensor.source_name) UseManifestOf(tensor.source_name);
    ShardedTensor wanted = {.name = tensor.source_name,
                            .role = FromProto(tensor.role),
                            .dtype = FromProto(tensor.dtype),
                            .global_shape = tensor.shape};
    for (const StoredPiece& piece : pieces) {
      wanted.shards.push_back(
          {.box = piece.box, .data = block.data() + piece.offset_bytes, .strides = piece.strides});
    }
    TESSERA_RETURN_IF_ERROR(LoadWithManifest(source_.storage, source_.directory, manifest_,
                                             {{std::move(wanted)}}, options_)
                                .status());
    const size_t size = DTypeSize(tensor.dtype);
    for (const StoredPiece& piece : pieces) {
      digest += DigestBox(tensor.shape,
                          {block.data() + piece.offset_bytes, piece.box, piece.strides}, size);
    }
    return absl::OkStatus();
  }

 private:
  void UseManifestOf(const std::string& name) {
    current_ = name;
    manifest_.Clear();
    manifest_.set_format_major(source_.manifest.format_major());
    manifest_.set_format_minor(source_.manifest.format_minor());
    std::map<uint32_t, uint32_t> files;  // from indices in the whole manifest
    for (auto found = tensors_.find(name); found != tensors_.end();
         found = tensors_.find(found->second->alias_of())) {
      LogicalTensor& tensor = *manifest_.add_tensors();
      tensor = *found->second;
      for (uint32_t& file : *tensor.mutable_shards()->mutable_file_index()) {
        const auto [at, is_new] = files.emplace(file, files.size());
        if (is_new) *manifest_.add_files() = source_.manifest.files(static_cast<int>(file));
        file = at->second;
      }
    }
  }

  const OutputSource& source_;
  LoadOptions options_;
  std::map<std::string, const LogicalTensor*> tensors_;
  std::string current_;  // the tensor that manifest_ has
  Manifest manifest_;
};

class Writer {
 public:
  Writer(const OutputSource& source, Storage& storage, std::string_view directory,
         const OutputOptions& options)
      : reader_(source, options.io_threads),
        storage_(storage),
        directory_(directory),
        options_(options) {}

  absl::StatusOr<DigestsByName> Write(const std::vector<OutputFile>& files) {
    for (const OutputFile& file : files) total_bytes_ += file.size_bytes;
    for (const OutputFile& file : files) TESSERA_RETURN_IF_ERROR(WriteFile(file));
    TESSERA_RETURN_IF_ERROR(storage_.SyncDirectory(directory_));
    return std::move(digests_);
  }

 private:
  absl::Status WriteFile(const OutputFile& file) {
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> out,
                             storage_.Create(JoinPath(directory_, file.name), file.size_bytes));
    TESSERA_RETURN_IF_ERROR(out->WriteAt(0, std::as_bytes(std::span(file.header))));
    Advance(file.header.size());
    std::vector<uint32_t> crc32;
    for (const OutputTensor& tensor : file.tensors) {
      crc32.push_back(0);
      TESSERA_RETURN_IF_ERROR(
          WriteTensor(tensor, *out, file.finish == nullptr ? nullptr : &crc32.back()));
    }
    if (file.finish != nullptr) {
      for (const OutputBytes& rest : file.finish(crc32)) {
        TESSERA_RETURN_IF_ERROR(
            out->WriteAt(rest.offset_bytes, std::as_bytes(std::span(rest.bytes))));
        Advance(rest.bytes.size());
      }
    }
    TESSERA_RETURN_IF_ERROR(out->Sync());
    return out->Close();
  }

  // `crc32` may be null.
  absl::Status WriteTensor(const OutputTensor& tensor, WritableFile& out, uint32_t* crc32) {
    const auto size = static_cast<int64_t>(DTypeSize(tensor.dtype));
    const int64_t block = kBlockBytes / size;
    LogicalDigest& digest = digests_[tensor.name];
    for (int64_t begin = 0; begin < tensor.elements; begin += block) {
      const int64_t end = std::min(tensor.elements, begin + block);
      buffer_.assign(static_cast<size_t>((end - begin) * size), std::byte{0});
      TESSERA_RETURN_IF_ERROR(reader_.Read(tensor, tensor.pieces(begin, end), buffer_, digest));
      TESSERA_RETURN_IF_ERROR(
          out.WriteAt(tensor.offset_bytes + static_cast<uint64_t>(begin * size), buffer_));
      if (crc32 != nullptr) {
        *crc32 = static_cast<uint32_t>(
            crc32_z(*crc32, reinterpret_cast<const Bytef*>(buffer_.data()), buffer_.size()));
      }
      Advance(buffer_.size());
    }
    return absl::OkStatus();
  }

  void Advance(uint64_t bytes) {
    done_bytes_ += bytes;
    if (options_.progress) options_.progress(done_bytes_, total_bytes_);
  }

  BlockReader reader_;
  Storage& storage_;
  const std::string directory_;
  const OutputOptions& options_;
  std::vector<std::byte> buffer_;
  DigestsByName digests_;
  uint64_t done_bytes_ = 0, total_bytes_ = 0;
};

}  // namespace

std::vector<StoredPiece> RowMajorPieces(const Shape& shape, size_t element_bytes, int64_t begin,
                                        int64_t end) {
  std::vector<StoredPiece> pieces;
  uint64_t offset = 0;
  for (Box& box : FlatRangeToBoxes(WholeBox(shape), begin, end)) {
    StoredPiece piece = {.offset_bytes = offset, .strides = ContiguousStrides(box.shape)};
    offset += static_cast<uint64_t>(ElementCount(box.shape)) * element_bytes;
    piece.box = std::move(box);
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

absl::StatusOr<DigestsByName> WriteOutput(const OutputSource& source,
                                          const std::vector<OutputFile>& files, Storage& storage,
                                          std::string_view directory,
                                          const OutputOptions& options) {
  return Writer(source, storage, directory, options).Write(files);
}

absl::StatusOr<DigestsByName> ReadDigests(const OutputSource& source,
                                          const OutputOptions& options) {
  BlockReader reader(source, options.io_threads);
  DigestsByName digests;
  std::vector<std::byte> buffer;
  uint64_t done = 0, total = 0;
  for (const DataFile& file : source.manifest.files()) total += file.size_bytes();
  for (const LogicalTensor& logical : source.manifest.tensors()) {
    if (!logical.alias_of().empty()) continue;
    const OutputTensor tensor = {.name = logical.name(),
                                 .source_name = logical.name(),
                                 .role = logical.role(),
                                 .dtype = logical.dtype(),
                                 .shape = GlobalShape(logical),
                                 .elements = ElementCount(GlobalShape(logical))};
    const size_t size = DTypeSize(tensor.dtype);
    const int64_t block = kBlockBytes / static_cast<int64_t>(size);
    LogicalDigest& digest = digests[tensor.name];
    for (int64_t begin = 0; begin < tensor.elements; begin += block) {
      const int64_t end = std::min(tensor.elements, begin + block);
      buffer.resize(static_cast<size_t>(end - begin) * size);
      TESSERA_RETURN_IF_ERROR(
          reader.Read(tensor, RowMajorPieces(tensor.shape, size, begin, end), buffer, digest));
      done += buffer.size();
      if (options.progress) options.progress(done, total);
    }
  }
  for (const LogicalTensor& logical : source.manifest.tensors()) {
    if (!logical.alias_of().empty()) digests[logical.name()] = digests[logical.alias_of()];
  }
  return digests;
}

}  // namespace tessera::ckpt::convert
