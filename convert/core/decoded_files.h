#ifndef TESSERA_CONVERT_CORE_DECODED_FILES_H_
#define TESSERA_CONVERT_CORE_DECODED_FILES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "storage/forwarding_storage.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

// A storage whose files are followed by contents that they encode, such as elements in a text, so
// that an offset means either. A read is in one of the two.
//
// Thread-safe, except for Add(). Memory: the decoded contents.
class DecodedFiles final : public ForwardingStorage {
 public:
  using ForwardingStorage::ForwardingStorage;

  void Add(const std::string& path, std::string decoded);
  uint64_t decoded_bytes(const std::string& path) const;
  // Returns the decoded contents by path; ends the use of the storage and its files.
  std::map<std::string, std::string> Take() && { return std::move(decoded_); }

  // The storage must outlive the file.
  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(std::string_view path) override;

 private:
  class File;

  std::map<std::string, std::string> decoded_;
};

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_DECODED_FILES_H_
