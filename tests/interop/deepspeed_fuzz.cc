// A fuzz target: any bytes as a packed folder of DeepSpeed's files, with a model's configuration
// or without.

#include <string>

#include "convert/formats/deepspeed/deepspeed.h"
#include "convert/testing/packed_folder.h"

void FuzzOneInput(const std::string& input) {
  namespace convert = tessera::ckpt::convert;
  (void)convert::ReadPackedFolder(input,
                                  [](auto& storage) { return convert::ReadDeepSpeed(storage); });
}
