#ifndef TESSERA_TRAINER_DATA_TOKEN_SHARDS_H_
#define TESSERA_TRAINER_DATA_TOKEN_SHARDS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "trainer/data/token_file.h"

namespace tessera {

// Writes one stream of tokens as <directory>/<prefix>_000.bin and so on, each of shard_tokens
// tokens except the last, and counts how often each id occurs. Without tokens, it writes no file.
class TokenShardWriter {
 public:
  TokenShardWriter(std::string directory, std::string prefix, TokenFormat format,
                   int64_t shard_tokens, int64_t vocab_size);

  // Precondition: ids are in [0, vocab_size). Errors: those of TokenFileWriter.
  absl::Status Append(std::span<const int32_t> tokens);
  absl::Status Close();

  int64_t tokens() const { return tokens_; }
  // counts()[id]: how often id was written.
  const std::vector<int64_t>& counts() const { return counts_; }
  const std::vector<std::string>& file_names() const { return file_names_; }

 private:
  std::string directory_;
  std::string prefix_;
  TokenFormat format_;
  int64_t shard_tokens_;
  int64_t tokens_ = 0;
  std::vector<int64_t> counts_;
  std::vector<std::string> file_names_;
  std::unique_ptr<TokenFileWriter> shard_;
};

// Cross entropy in nats of `counts` under a unigram model of `model_counts`, each count plus one.
// Precondition: the sizes are equal and some count is above zero.
double UnigramNatsPerToken(std::span<const int64_t> model_counts, std::span<const int64_t> counts);

}  // namespace tessera

#endif  // TESSERA_TRAINER_DATA_TOKEN_SHARDS_H_
