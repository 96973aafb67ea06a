#include "tokenizer/tokenizer_json_stages.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tokenizer/sentencepiece_model.h"

namespace tessera {
namespace {

// A file with more steps could take any time for a text.
constexpr size_t kMaxNormalizers = 8;

// Only spaces are replaced: with any other text, a few steps could make one of any length.
absl::Status ReadReplacement(const JsonSection& step, TextNormalizer& normalizer) {
  TESSERA_RETURN_IF_ERROR(step.AllowOnly({"type", "pattern", "content"}));
  const JsonSection pattern = step["pattern"]["String"];
  if (pattern.is_null()) return step["pattern"].NotSupported();
  if (pattern.text() != " ") return pattern.NotSupported();
  if (step["content"].text() != kSpaceMark) return step["content"].NotSupported();
  normalizer.AddSpaceMarks();
  return absl::OkStatus();
}

absl::Status ReadPrefix(const JsonSection& step, TextNormalizer& normalizer) {
  TESSERA_RETURN_IF_ERROR(step.AllowOnly({"type", "prepend"}));
  if (step["prepend"].text() != kSpaceMark) return step["prepend"].NotSupported();
  normalizer.AddPrefix();
  return absl::OkStatus();
}

absl::Status ReadForm(const JsonSection& step, TextNormalizer& normalizer) {
  constexpr std::pair<std::string_view, NormalizationForm> kForms[] = {
      {"NFC", NormalizationForm::kNfc},
      {"NFD", NormalizationForm::kNfd},
      {"NFKC", NormalizationForm::kNfkc},
      {"NFKD", NormalizationForm::kNfkd}};
  const std::string type = step.type();
  const auto* form = std::ranges::find(kForms, type, [](const auto& named) { return named.first; });
  if (form == std::end(kForms)) return step.NotSupported();
  TESSERA_RETURN_IF_ERROR(step.AllowOnly({"type"}));
  normalizer.AddForm(form->second);
  return absl::OkStatus();
}

absl::Status CheckByteLevel(const JsonSection& step) {
  TESSERA_RETURN_IF_ERROR(
      step.AllowOnly({"type", "add_prefix_space", "trim_offsets", "use_regex"}));
  return step["add_prefix_space"].is_off() ? absl::OkStatus()
                                           : step["add_prefix_space"].NotSupported();
}

absl::Status ReadSplit(const JsonSection& step, std::optional<SplitRules>& rules) {
  TESSERA_RETURN_IF_ERROR(step.AllowOnly({"type", "pattern", "behavior", "invert"}));
  // The expressions match all of a text: what is kept and what lies between is the same.
  const std::string behavior = step["behavior"].text();
  const bool inverted = step["invert"].is_true();
  const bool isolated = behavior == "Isolated" && !inverted;
  if (!isolated && !(behavior == "Removed" && inverted)) return step["behavior"].NotSupported();
  const JsonSection regex = step["pattern"]["Regex"];
  if (regex.is_null()) return step["pattern"].NotSupported();
  rules = FindSplitRules(regex.text());
  return rules.has_value() ? absl::OkStatus() : regex.NotSupported();
}

absl::Status ReadDigits(const JsonSection& step, SplitRules& rules) {
  TESSERA_RETURN_IF_ERROR(step.AllowOnly({"type", "individual_digits"}));
  rules.numbers_apart = true;
  rules.max_digits = step["individual_digits"].is_true() ? 1 : 0;
  return absl::OkStatus();
}

// Members of Metaspace, which is a pre-tokenizer and a decoder.
absl::StatusOr<Metaspace> ReadMetaspaceMembers(const JsonSection& step) {
  constexpr std::pair<std::string_view, Metaspace::Prefix> kPrefixes[] = {
      {"never", Metaspace::Prefix::kNever},
      {"first", Metaspace::Prefix::kFirst},
      {"always", Metaspace::Prefix::kAlways}};
  TESSERA_RETURN_IF_ERROR(step.AllowOnly(
      {"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"}));
  if (step["replacement"].text() != kSpaceMark) return step["replacement"].NotSupported();
  Metaspace metaspace;
  // The older one of two members that say the same.
  const JsonSection add = step["add_prefix_space"];
  if (!add.is_null() && !add.is_true()) metaspace.prefix = Metaspace::Prefix::kNever;
  if (const JsonSection scheme = step["prepend_scheme"]; !scheme.is_null()) {
    const std::string name = scheme.text();
    const auto* prefix =
        std::ranges::find(kPrefixes, name, [](const auto& named) { return named.first; });
    if (prefix == std::end(kPrefixes)) return scheme.NotSupported();
    metaspace.prefix = prefix->second;
  }
  metaspace.split = step["split"].is_null() || step["split"].is_true();
  return metaspace;
}

// Whether the step is {"type": "Replace"} of U+2581 by a space.
bool ReplacesMarks(const JsonSection& step) {
  return step.type() == "Replace" && step["pattern"]["String"].text() == kSpaceMark &&
         step["content"].text() == " ";
}

bool StripsOneSpace(const JsonSection& step) {
  return step.type() == "Strip" && step["content"].text() == " " && step["start"].json() == 1 &&
         step["stop"].json() == 0;
}

}  // namespace

absl::StatusOr<TextNormalizer> ReadNormalizer(const JsonSection& normalizer) {
  TextNormalizer read;
  const std::vector<JsonSection> steps = normalizer.Steps("normalizers");
  if (steps.size() > kMaxNormalizers) {
    return normalizer["normalizers"].Bad(absl::StrCat("at most ", kMaxNormalizers, " steps"));
  }
  for (const JsonSection& step : steps) {
    const std::string type = step.type();
    TESSERA_RETURN_IF_ERROR(type == "Replace"   ? ReadReplacement(step, read)
                            : type == "Prepend" ? ReadPrefix(step, read)
                                                : ReadForm(step, read));
  }
  return read;
}

bool IsByteLevel(const JsonSection& decoder) {
  const std::vector<JsonSection> steps = decoder.Steps("decoders");
  return steps.size() == 1 && steps[0].type() == "ByteLevel";
}

absl::StatusOr<SplitRules> ReadByteLevelSplit(const JsonSection& pre_tokenizer) {
  const std::vector<JsonSection> steps = pre_tokenizer.Steps("pretokenizers");
  const bool digits = steps.size() > 1 && steps[0].type() == "Digits";
  std::optional<SplitRules> found;
  for (size_t i = digits ? 1 : 0; i < steps.size(); ++i) {
    const bool last = i + 1 == steps.size();
    if (last && steps[i].type() == "ByteLevel") {
      TESSERA_RETURN_IF_ERROR(CheckByteLevel(steps[i]));
      const JsonSection own = steps[i]["use_regex"];  // true unless it says otherwise
      const bool splits = own.is_null() || own.is_true();
      if (splits && found.has_value()) return own.NotSupported();
      if (splits) found = FindSplitRules(kGpt2Regex);
    } else if (!last && !digits && !found.has_value() && steps[i].type() == "Split") {
      TESSERA_RETURN_IF_ERROR(ReadSplit(steps[i], found));
    } else {
      return steps[i].NotSupported();
    }
  }
  if (!found.has_value()) return pre_tokenizer.NotSupported();
  if (digits) TESSERA_RETURN_IF_ERROR(ReadDigits(steps[0], *found));
  return *found;
}

absl::StatusOr<std::optional<Metaspace>> ReadMetaspace(const JsonSection& pre_tokenizer) {
  const std::vector<JsonSection> steps = pre_tokenizer.Steps("pretokenizers");
  if (steps.empty()) return std::nullopt;
  if (steps.size() > 1) return steps[1].NotSupported();
  if (steps[0].type() != "Metaspace") return steps[0].NotSupported();
  return ReadMetaspaceMembers(steps[0]);
}

absl::StatusOr<bool> ReadSpaceDecoder(const JsonSection& decoder) {
  bool has_spaces = false, drops_first = false;
  for (const JsonSection& step : decoder.Steps("decoders")) {
    if (step.type() == "Metaspace") {
      TESSERA_ASSIGN_OR_RETURN(const Metaspace metaspace, ReadMetaspaceMembers(step));
      has_spaces = true;
      drops_first = metaspace.prefix != Metaspace::Prefix::kNever;
    } else if (ReplacesMarks(step)) {
      has_spaces = true;
    } else if (StripsOneSpace(step)) {
      drops_first = true;
    } else if (step.type() != "ByteFallback" && step.type() != "Fuse") {
      return step.NotSupported();
    }
  }
  if (!has_spaces) return decoder.NotSupported();
  return drops_first;
}

}  // namespace tessera
