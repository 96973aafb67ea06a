#include "convert/core/foreign_storage.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/checked_math.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/elements/strided_read.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/plan/box_index.h"
#include "convert/core/block_reader.h"
#include "convert/core/reading.h"
#include "layout/box.h"
#include "layout/coverage.h"
#include "storage/checks.h"

namespace tessera::ckpt::convert {
namespace {

constexpr int64_t kChunkBytes = int64_t{1} << 20;
// Rows are never cut by a chunk unless they are longer than this.
constexpr int64_t kMaxRowBytes = int64_t{16} << 20;
constexpr int64_t kCompareBytes = int64_t{1} << 20;

// Returns whether neighbours in a row are not neighbours in the file.
bool IsTransposed(const std::vector<StoredPiece>& pieces) {
  return std::ranges::any_of(pieces, [](const StoredPiece& piece) {
    return piece.strides.size() > 1 && piece.strides.back() != 1 && piece.box.shape.back() != 1;
  });
}

// Returns the number of bytes that one read covers at least. Whole rows, because part of a row of a
// transposed tensor is spread over as much of the file as all of it; all rows of such a tensor,
// where they are few.
int64_t ChunkBytes(const Shape& shape, int64_t element_bytes, bool transposed) {
  const int64_t all_bytes = ElementCount(shape) * element_bytes;
  if (transposed && all_bytes <= kMaxRowBytes) return all_bytes;
  int64_t row_bytes = element_bytes;
  for (size_t d = 1; d < shape.size(); ++d) row_bytes *= shape[d];
  if (row_bytes > kMaxRowBytes) return kChunkBytes;
  return std::max<int64_t>(kChunkBytes / row_bytes, 1) * row_bytes;
}

template <typename... Parts>
absl::Status DamagedTensor(const ForeignTensor& tensor, const Parts&... problem) {
  return DataLoss("tensor ", tensor.name, ": ", problem...);
}

// Returns the bytes of its file that a piece spans, from its first to its last element.
// Precondition: it lies inside the file.
ByteRange BytesOf(const StoredPiece& piece, int64_t element_bytes) {
  const int64_t last = *LastElement(piece.box.shape, piece.strides);
  return {piece.offset_bytes,
          piece.offset_bytes + static_cast<uint64_t>((last + 1) * element_bytes)};
}

// Reads a region of a piece to memory that holds the tensor's row-major elements.
absl::Status ReadRegion(const ReadableFile& file, const StoredPiece& piece, const Box& region,
                        const std::vector<int64_t>& memory_strides, size_t element_bytes,
                        std::byte* memory) {
  std::vector<StridedDim> dims;
  for (size_t d = 0; d < region.shape.size(); ++d) {
    dims.push_back({region.shape[d], piece.strides[d], memory_strides[d]});
  }
  const uint64_t offset =
      piece.offset_bytes +
      static_cast<uint64_t>(OffsetInPiece(piece, region.global_offset)) * element_bytes;
  return ReadStrided(file, offset, std::move(dims), element_bytes, memory);
}

// Checks that all bytes of the piece lie inside a file of this size.
absl::Status CheckExtent(const ForeignTensor& tensor, const StoredPiece& piece,
                         uint64_t file_bytes) {
  const auto outside = [&](const auto&... what) {
    return DamagedTensor(tensor, piece.file, " at offset ", piece.offset_bytes, ": ", what...,
                         ", in a file of ", file_bytes, " bytes");
  };
  const auto element_bytes = ElementSize(tensor.dtype);
  const std::optional<int64_t> last = LastElement(piece.box.shape, piece.strides);
  const std::optional<int64_t> elements = last.has_value() ? CheckedAdd(*last, 1) : std::nullopt;
  const std::optional<int64_t> bytes =
      elements.has_value() ? CheckedMultiply(*elements, element_bytes) : std::nullopt;
  if (!bytes.has_value() || static_cast<uint64_t>(*bytes) > file_bytes ||
      piece.offset_bytes > file_bytes - static_cast<uint64_t>(*bytes)) {
    return outside("box ", ToString(piece.box), " with strides [",
                   absl::StrJoin(piece.strides, ","), "] ends outside");
  }
  // Strides of 0 repeat elements: a small file must not stand for a huge tensor.
  if (static_cast<uint64_t>(ElementCount(piece.box.shape)) > file_bytes) {
    return outside("box ", ToString(piece.box), " has more elements than bytes");
  }
  return absl::OkStatus();
}

absl::Status CheckTensor(const ForeignTensor& tensor) {
  const auto element_bytes = ElementSize(tensor.dtype);
  if (element_bytes == 0)
    return DamagedTensor(tensor, "unknown dtype ", static_cast<int>(tensor.dtype));
  const absl::Status bounded = CheckedByteCount(tensor.shape, element_bytes).status();
  return bounded.ok() ? bounded : DamagedTensor(tensor, bounded.message());
}

using BoxKey = std::pair<std::vector<int64_t>, Shape>;

BoxKey KeyOf(const Box& box) { return {box.global_offset, box.shape}; }

// Moves pieces that repeat the box of an earlier piece to the result.
std::vector<StoredPiece> TakeCopies(std::vector<StoredPiece>& pieces) {
  std::set<BoxKey> seen;
  std::vector<StoredPiece> first, copies;
  for (StoredPiece& piece : pieces) {
    const bool is_new = seen.insert(KeyOf(piece.box)).second;
    (is_new ? first : copies).push_back(std::move(piece));
  }
  pieces = std::move(first);
  return copies;
}

std::string DescribeCoverage(const std::vector<StoredPiece>& pieces,
                             const CoverageProblem& problem) {
  const std::string element = absl::StrCat("element ", ShapeToString(problem.index));
  if (problem.kind == CoverageProblem::Kind::kGap) return absl::StrCat(element, " is in no file");
  const auto place = [&](size_t i) {
    return absl::StrCat(ToString(pieces[i].box), " of ", pieces[i].file);
  };
  return absl::StrCat(element, " is in ", place(problem.first), " and in ", place(problem.second));
}

}  // namespace

struct ForeignStorage::StoredTensor {
  std::string name;
  Shape shape;
  int64_t element_bytes;
  std::vector<StoredPiece> pieces;
  BoxIndex index;  // of the pieces
};

class ForeignStorage::TensorFile final : public ReadableFile {
 public:
  TensorFile(const StoredTensor& tensor, std::vector<std::shared_ptr<ReadableFile>> files)
      : tensor_(tensor), files_(std::move(files)), strides_(ContiguousStrides(tensor.shape)) {
    for (size_t i = 0; i < files_.size(); ++i) {
      const StoredPiece& piece = tensor.pieces[i];
      if (!IsRange(tensor.shape, piece)) continue;
      const auto first = static_cast<uint64_t>(PlaceOf(piece.box.global_offset, strides_));
      const auto size = static_cast<uint64_t>(tensor.element_bytes);
      runs_[first * size] = {ElementCount(piece.box.shape) * size, files_[i].get(),
                             piece.offset_bytes};
    }
  }

  uint64_t size_bytes() const override {
    return static_cast<uint64_t>(ElementCount(tensor_.shape) * tensor_.element_bytes);
  }

  absl::Status ReadAt(uint64_t offset_bytes, std::span<std::byte> out) const override {
    if (offset_bytes > size_bytes() || out.size() > size_bytes() - offset_bytes) {
      return ShortReadStatus(absl::StrCat("tensor ", tensor_.name), offset_bytes, out.size(),
                             size_bytes());
    }
    const uint64_t size = static_cast<uint64_t>(tensor_.element_bytes);
    // Elements that the range cuts are read whole.
    while (!out.empty() && (offset_bytes % size != 0 || out.size() < size)) {
      const uint64_t skipped = offset_bytes % size;
      const size_t count = std::min<size_t>(size - skipped, out.size());
      std::array<std::byte, sizeof(uint64_t)> element;
      TESSERA_RETURN_IF_ERROR(ReadElements(offset_bytes / size, 1, element.data()));
      std::memcpy(out.data(), element.data() + skipped, count);
      out = out.subspan(count);
      offset_bytes += count;
    }
    const uint64_t whole = out.size() / size;
    TESSERA_RETURN_IF_ERROR(ReadElements(offset_bytes / size, whole, out.data()));
    out = out.subspan(whole * size);
    return out.empty() ? absl::OkStatus() : ReadAt(offset_bytes + whole * size, out);
  }

  // Starts a read; one within a single run proceeds in the background.
  std::unique_ptr<PendingIo> StartReadAt(uint64_t offset_bytes, std::span<std::byte> out,
                                         bool original) const override {
    const std::optional<Run> run = FindRun(offset_bytes);
    if (!run.has_value() || out.size() > run->bytes) {
      return ReadableFile::StartReadAt(offset_bytes, out, original);
    }
    return WaitToDo([this, read = run->file->StartReadAt(run->offset_bytes, out, original)] {
      return NameTensor(read->Wait());
    });
  }
  size_t OffsetInPage(uint64_t offset_bytes) const override {
    const std::optional<Run> run = FindRun(offset_bytes);
    return run.has_value() ? run->file->OffsetInPage(run->offset_bytes) : 0;
  }

 private:
  // Bytes of the tensor that are together in a foreign file, too.
  struct Run {
    uint64_t bytes;
    const ReadableFile* file;
    uint64_t offset_bytes;
  };

  // Returns the rest of a run, from this offset on.
  std::optional<Run> FindRun(uint64_t offset_bytes) const {
    const auto after = runs_.upper_bound(offset_bytes);
    if (after == runs_.begin()) return std::nullopt;
    const auto& [begin, run] = *std::prev(after);
    const uint64_t skipped = offset_bytes - begin;
    if (skipped >= run.bytes) return std::nullopt;
    return Run{run.bytes - skipped, run.file, run.offset_bytes + skipped};
  }

  absl::Status NameTensor(const absl::Status& status) const {
    return In(absl::StrCat("tensor ", tensor_.name), status);
  }

  // Reads elements [first, first + count) in row-major order.
  absl::Status ReadElements(uint64_t first, uint64_t count, std::byte* out) const {
    const auto begin = static_cast<int64_t>(first);
    const Box whole = WholeBox(tensor_.shape);
    absl::Status status;
    for (const Box& box : FlatRangeToBoxes(whole, begin, begin + static_cast<int64_t>(count))) {
      tensor_.index.ForEachOverlap(box, [&](size_t i, const Box& region) {
        if (!status.ok()) return;
        const int64_t element = PlaceOf(region.global_offset, strides_) - begin;
        status = ReadRegion(*files_[i], tensor_.pieces[i], region, strides_,
                            static_cast<size_t>(tensor_.element_bytes),
                            out + element * tensor_.element_bytes);
      });
      TESSERA_RETURN_IF_ERROR(NameTensor(status));
    }
    return absl::OkStatus();
  }

  const StoredTensor& tensor_;
  const std::vector<std::shared_ptr<ReadableFile>> files_;  // parallel to the pieces
  const std::vector<int64_t> strides_;
  std::map<uint64_t, Run> runs_;  // by where they begin
};

ForeignStorage::ForeignStorage(std::shared_ptr<Storage> base,
                               std::shared_ptr<CheckedStorage> checked)
    : ReadOnlyStorage("files of another format are read-only"),
      base_(std::move(base)),
      files_(*base_),
      checked_(std::move(checked)) {}

ForeignStorage::~ForeignStorage() = default;

absl::StatusOr<std::unique_ptr<ForeignStorage>> ForeignStorage::Create(
    std::shared_ptr<Storage> base, ForeignCheckpoint checkpoint,
    std::shared_ptr<CheckedStorage> checked) {
  std::unique_ptr<ForeignStorage> storage(new ForeignStorage(std::move(base), std::move(checked)));
  for (auto& [file, decoded] : checkpoint.decoded) storage->files_.Add(file, std::move(decoded));
  TESSERA_RETURN_IF_ERROR(storage->FindFiles(checkpoint));
  Manifest manifest = std::move(checkpoint.description);
  manifest.clear_tensors();
  manifest.clear_files();
  for (ForeignTensor& tensor : checkpoint.tensors) {
    if (!tensor.foreign_name.empty()) storage->foreign_names_[tensor.name] = tensor.foreign_name;
    TESSERA_RETURN_IF_ERROR(storage->AddTensor(std::move(tensor), manifest));
  }
  absl::StatusOr<std::string> bytes = EncodeManifest(std::move(manifest), Checksums::kOptional);
  if (!bytes.ok()) return Damaged(*storage, "", bytes.status().message());
  storage->manifest_ = *std::move(bytes);
  storage->notes_ = std::move(checkpoint.notes);
  storage->unread_ = std::move(checkpoint.unread);
  storage->mismatch_ = std::move(checkpoint.mismatch);
  storage->FindChecksums();
  storage->format_ = std::move(checkpoint.format);
  storage->state_ = std::move(checkpoint.state);
  return storage;
}

absl::Status ForeignStorage::FindFiles(const ForeignCheckpoint& checkpoint) {
  std::vector<std::string> missing;
  for (const ForeignTensor& tensor : checkpoint.tensors) {
    for (const StoredPiece& piece : tensor.pieces) {
      const auto [at, is_new] = file_bytes_.emplace(piece.file, 0);
      if (!is_new) continue;
      const absl::StatusOr<std::unique_ptr<ReadableFile>> file = files_.Open(piece.file);
      if (absl::IsNotFound(file.status())) {
        missing.push_back(absl::StrCat(piece.file, " with tensor ", tensor.name));
      } else if (absl::IsInvalidArgument(file.status())) {
        return DamagedTensor(tensor, file.status().message());
      } else {
        TESSERA_RETURN_IF_ERROR(file.status());
        at->second = (*file)->size_bytes();
      }
    }
  }
  if (missing.empty()) return absl::OkStatus();
  return NotFound(Describe(""), ": missing: ", JoinFirst(missing, ", "));
}

void ForeignStorage::FindChecksums() {
  proof_.tensors = static_cast<int64_t>(tensors_.size());
  if (checked_ == nullptr) return;
  for (const auto& entry : tensors_) {
    const StoredTensor* const tensor = entry.second.get();
    proof_.proven += std::ranges::all_of(tensor->pieces, [&](const StoredPiece& piece) {
      const ByteRange bytes = BytesOf(piece, tensor->element_bytes);
      return checked_->HasChecksum(piece.file, bytes.begin, bytes.end);
    });
  }
  const std::vector<std::string> unchecked = checked_->UncheckedFiles();
  if (unchecked.empty()) return;
  notes_.insert(
      notes_.begin(),
      absl::StrCat("torch.save() was told to compute no CRC-32 (set_crc32_options(False)), so "
                   "damage to the contents cannot be detected: ",
                   JoinFirst(unchecked, ", "), "."));
}

std::vector<ForeignStorage::Extent> ForeignStorage::Extents() const {
  std::vector<Extent> extents;
  for (const auto& [unused, tensor] : tensors_) {
    for (const StoredPiece& piece : tensor->pieces) {
      const ByteRange bytes = BytesOf(piece, tensor->element_bytes);
      const uint64_t decoded = files_.decoded_bytes(piece.file);
      if (bytes.end > file_bytes_.at(piece.file) - decoded) continue;
      extents.push_back({piece.file, bytes, tensor->name, piece.box});
    }
  }
  return extents;
}

std::vector<absl::Status> ForeignStorage::CheckOtherRecords() const {
  if (checked_ == nullptr) return {};
  std::map<std::string, CheckedStorage::Ranges> ranges;
  for (const auto& [unused, tensor] : tensors_) {
    for (const StoredPiece& piece : tensor->pieces) {
      const ByteRange range = BytesOf(piece, tensor->element_bytes);
      const auto bytes =
          static_cast<uint64_t>(ElementCount(piece.box.shape) * tensor->element_bytes);
      // Bytes between the elements are not read.
      if (range.end - range.begin > bytes) continue;
      uint64_t& end = ranges[piece.file][range.begin];
      end = std::max(end, range.end);
    }
  }
  return checked_->CheckOthers(ranges);
}

absl::Status ForeignStorage::AddTensor(ForeignTensor tensor, Manifest& manifest) {
  TESSERA_RETURN_IF_ERROR(CheckTensor(tensor));
  LogicalTensor& logical = *manifest.add_tensors();
  logical.set_name(tensor.name);
  logical.set_role(ToProto(tensor.role));
  logical.set_dtype(ToProto(tensor.dtype));
  logical.mutable_global_shape()->Add(tensor.shape.begin(), tensor.shape.end());
  logical.set_alias_of(tensor.alias_of);
  if (!tensor.alias_of.empty()) return absl::OkStatus();
  if (tensor.partition.has_value()) *logical.mutable_partition() = ToProto(*tensor.partition);
  if (tensor.digest.has_value()) *logical.mutable_digest() = *tensor.digest;

  for (const StoredPiece& piece : tensor.pieces) {
    const absl::Status inside = CheckBoxInside(tensor.shape, piece.box);
    if (!inside.ok()) return DamagedTensor(tensor, piece.file, ": ", inside.message());
    if (piece.strides.size() != tensor.shape.size()) {
      return DamagedTensor(tensor, piece.file, ": ", piece.strides.size(), " strides for ",
                           tensor.shape.size(), " dims");
    }
    if (piece.box.empty()) continue;
    TESSERA_RETURN_IF_ERROR(CheckExtent(tensor, piece, file_bytes_.at(piece.file)));
  }
  std::erase_if(tensor.pieces, [](const StoredPiece& piece) { return piece.box.empty(); });
  const std::vector<StoredPiece> copies = TakeCopies(tensor.pieces);
  std::vector<Box> boxes;
  for (const StoredPiece& piece : tensor.pieces) boxes.push_back(piece.box);
  if (const std::optional<CoverageProblem> problem = FindCoverageProblem(tensor.shape, boxes)) {
    return DamagedTensor(tensor, DescribeCoverage(tensor.pieces, *problem));
  }
  if (ElementCount(tensor.shape) == 0) return absl::OkStatus();

  const auto element_bytes = ElementSize(tensor.dtype);
  const int index = manifest.files_size();
  DataFile& file = *manifest.add_files();
  file.set_path(absl::StrFormat("tensor-%05d", index));
  file.set_size_bytes(static_cast<uint64_t>(ElementCount(tensor.shape) * element_bytes));
  file.set_chunk_bytes(
      static_cast<uint32_t>(ChunkBytes(tensor.shape, element_bytes, IsTransposed(tensor.pieces))));
  AddShard(WholeBox(tensor.shape), static_cast<uint32_t>(index), 0, logical);
  const StoredTensor& stored =
      *tensors_
           .emplace(file.path(), std::make_unique<StoredTensor>(StoredTensor{
                                     tensor.name, tensor.shape, element_bytes,
                                     std::move(tensor.pieces), BoxIndex(std::move(boxes))}))
           .first->second;
  return CompareCopies(stored, copies);
}

absl::Status ForeignStorage::CompareCopies(const StoredTensor& tensor,
                                           const std::vector<StoredPiece>& copies) {
  if (copies.empty()) return absl::OkStatus();
  std::map<BoxKey, const StoredPiece*> originals;
  for (const StoredPiece& piece : tensor.pieces) originals.emplace(KeyOf(piece.box), &piece);
  for (const StoredPiece& copy : copies) {
    const StoredPiece& first = *originals.at(KeyOf(copy.box));
    TESSERA_ASSIGN_OR_RETURN(const bool equal, AreEqual(first, copy, tensor.element_bytes));
    if (equal) continue;
    const std::string places = first.file == copy.file
                                   ? absl::StrCat(copy.file, " at offsets ", first.offset_bytes,
                                                  " and ", copy.offset_bytes)
                                   : absl::StrCat(first.file, " and ", copy.file);
    return DataLoss("tensor ", tensor.name, ": the copies of ", ToString(copy.box), " in ", places,
                    " differ");
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> ForeignStorage::AreEqual(const StoredPiece& a, const StoredPiece& b,
                                              int64_t element_bytes) {
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<ReadableFile> file_a, OpenBase(a.file));
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<ReadableFile> file_b, OpenBase(b.file));
  const int64_t count = ElementCount(a.box.shape), block = kCompareBytes / element_bytes;
  const auto size = static_cast<size_t>(element_bytes);
  std::vector<std::byte> bytes_a, bytes_b;
  for (int64_t begin = 0; begin < count; begin += block) {
    for (const Box& box : FlatRangeToBoxes(a.box, begin, std::min(count, begin + block))) {
      bytes_a.resize(static_cast<size_t>(ElementCount(box.shape)) * size);
      bytes_b.resize(bytes_a.size());
      const std::vector<int64_t> strides = ContiguousStrides(box.shape);
      TESSERA_RETURN_IF_ERROR(ReadRegion(*file_a, a, box, strides, size, bytes_a.data()));
      TESSERA_RETURN_IF_ERROR(ReadRegion(*file_b, b, box, strides, size, bytes_b.data()));
      if (bytes_a != bytes_b) return false;
    }
  }
  return true;
}

absl::StatusOr<std::shared_ptr<ReadableFile>> ForeignStorage::OpenBase(const std::string& file) {
  const MutexLock lock(&mutex_);
  std::weak_ptr<ReadableFile>& known = open_[file];
  if (std::shared_ptr<ReadableFile> open = known.lock()) return open;
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<ReadableFile> opened, files_.Open(file));
  if (opened->size_bytes() != file_bytes_.at(file)) {
    return DataLoss(base_->Describe(file), ": had ", file_bytes_.at(file), " bytes, now has ",
                    opened->size_bytes());
  }
  known = opened;
  return opened;
}

absl::StatusOr<std::unique_ptr<ReadableFile>> ForeignStorage::Open(std::string_view path) {
  TESSERA_RETURN_IF_ERROR(CheckPath("Open", path, /*root_allowed=*/false));
  if (path == kManifestFileName) return std::make_unique<BytesFile>(Describe(path), manifest_);
  const auto found = tensors_.find(path);
  if (found == tensors_.end()) return NotFound("Open ", Describe(""), ": no such file ", path);
  std::vector<std::shared_ptr<ReadableFile>> files;
  for (const StoredPiece& piece : found->second->pieces) {
    TESSERA_ASSIGN_OR_RETURN(files.emplace_back(), OpenBase(piece.file));
  }
  return std::make_unique<TensorFile>(*found->second, std::move(files));
}

absl::StatusOr<std::vector<std::string>> ForeignStorage::List(std::string_view path) {
  TESSERA_RETURN_IF_ERROR(CheckPath("List", path, /*root_allowed=*/true));
  if (!path.empty()) return NotFound("List ", Describe(""), ": no such directory ", path);
  std::vector<std::string> names = {std::string(kManifestFileName)};
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

std::string ForeignStorage::Describe(std::string_view path) const {
  const auto found = tensors_.find(path);
  if (found == tensors_.end()) return base_->Describe("");
  return absl::StrCat(base_->Describe(""), ": tensor ", found->second->name);
}

}  // namespace tessera::ckpt::convert
