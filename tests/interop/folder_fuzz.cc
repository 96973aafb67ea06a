// A fuzz target: any bytes as a packed folder of any format, which is detected, with the names of a
// model where it is known.

#include <string>

#include "convert/open_foreign.h"
#include "convert/testing/packed_folder.h"

void FuzzOneInput(const std::string& input) {
  namespace convert = tessera::ckpt::convert;
  const auto opened = convert::OpenForeignFolder(convert::UnpackFolder(input), {});
  if (opened.ok()) convert::ReadTensors(**opened);
}
