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

// The texts of all ranks, which may differ in length.
absl::StatusOr<std::vector<std::string>> AllGatherTexts(Communicator& world,
                                                        const std::string& mine) {
  const CallOptions options{.what = "processes of this machine"};
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> gathered,
                           world.GatherBytes(mine, 0, options));
  std::string all;
  for (const std::string& text : gathered) {
    const uint32_t size = static_cast<uint32_t>(text.size());
    all.append(reinterpret_cast<const char*>(&size), sizeof(size));
    all.append(text);
  }
  TESSERA_ASSIGN_OR_RETURN(all, world.BroadcastBytes(all, 0, options));
  std::vector<std::string> texts;
  std::string_view rest = all;
  for (int rank = 0; rank < world.size(); ++rank) {
    uint32_t size = 0;
    std::memcpy(&size, rest.data(), sizeof(size));
    texts.emplace_back(rest.substr(sizeof(size), size));
    rest.remove_prefix(sizeof(size) + size);
  }
  return texts;
}

}  // namespace

absl::StatusOr<HostShare> HostShare::Find(Communicator* world) {
  const cpu_set_t mine = Processors();
  if (world == nullptr) return HostShare(nullptr, {0}, Threads(mine, 1));
  const std::string description = Describe(mine);
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> all, AllGatherTexts(*world, description));
  std::vector<int> on_this_host;
  int sharing = 0;
  for (int rank = 0; rank < world->size(); ++rank) {
    const std::string_view other = all[rank];
    if (other.substr(sizeof(mine)) != std::string_view(description).substr(sizeof(mine))) continue;
    on_this_host.push_back(rank);
    cpu_set_t theirs, common;
    std::memcpy(&theirs, other.data(), sizeof(theirs));
    CPU_AND(&common, &mine, &theirs);
    sharing += CPU_COUNT(&common) > 0 ? 1 : 0;
  }
  return HostShare(world, std::move(on_this_host), Threads(mine, sharing));
}

absl::StatusOr<HostShare::Place> HostShare::Among(const std::string& description) const {
  if (world_ == nullptr) return Place{};
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                           AllGatherTexts(*world_, description));
  Place place{.index = 0, .count = 0};
  for (const int rank : on_this_host_) {
    if (all[rank] != description) continue;
    if (rank < world_->rank()) ++place.index;
    ++place.count;
  }
  return place;
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
