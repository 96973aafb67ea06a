#ifndef TESSERA_TRAINER_COMM_MPI_MONITOR_H_
#define TESSERA_TRAINER_COMM_MPI_MONITOR_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "trainer/comm/mpi/datagram_socket.h"
#include "trainer/comm/mpi/host_address.h"
#include "trainer/comm/transport.h"

namespace tessera {

// Where a rank's process can be asked how it is. Plain bytes, exchanged when the world starts.
struct MonitorAddress {
  static constexpr int kMostAddresses = 16;

  std::array<char, 64> host = {};
  uint64_t machine = 0;  // the same for processes that share loopback and process ids
  int32_t pid = 0;
  uint16_t port = 0;
  uint16_t address_count = 0;
  std::array<HostAddress, kMostAddresses> addresses = {};  // without loopback
};

// Beside MPI, which cannot tell a slow peer from a dead one: each process answers datagrams (UDP)
// on a thread of its own, so that it can be asked what it does while it computes. A process that
// has ended is told by its closed port, one that is stopped by its silence, and what it last did by
// two others, to whom every rank reports once per heartbeat. Datagrams carry a secret of the run;
// others are dropped.
//
// Which of a process's addresses lead to it is found out by asking at all of them when the run
// starts. That a port is closed says something about a rank only at an address where that very rank
// has answered before: any other may belong to another machine.
//
// Cost: one sleeping thread and two datagrams per rank and heartbeat; a few to every other rank
// when the run starts; nothing in a collective.
// Threads: any, once started.
class Monitor {
 public:
  static absl::StatusOr<std::unique_ptr<Monitor>> Create();
  ~Monitor();

  const MonitorAddress& address() const { return address_; }
  // `activity` may be called from the monitor's thread until Stop() or the destructor.
  void Start(int rank, std::vector<MonitorAddress> peers, uint64_t secret,
             std::function<PeerState()> activity);
  void Stop();

  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // The best known: a cause before a symptom, then the lowest rank.
  Failure failure() const;
  // This rank's own; ignored when some failure is known already.
  void Fail(Failure failure);

  std::vector<PeerState> Ask(std::span<const int> ranks);

  // Ends the process with exit code 1 and `message` on stderr unless called again within `limit`:
  // for calls that cannot be given a deadline. No message where it is empty, or where nobody reads
  // stderr for a second; no limit where there is none.
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
  // By the paths that have answered; by all of them where none has yet.
  void SendTo(int rank, Packet& packet, const DatagramSocket& socket) const;
  void NoteAnswer(const Packet& packet);
  bool IsGone(int rank, const DatagramSocket::Endpoint& refused) const;
  void CollectAnswers(const DatagramSocket& socket, std::span<const int> ranks,
                      std::vector<Question>* questions);
  std::vector<int> Guardians(int rank) const;
  // Whether its state can be looked up here.
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

  // Of the monitor's thread: whom to introduce itself to next, and when.
  int introduced_ = 0, introductions_ = 0;
  Clock::time_point next_introduction_;

  mutable std::mutex mutex_;
  std::vector<std::vector<Path>> paths_;  // by rank
  Failure failure_;
  int spreads_left_ = 0;
  std::vector<LastReport> reports_;  // by rank, of those that this rank guards
  std::optional<Clock::time_point> watch_until_;
  std::string watch_message_;
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_COMM_MPI_MONITOR_H_
