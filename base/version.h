#ifndef TESSERA_BASE_VERSION_H_
#define TESSERA_BASE_VERSION_H_

namespace tessera {

// The version of the programs, the libraries, the wheel and the SDK; //python/tests compares them.
// The checkpoint format has its own version.
inline constexpr char kVersion[] = "1.0.0";

}  // namespace tessera

#endif  // TESSERA_BASE_VERSION_H_
