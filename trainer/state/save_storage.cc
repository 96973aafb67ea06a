#include "trainer/state/save_storage.h"

#include <unistd.h>

#include <filesystem>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "base/units.h"

namespace tessera {

absl::StatusOr<std::unique_ptr<ckpt::Storage>> OpenSaveStorage(const CheckpointConfig& config,
                                                               bool create_root) {
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<ckpt::Storage> remote,
                           ckpt::OpenStorage(config.save(), {.create_root = create_root,
                                                             .s3_endpoint = config.s3_endpoint()}));
  if (!config.async_upload()) return remote;
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<ckpt::Storage> nearby,
                           ckpt::OpenPosixStorage(NearbyFolder(config), {.create_root = true}));
  return std::make_unique<ckpt::UploadStorage>(std::move(nearby), std::move(remote));
}

ckpt::UploadStorage* AsUploadStorage(ckpt::Storage& storage) {
  return dynamic_cast<ckpt::UploadStorage*>(&storage);
}

std::string NearbyFolder(const CheckpointConfig& config) {
  if (!config.async_upload_tmp_folder().empty()) return config.async_upload_tmp_folder();
  const std::optional<std::string> path = ckpt::LocalPathOfName(config.save());
  const std::string job =
      path.has_value() ? std::filesystem::absolute(*path).string() : config.save();
  return absl::StrFormat("/dev/shm/tessera-%d-%08x_tmp_ckpt", getuid(), Crc32c(job));
}

absl::StatusOr<std::string> CheckNearbyCopies(const CheckpointConfig& config,
                                              ckpt::Storage& storage, std::string_view directory) {
  ckpt::UploadStorage* const upload = AsUploadStorage(storage);
  if (upload == nullptr) return std::string();
  TESSERA_ASSIGN_OR_RETURN(const ckpt::NearbyCopies copies,
                           ckpt::DropDamagedCopies(*upload, directory));
  std::string sentence;
  if (copies.good_bytes > 0) {
    sentence = absl::StrCat("reading ", HumanBytes(copies.good_bytes), " of ",
                            storage.Describe(directory), " from copies in ", NearbyFolder(config));
  }
  if (copies.dropped_files > 0) {
    absl::StrAppend(&sentence, sentence.empty() ? "" : "; ", copies.dropped_files,
                    " damaged copies are deleted");
  }
  return sentence;
}

}  // namespace tessera
