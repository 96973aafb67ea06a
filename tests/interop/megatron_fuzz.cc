// A fuzz target: any bytes as a packed folder of Megatron's files: those of torch_dist, with states
// by parameter, by bucket or gathered, and those of its ranks.

#include <string>

#include "convert/formats/megatron/megatron.h"
#include "convert/testing/packed_folder.h"

void FuzzOneInput(const std::string& input) {
  namespace convert = tessera::ckpt::convert;
  (void)convert::ReadPackedFolder(input,
                                  [](auto& storage) { return convert::ReadMegatron(storage); });
}
