#include "convert/pickle/write.h"

#include <bit>

#include "base/byte_order.h"

namespace tessera::ckpt::pickle {

void Writer::Int(int64_t value) {
  if (value >= INT32_MIN && value <= INT32_MAX) {
    bytes_ += 'J';
    AppendLittleEndian(static_cast<uint32_t>(value), bytes_);
  } else {
    bytes_ += "\x8a\x08";  // LONG1 of 8 bytes
    AppendLittleEndian(static_cast<uint64_t>(value), bytes_);
  }
}

void Writer::Float(double value) {
  const auto bits = std::bit_cast<uint64_t>(value);
  bytes_ += 'G';
  for (int shift = 56; shift >= 0; shift -= 8) bytes_ += static_cast<char>(bits >> shift);
}

Writer& Writer::Text(std::string_view utf8) {
  bytes_ += 'X';
  AppendLittleEndian(static_cast<uint32_t>(utf8.size()), bytes_);
  bytes_ += utf8;
  return *this;
}

// Writes bytes as protocol 2 does: as a text with a character for each byte.
void Writer::Bytes(std::string_view bytes) {
  std::string utf8;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80) {
      utf8 += c;
    } else {
      utf8 += static_cast<char>(0xC0 | (byte >> 6));
      utf8 += static_cast<char>(0x80 | (byte & 0x3F));
    }
  }
  Global("_codecs", "encode");
  BeginTuple();
  Text(utf8);
  Text("latin1");
  EndTuple();
  Call();
}

void Writer::BeginBytes(uint64_t size_bytes) {
  bytes_ += '\x8e';  // BINBYTES8
  AppendLittleEndian(size_bytes, bytes_);
}

void Writer::Memoize(uint32_t number) {
  bytes_ += 'r';  // LONG_BINPUT
  AppendLittleEndian(number, bytes_);
}

void Writer::Recall(uint32_t number) {
  bytes_ += 'j';  // LONG_BINGET
  AppendLittleEndian(number, bytes_);
}

void Writer::BeginObject(std::string_view module, std::string_view name) {
  Global(module, name);
  NewObject();
  BeginDict();
}

void Writer::EndObject() {
  EndDict();
  SetState();
}

void Writer::Global(std::string_view module, std::string_view name) {
  bytes_.append("c").append(module).append("\n").append(name).append("\n");
}

void Writer::IntTuple(const std::vector<int64_t>& values) {
  BeginTuple();
  for (const int64_t value : values) Int(value);
  EndTuple();
}

}  // namespace tessera::ckpt::pickle
