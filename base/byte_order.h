#ifndef TESSERA_BASE_BYTE_ORDER_H_
#define TESSERA_BASE_BYTE_ORDER_H_

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstring>
#include <string>

namespace tessera {

// Every number on disk is little-endian, and tensors are written as they are in memory.
static_assert(std::endian::native == std::endian::little,
              "tensor data would have to be swapped on this machine");

// Reads a number from memory, which need not be aligned. Precondition: sizeof(T) bytes at `from`.
template <std::unsigned_integral T>
T LoadLittleEndian(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <std::unsigned_integral T>
void StoreLittleEndian(T value, void* to) {
  std::memcpy(to, &value, sizeof(T));
}

template <std::unsigned_integral T>
void AppendLittleEndian(T value, std::string& to) {
  to.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

}  // namespace tessera

#endif  // TESSERA_BASE_BYTE_ORDER_H_
