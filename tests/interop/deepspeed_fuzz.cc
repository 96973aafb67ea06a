// A fuzz target: any bytes as a packed folder of DeepSpeed's files, with a model's rules and
// without.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "convert/deepspeed/read.h"
#include "convert/testing/packed_folder.h"
#include "trainer/convert/model_rules.h"

extern "C" int FuzzOneInput(const uint8_t* data, size_t size) {
  namespace convert = tessera::ckpt::convert;
  const std::string_view packed(reinterpret_cast<const char*>(data), size);
  const convert::ModelRules* const no_rules = nullptr;
  for (const auto* const rules : {&tessera::RegisteredModelRules(), no_rules}) {
    (void)convert::ReadPackedFolder(
        packed, [&](auto& storage) { return convert::ReadDeepSpeed(storage, "", rules); });
  }
  return 0;
}
