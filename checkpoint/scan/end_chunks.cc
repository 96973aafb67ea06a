#include "checkpoint/scan/end_chunks.h"

#include <utility>

namespace tessera::ckpt {

std::shared_ptr<const std::string> EndChunks::Find(const std::string& file,
                                                   const FilePiece& chunk) {
  const MutexLock lock(&mutex_);
  for (const Kept& kept : kept_) {
    if (kept.begin != chunk.begin || kept.bytes->size() != chunk.size() || kept.file != file) {
      continue;
    }
    found_bytes_ += chunk.size();
    return kept.bytes;
  }
  return nullptr;
}

void EndChunks::Keep(const std::string& file, const FilePiece& chunk, const std::byte* data) {
  if (chunk.size() > max_bytes_) return;
  std::shared_ptr<std::string> bytes;
  {
    const MutexLock lock(&mutex_);
    for (kept_bytes_ += chunk.size(); kept_bytes_ > max_bytes_ && !kept_.empty();
         kept_.pop_front()) {
      kept_bytes_ -= kept_.front().bytes->size();
      // Filling new memory costs more.
      if (kept_.front().bytes.use_count() == 1) bytes = std::move(kept_.front().bytes);
    }
  }
  if (bytes == nullptr) bytes = std::make_shared<std::string>();
  bytes->assign(reinterpret_cast<const char*>(data), chunk.size());
  const MutexLock lock(&mutex_);
  kept_.push_back({file, chunk.begin, std::move(bytes)});
}

uint64_t EndChunks::found_bytes() const {
  const MutexLock lock(&mutex_);
  return found_bytes_;
}

}  // namespace tessera::ckpt
