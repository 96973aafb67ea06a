#include "models/foreign/format.h"

#include "absl/strings/str_cat.h"

namespace tessera {

absl::Status LlmcFile::Corrupt(const std::string& what) const {
  return absl::DataLossError(absl::StrCat(path, ": ", what));
}

absl::Status LlmcFile::CheckLength(__int128 elements) const {
  const __int128 expected = kLlmcHeaderBytes + elements * element_bytes;
  if (expected == size_bytes) return absl::OkStatus();
  if (expected > INT64_MAX) {
    return Corrupt(absl::StrCat("the header asks for more than 2^63 bytes, found ", size_bytes));
  }
  return Corrupt(absl::StrCat(expected > size_bytes ? "truncated" : "trailing bytes", ": expected ",
                              static_cast<int64_t>(expected), " bytes, found ", size_bytes));
}

}  // namespace tessera
