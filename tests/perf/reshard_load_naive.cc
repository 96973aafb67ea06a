#include "tests/perf/reshard_load_naive.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "checkpoint/elements/box_runs.h"
#include "checkpoint/elements/copy_elements.h"
#include "checkpoint/elements/strided.h"
#include "checkpoint/format/manifest.pb.h"
#include "checkpoint/storage/aligned_buffer.h"
#include "layout/box.h"

namespace tessera {
namespace {

constexpr uint64_t kBlockBytes = uint64_t{4} << 20;

std::string FileName(int rank) { return absl::StrCat("rank-", rank, ".data"); }
std::string IndexName(int rank) { return absl::StrCat("rank-", rank, ".index"); }

absl::Status Failed(const std::string& path) {
  return absl::UnavailableError(absl::StrCat(path, ": ", std::generic_category().message(errno)));
}

std::vector<int64_t> StridesOf(const ckpt::Shard& shard) {
  return shard.strides.empty() ? ckpt::ContiguousStrides(shard.box.shape) : shard.strides;
}

// A shard in a file, row-major.
struct Stored {
  std::string tensor;
  ckpt::Box box;
  uint64_t begin = 0;
};

// One line per shard: begin, box, name.
absl::Status WriteIndex(const std::string& path, const std::vector<Stored>& index) {
  std::ofstream out(path);
  for (const Stored& stored : index) {
    out << stored.begin << ' ' << ckpt::ToString(stored.box) << ' ' << stored.tensor << '\n';
  }
  out.close();
  return out ? absl::OkStatus() : Failed(path);
}

absl::StatusOr<std::vector<Stored>> ReadIndex(const std::string& path) {
  std::ifstream in(path);
  std::vector<Stored> index;
  Stored stored;
  std::string box;
  while (in >> stored.begin >> box >> stored.tensor) {
    const std::optional<ckpt::Box> parsed = ckpt::ParseBox(box);
    if (!parsed.has_value()) return absl::DataLossError(absl::StrCat(path, ": ", box));
    stored.box = *parsed;
    index.push_back(stored);
  }
  if (index.empty()) return absl::NotFoundError(path);
  return index;
}

absl::Status WriteShard(std::FILE* file, const ckpt::Shard& shard, size_t element_bytes) {
  const ckpt::BoxRuns runs(shard.box, shard.box, shard.box.global_offset, StridesOf(shard));
  std::vector<std::byte> packed;
  bool good = true;
  runs.ForEach(0, ckpt::ElementCount(shard.box.shape), [&](const ckpt::BoxRuns::Run& run) {
    packed.resize(run.count * element_bytes);
    const ckpt::StridedDim dim = {run.count, runs.run_stride(), 1};
    ckpt::CopyStrided({&dim, 1}, element_bytes,
                      static_cast<const std::byte*>(shard.data) +
                          run.strided_element * static_cast<int64_t>(element_bytes),
                      packed.data());
    good = good && std::fwrite(packed.data(), 1, packed.size(), file) == packed.size();
  });
  return good ? absl::OkStatus() : Failed("a file of the naive checkpoint");
}

// The destination of those elements of a stored shard that are in one wanted box.
struct Target {
  uint64_t begin, end;  // byte range of the stored shard in the file
  size_t element_bytes;
  ckpt::BoxRuns runs;
  ckpt::CopyElements copy;
  std::byte* data;
};

void Place(const Target& target, uint64_t begin, uint64_t end, const std::byte* block) {
  const auto size = static_cast<int64_t>(target.element_bytes);
  const auto element = [&](uint64_t at) {
    return static_cast<int64_t>(std::clamp(at, target.begin, target.end) - target.begin) / size;
  };
  target.runs.ForEach(element(begin), element(end), [&](const ckpt::BoxRuns::Run& run) {
    target.copy(block + (target.begin + run.outer_element * size - begin),
                target.data + run.strided_element * size, run.count, target.runs.run_stride());
  });
}

// The wanted boxes, and which parts of them have been found.
class Wanted {
 public:
  explicit Wanted(const ckpt::StateDict& state) {
    for (const ckpt::ShardedTensor& tensor : state.tensors) {
      for (const ckpt::Shard& shard : tensor.shards) {
        if (shard.box.empty()) continue;
        boxes_.push_back({&tensor, &shard, ckpt::ElementCount(shard.box.shape), {}});
      }
    }
  }

  // The parts that a file adds to those found before.
  std::vector<Target> Take(const std::vector<Stored>& index) {
    std::vector<Target> targets;
    for (const Stored& stored : index) {
      for (WantedBox& wanted : boxes_) {
        if (wanted.missing == 0 || wanted.tensor->name != stored.tensor) continue;
        const std::optional<ckpt::Box> region = ckpt::Intersect(stored.box, wanted.shard->box);
        if (!region.has_value() || wanted.Has(*region)) continue;
        const auto dtype = static_cast<ckpt::DType>(wanted.tensor->dtype);
        const size_t size = ckpt::ElementBytes(wanted.tensor->dtype);
        wanted.found.push_back(*region);
        wanted.missing -= ckpt::ElementCount(region->shape);
        targets.push_back(
            {stored.begin, stored.begin + ckpt::ElementCount(stored.box.shape) * size, size,
             ckpt::BoxRuns(stored.box, *region, wanted.shard->box.global_offset,
                           StridesOf(*wanted.shard)),
             ckpt::FindCopy(dtype, dtype), static_cast<std::byte*>(wanted.shard->data)});
      }
    }
    return targets;
  }

  absl::Status Check() const {
    for (const WantedBox& wanted : boxes_) {
      if (wanted.missing != 0) return absl::NotFoundError(wanted.tensor->name);
    }
    return absl::OkStatus();
  }

 private:
  struct WantedBox {
    const ckpt::ShardedTensor* tensor;
    const ckpt::Shard* shard;
    int64_t missing;
    std::vector<ckpt::Box> found;

    bool Has(const ckpt::Box& region) const {
      return std::ranges::any_of(found,
                                 [&](const ckpt::Box& box) { return ckpt::Contains(box, region); });
    }
  };
  std::vector<WantedBox> boxes_;
};

absl::Status ReadFile(const ckpt::ReadableFile& file, const std::vector<Target>& targets,
                      int threads) {
  std::atomic<uint64_t> next = 0;
  Mutex mutex;
  absl::Status error;
  const auto work = [&] {
    absl::StatusOr<ckpt::AlignedBuffer> buffer = ckpt::AlignedBuffer::Allocate(kBlockBytes);
    absl::Status status = buffer.status();
    while (status.ok()) {
      const uint64_t begin = next.fetch_add(kBlockBytes);
      if (begin >= file.size_bytes()) return;
      const uint64_t end = std::min(begin + kBlockBytes, file.size_bytes());
      status = file.ReadAt(begin, std::span(buffer->data(), end - begin));
      auto target = std::ranges::lower_bound(targets, begin, {}, &Target::begin);
      // Includes all targets of the previous shard, which may extend into this block.
      while (target != targets.begin() &&
             (std::prev(target)->end > begin || std::prev(target)->begin == target->begin)) {
        --target;
      }
      for (; status.ok() && target != targets.end() && target->begin < end; ++target) {
        Place(*target, begin, end, buffer->data());
      }
    }
    const MutexLock lock(&mutex);
    error = status;
  };
  std::vector<std::thread> workers;
  for (int t = 0; t < threads; ++t) workers.emplace_back(work);
  for (std::thread& worker : workers) worker.join();
  return error;
}

}  // namespace

absl::Status WriteNaive(const std::string& directory, int rank, const ckpt::StateDict& state) {
  const std::string path = absl::StrCat(directory, "/", FileName(rank));
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "w"),
                                                             std::fclose);
  if (file == nullptr) return Failed(path);
  std::vector<Stored> index;
  uint64_t at = 0;
  for (const ckpt::ShardedTensor& tensor : state.tensors) {
    const size_t size = ckpt::ElementBytes(tensor.dtype);
    for (const ckpt::Shard& shard : tensor.shards) {
      if (shard.box.empty()) continue;
      const uint64_t begin = (at + 7) / 8 * 8;  // no element crosses a block boundary
      const uint64_t zeros = 0;
      if (std::fwrite(&zeros, 1, begin - at, file.get()) != begin - at) return Failed(path);
      TESSERA_RETURN_IF_ERROR(WriteShard(file.get(), shard, size));
      index.push_back({tensor.name, shard.box, begin});
      at = begin + ckpt::ElementCount(shard.box.shape) * size;
    }
  }
  const int fd = fileno(file.get());
  if (std::fflush(file.get()) != 0 || fsync(fd) != 0) return Failed(path);
  posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  return WriteIndex(absl::StrCat(directory, "/", IndexName(rank)), index);
}

absl::StatusOr<NaiveLoad> LoadNaive(ckpt::Storage& storage, const std::string& directory, int rank,
                                    int ranks, int threads, ckpt::StateDict& state) {
  NaiveLoad load;
  Wanted wanted(state);
  for (int i = 0; i < ranks; ++i) {
    const int from = (rank + i) % ranks;
    TESSERA_ASSIGN_OR_RETURN(const std::vector<Stored> index,
                             ReadIndex(absl::StrCat(directory, "/", IndexName(from))));
    const std::vector<Target> targets = wanted.Take(index);
    if (targets.empty()) continue;
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ckpt::ReadableFile> file,
                             storage.Open(FileName(from)));
    TESSERA_RETURN_IF_ERROR(ReadFile(*file, targets, threads));
    load.bytes_read += file->size_bytes();
    ++load.files_read;
  }
  TESSERA_RETURN_IF_ERROR(wanted.Check());
  return load;
}

}  // namespace tessera
