// The rate of the disk, and how much of it checkpoint/storage reaches: prints `figure` lines. The
// two alternate, so that both see the same disk.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "checkpoint/storage/aligned_buffer.h"
#include "checkpoint/storage/posix_storage.h"
#include "checkpoint/storage/storage.h"
#include "tests/perf/raw_disk.h"

ABSL_FLAG(std::string, directory, "/tmp", "Where to write the temporary files.");
ABSL_FLAG(double, gigabytes, 1.5, "Size of each file.");
ABSL_FLAG(int, repeats, 3, "Runs behind each median.");

namespace tessera {
namespace {

constexpr char kFileName[] = "raw_disk_storage.tmp";
// With memory that starts one byte later, WriteAt() and ReadAt() must copy both buffers.
constexpr size_t kUnalignedShift = 1;

// Calls `transfer(offset, span)` for all blocks of the file, from several threads; returns seconds.
template <typename Transfer>
absl::StatusOr<double> RunBlocks(const RawDiskShape& shape, uint64_t bytes, size_t shift,
                                 const Transfer& transfer) {
  std::vector<ckpt::AlignedBuffer> buffers;
  for (int t = 0; t < shape.threads; ++t) {
    absl::StatusOr<ckpt::AlignedBuffer> buffer =
        ckpt::AlignedBuffer::Allocate(shape.block_bytes + shift);
    if (!buffer.ok()) return buffer.status();
    buffer->Prefault();
    buffers.push_back(*std::move(buffer));
  }
  std::atomic<uint64_t> next = 0;
  std::vector<absl::Status> statuses(shape.threads);
  std::vector<std::thread> threads;
  const absl::Time start = absl::Now();
  for (int t = 0; t < shape.threads; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t at = next.fetch_add(shape.block_bytes); at < bytes && statuses[t].ok();
           at = next.fetch_add(shape.block_bytes)) {
        const size_t size = std::min<uint64_t>(shape.block_bytes, bytes - at);
        statuses[t] = transfer(at, buffers[t].span().subspan(shift, size));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
  for (const absl::Status& status : statuses) {
    if (!status.ok()) return status;
  }
  return seconds;
}

absl::StatusOr<double> StorageWriteOnce(ckpt::Storage& storage, const RawDiskShape& shape,
                                        uint64_t bytes, size_t shift) {
  const absl::Time start = absl::Now();
  absl::StatusOr<std::unique_ptr<ckpt::WritableFile>> file = storage.Create(kFileName, bytes);
  if (!file.ok()) return file.status();
  const absl::Duration create = absl::Now() - start;
  absl::StatusOr<double> seconds =
      RunBlocks(shape, bytes, shift, [&](uint64_t offset, std::span<const std::byte> data) {
        return (*file)->WriteAt(offset, data);
      });
  if (!seconds.ok()) return seconds.status();
  const absl::Time sync_start = absl::Now();
  absl::Status status = (*file)->Sync();
  if (status.ok()) status = (*file)->Close();
  if (!status.ok()) return status;
  return bytes / (*seconds + absl::ToDoubleSeconds(create + (absl::Now() - sync_start)));
}

absl::StatusOr<double> StorageReadOnce(ckpt::Storage& storage, const RawDiskShape& shape,
                                       size_t shift) {
  absl::StatusOr<std::unique_ptr<ckpt::ReadableFile>> file = storage.Open(kFileName);
  if (!file.ok()) return file.status();
  const uint64_t bytes = (*file)->size_bytes();
  absl::StatusOr<double> seconds = RunBlocks(
      shape, bytes, shift,
      [&](uint64_t offset, std::span<std::byte> out) { return (*file)->ReadAt(offset, out); });
  if (!seconds.ok()) return seconds.status();
  return bytes / *seconds;
}

void PrintFigure(const std::string& name, double value, const char* unit) {
  std::printf("figure raw_disk.%s %.3f %s\n", name.c_str(), value, unit);
}

void PrintShapes(const char* what, const std::vector<RawDiskRate>& rates) {
  for (const RawDiskRate& rate : rates) {
    std::printf("%s: %5zu KiB x %d threads: %7.0f MB/s\n", what, rate.shape.block_bytes >> 10,
                rate.shape.threads, rate.bytes_per_s / 1e6);
  }
}

// Ratios of the storage to the raw disk, alternating.
absl::Status CompareStorage(const std::string& directory, const RawDiskRates& best, uint64_t bytes,
                            int repeats) {
  absl::StatusOr<std::unique_ptr<ckpt::Storage>> storage = ckpt::OpenPosixStorage(directory);
  if (!storage.ok()) return storage.status();
  absl::StatusOr<RawDiskFile> raw = RawDiskFile::Create(directory, bytes);
  if (!raw.ok()) return raw.status();
  for (size_t shift : {size_t{0}, kUnalignedShift}) {
    std::vector<double> write_ratios, read_ratios;
    for (int i = 0; i < repeats; ++i) {
      const absl::StatusOr<double> raw_write = raw->WriteOnce(best.write.shape);
      if (!raw_write.ok()) return raw_write.status();
      const absl::StatusOr<double> write =
          StorageWriteOnce(**storage, best.write.shape, raw->bytes(), shift);
      if (!write.ok()) return write.status();
      const absl::StatusOr<double> raw_read = raw->ReadOnce(best.read.shape);
      if (!raw_read.ok()) return raw_read.status();
      const absl::StatusOr<double> read = StorageReadOnce(**storage, best.read.shape, shift);
      if (!read.ok()) return read.status();
      write_ratios.push_back(*write / *raw_write);
      read_ratios.push_back(*read / *raw_read);
      absl::Status status = (*storage)->Delete(kFileName);
      if (!status.ok()) return status;
    }
    const std::string kind = shift == 0 ? "storage_aligned" : "storage_unaligned";
    PrintFigure(kind + ".write_ratio", Median(std::move(write_ratios)), "ratio");
    PrintFigure(kind + ".read_ratio", Median(std::move(read_ratios)), "ratio");
  }
  return absl::OkStatus();
}

absl::Status Run() {
  RawDiskOptions options;
  options.directory = absl::GetFlag(FLAGS_directory);
  options.bytes = static_cast<uint64_t>(absl::GetFlag(FLAGS_gigabytes) * 1e9);
  options.repeats = absl::GetFlag(FLAGS_repeats);
  const absl::StatusOr<RawDiskRates> rates = MeasureRawDisk(options);
  if (!rates.ok()) return rates.status();
  PrintShapes("write", rates->all_write);
  PrintShapes("read", rates->all_read);
  PrintFigure("write", rates->write.bytes_per_s / 1e6, "MB/s");
  PrintFigure("read", rates->read.bytes_per_s / 1e6, "MB/s");
  return CompareStorage(options.directory, *rates, options.bytes, options.repeats);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = tessera::Run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
