#ifndef TESSERA_BASE_READ_WHOLE_FILE_H_
#define TESSERA_BASE_READ_WHOLE_FILE_H_

#include <optional>
#include <string>

namespace tessera {

// The bytes of a file, of one of the kernel's, too, which has no size. nullopt where it cannot be
// opened or read; errno says why: EISDIR for a folder, ESRCH for a process that ended meanwhile.
std::optional<std::string> ReadWholeFile(const std::string& path);

}  // namespace tessera

#endif  // TESSERA_BASE_READ_WHOLE_FILE_H_
