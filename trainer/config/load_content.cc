#include "trainer/config/load_content.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace tessera {
namespace {

constexpr LoadContent kNothing = {
    .model = false, .optimizer = false, .scheduler = false, .sampler = false, .rng = false};

constexpr std::pair<absl::string_view, bool LoadContent::*> kParts[] = {
    {"model", &LoadContent::model},
    {"optimizer", &LoadContent::optimizer},
    {"scheduler", &LoadContent::scheduler},
    {"sampler", &LoadContent::sampler},
    {"rng", &LoadContent::rng}};

bool AddPart(absl::string_view word, LoadContent& content) {
  for (const auto& [name, part] : kParts) {
    if (name != word) continue;
    content.*part = true;
    return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<LoadContent> ParseLoadContent(const std::string& text) {
  LoadContent content = kNothing;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const absl::string_view word = absl::StripAsciiWhitespace(part);
    if (word == "all") {
      content = LoadContent();
    } else if (!AddPart(word, content)) {
      return absl::InvalidArgumentError(
          absl::StrCat("load_content=", text, ": \"", word,
                       "\" is none of model, optimizer, scheduler, sampler, rng, all"));
    }
  }
  return content;
}

std::string LeftOut(const LoadContent& content) {
  std::vector<absl::string_view> names;
  for (const auto& [name, part] : kParts) {
    if (!(content.*part)) names.push_back(name);
  }
  return absl::StrJoin(names, ", ");
}

LoadContent LoadContentOf(const CheckpointConfig& config) {
  const absl::StatusOr<LoadContent> parsed = ParseLoadContent(config.load_content());
  LoadContent content = parsed.ok() ? *parsed : LoadContent();
  if (config.no_load_optim()) content.optimizer = false;
  if (config.no_load_rng()) content.rng = false;
  if (config.finetune()) {
    content = kNothing;
    content.model = true;
  }
  return content;
}

}  // namespace tessera
