#include "trainer/data/dataset.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file_descriptor.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "base/units.h"

namespace tessera {

absl::StatusOr<std::unique_ptr<TokenDataset>> TokenDataset::Open(const std::string& pattern,
                                                                 int64_t sequence_length,
                                                                 int64_t vocab_size) {
  if (sequence_length < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("sequence length ", sequence_length, ": expected 1 or more"));
  }
  TESSERA_ASSIGN_OR_RETURN(std::vector<std::string> paths, Glob(pattern));
  std::erase_if(paths, [](const std::string& path) { return IsChecksumPath(path); });

  auto dataset = std::unique_ptr<TokenDataset>(new TokenDataset);
  dataset->sequence_length_ = sequence_length;
  dataset->vocab_size_ = vocab_size;
  dataset->first_samples_.push_back(0);
  ContentHash hash;
  for (const std::string& path : paths) {
    TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<TokenFile> opened, TokenFile::Open(path));
    const TokenFile& shard = *opened;
    if (vocab_size < 1 || vocab_size > MaxVocabularySize(shard.format())) {
      return absl::InvalidArgumentError(absl::StrCat(
          "vocabulary size ", vocab_size, ": expected 1 to ", MaxVocabularySize(shard.format()),
          " for the ", std::string(TokenFormatName(shard.format())), " token file ", path));
    }
    if (!dataset->shards_.empty() && shard.format() != dataset->shards_[0]->format()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "token files of one data set differ in format: ", dataset->shards_[0]->path(), " is ",
          std::string(TokenFormatName(dataset->shards_[0]->format())), ", ", path, " is ",
          std::string(TokenFormatName(shard.format()))));
    }
    TESSERA_ASSIGN_OR_RETURN(const uint64_t fingerprint, shard.SampledFingerprint());
    hash.Add(fingerprint);
    dataset->num_tokens_ += shard.count();
    dataset->first_samples_.push_back(dataset->num_samples() +
                                      std::max<int64_t>(0, (shard.count() - 1) / sequence_length));
    dataset->shards_.push_back(std::move(opened));
  }
  dataset->sampled_fingerprint_ = hash.Finish();
  if (dataset->num_samples() == 0) {
    return absl::InvalidArgumentError(absl::StrCat("\"", pattern, "\": no file has the ",
                                                   sequence_length + 1, " tokens of one sample (",
                                                   Counted(dataset->num_tokens_, "token"), " in ",
                                                   Counted(dataset->shards_.size(), "file"), ")"));
  }
  return dataset;
}

std::string TokenDataset::DescribeFiles() const {
  return absl::StrCat(Counted(shards_.size(), "file"), shards_.size() == 1 ? ", " : ", the first ",
                      shards_[0]->path());
}

DataFingerprint TokenDataset::fingerprint() const {
  ContentHash hash;
  for (const std::unique_ptr<TokenFile>& shard : shards_) {
    const uint64_t complete = shard->CompleteFingerprint();
    if (complete == 0) return {.sampled = sampled_fingerprint_};
    hash.Add(complete);
  }
  return {.sampled = sampled_fingerprint_, .complete = std::max<uint64_t>(hash.Finish(), 1)};
}

void TokenDataset::NoteUnread(const NoteSink& notes) const {
  std::vector<std::string> unread;
  for (const std::unique_ptr<TokenFile>& shard : shards_) {
    if (shard->count() <= sequence_length_) unread.push_back(shard->path());
  }
  if (unread.empty() || notes == nullptr) return;
  notes(absl::StrCat(unread.size(), " of ", shards_.size(),
                     " token files are not read, since they do not have the ", sequence_length_ + 1,
                     " tokens of one sample: ", JoinFirst(unread, ", ")));
}

absl::Status TokenDataset::AddChecksums(int64_t max_bytes, const NoteSink& notes) {
  const auto note = [&notes](const std::string& sentence) {
    if (notes != nullptr) notes(sentence);
  };
  std::vector<TokenFile*> without;
  int64_t bytes = 0;
  for (const std::unique_ptr<TokenFile>& shard : shards_) {
    TESSERA_RETURN_IF_ERROR(shard->LoadChecksums());
    if (shard->CompleteFingerprint() != 0) continue;
    without.push_back(shard.get());
    bytes += kTokenFileHeaderBytes + shard->count() * TokenBytes(shard->format());
  }
  if (without.empty()) return absl::OkStatus();
  const std::string which =
      absl::StrCat(without[0]->path(),
                   without.size() == 1 ? "" : absl::StrCat(" and ", without.size() - 1, " more"),
                   " (", HumanBytes(bytes), ")");
  if (bytes > max_bytes) {
    note(absl::StrCat("no checksums of ", which,
                      ", and too much to read before the first step: damage, or other tokens, may "
                      "go unnoticed; prepare_data --checksum=FILES makes them"));
    return absl::OkStatus();
  }
  note(absl::StrCat("computing checksums of ", which, ", which are stored for later runs"));
  absl::Status not_kept;
  for (TokenFile* shard : without) {
    absl::Status kept;
    TESSERA_RETURN_IF_ERROR(shard->MakeChecksums(kept));
    not_kept.Update(kept);
  }
  if (!not_kept.ok()) {
    note(absl::StrCat("these checksums cannot be stored for later runs: ", not_kept.message()));
  }
  return absl::OkStatus();
}

absl::Status TokenDataset::ReadSample(int64_t sample, std::span<int32_t> ids,
                                      std::span<int32_t> targets) const {
  const int64_t length = sequence_length_;
  if (ids.size() != length || targets.size() != length) {
    return absl::InvalidArgumentError(absl::StrCat(
        "room for ", ids.size(), " ids and ", targets.size(), " targets, a sample has ", length));
  }
  if (sample < 0 || sample >= num_samples()) {
    return absl::OutOfRangeError(
        absl::StrCat("sample ", sample, " asked for, the data set has ", num_samples()));
  }
  const auto next = std::upper_bound(first_samples_.begin(), first_samples_.end(), sample);
  const int64_t shard = next - first_samples_.begin() - 1;
  const int64_t first = (sample - first_samples_[shard]) * length;
  const TokenFile& file = *shards_[shard];
  TESSERA_RETURN_IF_ERROR(file.Read(first, vocab_size_, ids));
  std::copy(ids.begin() + 1, ids.end(), targets.begin());
  return file.Read(first + length, vocab_size_, targets.last(1));
}

}  // namespace tessera
