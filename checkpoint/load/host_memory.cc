#include "checkpoint/load/host_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "base/files.h"
#include "base/scoped_fd.h"
#include "base/status_macros.h"
#include "base/system_memory.h"
#include "checkpoint/collective/agree.h"
#include "checkpoint/plan/plan.pb.h"
#include "storage/storage.h"

namespace tessera::ckpt {
namespace {

constexpr char kMemoryName[] = "tessera-load";

std::atomic<bool> is_allowed = true;

// Returns whether a file may become so large. If not (ulimit -f), the attempt would end a process
// that does not ignore SIGXFSZ.
bool MayBecome(uint64_t size_bytes) {
  rlimit limit = {};
  return getrlimit(RLIMIT_FSIZE, &limit) == 0 && size_bytes <= limit.rlim_cur;
}

// Maps a file where huge pages can be mapped as such.
std::byte* MapFile(int fd, uint64_t size_bytes, int protection) {
  void* const place = MapOnHugePages(size_bytes);
  if (place == MAP_FAILED) return nullptr;
  if (mmap(place, size_bytes, protection, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
    munmap(place, size_bytes);
    return nullptr;
  }
  return static_cast<std::byte*>(place);
}

bool PutOnHugePages(std::byte* data, uint64_t size_bytes) {
#ifndef MADV_COLLAPSE
  constexpr int MADV_COLLAPSE = 25;
#endif
  // The kernel makes a page huge only if a part of it exists already.
  for (uint64_t at = 0; at < size_bytes; at += kHugePageBytes) data[at] = std::byte(1);
  return madvise(data, size_bytes, MADV_COLLAPSE) == 0;
}

absl::Status NoMemory() {
  return absl::UnimplementedError("this system has no memory that processes share in huge pages");
}

}  // namespace

void AllowHostMemory(bool allowed) { is_allowed = allowed; }

absl::StatusOr<HostMemory> HostMemory::Create(uint64_t size_bytes) {
  if (!is_allowed || size_bytes < kMarkBytes || size_bytes > SIZE_MAX / 2) return NoMemory();
  HostMemory memory;
  // Rounding up must not add much.
  const bool is_large = size_bytes >= 4 * kHugePageBytes;
  size_bytes = RoundUp<uint64_t>(size_bytes, is_large ? kHugePageBytes : kIoAlignmentBytes);
  memory.fd_ = AboveStandardStreams(memfd_create(kMemoryName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (memory.fd_ < 0 || !MayBecome(size_bytes) ||
      ftruncate(memory.fd_, static_cast<off_t>(size_bytes)) != 0 ||
      fcntl(memory.fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return NoMemory();
  }
  memory.data_ = MapFile(memory.fd_, size_bytes, PROT_READ | PROT_WRITE);
  if (memory.data_ == nullptr) return NoMemory();
  memory.size_bytes_ = size_bytes;
  if (is_large && !PutOnHugePages(memory.data_, size_bytes)) return NoMemory();
  if (getrandom(memory.data_, kMarkBytes, 0) != kMarkBytes) return NoMemory();
  return memory;
}

absl::StatusOr<HostMemory> HostMemory::Map(const MemoryOffer& offer) {
  const absl::Status unseen = absl::UnavailableError("the memory is not to be seen from here");
  if (offer.mark().size() != kMarkBytes || offer.size_bytes() < kMarkBytes) return unseen;
  // Another process may have this number by now. Only memory of this kind is opened.
  const std::string path = absl::StrCat("/proc/", offer.process(), "/fd/", offer.fd());
  std::array<char, 64> target{};
  const ssize_t length = readlink(path.c_str(), target.data(), target.size());
  const std::string expected = absl::StrCat("/memfd:", kMemoryName);
  if (length < 0 || !std::string_view(target.data(), length).starts_with(expected)) return unseen;
  const absl::StatusOr<ScopedFd> fd = OpenRegularFile(AT_FDCWD, path, O_RDONLY);
  struct stat info;
  if (!fd.ok() || fstat(fd->get(), &info) != 0 ||
      static_cast<uint64_t>(info.st_size) != offer.size_bytes() ||
      (fcntl(fd->get(), F_GET_SEALS) & F_SEAL_SHRINK) == 0) {
    return unseen;
  }
  HostMemory memory;
  memory.data_ = MapFile(fd->get(), offer.size_bytes(), PROT_READ);
  if (memory.data_ == nullptr) return unseen;
  memory.size_bytes_ = offer.size_bytes();
  if (std::memcmp(memory.data_, offer.mark().data(), kMarkBytes) != 0) return unseen;
  return memory;
}

HostMemory& HostMemory::operator=(HostMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(fd_, other.fd_);
  return *this;
}

HostMemory::~HostMemory() {
  if (data_ != nullptr) munmap(data_, size_bytes_);
  if (fd_ >= 0) close(fd_);
}

MemoryOffer HostMemory::OfferOf(const std::optional<HostMemory>& memory) {
  MemoryOffer offer;
  offer.set_host(BootId());
  if (!memory.has_value()) return offer;
  offer.set_process(getpid());
  offer.set_fd(memory->fd_);
  offer.set_size_bytes(memory->size_bytes_);
  offer.set_mark(memory->data_, kMarkBytes);
  return offer;
}

absl::StatusOr<std::vector<std::string>> OffersByHost(const std::vector<std::string>& offers) {
  std::vector<MemoryOffer> parsed(offers.size());
  std::map<std::string, std::vector<uint32_t>> hosts;
  for (uint32_t r = 0; r < offers.size(); ++r) {
    TESSERA_ASSIGN_OR_RETURN(parsed[r], MessageFrom<MemoryOffer>(r, offers[r]));
    parsed[r].set_rank(r);
    hosts[parsed[r].host()].push_back(r);
  }
  std::vector<std::string> answers(offers.size());
  for (uint32_t r = 0; r < offers.size(); ++r) {
    MemoryOffers answer;
    for (const uint32_t other : hosts[parsed[r].host()]) {
      if (other != r && parsed[other].size_bytes() > 0) *answer.add_offers() = parsed[other];
    }
    answers[r] = answer.SerializeAsString();
  }
  return answers;
}

absl::StatusOr<std::map<uint32_t, HostMemory>> MapOffers(
    const std::string& offers, const std::function<bool(uint32_t rank)>& needs) {
  TESSERA_ASSIGN_OR_RETURN(const MemoryOffers parsed, MessageFrom<MemoryOffers>(0, offers));
  std::map<uint32_t, HostMemory> mapped;
  for (const MemoryOffer& offer : parsed.offers()) {
    if (!needs(offer.rank())) continue;
    absl::StatusOr<HostMemory> memory = HostMemory::Map(offer);
    if (memory.ok()) mapped.emplace(offer.rank(), *std::move(memory));
  }
  return mapped;
}

absl::StatusOr<std::vector<std::string>> WhoMapped(const std::vector<std::string>& mapped) {
  std::vector<RankSet> mappers(mapped.size());
  for (uint32_t r = 0; r < mapped.size(); ++r) {
    TESSERA_ASSIGN_OR_RETURN(const RankSet ranks, MessageFrom<RankSet>(r, mapped[r]));
    for (const uint32_t owner : ranks.rank()) {
      if (owner >= mappers.size()) return absl::InternalError("memory of a rank that is none");
      mappers[owner].add_rank(r);
    }
  }
  std::vector<std::string> answers;
  for (const RankSet& set : mappers) answers.push_back(set.SerializeAsString());
  return answers;
}

}  // namespace tessera::ckpt
