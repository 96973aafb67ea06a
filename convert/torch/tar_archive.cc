#include "convert/torch/tar_archive.h"

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/byte_order.h"
#include "base/status_macros.h"
#include "convert/pickle/read.h"
#include "convert/torch/tar_directory.h"
#include "layout/bounds.h"

namespace tessera::ckpt::convert {
namespace {

using pickle::Extent;
using pickle::Pickle;
using pickle::Value;

absl::Status Malformed(const absl::AlphaNum& what) {
  return absl::DataLossError(absl::StrCat("a tar archive of torch: ", what));
}

// The address of an object in the program that saved it.
std::optional<std::string> NumberOf(const Value& value) {
  const std::optional<uint64_t> number = value.AsUint();
  if (!number.has_value()) return std::nullopt;
  return absl::StrCat(*number);
}

// Pickles and numbers, one after another.
class Sequence {
 public:
  Sequence(const ReadableFile& file, Extent part)
      : file_(file), at_(part.offset), end_(part.offset + part.length) {}

  absl::StatusOr<Pickle> NextPickle() {
    TESSERA_ASSIGN_OR_RETURN(Pickle read, pickle::ReadPickle(file_, {at_, end_ - at_}));
    at_ = read.end_offset();
    return read;
  }

  absl::StatusOr<uint64_t> NextCount() {
    TESSERA_ASSIGN_OR_RETURN(const Pickle count, NextPickle());
    const std::optional<uint64_t> number = count.root().AsUint();
    if (!number.has_value()) return Malformed("no number of objects");
    return *number;
  }

  absl::StatusOr<int64_t> NextInteger() {
    std::array<char, sizeof(int64_t)> bytes;
    if (end_ - at_ < bytes.size()) return Malformed("it ends before its tensors do");
    TESSERA_RETURN_IF_ERROR(file_.ReadAt(at_, std::as_writable_bytes(std::span(bytes))));
    at_ += bytes.size();
    return static_cast<int64_t>(LoadLittleEndian<uint64_t>(bytes.data()));
  }

  // Bytes that follow, which are not read.
  absl::StatusOr<Extent> Skip(uint64_t count, uint64_t bytes_each) {
    if (count > (end_ - at_) / bytes_each) {
      return Malformed(absl::StrCat("a storage of ", count, " elements at offset ", at_,
                                    ", and it ends before"));
    }
    const Extent skipped = {at_, count * bytes_each};
    at_ += skipped.length;
    return skipped;
  }

 private:
  const ReadableFile& file_;
  uint64_t at_;
  const uint64_t end_;
};

struct TarStorage {
  const TorchStorageClass* elements;
  Extent bytes;
};
using Storages = absl::flat_hash_map<std::string, TarStorage>;

// Storages that are parts of others: (number, number of the other, first element, elements).
absl::Status AddViews(const Value& views, Storages& storages) {
  for (size_t i = 0; i < views.size(); ++i) {
    const std::optional<std::string> number = NumberOf(views[i][0]);
    const auto root = storages.find(NumberOf(views[i][1]).value_or(""));
    const uint64_t first = views[i][2].AsUint().value_or(UINT64_MAX);
    const uint64_t count = views[i][3].AsUint().value_or(UINT64_MAX);
    if (!number.has_value() || root == storages.end()) return Malformed("a view of no storage");
    const TarStorage whole = root->second;
    const uint64_t each = whole.elements->element_bytes, elements = whole.bytes.length / each;
    if (first > elements || count > elements - first) {
      return Malformed(absl::StrCat("a view beyond the end of storage ", root->first));
    }
    const Extent bytes = {whole.bytes.offset + first * each, count * each};
    if (!storages.emplace(*number, TarStorage{whole.elements, bytes}).second) {
      return Malformed(absl::StrCat("storage ", *number, " occurs twice"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Storages> ReadStorages(const ReadableFile& file, Extent part) {
  Sequence sequence(file, part);
  Storages storages;
  TESSERA_ASSIGN_OR_RETURN(const uint64_t count, sequence.NextCount());
  for (uint64_t i = 0; i < count; ++i) {
    TESSERA_ASSIGN_OR_RETURN(const Pickle header, sequence.NextPickle());
    const std::optional<std::string> number = NumberOf(header.root()[0]);
    const TorchStorageClass* const elements = FindTorchStorageClass(header.root()[2]);
    if (!number.has_value() || elements == nullptr) return Malformed("a storage of no known class");
    TESSERA_ASSIGN_OR_RETURN(const int64_t size, sequence.NextInteger());
    if (size < 0) return Malformed(absl::StrCat("storage ", *number, " has a negative size"));
    TESSERA_ASSIGN_OR_RETURN(const Extent bytes, sequence.Skip(size, elements->element_bytes));
    if (!storages.emplace(*number, TarStorage{elements, bytes}).second) {
      return Malformed(absl::StrCat("storage ", *number, " occurs twice"));
    }
  }
  TESSERA_ASSIGN_OR_RETURN(const Pickle views, sequence.NextPickle());
  TESSERA_RETURN_IF_ERROR(AddViews(views.root(), storages));
  return storages;
}

// The number of dims, which takes 4 bytes and 4 that mean nothing, shape, strides, first element.
absl::Status ReadGeometry(Sequence& sequence, TarTensor& tensor) {
  TESSERA_ASSIGN_OR_RETURN(const int64_t first_bytes, sequence.NextInteger());
  const auto rank = static_cast<int32_t>(first_bytes & 0xFFFFFFFF);
  if (rank < 0 || static_cast<size_t>(rank) > kMaxRank) {
    return Malformed(absl::StrCat("a tensor of ", rank, " dims"));
  }
  for (std::vector<int64_t>* const numbers : {&tensor.shape, &tensor.strides}) {
    for (int32_t d = 0; d < rank; ++d) {
      TESSERA_ASSIGN_OR_RETURN(const int64_t number, sequence.NextInteger());
      numbers->push_back(number);
    }
  }
  TESSERA_ASSIGN_OR_RETURN(const int64_t first, sequence.NextInteger());
  if (first < 0) return Malformed("a tensor that begins before its storage");
  tensor.first = static_cast<uint64_t>(first);
  return absl::OkStatus();
}

absl::Status ReadTensors(const ReadableFile& file, Extent part, const Storages& storages,
                         TorchTar& tar) {
  Sequence sequence(file, part);
  TESSERA_ASSIGN_OR_RETURN(const uint64_t count, sequence.NextCount());
  for (uint64_t i = 0; i < count; ++i) {
    TESSERA_ASSIGN_OR_RETURN(const Pickle header, sequence.NextPickle());
    const std::optional<std::string> number = NumberOf(header.root()[0]);
    const Value storage_number = header.root()[1];
    if (!number.has_value()) return Malformed("a tensor without a number");
    TarTensor tensor;
    if (!storage_number.is(pickle::Kind::kNone)) {
      const auto storage = storages.find(NumberOf(storage_number).value_or(""));
      if (storage == storages.end()) {
        return Malformed(absl::StrCat("the storage of tensor ", *number, " is missing"));
      }
      tensor.elements = storage->second.elements;
      tensor.storage = storage->second.bytes;
    }
    TESSERA_RETURN_IF_ERROR(ReadGeometry(sequence, tensor));
    if (!tar.tensors.emplace(*number, std::move(tensor)).second) {
      return Malformed(absl::StrCat("tensor ", *number, " occurs twice"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TorchTar> ReadTorchTar(const ReadableFile& file, Extent part) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<TarMember> members, ReadTarDirectory(file, part));
  absl::flat_hash_map<std::string, Extent> parts;
  for (const TarMember& member : members) parts[member.name] = member.data;
  for (const char* const name : {"sys_info", "pickle", "tensors", "storages"}) {
    if (!parts.contains(name)) {
      return Malformed(absl::StrCat("no member ", name, ": not written by torch.save()"));
    }
  }
  TESSERA_ASSIGN_OR_RETURN(const Pickle system, pickle::ReadPickle(file, parts["sys_info"]));
  if (system.root().Find("little_endian").AsBool() == false) {
    return absl::UnimplementedError("storages in big-endian byte order");
  }
  TorchTar tar = {.contents = parts["pickle"]};
  TESSERA_ASSIGN_OR_RETURN(const Storages storages, ReadStorages(file, parts["storages"]));
  TESSERA_RETURN_IF_ERROR(ReadTensors(file, parts["tensors"], storages, tar));
  return tar;
}

}  // namespace tessera::ckpt::convert
