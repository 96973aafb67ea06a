// Opening a checkpoint of torch.distributed.checkpoint that has as many chunks as a large run
// leaves: reading its .metadata, the header of every chunk, and checking that they cover their
// tensors. The data files are simulated: every chunk has the same bytes. Compared with decoding the
// same .metadata alone. Prints
//   figure dcp_index.over_pickle              seconds, over those of the pickle alone
//   figure dcp_index.growth                   seconds per chunk, over those with a tenth of them
//   figure dcp_index.memory_over_metadata     largest memory, over the bytes of .metadata

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/foreign_storage.h"
#include "convert/core/output.h"
#include "convert/formats/dcp/dcp.h"
#include "convert/formats/torch/write.h"
#include "convert/pickle/read.h"
#include "convert/pickle/torch_archive.h"
#include "convert/pickle/write.h"
#include "storage/read_only_storage.h"
#include "storage/storage.h"
#include "tests/perf/allocated_memory.h"
#include "tests/perf/harness.h"

ABSL_FLAG(int64_t, chunks, 2'000'000, "of all tensors together");
ABSL_FLAG(int64_t, chunks_per_tensor, 1000, "each on another rank");

namespace tessera::ckpt::convert {
namespace {

constexpr int64_t kColumns = 4;
constexpr char kModule[] = "torch.distributed.checkpoint.metadata";

// Pickles as torch does: what occurs again is remembered the first time.
class MetadataPickle {
 public:
  MetadataPickle(int64_t tensors, int64_t chunks, uint64_t blob_bytes)
      : tensors_(tensors), chunks_(chunks), blob_bytes_(blob_bytes) {}

  std::string Write() && {
    bytes_ = "\x80\x02";
    Begin(kModule, "Metadata");
    Text("state_dict_metadata");
    bytes_ += "}(";
    for (int64_t t = 0; t < tensors_; ++t) Tensor(t);
    bytes_ += 'u';
    Text("storage_data");
    bytes_ += "}(";
    for (int64_t t = 0; t < tensors_; ++t) {
      for (int64_t c = 0; c < chunks_; ++c) Place(t, c);
    }
    bytes_ += 'u';
    End();
    bytes_ += '.';
    return std::move(bytes_);
  }

 private:
  static std::string Name(int64_t t) { return absl::StrCat("model.layers.", t, ".weight"); }

  void Tensor(int64_t t) {
    Text(Name(t));
    Begin(kModule, "TensorStorageMetadata");
    Text("properties");
    Global(kModule, "TensorProperties");
    bytes_ += ")\x81(";
    Global("torch", "float32");
    bytes_ += "tb";
    Text("size");
    Size({chunks_, kColumns});
    Text("chunks");
    bytes_ += "](";
    for (int64_t c = 0; c < chunks_; ++c) {
      Begin(kModule, "ChunkStorageMetadata");
      Text("offsets");
      Size({c, 0});
      Text("sizes");
      Size({1, kColumns});
      End();
    }
    bytes_ += 'e';
    End();
  }

  void Place(int64_t t, int64_t c) {
    Begin(kModule, "MetadataIndex");
    Text("fqn");
    Text(Name(t));
    Text("offset");
    Size({c, 0});
    Text("index");
    Int(c);
    End();
    Begin("torch.distributed.checkpoint.filesystem", "_StorageInfo");
    Text("relative_path");
    Text(absl::StrCat("__", c, "_0.distcp"));
    Text("offset");
    Int(static_cast<int64_t>(blob_bytes_) * t);
    Text("length");
    Int(static_cast<int64_t>(blob_bytes_));
    End();
  }

  void Begin(const char* module, const char* name) {
    Global(module, name);
    bytes_ += ")\x81}(";
  }
  void End() { bytes_ += "ub"; }

  void Global(const char* module, const char* name) {
    const std::string opcode = absl::StrCat("c", module, "\n", name, "\n");
    Once(opcode, opcode);
  }
  void Text(const std::string& text) {
    Once(text, absl::StrCat("X", Number(static_cast<uint32_t>(text.size())), text));
  }
  void Int(int64_t value) {
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &value, bytes.size());
    absl::StrAppend(&bytes_, "\x8a\x08", bytes);
  }
  void Size(const std::vector<int64_t>& extents) {
    Global("torch", "Size");
    bytes_ += "((";
    for (const int64_t extent : extents) Int(extent);
    bytes_ += "ttR";
  }
  static std::string Number(uint32_t value) {
    std::string bytes(sizeof(value), '\0');
    std::memcpy(bytes.data(), &value, bytes.size());
    return bytes;
  }
  void Once(const std::string& key, const std::string& opcode) {
    const auto [at, is_new] = memo_.emplace(key, memo_.size());
    absl::StrAppend(&bytes_, is_new ? opcode + "r" : "j", Number(at->second));
  }

  const int64_t tensors_, chunks_;
  const uint64_t blob_bytes_;
  std::string bytes_;
  absl::flat_hash_map<std::string, uint32_t> memo_;
};

// A file of torch.save() with one chunk.
std::string ChunkFile() {
  pickle::Writer writer;
  WriteTorchTensor(DType::kF32, {1, kColumns}, 0, writer);
  const uint64_t bytes = kColumns * sizeof(float);
  const TorchArchiveLayout layout(std::move(writer).Finish(), std::span(&bytes, 1));
  std::string file(layout.size_bytes(), '\0');
  const uint32_t crc32 = 0;
  for (const OutputBytes& record : layout.Records(std::span(&crc32, 1), 0)) {
    file.replace(record.offset_bytes, record.bytes.size(), record.bytes);
  }
  return file;
}

// A file that repeats its contents up to a size.
class RepeatedFile final : public ReadableFile {
 public:
  RepeatedFile(const std::string& contents, uint64_t size_bytes)
      : contents_(contents), size_bytes_(size_bytes) {}

  absl::Status ReadAt(uint64_t offset_bytes, std::span<std::byte> out) const override {
    if (offset_bytes > size_bytes_ || out.size() > size_bytes_ - offset_bytes) {
      return absl::DataLossError("read beyond the end of the file");
    }
    for (size_t done = 0; done < out.size();) {
      const uint64_t at = (offset_bytes + done) % contents_.size();
      const size_t count = std::min<size_t>(out.size() - done, contents_.size() - at);
      std::memcpy(out.data() + done, contents_.data() + at, count);
      done += count;
    }
    return absl::OkStatus();
  }
  uint64_t size_bytes() const override { return size_bytes_; }

 private:
  const std::string& contents_;
  const uint64_t size_bytes_;
};

class SimulatedStorage final : public ReadOnlyStorage {
 public:
  SimulatedStorage(int64_t tensors, int64_t chunks)
      : ReadOnlyStorage("not simulated"),
        tensors_(tensors),
        chunk_(ChunkFile()),
        metadata_(MetadataPickle(tensors, chunks, chunk_.size()).Write()) {}

  const std::string& metadata() const { return metadata_; }

  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(std::string_view path) override {
    if (path == ".metadata") return std::make_unique<RepeatedFile>(metadata_, metadata_.size());
    return std::make_unique<RepeatedFile>(chunk_, chunk_.size() * tensors_);
  }
  std::string Describe(std::string_view path) const override { return std::string(path); }

  absl::StatusOr<std::vector<std::string>> List(std::string_view) override {
    return absl::UnimplementedError("not simulated");
  }

 private:
  const int64_t tensors_;
  const std::string chunk_, metadata_;
};

struct Result {
  double pickle_seconds = 0, index_seconds = 0, check_seconds = 0;
  int64_t memory_bytes = 0;
  size_t metadata_bytes = 0;
  double seconds() const { return index_seconds + check_seconds; }
};

absl::StatusOr<Result> Measure(int64_t chunks) {
  std::fprintf(stderr, "%ld chunks\n", chunks);
  const int64_t per_tensor = absl::GetFlag(FLAGS_chunks_per_tensor);
  const auto storage = std::make_shared<SimulatedStorage>(chunks / per_tensor, per_tensor);
  Result result = {.metadata_bytes = storage->metadata().size()};
  double start = Now();
  {
    TESSERA_ASSIGN_OR_RETURN(const auto file, storage->Open(".metadata"));
    TESSERA_RETURN_IF_ERROR(pickle::ReadPickle(*file, {0, file->size_bytes()}).status());
    result.pickle_seconds = Now() - start;
  }
  const int64_t before = AllocatedBytes();
  ResetPeak();
  start = Now();
  TESSERA_ASSIGN_OR_RETURN(ForeignCheckpoint read, ReadDcp(*storage, ""));
  result.index_seconds = Now() - start;
  start = Now();
  TESSERA_RETURN_IF_ERROR(ForeignStorage::Create(storage, std::move(read)).status());
  result.check_seconds = Now() - start;
  result.memory_bytes = PeakAllocatedBytes() - before;
  std::printf(
      "%ld chunks: .metadata of %.1f MB: pickle alone %.2f s; index %.2f s, checks %.2f s; "
      "%.0f MB of memory\n",
      chunks, static_cast<double>(result.metadata_bytes) / 1e6, result.pickle_seconds,
      result.index_seconds, result.check_seconds, static_cast<double>(result.memory_bytes) / 1e6);
  std::fflush(stdout);
  return result;
}

absl::Status MeasureBoth() {
  const int64_t chunks = absl::GetFlag(FLAGS_chunks);
  TESSERA_ASSIGN_OR_RETURN(const Result small, Measure(chunks / 10));
  TESSERA_ASSIGN_OR_RETURN(const Result large, Measure(chunks));
  PrintFigure("dcp_index.over_pickle", large.seconds() / large.pickle_seconds);
  PrintFigure("dcp_index.growth", large.seconds() / small.seconds() / 10);
  PrintFigure("dcp_index.memory_over_metadata",
              static_cast<double>(large.memory_bytes) / static_cast<double>(large.metadata_bytes));
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera::ckpt::convert

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return tessera::RunProgram("dcp_index", tessera::ckpt::convert::MeasureBoth);
}
