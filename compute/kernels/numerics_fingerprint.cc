#include "compute/kernels/numerics_fingerprint.h"

#include "absl/strings/str_cat.h"

namespace tessera {

std::vector<std::string> NumericsDifferences(const NumericsFingerprint& a,
                                             const NumericsFingerprint& b,
                                             const std::string& here) {
  std::vector<std::string> differences;
  const auto add = [&](const char* what, const std::string& x, const std::string& y) {
    if (x != y) differences.push_back(absl::StrCat(what, " ", x, ", ", here, " ", y));
  };
  add("instruction set", a.instruction_set, b.instruction_set);
  add("matrix products by", a.library, b.library);
  if (a.products_hash != b.products_hash) differences.push_back("other bits of matrix products");
  if (a.loops_hash != b.loops_hash) differences.push_back("other bits of the remaining operations");
  return differences;
}

}  // namespace tessera
