#include "trainer/state/ledger.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "trainer/state/saved_settings.h"

namespace tessera {
namespace {

constexpr size_t kSha256Bytes = 32;

std::string HexSha256(std::string_view text) {
  std::array<char, kSha256Bytes> digest{};
  EVP_Digest(text.data(), text.size(), reinterpret_cast<unsigned char*>(digest.data()), nullptr,
             EVP_sha256(), nullptr);
  return absl::BytesToHexString(std::string(digest.data(), digest.size()));
}

// A NaN has many bit patterns, and JSON has neither it nor infinities.
std::string LedgerBits(double value) {
  if (!std::isfinite(value)) return "none";
  return absl::StrFormat("%016x", std::bit_cast<uint64_t>(value));
}

}  // namespace

std::string NextLink(std::string_view previous, std::string_view settings, const LedgerStep& step) {
  return HexSha256(absl::StrCat(
      "tessera ledger 1\n", std::string(previous), "\n", std::string(settings), "\n", step.step,
      " ", LedgerBits(step.loss), " ", LedgerBits(step.grad_norm), " ",
      LedgerBits(step.learning_rate), " ", step.first_sample, " ", step.end_sample, "\n"));
}

bool IsLedgerDigest(std::string_view text) {
  return text.size() == 2 * kSha256Bytes && std::ranges::all_of(text, [](char c) {
           return absl::ascii_isdigit(static_cast<unsigned char>(c)) || (c >= 'a' && c <= 'f');
         });
}

std::string SettingsDigest(const TrainConfig& config, uint64_t seed, uint64_t data_seed) {
  return HexSha256(absl::StrCat("tessera settings 1\n", DeterminingSettings(config, seed),
                                "data_seed: ", data_seed, "\n"));
}

std::string StateDigest(const ckpt::Manifest& manifest) {
  std::vector<const ckpt::LogicalTensor*> tensors;
  for (const ckpt::LogicalTensor& tensor : manifest.tensors()) tensors.push_back(&tensor);
  std::ranges::sort(
      tensors, {}, [](const auto* tensor) -> const auto& { return tensor->name(); });
  std::string text = "tessera state 1\n";
  for (const ckpt::LogicalTensor* tensor : tensors) {
    // A name may hold any character: its length comes first.
    absl::StrAppend(&text, tensor->name().size(), " ", tensor->name(), " ", tensor->role(), " ",
                    tensor->dtype(), " [", absl::StrJoin(tensor->global_shape(), ","), "] ");
    absl::StrAppend(&text, tensor->alias_of().size(), " ", tensor->alias_of());
    absl::StrAppendFormat(&text, " %016x%016x\n", tensor->digest().hi(), tensor->digest().lo());
  }
  return HexSha256(text);
}

std::string SaveDigest(int64_t step, std::string_view head, std::string_view state) {
  return HexSha256(absl::StrCat("tessera save 1\n", step, "\n", std::string(head), "\n",
                                std::string(state), "\n"));
}

}  // namespace tessera
