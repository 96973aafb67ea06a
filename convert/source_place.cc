#include "convert/source_place.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/format/manifest_codec.h"

namespace tessera::ckpt::convert {
namespace {

// What stands before the number: of transformers and PaddleNLP, InfiniTrain, DeepSpeed,
// Megatron-LM, torchtitan, accelerate, InternEvo.
constexpr std::string_view kStems[] = {
    "checkpoint-", "checkpoint_step_", "global_step", "iter_", "step-", "step_", ""};

// Endings of names of objects that are checkpoints by themselves.
constexpr std::string_view kObjectEndings[] = {".gguf", ".pt",   ".pth",        ".pth.tar",
                                               ".bin",  ".ckpt", ".safetensors"};

// Endings of names of files that are checkpoints only with others.
constexpr std::string_view kPartEndings[] = {"/manifest.pb", ".distcp", ".pdparams", ".pdopt"};

// Files of formats that are not read, by patterns of their names.
struct OtherFormat {
  const char* pattern;
  const char* name;
};

constexpr OtherFormat kOtherFormats[] = {
    {"_CHECKPOINT_METADATA", "Orbax"}, {"*.msgpack", "Flax"}, {"*.keras", "Keras"},
    {"*.data-*-of-*", "TensorFlow"},   {"*.h5", "HDF5"},      {"*.onnx", "ONNX"},
    {"saved_model.pb", "TensorFlow"},  {"*.npz", "numpy"},    {"*.npy", "numpy"},
};

// Says, as the end of a sentence, of which other format a file is; "" of any other name.
std::string DescribeOther(const std::string& name) {
  const auto* const other = std::ranges::find_if(
      kOtherFormats, [&](const OtherFormat& format) { return MatchesGlob(format.pattern, name); });
  if (other == std::end(kOtherFormats)) return "";
  return absl::StrCat("; ", name, " is of ", other->name,
                      ", which is not read: save its tensors as safetensors");
}

std::optional<StepFolder> ParseStepFolder(std::string_view listed) {
  if (!listed.ends_with('/')) return std::nullopt;
  listed.remove_suffix(1);
  const size_t stem = listed.find_last_not_of("0123456789") + 1;  // 0 if all are digits
  StepFolder folder = {.name = std::string(listed)};
  if (std::ranges::count(kStems, listed.substr(0, stem)) == 0 ||
      !absl::SimpleAtoi(folder.name.substr(stem), &folder.step)) {
    return std::nullopt;
  }
  return folder;
}

// A file that a checkpoint with the other files must have.
struct MissingFile {
  const char* others;  // a pattern
  const char* name;
  const char* purpose;
};

constexpr MissingFile kMissingFiles[] = {
    {"*.distcp", ".metadata", "the index of a checkpoint of PyTorch's DCP"},
    {"*-of-*.safetensors", "model.safetensors.index.json", "the index of sharded weights"},
    {"*-of-*.bin", "pytorch_model.bin.index.json", "the index of sharded weights"},
};

// What a storage cannot tell may be there.
bool IsMissing(Storage& folder, const std::string& name) {
  return absl::IsNotFound(folder.Open(name).status());
}

bool IsStep(std::string_view listed) {
  return listed.ends_with('/') && ParseStepDirectoryName(listed.substr(0, listed.size() - 1));
}

// A run of the trainer saves in a folder of its own folder, unless told otherwise.
std::string DescribeRun(Storage& folder) {
  const auto names = folder.List("checkpoints");
  if (!names.ok() || std::ranges::none_of(*names, IsStep)) return "";
  return absl::StrCat("; checkpoints are in ", folder.Describe("checkpoints"));
}

// The entries of a run's folder are checkpoints only with their manifests.
std::string DescribeSteps(Storage& folder, const std::vector<std::string>& names) {
  std::vector<std::string> without;
  for (const std::string& name : names) {
    if (!IsStep(name) || !IsMissing(folder, name + std::string(kManifestFileName))) continue;
    without.push_back(name.substr(0, name.size() - 1));
  }
  if (without.empty()) return "";
  return absl::StrCat("; ", JoinFirst(without, ", "), without.size() == 1 ? " has" : " have",
                      " no ", std::string(kManifestFileName),
                      ": a save that was not completed, or files that were lost");
}

}  // namespace

std::optional<ForeignObject> FindObject(std::string_view name) {
  const size_t slash = name.rfind('/');
  const auto ends_with = [&](std::string_view ending) { return name.ends_with(ending); };
  const bool is_file = std::ranges::any_of(kObjectEndings, ends_with);
  if (LocalPathOfName(name).has_value() || slash == name.npos || !is_file) return std::nullopt;
  return ForeignObject{std::string(name.substr(0, slash)), std::string(name.substr(slash + 1))};
}

absl::StatusOr<SourcePlace> PlaceOfLocalFile(const std::string& local) {
  const std::filesystem::path path = local;
  const std::string folder = path.has_parent_path() ? path.parent_path().string() : ".";
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<Storage> storage, OpenStorage(folder));
  return SourcePlace{std::move(storage), path.filename().string()};
}

absl::StatusOr<SourcePlace> FindPlace(std::string_view name, const OpenStorageOptions& stores) {
  const std::optional<std::string> local = LocalPathOfName(name);
  if (const std::optional<ForeignObject> object = FindObject(name)) {
    TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<Storage> storage, OpenStorage(object->folder, stores));
    // Folders may have such names, too, and are listed where objects may not be looked for.
    const bool is_gguf = object->file.ends_with(kObjectEndings[0]);
    const absl::Status found = is_gguf ? absl::OkStatus() : storage->Open(object->file).status();
    if (found.ok()) return SourcePlace{std::move(storage), object->file};
    const bool may_be_folder = absl::IsNotFound(found) || absl::IsInvalidArgument(found);
    if (!may_be_folder && !absl::IsPermissionDenied(found)) return found;
  }
  std::error_code error;
  if (local.has_value() && std::filesystem::is_regular_file(*local, error)) {
    return PlaceOfLocalFile(*local);
  }
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<Storage> storage, OpenStorage(name, stores));
  return SourcePlace{std::move(storage), ""};
}

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

std::string DescribeContents(Storage& folder) {
  absl::StatusOr<std::vector<std::string>> names = folder.List("");
  if (!names.ok()) return std::string(names.status().message());
  if (names->empty()) return "it is empty";
  std::ranges::sort(*names);
  std::string text = absl::StrCat("it holds ", JoinFirst(*names, ", "));
  for (const MissingFile& missing : kMissingFiles) {
    const auto matches = [&](const std::string& name) { return MatchesGlob(missing.others, name); };
    if (std::ranges::any_of(*names, matches) && IsMissing(folder, missing.name)) {
      absl::StrAppend(&text, "; ", missing.name, ", ", missing.purpose, ", is missing");
    }
  }
  for (const std::string& name : *names) {
    const std::string other = DescribeOther(name);
    absl::StrAppend(&text, other);
    if (!other.empty()) break;
  }
  return absl::StrCat(text, DescribeRun(folder), DescribeSteps(folder, *names));
}

std::string DescribeFile(std::string_view name) {
  const bool is_part = std::ranges::any_of(
      kPartEndings, [&](std::string_view ending) { return name.ends_with(ending); });
  if (is_part) return "; a checkpoint is named by its folder";
  return DescribeOther(std::string(name.substr(name.rfind('/') + 1)));
}

std::string DescribeAbsence(std::string_view name) {
  std::error_code error;
  const std::optional<std::string> local = LocalPathOfName(name);
  if (local.has_value() && std::filesystem::is_symlink(*local, error)) {
    return absl::StrCat("is a link to ", std::filesystem::read_symlink(*local, error).string(),
                        ", which is not there");
  }
  return "is not there";
}

}  // namespace tessera::ckpt::convert
