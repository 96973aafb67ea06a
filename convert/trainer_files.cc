#include "convert/trainer_files.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/parse_json.h"
#include "base/status_macros.h"
#include "checkpoint/directory/directory.h"
#include "convert/torch/read.h"
#include "nlohmann/json.hpp"

namespace tessera::ckpt::convert {
namespace {

constexpr std::string_view kTrainerState = "trainer_state.json";
constexpr uint64_t kMaxJsonBytes = uint64_t{64} << 20;

// Adds the contents of a file of torch.save() under its stem.
absl::Status AddTorchFile(Storage& storage, std::string_view folder, const std::string& file,
                          bool needed, ForeignCheckpoint& checkpoint) {
  absl::StatusOr<ForeignCheckpoint> read = ReadTorch(storage, folder, std::span(&file, 1));
  const bool is_damaged = absl::IsDataLoss(read.status());
  if (absl::IsUnimplemented(read.status()) || (is_damaged && !needed)) {
    checkpoint.notes.push_back(absl::StrCat("Left out: ", read.status().message(), "."));
    return absl::OkStatus();
  }
  TESSERA_RETURN_IF_ERROR(read.status());
  ForeignCheckpoint& added = *read;
  const std::string prefix = file.substr(0, file.find('.') + 1);
  for (ForeignTensor& tensor : added.tensors) {
    tensor.name.insert(0, prefix);
    if (!tensor.alias_of.empty()) tensor.alias_of.insert(0, prefix);
    checkpoint.tensors.push_back(std::move(tensor));
  }
  for (ForeignValue& value : added.values) {
    value.name.insert(0, prefix);
    checkpoint.values.push_back(std::move(value));
  }
  for (const std::string& note : added.notes) {
    checkpoint.notes.push_back(absl::StrCat(file, ": ", note));
  }
  return absl::OkStatus();
}

// Adds the numbers, truth values and texts at the top of the file.
absl::Status AddTrainerState(Storage& storage, const std::string& path,
                             ForeignCheckpoint& checkpoint) {
  TESSERA_ASSIGN_OR_RETURN(const std::string text, ReadAll(storage, path, kMaxJsonBytes));
  const nlohmann::json json = ParseJson(text);
  if (!json.is_object()) {
    return absl::DataLossError(absl::StrCat(storage.Describe(path), ": not a JSON object"));
  }
  for (const auto& [key, field] : json.items()) {
    ForeignValue value = {.name = "trainer_state." + key};
    if (field.is_boolean()) {
      value.value = field.get<bool>();
    } else if (field.is_number_integer()) {
      value.value = field.get<int64_t>();
    } else if (field.is_number()) {
      value.value = field.get<double>();
    } else if (field.is_string()) {
      value.value = field.get<std::string>();
    } else {
      continue;
    }
    checkpoint.values.push_back(std::move(value));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status AddTrainerFiles(Storage& storage, std::string_view folder, bool needed,
                             ForeignCheckpoint& checkpoint) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, storage.List(folder));
  const auto has = [&](std::string_view name) {
    return std::ranges::find(names, name) != names.end();
  };
  for (const std::string stem : {"optimizer", "scheduler"}) {
    for (const std::string& file : {stem + ".pt", stem + ".bin"}) {
      if (!has(file)) continue;
      TESSERA_RETURN_IF_ERROR(AddTorchFile(storage, folder, file, needed, checkpoint));
      break;
    }
  }
  if (!has(kTrainerState)) return absl::OkStatus();
  return AddTrainerState(storage, JoinPath(folder, kTrainerState), checkpoint);
}

}  // namespace tessera::ckpt::convert
