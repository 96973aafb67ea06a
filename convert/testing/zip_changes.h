#ifndef TESSERA_CONVERT_TESTING_ZIP_CHANGES_H_
#define TESSERA_CONVERT_TESTING_ZIP_CHANGES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace tessera::ckpt::convert {

// The archive as torch.save() writes it without checksums: all of them are 0.
inline std::string WithoutChecksums(std::string zip) {
  using namespace std::string_view_literals;
  for (const auto& [mark, offset] :
       {std::pair("PK\3\4"sv, 14), std::pair("PK\1\2"sv, 16), std::pair("PK\7\x08"sv, 4)}) {
    for (size_t at = zip.find(mark); at != zip.npos; at = zip.find(mark, at + mark.size())) {
      zip.replace(at + offset, sizeof(uint32_t), sizeof(uint32_t), '\0');
    }
  }
  return zip;
}

// Inverts a byte of the contents of the first member whose name ends with `end_of_name`. Returns
// false if no member does.
inline bool DamageMember(std::string_view end_of_name, std::string& zip) {
  constexpr std::string_view kMark = "PK\3\4";
  for (size_t at = zip.find(kMark); at != zip.npos; at = zip.find(kMark, at + kMark.size())) {
    const auto number = [&](size_t offset) {
      return static_cast<uint8_t>(zip[at + offset]) +
             256 * static_cast<uint8_t>(zip[at + offset + 1]);
    };
    constexpr size_t kHeaderBytes = 30;
    const size_t name_bytes = number(26), extra_bytes = number(28);
    if (!std::string_view(zip).substr(at + kHeaderBytes, name_bytes).ends_with(end_of_name)) {
      continue;
    }
    char& byte = zip[at + kHeaderBytes + name_bytes + extra_bytes + 2];
    byte = static_cast<char>(~byte);
    return true;
  }
  return false;
}

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_TESTING_ZIP_CHANGES_H_
