#include "comm/mpi/host_address.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>

namespace tessera {
namespace {

HostAddress FromIpv4(uint32_t network_order) {
  HostAddress address = {};
  address[10] = address[11] = 0xff;
  std::memcpy(address.data() + kIpv4PrefixBytes, &network_order, sizeof(network_order));
  return address;
}

HostAddress FromIpv6(const in6_addr& from) {
  HostAddress address;
  std::memcpy(address.data(), &from, sizeof(from));
  return address;
}

in6_addr ToIpv6(const HostAddress& from) {
  in6_addr address;
  std::memcpy(&address, from.data(), sizeof(address));
  return address;
}

bool IsIpv4(const HostAddress& address) {
  const in6_addr in6 = ToIpv6(address);
  return IN6_IS_ADDR_V4MAPPED(&in6);
}

bool OnlyLocal(const HostAddress& address) {
  if (IsIpv4(address)) return address[kIpv4PrefixBytes] == 127;
  const in6_addr in6 = ToIpv6(address);
  return IN6_IS_ADDR_LOOPBACK(&in6) || IN6_IS_ADDR_LINKLOCAL(&in6);
}

int CommonPrefixBits(const HostAddress& a, const HostAddress& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    const auto difference = static_cast<uint8_t>(a[i] ^ b[i]);
    if (difference != 0) return static_cast<int>(8 * i) + std::countl_zero(difference);
  }
  return static_cast<int>(8 * a.size());
}

}  // namespace

std::vector<HostAddress> LoopbackAddresses() {
  return {FromIpv4(htonl(INADDR_LOOPBACK)), FromIpv6(in6addr_loopback)};
}

std::vector<HostAddress> OwnAddresses(int max_per_family) {
  std::vector<HostAddress> ipv4, ipv6;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || (at->ifa_flags & IFF_UP) == 0) continue;
    HostAddress address;
    if (at->ifa_addr->sa_family == AF_INET) {
      address = FromIpv4(reinterpret_cast<const sockaddr_in*>(at->ifa_addr)->sin_addr.s_addr);
    } else if (at->ifa_addr->sa_family == AF_INET6) {
      address = FromIpv6(reinterpret_cast<const sockaddr_in6*>(at->ifa_addr)->sin6_addr);
    } else {
      continue;
    }
    std::vector<HostAddress>& family = IsIpv4(address) ? ipv4 : ipv6;
    if (!OnlyLocal(address) && static_cast<int>(family.size()) < max_per_family) {
      family.push_back(address);
    }
  }
  freeifaddrs(list);
  ipv4.insert(ipv4.end(), ipv6.begin(), ipv6.end());
  return ipv4;
}

std::vector<HostAddress> AddressesToTry(std::span<const HostAddress> theirs,
                                        std::span<const HostAddress> ours) {
  std::vector<HostAddress> addresses;
  for (const HostAddress& address : theirs) {
    if (std::find(ours.begin(), ours.end(), address) == ours.end()) addresses.push_back(address);
  }
  // In bits of the address itself: those of IPv4 begin after the ::ffff: prefix.
  const auto shared_bits = [&](const HostAddress& address) {
    int best = 0;
    for (const HostAddress& own : ours) {
      if (IsIpv4(own) != IsIpv4(address)) continue;
      const int skipped = IsIpv4(address) ? 8 * kIpv4PrefixBytes : 0;
      best = std::max(best, CommonPrefixBits(address, own) - skipped);
    }
    return best;
  };
  std::stable_sort(
      addresses.begin(), addresses.end(),
      [&](const HostAddress& a, const HostAddress& b) { return shared_bits(a) > shared_bits(b); });
  return addresses;
}

}  // namespace tessera
