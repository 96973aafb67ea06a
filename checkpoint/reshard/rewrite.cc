#include "checkpoint/reshard/rewrite.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/byte_progress.h"
#include "base/checked_math.h"
#include "base/crc32c.h"
#include "base/errno_status.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "base/threads.h"
#include "base/units.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/elements/digest_elements.h"
#include "checkpoint/format/digest.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/format/pieces.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/load/compare.h"
#include "checkpoint/load/placer.h"
#include "checkpoint/plan/load_plan.h"
#include "checkpoint/save/coordinator.h"
#include "checkpoint/save/save_messages.pb.h"
#include "checkpoint/scan/scan.h"
#include "layout/box.h"
#include "layout/elements/box_runs.h"
#include "layout/elements/copy_elements.h"
#include "storage/aligned_buffer.h"

namespace tessera::ckpt {
namespace {

// Files of one kind are written in parallel: tensor-parallel ranks need the same chunks of the
// source.
constexpr size_t kMaxOpenFiles = 32;
// Limit of the buffers for reading the source.
constexpr uint64_t kMaxStagingBytes = uint64_t{64} << 20;
// Memory for each thread, if there is as much: small windows read more chunks twice.
constexpr uint64_t kWorkerBytes = uint64_t{64} << 20;

// Returns the memory for chunks of the source that neighbouring windows share.
uint64_t EndBytes(const RewriteOptions& options) { return options.memory_bytes / 8; }

// One box that fills bytes of a file. `tensor` is an index into the planned manifest.
struct Item : StoredBox {
  uint32_t saved_tensor;  // into the source's manifest
  DType dtype;
  Box box;
};

// A data file being written.
struct TargetFile {
  uint32_t index;  // into Manifest.files
  uint64_t size_bytes;
  uint32_t chunk_bytes;
  std::string header;
  std::vector<Item> items;  // ascending
  std::vector<uint32_t> crcs;
  std::unique_ptr<WritableFile> file;
};

// Bytes [begin, end) of a file, in memory.
struct Window {
  TargetFile* file;
  uint64_t begin;
  uint64_t end;
  std::byte* data;
};

uint64_t LargestChunk(const Manifest& source, const Manifest& planned) {
  uint64_t largest = kIoAlignmentBytes;
  for (const Manifest* const manifest : {&source, &planned}) {
    for (const DataFile& file : manifest->files()) {
      largest = std::max(largest, std::min<uint64_t>(file.chunk_bytes(), file.size_bytes()));
    }
  }
  return RoundUp(largest, kIoAlignmentBytes);
}

bool HasElements(const LogicalTensor& tensor) {
  return tensor.alias_of().empty() && ElementCount(GlobalShape(tensor)) > 0;
}

// Writes the planned files in windows of memory. Call CheckRequest(), then WriteFiles().
class Rewriter {
 public:
  Rewriter(const Checkpoint& source, const RewritePlan& plan, Storage& storage,
           const RewriteOptions& options)
      : source_(source),
        plan_(plan),
        storage_(storage),
        options_(options),
        ends_(EndBytes(options)) {}

  // Runs before anything is written.
  absl::Status CheckRequest() {
    TESSERA_RETURN_IF_ERROR(CheckIoThreads(options_.io_threads));
    const uint64_t least = LeastRewriteMemory(source_.manifest(), plan_.save.manifest);
    if (options_.memory_bytes < least) {
      return absl::InvalidArgumentError(absl::StrCat(HumanBytes(options_.memory_bytes),
                                                     " of memory are too little: these files need ",
                                                     HumanBytes(least)));
    }
    // Plans of reads compare numbers of elements only.
    const absl::Status covered = ValidateCoverage(source_.manifest());
    if (covered.ok()) return MatchTensors();
    return absl::DataLossError(
        absl::StrCat(source_.storage().Describe(source_.directory()), ": ", covered.message()));
  }

  absl::Status WriteFiles(const SaveTarget& target) {
    target_ = target;
    report_.bytes_written = BytesOfFiles(plan_.save.manifest);
    progress_.emplace(options_.progress, report_.bytes_written);
    // Each can read a chunk, and has a window of some size.
    const uint64_t most = StagingBytes() / LargestChunk(source_.manifest(), plan_.save.manifest);
    const uint64_t wanted = std::clamp<uint64_t>(options_.memory_bytes / kWorkerBytes, 2, 64);
    workers_.resize(std::clamp<uint64_t>(std::min(most, wanted), 1, options_.io_threads));
    for (Worker& worker : workers_) {
      worker.digests.resize(plan_.save.manifest.tensors_size());
      worker.staging.ends = &ends_;
    }
    TESSERA_RETURN_IF_ERROR(ListFiles());
    size_t first = 0;
    while (first < files_.size()) {
      const size_t count = GroupSize(first);
      TESSERA_RETURN_IF_ERROR(WriteGroup(first, count));
      first += count;
    }
    if (!files_.empty()) {
      TESSERA_RETURN_IF_ERROR(In("syncing", storage_.SyncDirectory(target_.directory)));
    }
    return CompareDigests();
  }

  WriteReport TakeWriteReport() {
    for (int t = 0; t < plan_.save.manifest.tensors_size(); ++t) {
      // Aliases and tensors without elements are not written and have no digest.
      if (!HasElements(plan_.save.manifest.tensors(t))) continue;
      TensorReport& report = *write_report_.add_tensors();
      report.set_manifest_tensor(t);
      *report.mutable_digest() = ToProto(Sum(t));
    }
    write_report_.set_bytes(report_.bytes_written);
    return std::move(write_report_);
  }

  RewriteReport report() const {
    RewriteReport report = report_;
    for (const Worker& worker : workers_) report.bytes_read += worker.bytes_read;
    report.bytes_read -= ends_.found_bytes();
    return report;
  }

 private:
  using Digests = std::vector<LogicalDigest>;
  struct Worker {
    Digests digests;  // by planned tensor
    AlignedBuffer windows;
    ScanBuffers staging;
    uint64_t bytes_read = 0;
  };
  struct PlannedFile {
    const FilePlan* plan;
    uint32_t rank;
  };

  // The plan must contain exactly the tensors of the source.
  absl::Status MatchTensors() {
    std::map<std::string, uint32_t> saved;
    for (int t = 0; t < source_.manifest().tensors_size(); ++t) {
      saved[source_.manifest().tensors(t).name()] = t;
    }
    for (const LogicalTensor& planned : plan_.save.manifest.tensors()) {
      const auto at = saved.find(planned.name());
      if (at == saved.end()) return Mismatch(planned.name(), "planned, not saved");
      const LogicalTensor& tensor = source_.manifest().tensors(at->second);
      if (tensor.dtype() != planned.dtype() || tensor.role() != planned.role() ||
          tensor.alias_of() != planned.alias_of() || GlobalShape(tensor) != GlobalShape(planned)) {
        return Mismatch(planned.name(), "planned as something else than it was saved");
      }
      saved_tensor_.push_back(at->second);
      saved.erase(at);
    }
    if (!saved.empty()) return Mismatch(saved.begin()->first, "saved, not planned");
    return absl::OkStatus();
  }

  static absl::Status Mismatch(const std::string& name, absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", name, ": ", what));
  }

  absl::Status ListFiles() {
    files_.resize(plan_.save.manifest.files_size());
    for (uint32_t r = 0; r < plan_.save.ranks.size(); ++r) {
      for (const FilePlan& file : plan_.save.ranks[r].files())
        files_[file.file_index()] = {&file, r};
    }
    for (const PlannedFile& file : files_) {
      if (file.plan == nullptr) return absl::InternalError("a planned file has no writer");
    }
    return absl::OkStatus();
  }

  uint64_t StagingBytes() const { return std::min(kMaxStagingBytes, options_.memory_bytes / 4); }
  // Returns the number of threads, each with windows that it fills and writes.
  int Workers() const { return static_cast<int>(workers_.size()); }
  // Returns the memory of each window.
  uint64_t WindowBytes() const {
    return (options_.memory_bytes - StagingBytes() - EndBytes(options_)) / Workers();
  }

  // Number of files from `first` on that are written in parallel: all of one chunk size.
  size_t GroupSize(size_t first) const {
    const uint64_t chunk = ChunkOf(first);
    const size_t affordable = WindowBytes() / RoundUp(chunk, kIoAlignmentBytes);
    size_t count = 1;
    while (first + count < files_.size() && count < std::min(affordable, kMaxOpenFiles) &&
           ChunkOf(first + count) == chunk) {
      ++count;
    }
    return count;
  }

  uint64_t ChunkOf(size_t file) const { return plan_.save.manifest.files(file).chunk_bytes(); }

  absl::StatusOr<TargetFile> OpenTarget(const PlannedFile& planned) {
    RankState local;
    if (!local.ParseFromString(plan_.ranks[planned.rank])) {
      return absl::InternalError("a planned rank cannot be parsed");
    }
    TargetFile file = {.index = planned.plan->file_index(),
                       .size_bytes = planned.plan->size_bytes(),
                       .chunk_bytes = static_cast<uint32_t>(ChunkOf(planned.plan->file_index()))};
    TESSERA_ASSIGN_OR_RETURN(file.header, DataFileHeader(local, *planned.plan));
    for (const WriteItem& item : planned.plan->items()) file.items.push_back(MakeItem(item));
    std::ranges::sort(file.items, {}, &Item::begin);
    file.crcs.resize(CeilDivide<uint64_t>(file.size_bytes, file.chunk_bytes));
    const std::string name = DataFileName(planned.plan->path(), target_.attempt);
    TESSERA_ASSIGN_OR_RETURN(file.file,
                             storage_.Create(JoinPath(target_.directory, name), file.size_bytes));
    return file;
  }

  Item MakeItem(const WriteItem& item) const {
    const LogicalTensor& tensor = plan_.save.manifest.tensors(item.manifest_tensor());
    const Shape shape = GlobalShape(tensor);
    const Box box = ItemBox(item);
    const int64_t size = ElementSize(FromProto(tensor.dtype()));
    return {{item.file_offset(), item.file_offset() + ElementCount(box.shape) * size,
             item.manifest_tensor(), size,
             BoxRuns(box, box, std::vector<int64_t>(shape.size(), 0), ContiguousStrides(shape))},
            saved_tensor_[item.manifest_tensor()],
            FromProto(tensor.dtype()),
            box};
  }

  absl::Status WriteGroup(size_t first, size_t count) {
    std::vector<TargetFile> files;
    uint64_t longest = 0;
    for (size_t f = first; f < first + count; ++f) {
      TESSERA_ASSIGN_OR_RETURN(TargetFile file, OpenTarget(files_[f]));
      longest = std::max(longest, file.size_bytes);
      files.push_back(std::move(file));
    }
    const uint64_t unit = RoundUp(ChunkOf(first), kIoAlignmentBytes);
    // A multiple of the chunk size, and aligned if the chunk size is.
    const uint64_t each = std::max<uint64_t>(WindowBytes() / count / unit, 1) *
                          (unit == ChunkOf(first) ? unit : ChunkOf(first));
    const uint64_t stride = RoundUp(std::min(each, longest), kIoAlignmentBytes);

    // Each round fills the same range of all files, and writes it, while other threads do others.
    const size_t rounds = CeilDivide(longest, each);
    const auto workers = static_cast<int>(std::min<size_t>(workers_.size(), rounds));
    for (int w = 0; w < workers; ++w) {
      TESSERA_ASSIGN_OR_RETURN(workers_[w].windows, AlignedBuffer::Allocate(stride * count));
    }
    report_.buffer_bytes = std::max(report_.buffer_bytes,
                                    workers * stride * count + StagingBytes() + EndBytes(options_));
    TESSERA_RETURN_IF_ERROR(RunTasks(workers, rounds, [&](int w, size_t round) {
      const std::vector<Window> windows =
          CutWindows(files, round * each, each, stride, workers_[w].windows.data());
      absl::Status status = In("reading", Fill(windows, workers_[w]));
      if (status.ok()) status = In("writing", WriteWindows(windows, workers_[w]));
      return status;
    }));
    return FinishFiles(files);
  }

  static std::vector<Window> CutWindows(std::vector<TargetFile>& files, uint64_t begin,
                                        uint64_t each, uint64_t stride, std::byte* memory) {
    std::vector<Window> windows;
    for (TargetFile& file : files) {
      if (begin < file.size_bytes) {
        windows.push_back({&file, begin, std::min(file.size_bytes, begin + each),
                           memory + windows.size() * stride});
      }
    }
    return windows;
  }

  // Reads the contents of the windows from the source.
  absl::Status Fill(const std::vector<Window>& windows, Worker& worker) {
    std::vector<WantedBox> wanted;
    std::vector<Destination> destinations;
    for (const Window& window : windows) {
      const std::string& header = window.file->header;
      if (window.begin < header.size()) {
        std::memcpy(window.data, header.data() + window.begin,
                    std::min<uint64_t>(header.size(), window.end) - window.begin);
      }
      ForEachStored(
          window.file->items, window.begin, window.end,
          [&](const Item& item, int64_t first, int64_t last) {
            std::byte* at = window.data + (item.begin + first * item.element_bytes - window.begin);
            for (Box& box : FlatRangeToBoxes(item.box, first, last)) {
              wanted.push_back({item.saved_tensor, box});
              std::byte* const data =
                  std::exchange(at, at + ElementCount(box.shape) * item.element_bytes);
              std::vector<int64_t> strides = ContiguousStrides(box.shape);
              destinations.push_back({.box = std::move(box),
                                      .data = data,
                                      .strides = std::move(strides),
                                      .element_bytes = static_cast<size_t>(item.element_bytes),
                                      .copy = FindCopy(item.dtype, item.dtype),
                                      .dtype = item.dtype});
            }
          });
    }
    TESSERA_ASSIGN_OR_RETURN(const LoadPlan plan, PlanLoad(source_.manifest(), wanted));
    Scanner scanner(source_.storage(), source_.directory(), source_.manifest(),
                    {.io_threads = 1, .staging_bytes = StagingBytes() / Workers()});
    TESSERA_RETURN_IF_ERROR(scanner.Open(FilesOf(plan)));
    TESSERA_ASSIGN_OR_RETURN(const Placer placer,
                             Placer::Create(source_.manifest(), plan, destinations));
    worker.bytes_read += plan.bytes;
    return scanner.Run(RangesOf(plan), placer.AsCallback(), &worker.staging);
  }

  // Starts all writes. Computes the checksums of each piece before its write.
  absl::Status WriteWindows(const std::vector<Window>& windows, Worker& worker) {
    std::vector<std::unique_ptr<PendingIo>> writes;
    for (const Window& window : windows) {
      const uint64_t size = LayOutPieces(window.file->chunk_bytes, 1, kMaxStagingBytes).piece_bytes;
      for (uint64_t begin = window.begin; begin < window.end; begin += size) {
        const Window piece = {window.file, begin, std::min(window.end, begin + size),
                              window.data + (begin - window.begin)};
        Checksum(piece, worker.digests);
        writes.push_back(
            piece.file->file->StartWriteAt(begin, {piece.data, piece.end - begin}, {}));
      }
    }
    for (const auto& write : writes) TESSERA_RETURN_IF_ERROR(write->Wait());
    for (const Window& window : windows) progress_->Add(window.end - window.begin);
    return absl::OkStatus();
  }

  // Computes checksums and digests. Precondition: the piece begins at a chunk.
  static void Checksum(const Window& piece, Digests& digests) {
    TargetFile& file = *piece.file;
    for (uint64_t begin = piece.begin; begin < piece.end;) {
      const uint64_t chunk = begin / file.chunk_bytes;
      const uint64_t end = std::min(
          {piece.end, begin + kDigestBlockBytes, (chunk + 1) * uint64_t{file.chunk_bytes}});
      const std::byte* const bytes = piece.data + (begin - piece.begin);
      file.crcs[chunk] = ExtendCrc32c(file.crcs[chunk], {bytes, end - begin});
      DigestStored(file.items, begin, end, bytes, digests);
      begin = end;
    }
  }

  absl::Status FinishFiles(std::vector<TargetFile>& files) {
    TESSERA_RETURN_IF_ERROR(
        RunTasks(options_.io_threads, files.size(), [&](int, size_t i) -> absl::Status {
          TESSERA_RETURN_IF_ERROR(In("syncing", files[i].file->Sync()));
          return In("syncing", files[i].file->Close());
        }));
    for (const TargetFile& file : files) {
      FileReport& report = *write_report_.add_files();
      report.set_file_index(file.index);
      report.mutable_chunk_crc32c()->Add(file.crcs.begin(), file.crcs.end());
    }
    return absl::OkStatus();
  }

  LogicalDigest Sum(int tensor) const {
    LogicalDigest sum;
    for (const Worker& worker : workers_) sum += worker.digests[tensor];
    return sum;
  }

  absl::Status CompareDigests() {
    for (int t = 0; t < plan_.save.manifest.tensors_size(); ++t) {
      const LogicalTensor& saved = source_.manifest().tensors(saved_tensor_[t]);
      if (!saved.alias_of().empty()) continue;
      if (!saved.has_digest() && HasElements(saved)) {
        ++report_.digests_new;
        continue;
      }
      const LogicalDigest expected = FromProto(saved.digest()), found = Sum(t);
      if (found != expected) {
        return absl::DataLossError(absl::StrCat(source_.storage().Describe(source_.directory()),
                                                ": tensor ", saved.name(), ": ",
                                                DescribeMismatch(expected, found)));
      }
      ++report_.digests_compared;
    }
    return absl::OkStatus();
  }

  const Checkpoint& source_;
  const RewritePlan& plan_;
  Storage& storage_;
  const RewriteOptions& options_;
  SaveTarget target_;
  std::vector<uint32_t> saved_tensor_;  // by planned tensor
  std::vector<PlannedFile> files_;      // by index into Manifest.files
  EdgeChunkCache ends_;
  std::vector<Worker> workers_;
  WriteReport write_report_;
  RewriteReport report_;                  // without bytes read
  std::optional<ByteProgress> progress_;  // of writing
};

}  // namespace

// A quarter is for reading a chunk; the rest is for windows of one chunk or more.
uint64_t LeastRewriteMemory(const Manifest& source, const Manifest& planned) {
  return 4 * LargestChunk(source, planned);
}

absl::StatusOr<RewriteReport> Rewrite(const Checkpoint& source, const RewritePlan& plan,
                                      Storage& storage, std::string_view root,
                                      const Manifest& metadata, const RewriteOptions& options) {
  const absl::Duration start = SteadyNow();
  Rewriter rewriter(source, plan, storage, options);
  TESSERA_RETURN_IF_ERROR(rewriter.CheckRequest());
  Coordinator coordinator(storage, metadata, [&](uint64_t) { return std::string(root); });
  const absl::StatusOr<SaveTarget> target =
      coordinator.Prepare({.layout = plan.save.manifest, .is_new = true});
  absl::Status status = target.status();
  if (status.ok()) status = rewriter.WriteFiles(*target);
  if (status.ok()) {
    const std::string report = rewriter.TakeWriteReport().SerializeAsString();
    status = In("committing", coordinator.Commit({report}).status());
  }
  if (!status.ok()) {
    coordinator.Abandon();
    return status;
  }
  RewriteReport report = rewriter.report();
  report.directory = target->directory;
  report.duration = SteadyNow() - start;
  return report;
}

}  // namespace tessera::ckpt
