#ifndef TESSERA_CONVERT_UNPUBLISHED_FOLDER_H_
#define TESSERA_CONVERT_UNPUBLISHED_FOLDER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/include/storage.h"
#include "checkpoint/storage/read_only_storage.h"

namespace tessera::ckpt::convert {

// A folder as its readers will find it once its last files have been published: read-only. Files
// that are not in the storage yet are in memory. Thread-safe.
class UnpublishedFolder final : public ReadOnlyStorage {
 public:
  // `files`: contents by name, directly inside the root of `base`, whose other files are shown.
  UnpublishedFolder(std::shared_ptr<Storage> base, std::map<std::string, std::string> files);

  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(std::string_view path) override;
  absl::StatusOr<std::vector<std::string>> List(std::string_view path) override;
  std::string Describe(std::string_view path) const override;

 private:
  const std::shared_ptr<Storage> base_;
  const std::map<std::string, std::string> files_;
};

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_UNPUBLISHED_FOLDER_H_
