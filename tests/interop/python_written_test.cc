// A file written by the safetensors Python package (safetensors_check.py --write), read by this
// codec.

#include <map>
#include <string>

#include "base/files.h"
#include "base/testing.h"
#include "checkpoint/format/safetensors.h"
#include "gtest/gtest.h"
#include "tests/golden/golden_state.h"

namespace tessera {
namespace {

TEST(PythonWrittenTest, EveryTensorIsThere) {
  ASSERT_OK_AND_ASSIGN(const std::string file,
                       ReadWholeFile("tests/interop/python_written.safetensors"));
  ASSERT_GT(file.size(), 8);
  ASSERT_OK_AND_ASSIGN(const auto header_bytes,
                       ckpt::SafetensorsHeaderBytes(file.substr(0, 8), file.size()));
  ASSERT_OK_AND_ASSIGN(const auto header,
                       ckpt::ParseSafetensorsHeader(file.substr(0, header_bytes), file.size()));
  EXPECT_EQ(header.metadata.at("written_by").substr(0, 11), "safetensors");

  std::map<std::string, const ckpt::SafetensorsEntry*> entries;
  for (const ckpt::SafetensorsEntry& entry : header.entries) entries[entry.key] = &entry;
  GoldenState golden(true, 1);
  size_t t = 0;
  for (const ckpt::ShardedTensor& tensor : golden.dict().tensors) {
    if (!tensor.alias_of.empty()) continue;
    ASSERT_TRUE(entries.contains(tensor.name)) << tensor.name;
    const ckpt::SafetensorsEntry& entry = *entries[tensor.name];
    EXPECT_EQ(entry.dtype, tensor.dtype);
    EXPECT_EQ(entry.shape, tensor.global_shape);
    EXPECT_EQ(file.substr(entry.file_offset, entry.length_bytes), golden.memory()[t++])
        << tensor.name;
  }
  EXPECT_EQ(entries.size(), t);
}

}  // namespace
}  // namespace tessera
