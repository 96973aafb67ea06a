#include "comm/mpi/host_address.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace tessera {
namespace {

HostAddress Address(const std::string& text) {
  HostAddress address = {};
  if (text.find(':') != text.npos) {
    EXPECT_EQ(inet_pton(AF_INET6, text.c_str(), address.data()), 1) << text;
  } else {
    address[10] = address[11] = 0xff;
    EXPECT_EQ(inet_pton(AF_INET, text.c_str(), address.data() + 12), 1) << text;
  }
  return address;
}

std::vector<HostAddress> Addresses(const std::vector<std::string>& texts) {
  std::vector<HostAddress> addresses;
  for (const std::string& text : texts) addresses.push_back(Address(text));
  return addresses;
}

TEST(AddressesToTryTest, TakesTheSharedNetworkFirst) {
  EXPECT_EQ(
      AddressesToTry(Addresses({"192.168.9.2", "10.1.2.3"}), Addresses({"10.1.2.4", "172.16.0.1"})),
      Addresses({"10.1.2.3", "192.168.9.2"}));
  EXPECT_EQ(AddressesToTry(Addresses({"2001:db8:1::2", "fd00:7::2"}),
                           Addresses({"fd00:7::1", "2001:db8:2::1"})),
            Addresses({"fd00:7::2", "2001:db8:1::2"}));
}

// docker0 and virbr0 have the same address on every machine.
TEST(AddressesToTryTest, LeavesOutWhatThisMachineHasToo) {
  EXPECT_EQ(AddressesToTry(Addresses({"172.17.0.1", "10.0.0.2", "192.168.122.1"}),
                           Addresses({"10.0.0.1", "172.17.0.1", "192.168.122.1"})),
            Addresses({"10.0.0.2"}));
}

TEST(AddressesToTryTest, ComparesNoAddressesOfDifferentFamilies) {
  // All IPv4 addresses have a prefix of 96 bits in common with each other.
  EXPECT_EQ(
      AddressesToTry(Addresses({"200.0.0.2", "fd00:7::2"}), Addresses({"10.0.0.1", "fd00:7::1"})),
      Addresses({"fd00:7::2", "200.0.0.2"}));
}

TEST(AddressesToTryTest, IsEmptyRatherThanLoopback) {
  EXPECT_TRUE(AddressesToTry({}, Addresses({"10.0.0.1"})).empty());
  EXPECT_TRUE(AddressesToTry(Addresses({"10.0.0.1"}), Addresses({"10.0.0.1"})).empty());
}

TEST(OwnAddressesTest, HasNeitherLoopbackNorLinkLocal) {
  const std::vector<HostAddress> own = OwnAddresses(8);
  for (const HostAddress& loopback : LoopbackAddresses()) {
    EXPECT_EQ(std::count(own.begin(), own.end(), loopback), 0);
  }
  for (const HostAddress& address : own) {
    EXPECT_FALSE(address[0] == 0xfe && (address[1] & 0xc0) == 0x80);
  }
  EXPECT_TRUE(OwnAddresses(0).empty());
}

}  // namespace
}  // namespace tessera
