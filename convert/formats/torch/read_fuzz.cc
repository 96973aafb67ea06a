// A fuzz target: any bytes are an archive whose tensors lie inside the file, with a name each, or
// an error; and so is their zip directory behind a hole of a TiB.

#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "convert/formats/torch/read.h"
#include "convert/pickle/torch_archive.h"
#include "convert/pickle/value.h"
#include "convert/testing/fuzz_check.h"
#include "convert/testing/string_file.h"
#include "storage/testing/memory_storage.h"
#include "storage/zip.h"

namespace {

namespace ckpt = tessera::ckpt;
using tessera::ckpt::convert::Check;

void ReadNames(std::string_view contents) {
  tessera::MemoryStorage storage;
  Check(WriteAll(storage, "file.pt", contents).ok());
  const auto read = ckpt::convert::ReadTorch(storage, std::vector<std::string>{"file.pt"});
  if (!read.ok()) return;
  std::set<std::string_view> names;
  for (const auto& tensor : read->tensors) Check(names.insert(tensor.name).second);
}

}  // namespace

void FuzzOneInput(const std::string& input) {
  const ckpt::convert::StringFile file(input);
  const ckpt::convert::FileWithHole with_hole(input);
  (void)ReadZipDirectory(with_hole, {0, with_hole.size_bytes()});
  const auto archive = ckpt::convert::ReadTorchArchive(file, {0, input.size()});
  if (!archive.ok()) return;
  ReadNames(input);
  for (size_t i = 0; i < archive->contents.node_count(); ++i) {
    const ckpt::pickle::Value value = archive->contents.at(i);
    if (!ckpt::convert::IsTorchTensor(value)) continue;
    const auto tensor = ckpt::convert::ResolveTorchTensor(*archive, value);
    if (tensor.ok()) ckpt::convert::CheckInside(*tensor, input.size());
  }
}
