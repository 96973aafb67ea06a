#include "trainer/data/token_shards.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tessera {

TokenShardWriter::TokenShardWriter(std::string directory, std::string prefix, TokenFormat format,
                                   int64_t shard_tokens, int64_t vocab_size)
    : directory_(std::move(directory)),
      prefix_(std::move(prefix)),
      format_(format),
      shard_tokens_(shard_tokens),
      counts_(vocab_size) {}

absl::Status TokenShardWriter::Append(std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) ++counts_[token];
  tokens_ += tokens.size();
  while (!tokens.empty()) {
    if (shard_ != nullptr && shard_->count() == shard_tokens_) {
      if (absl::Status status = Close(); !status.ok()) return status;
    }
    if (shard_ == nullptr) {
      file_names_.push_back(absl::StrFormat("%s_%03d.bin", prefix_, file_names_.size()));
      auto created =
          TokenFileWriter::Create(absl::StrCat(directory_, "/", file_names_.back()), format_);
      if (!created.ok()) return created.status();
      shard_ = *std::move(created);
    }
    const size_t fits = std::min<int64_t>(tokens.size(), shard_tokens_ - shard_->count());
    if (absl::Status status = shard_->Append(tokens.first(fits)); !status.ok()) return status;
    tokens = tokens.subspan(fits);
  }
  return absl::OkStatus();
}

absl::Status TokenShardWriter::Close() {
  if (shard_ == nullptr) return absl::OkStatus();
  return std::exchange(shard_, nullptr)->Close();
}

double UnigramNatsPerToken(std::span<const int64_t> model_counts, std::span<const int64_t> counts) {
  double model_total = 0, total = 0;
  for (size_t id = 0; id < counts.size(); ++id) {
    model_total += model_counts[id] + 1.0;
    total += counts[id];
  }
  double nats = 0;
  for (size_t id = 0; id < counts.size(); ++id) {
    nats -= counts[id] / total * std::log((model_counts[id] + 1.0) / model_total);
  }
  return nats;
}

}  // namespace tessera
