#include "operations/survey.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/format/pieces.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/scan/scan.h"
#include "layout/elements/box_runs.h"
#include "operations/verify.h"

namespace tessera::ckpt {
namespace {

// A shard in its file, see ForEachStored().
struct SurveyedShard {
  uint64_t begin;
  uint64_t end;
  int64_t element_bytes;
  uint32_t tensor;
  size_t first_sum;  // the sums of its part in each chunk, in their order
};

struct ChunkSums {
  long double sum = 0;
  long double squares = 0;
};

class Surveyor {
 public:
  Surveyor(const NamedCheckpoint& named, const SurveyOptions& options)
      : manifest_(named.opened->manifest()),
        options_(options),
        scanner_(*named.storage, named.directory, manifest_,
                 {.io_threads = options.io_threads,
                  .read_original = true,
                  .on_damage = [this](Damage damage) { found_.push_back(std::move(damage)); }}),
        scratch_(options.io_threads) {}

  absl::Status Run() {
    TESSERA_RETURN_IF_ERROR(CheckIoThreads(options_.io_threads));
    survey_.tensors.resize(manifest_.tensors_size());
    ChooseHistograms();
    TESSERA_RETURN_IF_ERROR(scanner_.OpenAll());
    FindShards();
    const std::vector<FilePiece> ranges = scanner_.WholeFiles();
    uint64_t total = 0;
    for (const FilePiece& range : ranges) total += range.size();
    TESSERA_RETURN_IF_ERROR(
        scanner_.Run(ranges, [&](int worker, const FilePiece& chunk, const std::byte* data) {
          Add(worker, chunk, data);
          const MutexLock lock(&mutex_);
          survey_.bytes_read += chunk.size();
          if (options_.progress) options_.progress(survey_.bytes_read, total);
          return absl::OkStatus();
        }));
    AddSums();
    MarkDamaged();
    return absl::OkStatus();
  }

  CheckpointSurvey Finish() && {
    survey_.damage = std::move(found_);
    return std::move(survey_);
  }

 private:
  static int64_t Elements(const LogicalTensor& tensor) {
    return tensor.alias_of().empty() ? ElementCount(GlobalShape(tensor)) : 0;
  }

  void ChooseHistograms() {
    std::vector<int> largest(manifest_.tensors_size());
    std::iota(largest.begin(), largest.end(), 0);
    std::ranges::stable_sort(largest, std::ranges::greater(),
                             [&](int t) { return Elements(manifest_.tensors(t)); });
    for (size_t i = 0; i < std::min(largest.size(), options_.max_histograms); ++i) {
      if (Elements(manifest_.tensors(largest[i])) == 0) break;
      survey_.tensors[largest[i]].statistics.bins.resize(ElementStatistics::kBins);
    }
  }

  void FindShards() {
    shards_.resize(manifest_.files_size());
    size_t sums = 0;
    for (uint32_t f = 0; f < shards_.size(); ++f) {
      const uint64_t chunk_bytes = std::max<uint64_t>(manifest_.files(f).chunk_bytes(), 1);
      for (const FileMap::Extent& extent : scanner_.map().extents(f)) {
        const LogicalTensor& tensor = manifest_.tensors(extent.tensor);
        const int64_t element_bytes = ElementSize(FromProto(tensor.dtype()));
        if (extent.begin == extent.end || element_bytes == 0) continue;
        if (std::optional<Damage> cut = FindCutElements(manifest_, f, extent.begin, tensor)) {
          scanner_.ReportDamage(f, [&] { return *std::move(cut); });
          survey_.tensors[extent.tensor].damaged = true;
          continue;
        }
        shards_[f].push_back({extent.begin, extent.end, element_bytes, extent.tensor, sums});
        sums += (extent.end - 1) / chunk_bytes - extent.begin / chunk_bytes + 1;
      }
    }
    sums_.resize(sums);
  }

  void Add(int worker, const FilePiece& chunk, const std::byte* data) {
    const uint64_t chunk_bytes = manifest_.files(chunk.file_index).chunk_bytes();
    ForEachStored(
        shards_[chunk.file_index], chunk.begin, chunk.end,
        [&](const SurveyedShard& shard, int64_t first, int64_t last) {
          ElementStatistics& total = survey_.tensors[shard.tensor].statistics;
          ElementStatistics& part = scratch_[worker];
          std::vector<int64_t> bins = std::move(part.bins);
          part = {};
          bins.assign(total.bins.size(), 0);
          part.bins = std::move(bins);
          AddElements(FromProto(manifest_.tensors(shard.tensor).dtype()),
                      data + (shard.begin + first * shard.element_bytes - chunk.begin),
                      last - first, part);
          // Sums are added in their order, and not in that of the threads.
          sums_[shard.first_sum + chunk.begin / chunk_bytes - shard.begin / chunk_bytes] = {
              std::exchange(part.sum, 0), std::exchange(part.squares, 0)};
          const MutexLock lock(&mutex_);
          total.Merge(part);
        });
  }

  void AddSums() {
    for (uint32_t f = 0; f < shards_.size(); ++f) {
      const uint64_t chunk_bytes = std::max<uint64_t>(manifest_.files(f).chunk_bytes(), 1);
      for (const SurveyedShard& shard : shards_[f]) {
        ElementStatistics& total = survey_.tensors[shard.tensor].statistics;
        const size_t chunks = (shard.end - 1) / chunk_bytes - shard.begin / chunk_bytes + 1;
        for (size_t i = 0; i < chunks; ++i) {
          total.sum += sums_[shard.first_sum + i].sum;
          total.squares += sums_[shard.first_sum + i].squares;
        }
      }
    }
  }

  // Damage begins where its chunk does, or is the only byte in it that has changed.
  void MarkDamaged() {
    for (int t = 0; t < manifest_.tensors_size(); ++t) {
      TensorSurvey& tensor = survey_.tensors[t];
      if (tensor.statistics.elements != Elements(manifest_.tensors(t))) tensor.damaged = true;
    }
    for (const Damage& damage : found_) {
      const auto file = std::ranges::find(manifest_.files(), damage.file, &DataFile::path);
      if (file == manifest_.files().end()) continue;
      const uint64_t chunk_bytes = std::max<uint64_t>(file->chunk_bytes(), 1);
      uint64_t begin = damage.offset_bytes, end = begin + 1;
      if (begin % chunk_bytes == 0) end = begin + chunk_bytes;
      if (damage.message.ends_with(kMoreDamage)) {
        begin = 0;
        end = file->size_bytes();
      }
      for (const SurveyedShard& shard : shards_[file - manifest_.files().begin()]) {
        if (shard.begin < end && begin < shard.end) survey_.tensors[shard.tensor].damaged = true;
      }
    }
  }

  const Manifest& manifest_;
  const SurveyOptions& options_;
  CheckpointSurvey survey_;
  std::vector<Damage> found_;  // from one thread at a time
  Scanner scanner_;
  std::vector<std::vector<SurveyedShard>> shards_;  // by file, ascending
  std::vector<ChunkSums> sums_;
  std::vector<ElementStatistics> scratch_;  // by worker
  Mutex mutex_;
};

// A seal is about the files of the other framework.
void MarkUnsealed(const NamedCheckpoint& named, const VerifyReport& report,
                  CheckpointSurvey& survey) {
  if (named.foreign == nullptr || !named.seal.has_value() || !named.seal->seal.ok()) return;
  std::set<std::string> damaged;
  for (const convert::ForeignStorage::Extent& extent : named.foreign->Extents()) {
    for (const Damage& damage : report.damage) {
      if (damage.file != extent.file) continue;
      uint64_t chunk_bytes = 1;
      for (const convert::SealedFile& sealed : named.seal->seal->files()) {
        if (sealed.file().path() == damage.file) chunk_bytes = sealed.file().chunk_bytes();
      }
      const uint64_t begin = damage.offset_bytes;
      const uint64_t end = begin + (begin % chunk_bytes == 0 ? chunk_bytes : 1);
      if (extent.bytes.begin < end && begin < extent.bytes.end) damaged.insert(extent.tensor);
    }
  }
  const Manifest& manifest = named.opened->manifest();
  for (int t = 0; t < manifest.tensors_size(); ++t) {
    if (damaged.contains(manifest.tensors(t).name())) survey.tensors[t].damaged = true;
  }
}

}  // namespace

absl::StatusOr<CheckpointSurvey> Survey(const NamedCheckpoint& named,
                                        const SurveyOptions& options) {
  TESSERA_RETURN_IF_ERROR(named.opened.status());
  const absl::Duration start = SteadyNow();
  const bool sealed = named.seal.has_value();
  TESSERA_ASSIGN_OR_RETURN(VerifyReport report,
                           Verify(named, {.contents = sealed, .io_threads = options.io_threads}));
  Surveyor surveyor(named, options);
  TESSERA_RETURN_IF_ERROR(surveyor.Run());
  CheckpointSurvey survey = std::move(surveyor).Finish();
  NameForeignPlaces(named, survey.damage);
  MarkUnsealed(named, report, survey);
  for (Damage& damage : report.damage) {
    const bool known = std::ranges::any_of(survey.damage, [&](const Damage& other) {
      return other.file == damage.file && other.offset_bytes == damage.offset_bytes &&
             other.message == damage.message;
    });
    if (!known) survey.damage.push_back(std::move(damage));
  }
  std::ranges::stable_sort(survey.damage, {}, [](const Damage& damage) {
    return std::pair(std::string_view(damage.file), damage.offset_bytes);
  });
  survey.bytes_read += report.bytes_read;
  survey.duration = SteadyNow() - start;
  return survey;
}

}  // namespace tessera::ckpt
