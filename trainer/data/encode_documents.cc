#include "trainer/data/encode_documents.h"

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/threads.h"

namespace tessera {
namespace {

constexpr size_t kBatchBytesPerThread = 4 << 20;

struct Chunk {
  std::string text;
  bool begins_document = false;
  std::vector<int32_t> ids;
};

// Collects chunks, encodes them together and writes them in order.
class Batch {
 public:
  Batch(const Tokenizer& tokenizer, std::span<const int32_t> separator, int threads,
        const BytesDone& done, TokenShardWriter& writer)
      : tokenizer_(tokenizer),
        separator_(separator),
        threads_(threads),
        done_(done),
        writer_(writer) {}

  absl::Status Add(std::string_view text, bool begins_document) {
    chunks_.push_back({.text = std::string(text), .begins_document = begins_document});
    bytes_ += text.size();
    return bytes_ < kBatchBytesPerThread * threads_ ? absl::OkStatus() : Flush();
  }

  absl::Status Flush() {
    TESSERA_RETURN_IF_ERROR(
        RunTasks(threads_, chunks_.size(), [this](int, size_t i) -> absl::Status {
          TESSERA_ASSIGN_OR_RETURN(chunks_[i].ids, tokenizer_.Encode(chunks_[i].text));
          return absl::OkStatus();
        }));
    for (const Chunk& chunk : chunks_) {
      if (chunk.begins_document) TESSERA_RETURN_IF_ERROR(writer_.Append(separator_));
      TESSERA_RETURN_IF_ERROR(writer_.Append(chunk.ids));
      done_(static_cast<int64_t>(chunk.text.size()));
    }
    chunks_.clear();
    bytes_ = 0;
    return absl::OkStatus();
  }

 private:
  const Tokenizer& tokenizer_;
  const std::span<const int32_t> separator_;
  const int threads_;
  const BytesDone& done_;
  TokenShardWriter& writer_;
  std::vector<Chunk> chunks_;
  size_t bytes_ = 0;
};

}  // namespace

absl::Status EncodeDocuments(std::span<const DocumentPart> parts, const Tokenizer& tokenizer,
                             std::span<const int32_t> separator, int threads, const BytesDone& done,
                             TokenShardWriter& writer) {
  Batch batch(tokenizer, separator, threads, done, writer);
  for (const DocumentPart& part : parts) {
    bool begins = true;
    TESSERA_RETURN_IF_ERROR(ForEachChunk(
        part,
        [&](std::string_view chunk) { return batch.Add(chunk, std::exchange(begins, false)); },
        [&](std::string_view text) { return tokenizer.EncodablePrefix(text); }));
  }
  return batch.Flush();
}

}  // namespace tessera
