#include "trainer/app/host_share.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>

#include "base/status_macros.h"

namespace tessera {
namespace {

// The processors that this process may run on.
cpu_set_t Processors() {
  cpu_set_t processors;
  CPU_ZERO(&processors);
  if (sched_getaffinity(0, sizeof(processors), &processors) != 0) CPU_SET(0, &processors);
  return processors;
}

// The same in all processes of a machine, whatever network namespace they are in: the kernel's boot
// id.
std::string MachineName() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string name;
  if (std::getline(file, name)) return name;
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  return host;
}

// A rank's processors, then its machine.
std::string Describe(const cpu_set_t& processors) {
  std::string text(reinterpret_cast<const char*>(&processors), sizeof(processors));
  return text + MachineName();
}

int Threads(const cpu_set_t& mine, int sharing) {
  return std::max(1, CPU_COUNT(&mine) / std::max(1, sharing));
}

}  // namespace

absl::StatusOr<HostShare> HostShare::Find(Communicator* world) {
  const cpu_set_t mine = Processors();
  if (world == nullptr) return HostShare(nullptr, {0}, Threads(mine, 1));
  const std::string description = Describe(mine);
  const CallOptions options{.what = "processes of this machine"};
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> gathered,
                           world->GatherBytes(description, 0, options));
  std::string all;
  // Machine names may differ in length: each description is preceded by its length.
  for (const std::string& text : gathered) {
    const uint32_t size = static_cast<uint32_t>(text.size());
    all.append(reinterpret_cast<const char*>(&size), sizeof(size));
    all.append(text);
  }
  TESSERA_ASSIGN_OR_RETURN(all, world->BroadcastBytes(all, 0, options));
  std::vector<int> on_this_host;
  int sharing = 0;
  std::string_view rest = all;
  for (int rank = 0; rank < world->size(); ++rank) {
    uint32_t size = 0;
    std::memcpy(&size, rest.data(), sizeof(size));
    const std::string_view other = rest.substr(sizeof(size), size);
    rest.remove_prefix(sizeof(size) + size);
    if (other.substr(sizeof(mine)) != std::string_view(description).substr(sizeof(mine))) continue;
    on_this_host.push_back(rank);
    cpu_set_t theirs, common;
    std::memcpy(&theirs, other.data(), sizeof(theirs));
    CPU_AND(&common, &mine, &theirs);
    sharing += CPU_COUNT(&common) > 0 ? 1 : 0;
  }
  return HostShare(world, std::move(on_this_host), Threads(mine, sharing));
}

absl::StatusOr<int64_t> HostShare::Sum(int64_t mine) const {
  if (world_ == nullptr) return mine;
  std::vector<int64_t> all(world_->size());
  const std::vector<int64_t> own = {mine};
  TESSERA_RETURN_IF_ERROR(
      world_->AllGather(ConstBuffer(own), Buffer(all), {}, {.what = "sizes by rank"}));
  int64_t sum = 0;
  for (const int rank : on_this_host_) sum += all[rank];
  return sum;
}

}  // namespace tessera
