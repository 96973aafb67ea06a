#ifndef TESSERA_CHECKPOINT_LOAD_HOST_MEMORY_H_
#define TESSERA_CHECKPOINT_LOAD_HOST_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/load/load_messages.pb.h"

namespace tessera::ckpt {

// Memory that other processes of this host may map, to take what its owner has read from where it
// is. It has no name, and is gone with the last process that maps it, however that ends. Move-only.
class HostMemory {
 public:
  // Zeroed, on huge pages from 8 MiB on. Unimplemented where the system has none of the kind: a
  // disk reads into small pages at half its speed, so that memory of one's own serves better.
  static absl::StatusOr<HostMemory> Create(uint64_t size_bytes);

  // Maps what another process offers, to read. Unavailable where it cannot be seen from here: on
  // another host, in another container, another user's.
  static absl::StatusOr<HostMemory> Map(const MemoryOffer& offer);

  HostMemory(HostMemory&& other) noexcept { *this = std::move(other); }
  HostMemory& operator=(HostMemory&& other) noexcept;
  ~HostMemory();

  std::byte* data() const { return data_; }
  uint64_t size_bytes() const { return size_bytes_; }

  // For others' Map(). A mark is in the first bytes, which must stay.
  static constexpr uint64_t kMarkBytes = 16;
  // A process without memory offers nothing.
  static MemoryOffer OfferOf(const std::optional<HostMemory>& memory);

 private:
  HostMemory() = default;

  std::byte* data_ = nullptr;
  uint64_t size_bytes_ = 0;
  int fd_ = -1;  // of the owner
};

// What rank 0 answers: every rank gets the offers of the ranks on its host, but its own. A rank's
// own answer to those are the ranks whose memory it has mapped, in place of which it gets the ranks
// that have mapped its own.
absl::StatusOr<std::vector<std::string>> OffersByHost(const std::vector<std::string>& offers);
absl::StatusOr<std::vector<std::string>> WhoMapped(const std::vector<std::string>& mapped);

// For tests: without it no process offers memory.
void AllowHostMemory(bool allowed);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_LOAD_HOST_MEMORY_H_
