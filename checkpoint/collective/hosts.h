#ifndef TESSERA_CHECKPOINT_COLLECTIVE_HOSTS_H_
#define TESSERA_CHECKPOINT_COLLECTIVE_HOSTS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/include/process_group.h"
#include "storage/storage.h"

namespace tessera::ckpt {

class HostPlaces;  // checkpoint/collective/rank_message.proto

// The hosts of a job, in the order of their first ranks, and the ranks of each. Ranks that see the
// same folder are on one host; a rank whose folder is not in the file system is alone on its host.
// Several hosts can be containers of one machine.
class Hosts {
 public:
  Hosts() = default;
  // Finds the hosts. `name` is this host's name in messages; empty: the system's. Collective.
  // Returns an error, on every rank, if a rank's folder is missing or the group fails.
  static absl::StatusOr<Hosts> Find(ProcessGroup& group, const Storage& folder,
                                    const std::string& name, absl::Duration timeout);
  static Hosts Of(const HostPlaces& places);

  int count() const { return static_cast<int>(ranks_.size()); }
  int of(int rank) const { return host_of_[rank]; }
  const std::vector<uint32_t>& ranks(int host) const { return ranks_[host]; }
  const std::string& name(int host) const { return names_[host]; }
  // Returns the volume of a host's folder, the same for hosts whose folders share a file system.
  const std::string& volume(int host) const { return volumes_[host]; }

  // Returns whether a rank does this part of work that the ranks of its host share. Each part has a
  // number.
  bool does(int rank, size_t part) const {
    return part % ranks(of(rank)).size() == static_cast<size_t>(index_on_host(rank));
  }
  bool is_first(int rank) const { return ranks_[of(rank)].front() == static_cast<uint32_t>(rank); }
  int index_on_host(int rank) const;
  // Returns the rank that keeps copies of what `rank` writes; nullopt with one host. It is on the
  // next host or, if a machine has several hosts, on one of the next machine.
  std::optional<int> peer(int rank) const;

  std::string Names(const std::vector<uint32_t>& hosts) const;
  std::string Describe() const;

 private:
  std::vector<int> host_of_;                  // by rank
  std::vector<std::vector<uint32_t>> ranks_;  // by host
  std::vector<std::string> names_;
  std::vector<std::string> volumes_;
  std::vector<std::vector<int>> machines_;  // the hosts of each
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_COLLECTIVE_HOSTS_H_
