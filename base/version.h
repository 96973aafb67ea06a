#ifndef TESSERA_BASE_VERSION_H_
#define TESSERA_BASE_VERSION_H_

namespace tessera {

// Of the programs and of the library; the version of the checkpoint format is another one.
inline constexpr char kVersion[] = "0.1";

}  // namespace tessera

#endif  // TESSERA_BASE_VERSION_H_
