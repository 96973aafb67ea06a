#ifndef TESSERA_BASE_GLOB_H_
#define TESSERA_BASE_GLOB_H_

#include <string>

namespace tessera {

// Whether a name matches a pattern: * stands for any characters, ? for one, [...] for one of a set.
bool MatchesGlob(const std::string& pattern, const std::string& name);

}  // namespace tessera

#endif  // TESSERA_BASE_GLOB_H_
