#include "base/glob.h"

#include <fnmatch.h>

namespace tessera {

bool MatchesGlob(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), /*flags=*/0) == 0;
}

}  // namespace tessera
