#ifndef TESSERA_TRAINER_COMM_MPI_DATAGRAM_SOCKET_H_
#define TESSERA_TRAINER_COMM_MPI_DATAGRAM_SOCKET_H_

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "trainer/comm/mpi/host_address.h"

namespace tessera {

// A UDP socket on a free port of every address of this machine: of both families where the kernel
// has IPv6. It never blocks.
//
// Threads: sending and receiving may overlap.
class DatagramSocket {
 public:
  struct Endpoint {
    HostAddress address = {};
    uint16_t port = 0;
    friend bool operator==(const Endpoint&, const Endpoint&) = default;
  };

  // `hear_refusals`: NextRefusal() tells of datagrams to closed ports.
  static absl::StatusOr<std::unique_ptr<DatagramSocket>> Open(bool hear_refusals);
  ~DatagramSocket();
  DatagramSocket(const DatagramSocket&) = delete;
  DatagramSocket& operator=(const DatagramSocket&) = delete;

  int fd() const { return fd_; }  // for poll()
  uint16_t port() const { return port_; }

  // A datagram that cannot be sent is lost, as one on its way may be.
  void Send(const void* data, size_t bytes, const Endpoint& to) const;
  // Bytes received; negative when there is nothing.
  ssize_t Receive(void* data, size_t bytes, Endpoint* from) const;
  // A place to which a datagram was sent and whose machine answered that the port is closed; none
  // when there is no other.
  std::optional<Endpoint> NextRefusal() const;

 private:
  DatagramSocket(int fd, bool ipv6) : fd_(fd), ipv6_(ipv6) {}
  sockaddr_storage ToSocketAddress(const Endpoint& endpoint, socklen_t* length) const;
  static Endpoint FromSocketAddress(const sockaddr_storage& from);

  const int fd_;
  const bool ipv6_;
  uint16_t port_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_COMM_MPI_DATAGRAM_SOCKET_H_
