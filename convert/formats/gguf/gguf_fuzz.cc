// A fuzz target: any bytes as a GGUF file. What is accepted has every element of every tensor
// inside its file, and its header can be written again.

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

#include "convert/formats/gguf/gguf.h"
#include "convert/formats/gguf/gguf_file.h"
#include "convert/testing/fuzz_check.h"
#include "convert/testing/packed_folder.h"
#include "convert/testing/string_file.h"
#include "storage/storage.h"

namespace {

namespace convert = tessera::ckpt::convert;
using convert::Check;

constexpr char kFile[] = "model.gguf";
constexpr uint64_t kMaxFileBytes = uint64_t{1} << 20;

// What is read is written with the alignment of new files, and numbers in 32 bits.
void CheckWrittenAgain(convert::GgufHeader header) {
  for (auto& [key, value] : header.metadata) {
    if (!std::holds_alternative<std::string>(value)) value = true;
    if (key == "general.alignment") key = "alignment of the other file";
  }
  std::string bytes = convert::BuildGgufHeader(header);
  uint64_t end = bytes.size();
  for (const convert::GgufTensor& tensor : header.tensors) {
    Check(tensor.offset_bytes == end);
    end += convert::PaddedGgufBytes(tensor);
  }
  if (end > kMaxFileBytes) return;
  bytes.resize(end);
  const auto again = convert::ReadGgufHeader(convert::StringFile(std::move(bytes)));
  Check(again.ok() && again->metadata == header.metadata && again->tensors == header.tensors);
}

}  // namespace

void FuzzOneInput(const std::string& input) {
  auto header = convert::ReadGgufHeader(convert::StringFile(input));
  if (!header.ok()) return;
  CheckWrittenAgain(*std::move(header));
  convert::ReadWholeFolder(convert::FolderOf({{kFile, input}}), [](tessera::Storage& storage) {
    return convert::ReadGguf(storage, kFile);
  }).IgnoreError();
}
