#ifndef TESSERA_COMM_MPI_MONITOR_H_
#define TESSERA_COMM_MPI_MONITOR_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "comm/mpi/datagram_socket.h"
#include "comm/mpi/host_address.h"
#include "comm/transport.h"

namespace tessera {

// Time to write a last message to a pipe that may have no reader.
inline constexpr std::chrono::seconds kLastMessageTime(1);

// Addresses at which a rank's process answers queries. Plain bytes, exchanged when the world
// starts.
struct MonitorAddress {
  static constexpr int kMaxAddresses = 16;

  std::array<char, 64> host = {};
  uint64_t machine = 0;  // the same for processes that share loopback and process ids
  int32_t pid = 0;
  uint16_t port = 0;
  uint16_t address_count = 0;
  std::array<HostAddress, kMaxAddresses> addresses = {};  // without loopback
};

// Failure detection beside MPI, which cannot tell a slow peer from a dead one. Each process answers
// UDP datagrams on a thread of its own, so that its state can be queried while it computes. A
// process that has ended is recognised by its closed port, a stopped one by its silence. Every rank
// reports to two others once per heartbeat, so that these know its last activity. Datagrams carry a
// secret of the run; others are dropped.
//
// When the run starts, each rank queries all addresses of a process to find out which of them lead
// to it. A closed port counts as evidence about a rank only at an address where that very rank has
// answered before: any other may belong to another machine.
//
// Cost: one sleeping thread and two datagrams per rank and heartbeat; a few to every other rank
// when the run starts; nothing in a collective. Threads: thread-safe after Start().
class Monitor {
 public:
  static absl::StatusOr<std::unique_ptr<Monitor>> Create();
  ~Monitor();

  const MonitorAddress& address() const { return address_; }
  // Starts the monitor's thread, which may call `activity` until Stop() or the destructor.
  void Start(int rank, std::vector<MonitorAddress> peers, uint64_t secret,
             std::function<PeerState()> activity);
  void Stop();

  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // Returns the best known failure: a cause before a symptom, then the lowest rank.
  Failure failure() const;
  // Reports this rank's own failure; ignored if some failure is known already.
  void Fail(Failure failure);

  std::vector<PeerState> Ask(std::span<const int> ranks);

  // Ends the process with exit code 1 and `message` on stderr unless called again within `limit`: a
  // watchdog for calls that take no timeout. An empty message is not printed, nor is one that
  // stderr does not accept within a second; without a `limit` the watchdog is off.
  void Watch(std::optional<absl::Duration> limit, std::string message);

 private:
  using Clock = std::chrono::steady_clock;
  struct Packet;
  struct LastReport {
    bool known = false;
    Clock::time_point at;
    std::string text;
  };
  struct Question;
  // An address at which a rank may be reached.
  struct Path {
    DatagramSocket::Endpoint to;
    bool answered = false;  // by that rank, in this run
  };

  Monitor() = default;
  void Loop();
  void Answer(const Packet& packet, const DatagramSocket::Endpoint& from);
  void Introduce();
  void Learn(Failure failure, bool own);
  void SendHeartbeats();
  void SpreadFailure();
  void CheckWatch();
  std::vector<Path> MakePaths(const MonitorAddress& peer) const;
  // Sends by the paths that have answered, or by all of them if none has yet.
  void SendTo(int rank, Packet& packet, const DatagramSocket& socket) const;
  void NoteAnswer(const Packet& packet);
  bool IsGone(int rank, const DatagramSocket::Endpoint& refused) const;
  void CollectAnswers(const DatagramSocket& socket, std::span<const int> ranks,
                      std::vector<Question>* questions);
  // Returns the state of a rank from what was answered: by itself, or else by its guardians.
  PeerState Judge(int rank, size_t about, const std::vector<Question>& questions) const;
  std::vector<int> Guardians(int rank) const;
  // Returns whether that rank's process state can be read on this machine.
  bool SameMachine(int rank) const;
  std::string Describe(int rank) const;
  PeerState Missing(int rank, bool gone, const std::optional<std::string>& last) const;

  MonitorAddress address_;
  std::unique_ptr<DatagramSocket> socket_;
  int rank_ = 0;
  uint64_t secret_ = 0;
  std::vector<MonitorAddress> peers_;
  std::function<PeerState()> activity_;
  std::thread thread_;
  std::atomic<bool> started_ = false, stop_ = false, failed_ = false;

  // The next rank to query, and the number of rounds done. Used by the monitor's thread only.
  int introduced_ = 0, introductions_ = 0;
  Clock::time_point next_introduction_;

  mutable Mutex mutex_;
  std::vector<std::vector<Path>> paths_ ABSL_GUARDED_BY(mutex_);  // by rank
  Failure failure_ ABSL_GUARDED_BY(mutex_);
  int spreads_left_ ABSL_GUARDED_BY(mutex_) = 0;
  // Last reports by rank, of the ranks that report here.
  std::vector<LastReport> reports_ ABSL_GUARDED_BY(mutex_);
  std::optional<Clock::time_point> watch_until_ ABSL_GUARDED_BY(mutex_);
  std::string watch_message_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tessera

#endif  // TESSERA_COMM_MPI_MONITOR_H_
