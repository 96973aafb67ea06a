// A fuzz target: any bytes as a packed folder of DeepSpeed's files, with a model's configuration
// or without.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "convert/formats/deepspeed/deepspeed.h"
#include "convert/testing/packed_folder.h"

extern "C" int FuzzOneInput(const uint8_t* data, size_t size) {
  namespace convert = tessera::ckpt::convert;
  const std::string_view packed(reinterpret_cast<const char*>(data), size);
  (void)convert::ReadPackedFolder(packed,
                                  [](auto& storage) { return convert::ReadDeepSpeed(storage); });
  return 0;
}
