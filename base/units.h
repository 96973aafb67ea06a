#ifndef TESSERA_BASE_UNITS_H_
#define TESSERA_BASE_UNITS_H_

#include <cstdint>
#include <string>

namespace tessera {

// Returns a size in three digits and powers of 1024: "0 B", "1023 B", "1.00 KiB", "12.3 MiB", "123
// GiB".
std::string HumanBytes(uint64_t bytes);

// Returns a rate in three digits and powers of 1000, as in the specifications of disks and buses:
// "1.53 GB/s"; "-" if no time has passed.
std::string HumanRate(uint64_t bytes, double seconds);

// Returns a duration as "850 us", "12.3 ms", "4.56 s", "2m 05s", "3h 07m" or "2d 04h"; "-" if it is
// negative or NaN.
std::string HumanSeconds(double seconds);

}  // namespace tessera

#endif  // TESSERA_BASE_UNITS_H_
