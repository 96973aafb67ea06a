// A fuzz target: any bytes as a packed folder of Megatron's files: those of torch_dist, with states
// by parameter, by bucket or gathered, and those of its ranks.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "convert/formats/megatron/megatron.h"
#include "convert/testing/packed_folder.h"

extern "C" int FuzzOneInput(const uint8_t* data, size_t size) {
  namespace convert = tessera::ckpt::convert;
  const std::string_view packed(reinterpret_cast<const char*>(data), size);
  (void)convert::ReadPackedFolder(packed,
                                  [](auto& storage) { return convert::ReadMegatron(storage); });
  return 0;
}
