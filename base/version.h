#ifndef TESSERA_BASE_VERSION_H_
#define TESSERA_BASE_VERSION_H_

namespace tessera {

// The version of the programs and the library. The checkpoint format has its own version.
inline constexpr char kVersion[] = "0.1";

}  // namespace tessera

#endif  // TESSERA_BASE_VERSION_H_
