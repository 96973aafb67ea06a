#include "convert/step_folders.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "base/status_macros.h"

namespace tessera::ckpt::convert {
namespace {

// What stands before the number: of transformers and PaddleNLP, InfiniTrain, DeepSpeed,
// Megatron-LM, torchtitan, accelerate, InternEvo.
constexpr std::string_view kStems[] = {
    "checkpoint-", "checkpoint_step_", "global_step", "iter_", "step-", "step_", ""};

std::optional<StepFolder> ParseStepFolder(std::string_view listed) {
  if (!listed.ends_with('/')) return std::nullopt;
  listed.remove_suffix(1);
  const size_t stem = listed.find_last_not_of("0123456789") + 1;  // 0 where all are digits
  StepFolder folder = {.name = std::string(listed)};
  if (std::ranges::find(kStems, listed.substr(0, stem)) == std::end(kStems) ||
      !absl::SimpleAtoi(folder.name.substr(stem), &folder.step)) {
    return std::nullopt;
  }
  return folder;
}

}  // namespace

absl::StatusOr<std::vector<StepFolder>> ListStepFolders(Storage& storage) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> listed, storage.List(""));
  std::vector<StepFolder> folders;
  for (const std::string& name : listed) {
    if (std::optional<StepFolder> folder = ParseStepFolder(name)) {
      folders.push_back(*std::move(folder));
    }
  }
  std::ranges::stable_sort(folders, std::greater<>(), &StepFolder::step);
  return folders;
}

}  // namespace tessera::ckpt::convert
