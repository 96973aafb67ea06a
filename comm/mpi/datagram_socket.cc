#include "comm/mpi/datagram_socket.h"

// Must follow <netinet/in.h>, whose definitions it uses without including it.
#include <errno.h>
#include <linux/errqueue.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

// An error caused by an earlier datagram is reported by the next call, and then cleared.
constexpr int kTries = 3;

bool SetFlag(int fd, int level, int option, int value) {
  return setsockopt(fd, level, option, &value, sizeof(value)) == 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DatagramSocket>> DatagramSocket::Open(bool hear_refusals) {
  for (const bool ipv6 : {true, false}) {
    const int fd = socket(ipv6 ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) continue;
    std::unique_ptr<DatagramSocket> opened(new DatagramSocket(fd, ipv6));
    if (ipv6 && !SetFlag(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0)) continue;
    if (hear_refusals) {
      // For an IPv4 destination, an IPv6 socket reports errors under the IPv4 option.
      SetFlag(fd, IPPROTO_IP, IP_RECVERR, 1);
      if (ipv6) SetFlag(fd, IPPROTO_IPV6, IPV6_RECVERR, 1);
    }
    HostAddress any = {};
    if (!ipv6) any[10] = any[11] = 0xff;
    socklen_t length = 0;
    sockaddr_storage address = opened->ToSocketAddress({any, 0}, &length);
    if (bind(fd, reinterpret_cast<const sockaddr*>(&address), length) != 0) continue;
    length = sizeof(address);
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) continue;
    opened->port_ = FromSocketAddress(address).port;
    return opened;
  }
  return absl::UnavailableError(
      absl::StrCat("cannot open a socket to monitor other ranks: ", std::strerror(errno)));
}

DatagramSocket::~DatagramSocket() { close(fd_); }

sockaddr_storage DatagramSocket::ToSocketAddress(const Endpoint& endpoint,
                                                 socklen_t* length) const {
  sockaddr_storage storage = {};
  if (ipv6_) {
    auto* to = reinterpret_cast<sockaddr_in6*>(&storage);
    to->sin6_family = AF_INET6;
    to->sin6_port = htons(endpoint.port);
    std::memcpy(&to->sin6_addr, endpoint.address.data(), sizeof(to->sin6_addr));
    *length = sizeof(*to);
  } else {
    auto* to = reinterpret_cast<sockaddr_in*>(&storage);
    to->sin_family = AF_INET;
    to->sin_port = htons(endpoint.port);
    std::memcpy(&to->sin_addr, endpoint.address.data() + kIpv4PrefixBytes, sizeof(to->sin_addr));
    *length = sizeof(*to);
  }
  return storage;
}

DatagramSocket::Endpoint DatagramSocket::FromSocketAddress(const sockaddr_storage& from) {
  Endpoint endpoint;
  if (from.ss_family == AF_INET6) {
    const auto* in6 = reinterpret_cast<const sockaddr_in6*>(&from);
    endpoint.port = ntohs(in6->sin6_port);
    std::memcpy(endpoint.address.data(), &in6->sin6_addr, sizeof(in6->sin6_addr));
  } else if (from.ss_family == AF_INET) {
    const auto* in = reinterpret_cast<const sockaddr_in*>(&from);
    endpoint.port = ntohs(in->sin_port);
    endpoint.address[10] = endpoint.address[11] = 0xff;
    std::memcpy(endpoint.address.data() + kIpv4PrefixBytes, &in->sin_addr, sizeof(in->sin_addr));
  }
  return endpoint;
}

void DatagramSocket::Send(const void* data, size_t bytes, const Endpoint& to) const {
  socklen_t length = 0;
  const sockaddr_storage address = ToSocketAddress(to, &length);
  const bool ipv4 = std::memcmp(to.address.data(), "\0\0\0\0\0\0\0\0\0\0\xff\xff", 12) == 0;
  if (!ipv6_ && !ipv4) return;
  for (int i = 0; i < kTries; ++i) {
    if (sendto(fd_, data, bytes, MSG_DONTWAIT, reinterpret_cast<const sockaddr*>(&address),
               length) >= 0 ||
        errno != ECONNREFUSED) {
      return;
    }
  }
}

ssize_t DatagramSocket::Receive(void* data, size_t bytes, Endpoint* from) const {
  for (int i = 0; i < kTries; ++i) {
    sockaddr_storage address = {};
    socklen_t length = sizeof(address);
    const ssize_t received =
        recvfrom(fd_, data, bytes, MSG_DONTWAIT, reinterpret_cast<sockaddr*>(&address), &length);
    if (received >= 0) {
      *from = FromSocketAddress(address);
      return received;
    }
    if (errno != ECONNREFUSED) break;
  }
  return -1;
}

std::optional<DatagramSocket::Endpoint> DatagramSocket::NextRefusal() const {
  while (true) {
    sockaddr_storage to = {};
    alignas(cmsghdr) std::array<char, 512> control;
    msghdr message = {};
    message.msg_name = &to;
    message.msg_namelen = sizeof(to);
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    if (recvmsg(fd_, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) return std::nullopt;
    for (cmsghdr* at = CMSG_FIRSTHDR(&message); at != nullptr; at = CMSG_NXTHDR(&message, at)) {
      const bool error = (at->cmsg_level == IPPROTO_IP && at->cmsg_type == IP_RECVERR) ||
                         (at->cmsg_level == IPPROTO_IPV6 && at->cmsg_type == IPV6_RECVERR);
      if (!error) continue;
      sock_extended_err what;
      std::memcpy(&what, CMSG_DATA(at), sizeof(what));
      if (what.ee_errno == ECONNREFUSED) return FromSocketAddress(to);
    }
  }
}

}  // namespace tessera
