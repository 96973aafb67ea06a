#include "convert/source_place.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "base/status_macros.h"

namespace tessera::ckpt::convert {

std::optional<ForeignObject> FindObject(std::string_view name) {
  const size_t slash = name.rfind('/');
  if (LocalPathOfName(name).has_value() || slash == name.npos || !name.ends_with(".gguf")) {
    return std::nullopt;
  }
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
    return SourcePlace{std::move(storage), object->file};
  }
  std::error_code error;
  if (local.has_value() && std::filesystem::is_regular_file(*local, error)) {
    return PlaceOfLocalFile(*local);
  }
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<Storage> storage, OpenStorage(name, stores));
  return SourcePlace{std::move(storage), ""};
}

}  // namespace tessera::ckpt::convert
