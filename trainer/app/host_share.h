#ifndef TESSERA_TRAINER_APP_HOST_SHARE_H_
#define TESSERA_TRAINER_APP_HOST_SHARE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "compute/comm/communicator.h"

namespace tessera {

// The share of its machine that a rank may use, next to other ranks of the same run.
class HostShare {
 public:
  // Collective over `world`, which must outlive the share; null: this process is alone.
  static absl::StatusOr<HostShare> Find(Communicator* world);

  int ranks() const { return static_cast<int>(on_this_host_.size()); }
  // This rank's number of threads: the processors that it may run on, divided by the ranks that
  // share them, at least 1.
  int threads() const { return threads_; }

  // The sum of `mine` over the ranks of this host. Collective over the world.
  absl::StatusOr<int64_t> Sum(int64_t mine) const;

  // This rank among those of this host with an equal `description`. Collective over the world.
  struct Place {
    int index = 0;  // of these, in the order of ranks
    int count = 1;
  };
  absl::StatusOr<Place> Among(const std::string& description) const;

 private:
  HostShare(Communicator* world, std::vector<int> on_this_host, int threads)
      : world_(world), on_this_host_(std::move(on_this_host)), threads_(threads) {}

  Communicator* world_;
  std::vector<int> on_this_host_;  // world ranks
  int threads_;
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_HOST_SHARE_H_
