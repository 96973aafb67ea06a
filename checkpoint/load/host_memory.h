#ifndef TESSERA_CHECKPOINT_LOAD_HOST_MEMORY_H_
#define TESSERA_CHECKPOINT_LOAD_HOST_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/load/load_messages.pb.h"

namespace tessera::ckpt {

// Memory that other processes of this host may map, to use in place the data that its owner has
// read. Has no name: the system releases it when the last process that maps it has ended.
// Move-only.
class HostMemory {
 public:
  // Creates memory of unspecified contents, on huge pages from 8 MiB on. Unimplemented if the
  // system has no such memory: a disk reads into small pages at half its speed, so that private
  // memory is better.
  static absl::StatusOr<HostMemory> Create(uint64_t size_bytes);

  // Maps the memory that another process offers, to read. Unavailable if it cannot be reached: on
  // another host, in another container, of another user.
  static absl::StatusOr<HostMemory> Map(const MemoryOffer& offer);

  HostMemory(HostMemory&& other) noexcept { *this = std::move(other); }
  HostMemory& operator=(HostMemory&& other) noexcept;
  ~HostMemory();

  std::byte* data() const { return data_; }
  uint64_t size_bytes() const { return size_bytes_; }

  // Returns the offer for other processes' Map(). The first bytes hold a mark, which must stay.
  static constexpr uint64_t kMarkBytes = 16;
  // Returns the offer of a process; empty if it has no memory.
  static MemoryOffer OfferOf(const std::optional<HostMemory>& memory);

 private:
  HostMemory() = default;

  std::byte* data_ = nullptr;
  uint64_t size_bytes_ = 0;
  int fd_ = -1;  // of the owner
};

// Return rank 0's answers. OffersByHost() gives every rank the offers of the other ranks on its
// host. Each rank replies with the ranks whose memory it has mapped, and WhoMapped() gives every
// rank the ranks that have mapped its own memory.
absl::StatusOr<std::vector<std::string>> OffersByHost(const std::vector<std::string>& offers);
absl::StatusOr<std::vector<std::string>> WhoMapped(const std::vector<std::string>& mapped);

// Maps memory that ranks offer, by rank, if `needs` returns true for the rank and the memory can be
// reached. `offers` is rank 0's answer.
absl::StatusOr<std::map<uint32_t, HostMemory>> MapOffers(
    const std::string& offers, const std::function<bool(uint32_t rank)>& needs);

// Allows processes to offer memory, or forbids it, for tests.
void AllowHostMemory(bool allowed);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_LOAD_HOST_MEMORY_H_
