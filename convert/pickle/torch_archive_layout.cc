#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/text.h"
#include "convert/pickle/torch_archive.h"
#include "layout/dtype.h"

namespace tessera::ckpt::convert {
namespace {

// Precondition: the dtype is one of torch.
const TorchType& TypeOf(DType dtype) {
  return *std::ranges::find(kTorchTypes, dtype, &TorchType::dtype);
}

}  // namespace

TorchArchiveLayout::TorchArchiveLayout(std::string pickle,
                                       std::span<const uint64_t> storage_bytes) {
  const auto add_text = [this](std::string name, std::string contents) {
    text_offsets_.push_back(zip_.Add(std::move(name), contents.size()));
    zip_.SetCrc32(zip_.size() - 1, ExtendZipCrc32(0, AsBytes(contents)));
    texts_.push_back(std::move(contents));
  };
  add_text("archive/data.pkl", std::move(pickle));
  add_text("archive/byteorder", "little");
  add_text("archive/version", "3\n");
  for (size_t i = 0; i < storage_bytes.size(); ++i) {
    storage_offsets_.push_back(zip_.Add(absl::StrCat("archive/data/", i), storage_bytes[i]));
  }
  size_bytes_ = zip_.directory_offset() + zip_.directory_bytes();
}

OutputBytes TorchArchiveLayout::StorageHeader(size_t storage, uint32_t crc32,
                                              uint64_t offset_bytes) const {
  const size_t member = texts_.size() + storage;
  return {offset_bytes + zip_.local_header_offset(member), zip_.LocalHeader(member, crc32)};
}

std::vector<OutputBytes> TorchArchiveLayout::OtherRecords(std::span<const uint32_t> crc32,
                                                          uint64_t offset_bytes) const {
  ZipLayout zip = zip_;
  for (size_t i = 0; i < crc32.size(); ++i) zip.SetCrc32(texts_.size() + i, crc32[i]);
  std::vector<OutputBytes> records;
  for (size_t i = 0; i < texts_.size(); ++i) {
    records.push_back({offset_bytes + zip.local_header_offset(i), zip.LocalHeader(i)});
    records.push_back({offset_bytes + text_offsets_[i], texts_[i]});
  }
  records.push_back({offset_bytes + zip.directory_offset(), zip.Directory()});
  return records;
}

std::vector<OutputBytes> TorchArchiveLayout::Records(std::span<const uint32_t> crc32,
                                                     uint64_t offset_bytes) const {
  std::vector<OutputBytes> records = OtherRecords(crc32, offset_bytes);
  for (size_t i = 0; i < crc32.size(); ++i) {
    records.push_back(StorageHeader(i, crc32[i], offset_bytes));
  }
  return records;
}

void WriteTorchDType(DType dtype, pickle::Writer& writer) {
  writer.Global("torch", TypeOf(dtype).name);
}

void WriteTorchTensor(DType dtype, const Shape& shape, size_t storage, pickle::Writer& writer) {
  const TorchType& type = TypeOf(dtype);
  const bool is_typed = !type.storage_class.empty();
  writer.Global("torch._utils", is_typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
  writer.BeginTuple();
  writer.BeginTuple();
  writer.Text("storage");
  writer.Global(is_typed ? "torch" : "torch.storage",
                is_typed ? type.storage_class : "UntypedStorage");
  writer.Text(absl::StrCat(storage));
  writer.Text("cpu");
  const int64_t element_bytes = is_typed ? 1 : ElementSize(dtype);
  writer.Int(ElementCount(shape) * element_bytes);
  writer.EndTuple();
  writer.PersistentId();
  writer.Int(0);
  writer.IntTuple(shape);
  writer.IntTuple(ContiguousStrides(shape));
  writer.Bool(false);  // requires_grad
  writer.Global("collections", "OrderedDict");
  writer.BeginTuple();
  writer.EndTuple();
  writer.Call();
  if (!is_typed) WriteTorchDType(dtype, writer);
  writer.EndTuple();
  writer.Call();
}

}  // namespace tessera::ckpt::convert
