#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "convert/core/rank_grid.h"
#include "convert/core/reading.h"
#include "convert/formats/torch/read.h"
#include "convert/pickle/torch_archive.h"

namespace tessera::ckpt::convert {
namespace {

// Returns the names of all parts of a state dict, in order, from the name of one of them, such as
// "X-00002-of-00003.bin"; empty for names of another form.
std::vector<std::string> AllPartsOf(const std::string& name, const std::string& extension) {
  constexpr size_t kEndBytes = sizeof("-00002-of-00003") - 1;
  const RankPattern pattern("-{5}-of-{5}" + extension);
  const size_t stem = name.size() - std::min(name.size(), kEndBytes + extension.size());
  const auto numbers = pattern.Parse(std::string_view(name).substr(stem));
  std::vector<std::string> parts;
  for (int64_t part = 1; numbers && part <= (*numbers)[1]; ++part) {
    parts.push_back(name.substr(0, stem) + pattern.Name(std::array{part, (*numbers)[1]}));
  }
  return parts;
}

// Returns whether one of Meta's ranks gives its file such a name. There are less than 100.
bool IsOfRank(const std::string& name) {
  return name.size() == sizeof("consolidated.00.pth") - 1 &&
         RankPattern("consolidated.{2}.pth").Parse(name).has_value();
}

}  // namespace

absl::StatusOr<bool> IsPartOfModel(Storage& storage, const std::string& file) {
  if (IsOfRank(file)) return Exists(storage, "consolidated.01.pth");
  return std::ranges::any_of(std::array{".bin", ".safetensors"}, [&](const char* extension) {
    return AllPartsOf(file, extension).size() > 1;
  });
}

bool IsBesideModel(const std::string& name) {
  constexpr const char* kStems[] = {"optimizer",     "scheduler",     "scaler",
                                    "training_args", "rng_state",     "random_states",
                                    "sampler",       "dl_state_dict", "custom_checkpoint"};
  const std::string stem = name.substr(0, name.rfind('.'));
  return std::ranges::any_of(kStems, [&](const std::string known) {
    return stem == known || stem.starts_with(known + "_");
  });
}

absl::StatusOr<std::vector<std::string>> FindTorchFiles(Storage& storage, const std::string& file) {
  std::vector<std::string> names = {file};
  if (file.ends_with(".distcp")) return std::vector<std::string>();  // several archives in a row
  if (file.empty()) {
    TESSERA_ASSIGN_OR_RETURN(names, storage.List(""));
    std::erase_if(names, [](const std::string& name) {
      return std::ranges::none_of(std::array{".pt", ".pth", ".pth.tar", ".bin", ".ckpt"},
                                  [&](const char* end) { return name.ends_with(end); });
    });
  }
  std::vector<std::string> found;
  for (std::string& name : names) {
    TESSERA_ASSIGN_OR_RETURN(const auto open, storage.Open(name));
    TESSERA_ASSIGN_OR_RETURN(const bool is_torch, IsTorchArchive(*open, {0, open->size_bytes()}));
    // A part without contents is damage, which is found when it is read.
    const bool is_lost = file.empty() && open->size_bytes() == 0 &&
                         (IsOfRank(name) || !AllPartsOf(name, ".bin").empty());
    if (is_torch || is_lost) found.push_back(std::move(name));
  }
  if (!std::ranges::all_of(found, IsBesideModel)) {
    std::erase_if(found, IsBesideModel);
  } else if (file.empty() && !found.empty()) {
    TESSERA_ASSIGN_OR_RETURN(names, storage.List(""));
    const auto has = [&](const char* weights) { return Has(names, weights); };
    if (std::ranges::any_of(kWeightFiles, has)) return std::vector<std::string>();
    const auto model = std::ranges::find_if(names, [](const std::string& name) {
      return name.starts_with("pytorch_model_fsdp_") || name.ends_with(".safetensors");
    });
    if (model != names.end()) {
      return InvalidArgument(storage.Describe(""), ": a trainer's files, whose weights are in ",
                             model->substr(0, model->find('/')));
    }
  }
  if (!file.empty() || found.empty()) return found;
  std::ranges::sort(found);
  if (std::ranges::all_of(found, IsOfRank)) {
    for (size_t i = 0; i < found.size(); ++i) {
      const std::string expected = absl::StrFormat("consolidated.%02d.pth", i);
      if (found[i] == expected) continue;
      return Damaged(storage, "", expected, " is missing, ", found[i], " is there");
    }
    return found;
  }
  const std::vector<std::string> parts = AllPartsOf(found.front(), ".bin");
  if (std::ranges::includes(parts, found)) {
    std::vector<std::string> missing;
    std::ranges::set_difference(parts, found, std::back_inserter(missing));
    if (missing.empty()) return found;
    return Damaged(storage, "", "missing: ", JoinFirst(missing, ", "));
  }
  if (found.size() == 1) return found;
  return InvalidArgument(storage.Describe(""), ": ", found.size(),
                         " files of torch.save(), and each may be a checkpoint; name one of them: ",
                         JoinFirst(found, ", "));
}

}  // namespace tessera::ckpt::convert
