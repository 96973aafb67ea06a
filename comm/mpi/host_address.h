#ifndef TESSERA_COMM_MPI_HOST_ADDRESS_H_
#define TESSERA_COMM_MPI_HOST_ADDRESS_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

// An IPv6 address, or an IPv4 one as ::ffff:a.b.c.d, in network order. Plain bytes.
using HostAddress = std::array<uint8_t, 16>;
inline constexpr int kIpv4PrefixBytes = 12;  // ::ffff:

// Returns the loopback addresses of both families.
std::vector<HostAddress> LoopbackAddresses();

// Returns the addresses at which other machines may reach this one: of interfaces that are up,
// without loopback and without IPv6 link-local addresses, which mean nothing without an interface.
// At most `max_per_family` of IPv4, then at most as many of IPv6.
std::vector<HostAddress> OwnAddresses(int max_per_family);

// Returns those addresses of a process on another machine at which it may be reached. Addresses
// that this machine has as well are left out (container bridges have the same address on every
// machine). Addresses with the longest prefix in common with one of `ours` come first, because
// their networks are likely to be shared.
std::vector<HostAddress> AddressesToTry(std::span<const HostAddress> theirs,
                                        std::span<const HostAddress> ours);

}  // namespace tessera

#endif  // TESSERA_COMM_MPI_HOST_ADDRESS_H_
