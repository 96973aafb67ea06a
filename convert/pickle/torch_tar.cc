// The tar archives that torch.save() wrote before version 0.1.10. In their members, binary numbers
// follow some of the pickles:
//
//   sys_info   a dict: protocol_version is 1000, little_endian
//   pickle     the object; a persistent id, which is the text of a key, stands for a tensor
//   tensors    their number; for each (key, key of its storage, type); then int32 dims, 4 bytes
//              without a meaning, int64 shape[dims], strides[dims], first element
//   storages   their number; for each (key, location, class); then int64 elements, the elements.
//              At the end, a list of views of storages: (key, key of the whole, first, elements)
//
// Keys are numbers, unique in the archive.

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/byte_order.h"
#include "base/errors.h"
#include "base/status_macros.h"
#include "convert/pickle/read.h"
#include "convert/pickle/torch_archive.h"
#include "layout/dtype.h"

namespace tessera::ckpt::convert {
namespace {

using pickle::Extent;
using pickle::Pickle;
using pickle::Value;

constexpr uint64_t kTarBlockBytes = 512;
constexpr uint64_t kHeadBytes = 4096;  // more than what a number, a key and a class take
constexpr int64_t kTarVersion = 1000;

using TarMembers = absl::flat_hash_map<std::string, Extent>;

// Returns the octal number in a field of a header.
std::optional<uint64_t> ParseOctal(std::string_view field) {
  field.remove_prefix(std::min(field.find_first_not_of(' '), field.size()));
  uint64_t number = 0;
  const auto parsed = std::from_chars(field.data(), field.data() + field.size(), number, 8);
  return parsed.ec == std::errc() ? std::optional(number) : std::nullopt;
}

// Returns the size in a header, whose checksum must be right.
absl::StatusOr<uint64_t> SizeOfMember(std::string_view header, uint64_t offset) {
  uint64_t sum = 8 * ' ';  // of the checksum's own field
  for (size_t i = 0; i < header.size(); ++i) {
    if (i < 148 || i >= 156) sum += static_cast<uint8_t>(header[i]);
  }
  const std::optional<uint64_t> size = ParseOctal(header.substr(124, 12));
  if (size && ParseOctal(header.substr(148, 8)) == sum) return *size;
  return DataLoss("offset ", offset, ": no header of a tar archive");
}

// Returns the members by name. The size of one of 8 GiB and more is in a member before it.
absl::StatusOr<TarMembers> ReadTarMembers(const ReadableFile& file, Extent part) {
  TarMembers members;
  std::optional<uint64_t> stated_size;
  const uint64_t end = part.offset + part.length;
  for (uint64_t at = part.offset; end - at >= kTarBlockBytes;) {
    TESSERA_ASSIGN_OR_RETURN(const std::string header, ReadPart(file, at, kTarBlockBytes));
    if (header[0] == '\0') return members;
    TESSERA_ASSIGN_OR_RETURN(uint64_t size, SizeOfMember(header, at));
    size = std::exchange(stated_size, std::nullopt).value_or(size);
    const std::string name = header.substr(0, std::min<size_t>(header.find('\0'), 100));
    at += kTarBlockBytes;
    if (size > end - at) {
      return DataLoss(Shown(name), " has ", size, " bytes at offset ", at,
                      ", and the file ends before");
    }
    if (header[156] == 'x') {
      TESSERA_ASSIGN_OR_RETURN(const std::string records,
                               ReadPart(file, at, std::min(size, kHeadBytes)));
      const std::string_view key = " size=";
      if (const size_t found = records.find(key); found != records.npos) {
        const std::string number = records.substr(found + key.size());
        if (!absl::SimpleAtoi(number.substr(0, number.find('\n')), &stated_size.emplace())) {
          return DataLoss("offset ", at, ": a malformed size");
        }
      }
    } else if (!members.emplace(name, Extent{at, size}).second) {
      return DataLoss(Shown(name), " occurs twice");
    }
    const uint64_t padding = (kTarBlockBytes - size % kTarBlockBytes) % kTarBlockBytes;
    at += size + std::min(padding, end - at - size);
  }
  return DataLoss("a tar archive that does not end");
}

// The pickles and numbers of a member.
class TarStream {
 public:
  TarStream(const ReadableFile& file, const Extent& member)
      : file_(file), at_(member.offset), end_(member.offset + member.length) {}

  // Reads a pickle of at most so many bytes.
  absl::StatusOr<Pickle> Next(uint64_t most_bytes = UINT64_MAX) {
    const Extent place = {at_, std::min(end_ - at_, most_bytes)};
    TESSERA_ASSIGN_OR_RETURN(Pickle read, pickle::ReadPickle(file_, place));
    at_ = read.end_offset();
    return read;
  }
  absl::StatusOr<uint64_t> NextCount() {
    TESSERA_ASSIGN_OR_RETURN(const Pickle read, Next(kHeadBytes));
    if (const std::optional<uint64_t> count = read.root().AsUint()) return *count;
    return DataLoss("a number of tensors or storages is missing");
  }
  absl::StatusOr<std::vector<int64_t>> Numbers(size_t count) {
    TESSERA_ASSIGN_OR_RETURN(const Extent place, Take(count, sizeof(int64_t)));
    TESSERA_ASSIGN_OR_RETURN(const std::string bytes, ReadPart(file_, place.offset, place.length));
    std::vector<int64_t> numbers;
    for (size_t i = 0; i < bytes.size(); i += sizeof(int64_t)) {
      numbers.push_back(static_cast<int64_t>(LoadLittleEndian<uint64_t>(bytes.data() + i)));
    }
    return numbers;
  }
  // Returns where the next elements are.
  absl::StatusOr<Extent> Take(uint64_t count, uint64_t element_bytes) {
    if (count > (end_ - at_) / element_bytes) {
      return DataLoss("offset ", at_, ": ", count, " elements of ", element_bytes,
                      " bytes, and the member ends before");
    }
    const uint64_t bytes = count * element_bytes;
    return Extent{std::exchange(at_, at_ + bytes), bytes};
  }

 private:
  const ReadableFile& file_;
  uint64_t at_;
  const uint64_t end_;
};

struct TarStorage {
  const TorchType* elements = nullptr;
  Extent bytes;
};
using TarStorages = absl::flat_hash_map<int64_t, TarStorage>;

absl::StatusOr<TarStorages> ReadTarStorages(TarStream stream) {
  TarStorages storages;
  TESSERA_ASSIGN_OR_RETURN(const uint64_t count, stream.NextCount());
  for (uint64_t i = 0; i < count; ++i) {
    TESSERA_ASSIGN_OR_RETURN(const Pickle read, stream.Next(kHeadBytes));
    const Value head = read.root();
    const TorchType* const type = FindTorchStorage(head[2]);
    if (type == nullptr) {
      return Unimplemented("a storage of the class ", Shown(head[2].GlobalName()));
    }
    TESSERA_ASSIGN_OR_RETURN(const std::vector<int64_t> size, stream.Numbers(1));
    TESSERA_ASSIGN_OR_RETURN(const Extent bytes,
                             stream.Take(static_cast<uint64_t>(size[0]), type->element_bytes));
    const std::optional<int64_t> key = head[0].AsInt();
    if (!key || !storages.emplace(*key, TarStorage{type, bytes}).second) {
      return DataLoss("storage ", i, " has no key of its own");
    }
  }
  TESSERA_ASSIGN_OR_RETURN(const Pickle views, stream.Next());
  for (size_t i = 0; i < views.root().size(); ++i) {
    const Value view = views.root()[i];
    const std::optional<int64_t> key = view[0].AsInt();
    const auto whole = storages.find(view[1].AsInt().value_or(-1));
    const uint64_t first = view[2].AsUint().value_or(UINT64_MAX);
    const uint64_t elements = view[3].AsUint().value_or(UINT64_MAX);
    if (!key || whole == storages.end()) return DataLoss("a view of no storage");
    TarStorage shown = whole->second;
    const uint64_t element_bytes = shown.elements->element_bytes;
    const uint64_t all = shown.bytes.length / element_bytes;
    if (first > all || elements > all - first) {
      return DataLoss("a view beyond the end of the storage ", whole->first);
    }
    shown.bytes = {shown.bytes.offset + first * element_bytes, elements * element_bytes};
    storages[*key] = shown;
  }
  return storages;
}

absl::Status ReadTarTensors(TarStream stream, const TarStorages& storages, TorchArchive& archive) {
  TESSERA_ASSIGN_OR_RETURN(const uint64_t count, stream.NextCount());
  for (uint64_t i = 0; i < count; ++i) {
    TESSERA_ASSIGN_OR_RETURN(const Pickle head, stream.Next(kHeadBytes));
    TESSERA_ASSIGN_OR_RETURN(const std::vector<int64_t> first, stream.Numbers(1));
    const std::optional<int64_t> key = head.root()[0].AsInt();
    const auto dims = static_cast<uint32_t>(first[0]);  // the other half has no meaning
    if (!key || dims > kMaxDims) return DataLoss("tensor ", i, " has a malformed key or shape");
    TESSERA_ASSIGN_OR_RETURN(const std::vector<int64_t> numbers, stream.Numbers(2 * dims + 1));
    TorchTensor tensor;
    tensor.shape.assign(numbers.begin(), numbers.begin() + dims);
    tensor.strides.assign(numbers.begin() + dims, numbers.end() - 1);
    const auto storage = storages.find(head.root()[1].AsInt().value_or(-1));
    absl::StatusOr<TorchTensor> shown = Unimplemented("a tensor without a storage");
    if (storage != storages.end()) {
      tensor.dtype = storage->second.elements->dtype;
      // There were no tensors of no dims but empty ones.
      if (dims == 0 && storage->second.bytes.length == 0) tensor.shape = tensor.strides = {0};
      shown = tensor.dtype == DType::kUnspecified
                  ? Unimplemented("a tensor in a ", storage->second.elements->storage_class)
                  : ShowElements(std::move(tensor), static_cast<uint64_t>(numbers.back()),
                                 storage->second.bytes);
    }
    if (!archive.tensors.emplace(absl::StrCat(*key), std::move(shown)).second) {
      return DataLoss("the tensor ", *key, " occurs twice");
    }
  }
  for (const auto& [key, storage] : storages) {
    archive.tensors.emplace(absl::StrCat(key), Unimplemented("a storage by itself"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TorchArchive> ReadTorchTar(const ReadableFile& file, Extent part) {
  TESSERA_ASSIGN_OR_RETURN(const TarMembers members, ReadTarMembers(file, part));
  for (const char* const name : {"sys_info", "pickle", "tensors", "storages"}) {
    if (!members.contains(name)) return DataLoss("a tar archive without ", name);
  }
  TESSERA_ASSIGN_OR_RETURN(const Pickle system, TarStream(file, members.at("sys_info")).Next());
  if (system.root().Find("protocol_version").AsInt() != kTarVersion) {
    return Unimplemented("an unknown version of torch's tar form");
  }
  if (system.root().Find("little_endian").AsBool() == false) {
    return Unimplemented("storages in big-endian byte order");
  }
  TESSERA_ASSIGN_OR_RETURN(Pickle contents, TarStream(file, members.at("pickle")).Next());
  TorchArchive archive = {std::move(contents)};
  TESSERA_ASSIGN_OR_RETURN(const TarStorages storages,
                           ReadTarStorages({file, members.at("storages")}));
  TESSERA_RETURN_IF_ERROR(ReadTarTensors({file, members.at("tensors")}, storages, archive));
  return archive;
}

}  // namespace tessera::ckpt::convert
