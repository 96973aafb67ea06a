#include "convert/paddle/optimizer_names.h"

namespace tessera::ckpt::convert {
namespace {

constexpr std::string_view kSlice = "slice@";
constexpr std::string_view kMaster = "_fp32_master";

struct Suffix {
  std::string_view text;
  PaddleState state;
};
constexpr Suffix kSuffixes[] = {{"_moment1", PaddleState::kMoment1},
                                {"_moment2", PaddleState::kMoment2},
                                {"_beta1_pow_acc", PaddleState::kBeta1Power},
                                {"_beta2_pow_acc", PaddleState::kBeta2Power}};

// Removes "_0" or another number from the end.
bool RemoveNumber(std::string_view& text) {
  const size_t last = text.find_last_not_of("0123456789");
  if (last == text.npos || last + 1 == text.size() || text[last] != '_') return false;
  text = text.substr(0, last);
  return true;
}

bool RemoveEnd(std::string_view& text, std::string_view end) {
  if (!text.ends_with(end)) return false;
  text.remove_suffix(end.size());
  return true;
}

bool RemoveSlice(std::string_view& text) {
  if (!text.starts_with(kSlice)) return false;
  text.remove_prefix(kSlice.size());
  return true;
}

}  // namespace

std::string_view PaddleStateName(PaddleState state) {
  if (state == PaddleState::kMasterWeight) return "master_weights";
  for (const Suffix& suffix : kSuffixes) {
    if (suffix.state == state) return suffix.text.substr(1);
  }
  return "";
}

std::optional<PaddleStateKey> ParsePaddleStateKey(std::string_view key) {
  PaddleStateKey parsed;
  parsed.sliced = RemoveSlice(key);
  if (!RemoveNumber(key)) return std::nullopt;
  for (const Suffix& suffix : kSuffixes) {
    if (!RemoveEnd(key, suffix.text)) continue;
    // States of master weights are named after those.
    std::string_view owner = key;
    if (RemoveNumber(owner) && RemoveEnd(owner, kMaster)) key = owner;
    if (key.empty()) return std::nullopt;
    parsed.tensor_name = std::string(key);
    parsed.state = suffix.state;
    return parsed;
  }
  return std::nullopt;
}

PaddleStateKey ParsePaddleMasterKey(std::string_view key) {
  const bool sliced = RemoveSlice(key);
  return {std::string(key), PaddleState::kMasterWeight, sliced};
}

}  // namespace tessera::ckpt::convert
