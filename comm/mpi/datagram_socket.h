#ifndef TESSERA_COMM_MPI_DATAGRAM_SOCKET_H_
#define TESSERA_COMM_MPI_DATAGRAM_SOCKET_H_

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "comm/mpi/host_address.h"

namespace tessera {

// A non-blocking UDP socket on a free port of every address of this machine, of both families where
// the kernel supports IPv6.
//
// Threads: sending and receiving may run concurrently.
class DatagramSocket {
 public:
  struct Endpoint {
    HostAddress address = {};
    uint16_t port = 0;
    friend bool operator==(const Endpoint&, const Endpoint&) = default;
  };

  // Opens a socket. With `hear_refusals`, NextRefusal() reports datagrams that were sent to closed
  // ports.
  static absl::StatusOr<std::unique_ptr<DatagramSocket>> Open(bool hear_refusals);
  ~DatagramSocket();
  DatagramSocket(const DatagramSocket&) = delete;
  DatagramSocket& operator=(const DatagramSocket&) = delete;

  int fd() const { return fd_; }  // for poll()
  uint16_t port() const { return port_; }

  // Sends a datagram. Best effort: one that cannot be sent is dropped, as it could be in transit.
  void Send(const void* data, size_t bytes, const Endpoint& to) const;
  // Returns the number of bytes received; negative if no datagram is there.
  ssize_t Receive(void* data, size_t bytes, Endpoint* from) const;
  // Returns the next destination of an earlier datagram whose machine answered that the port is
  // closed; nullopt if there are no more.
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

#endif  // TESSERA_COMM_MPI_DATAGRAM_SOCKET_H_
