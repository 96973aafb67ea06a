#ifndef TESSERA_TRAINER_COMM_MPI_HOST_ADDRESS_H_
#define TESSERA_TRAINER_COMM_MPI_HOST_ADDRESS_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

// An IPv6 address, or an IPv4 one as ::ffff:a.b.c.d, in network order. Plain bytes.
using HostAddress = std::array<uint8_t, 16>;

// Loopback, of both families.
std::vector<HostAddress> LoopbackAddresses();

// The addresses of this machine's interfaces that other machines may reach: those that are up,
// without loopback and without IPv6 link-local ones, which mean nothing without an interface. At
// most `most_of_family` of IPv4, then as many of IPv6.
std::vector<HostAddress> OwnAddresses(int most_of_family);

// The addresses at which a process on another machine may be reached, of those that it has: without
// those that this machine has, too (bridges of containers have the same address on every machine),
// and those of networks that are likely to be shared, with the longest common prefix, first.
std::vector<HostAddress> AddressesToTry(std::span<const HostAddress> theirs,
                                        std::span<const HostAddress> ours);

}  // namespace tessera

#endif  // TESSERA_TRAINER_COMM_MPI_HOST_ADDRESS_H_
