#include "checkpoint/collective/hosts.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>

#include "absl/strings/str_cat.h"
#include "base/errno_status.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/collective/agree.h"
#include "checkpoint/collective/rank_message.pb.h"

namespace tessera::ckpt {
namespace {

std::string SystemName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "?";
}

// Containers of one machine have a boot in common, but no folder: a mounted tmpfs has a device
// number of its own.
absl::StatusOr<std::string> PlaceOf(int rank, const Storage& folder, const std::string& name) {
  RankPlace place;
  place.set_host(name.empty() ? SystemName() : name);
  const std::optional<std::string> path = folder.LocalPath("");
  if (!path.has_value()) {
    place.set_volume_id(absl::StrCat("rank ", rank));
    place.set_folder_id(place.volume_id());
    place.set_machine_id(place.volume_id());
    return place.SerializeAsString();
  }
  // A folder that is gone is an error. As a host by itself it would get copies that are meant for
  // another host.
  struct stat found = {};
  if (stat(path->c_str(), &found) != 0) return Named("Find", *path, ErrnoStatus(errno));
  std::string boot = BootId();
  if (boot.empty()) boot = SystemName();
  place.set_machine_id(boot);
  place.set_volume_id(absl::StrCat(boot, " ", found.st_dev));
  place.set_folder_id(absl::StrCat(place.volume_id(), " ", found.st_ino));
  return place.SerializeAsString();
}

}  // namespace

absl::StatusOr<Hosts> Hosts::Find(ProcessGroup& group, const Storage& folder,
                                  const std::string& name, absl::Duration timeout) {
  const absl::StatusOr<std::string> mine = PlaceOf(group.rank(), folder, name);
  const Combine join = [](const std::vector<std::string>& all) -> absl::StatusOr<std::string> {
    HostPlaces places;
    for (size_t rank = 0; rank < all.size(); ++rank) {
      TESSERA_ASSIGN_OR_RETURN(*places.add_ranks(), MessageFrom<RankPlace>(rank, all[rank]));
    }
    return places.SerializeAsString();
  };
  TESSERA_ASSIGN_OR_RETURN(const std::string bytes, Agree(group, mine, join, timeout));
  TESSERA_ASSIGN_OR_RETURN(const auto places, AnswerFrom<HostPlaces>(group, bytes));
  if (places.ranks_size() != group.size()) return AbandonGroup(group, BadMessageFrom(0));
  return Of(places);
}

Hosts Hosts::Of(const HostPlaces& places) {
  Hosts hosts;
  std::map<std::string, int> by_folder;
  std::map<std::string, size_t> by_machine;
  for (const RankPlace& place : places.ranks()) {
    const auto [at, is_new] = by_folder.try_emplace(place.folder_id(), hosts.count());
    if (is_new) {
      hosts.ranks_.emplace_back();
      hosts.names_.push_back(place.host());
      hosts.volumes_.push_back(place.volume_id());
      const auto machine = by_machine.try_emplace(place.machine_id(), by_machine.size()).first;
      hosts.machines_.resize(by_machine.size());
      hosts.machines_[machine->second].push_back(hosts.count() - 1);
    }
    hosts.ranks_[at->second].push_back(static_cast<uint32_t>(hosts.host_of_.size()));
    hosts.host_of_.push_back(at->second);
  }
  return hosts;
}

int Hosts::index_on_host(int rank) const {
  const std::vector<uint32_t>& ranks = ranks_[of(rank)];
  return static_cast<int>(std::ranges::find(ranks, static_cast<uint32_t>(rank)) - ranks.begin());
}

std::optional<int> Hosts::peer(int rank) const {
  if (count() < 2) return std::nullopt;
  int next = (of(rank) + 1) % count();
  for (size_t m = 0; m < machines_.size() && machines_.size() > 1; ++m) {
    const auto host = std::ranges::find(machines_[m], of(rank));
    if (host == machines_[m].end()) continue;
    const std::vector<int>& others = machines_[(m + 1) % machines_.size()];
    next = others[(host - machines_[m].begin()) % others.size()];
  }
  const std::vector<uint32_t>& ranks = ranks_[next];
  return static_cast<int>(ranks[index_on_host(rank) % ranks.size()]);
}

std::string Hosts::Names(const std::vector<uint32_t>& hosts) const {
  std::vector<std::string> names;
  for (const uint32_t host : hosts) names.push_back(names_[host]);
  return JoinFirst(names, ", ");
}

std::string Hosts::Describe() const {
  const size_t machines = machines_.size();
  const std::string on = machines == names_.size() ? ""
                         : machines == 1           ? " on one machine"
                                                   : absl::StrCat(" on ", machines, " machines");
  return absl::StrCat(count(), count() == 1 ? " host (" : " hosts (", JoinFirst(names_, ", "), ")",
                      on, count() == 1 ? ": no copies" : "");
}

}  // namespace tessera::ckpt
