#ifndef TESSERA_CHECKPOINT_DIRECTORY_DAMAGE_H_
#define TESSERA_CHECKPOINT_DIRECTORY_DAMAGE_H_

#include <cstdint>
#include <string>

namespace tessera::ckpt {

// A place in a checkpoint that holds something else than what was written there.
struct Damage {
  std::string file;  // in the checkpoint's directory
  uint64_t offset_bytes = 0;
  std::string tensor;  // empty: not within a tensor
  std::string message;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_DIRECTORY_DAMAGE_H_
