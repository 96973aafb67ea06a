#include "convert/infinitrain/state_file.h"

#include <array>
#include <cstddef>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "convert/core/file_cursor.h"
#include "layout/box.h"
#include "layout/dtype.h"

namespace tessera::ckpt::convert {
namespace {

constexpr std::string_view kMagic = "CKPT";
constexpr uint32_t kVersion = 1;
// A tensor without a name, dims and elements: two lengths, the dtype and the number of bytes.
constexpr uint64_t kLeastTensorBytes = 17;
constexpr uint32_t kMaxNameBytes = 4096;
constexpr uint64_t kWindowBytes = 4096;

// By the number in the file.
constexpr DType kDTypes[] = {DType::kBool, DType::kU8,  DType::kI8,  DType::kU16, DType::kI16,
                             DType::kU32,  DType::kI32, DType::kU64, DType::kI64, DType::kBF16,
                             DType::kF16,  DType::kF32, DType::kF64};

absl::Status InTensor(const std::string& name, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("tensor ", name, ": ", status.message()));
}

absl::StatusOr<std::string> ReadName(FileCursor& cursor) {
  TESSERA_ASSIGN_OR_RETURN(const uint32_t bytes, cursor.Number<uint32_t>());
  if (bytes == 0 || bytes > kMaxNameBytes) {
    return absl::DataLossError(
        absl::StrCat("a name of ", bytes, " bytes; 1 to ", kMaxNameBytes, " are possible"));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::string_view name, cursor.Take(bytes));
  if (!IsValidUtf8(name)) return absl::DataLossError("a name that is not valid UTF-8");
  return std::string(name);
}

// What follows the name, up to the elements, which are skipped.
absl::Status ReadContents(FileCursor& cursor, InfiniTrainTensor& tensor) {
  TESSERA_ASSIGN_OR_RETURN(const uint8_t dtype, cursor.Number<uint8_t>());
  if (dtype >= std::size(kDTypes)) {
    return absl::DataLossError(absl::StrCat("unknown dtype ", dtype));
  }
  tensor.dtype = kDTypes[dtype];
  TESSERA_ASSIGN_OR_RETURN(const uint32_t rank, cursor.Number<uint32_t>());
  if (rank > kMaxRank) {
    return absl::DataLossError(absl::StrCat(rank, " dims; at most ", kMaxRank, " are possible"));
  }
  for (uint32_t dim = 0; dim < rank; ++dim) {
    TESSERA_ASSIGN_OR_RETURN(const uint64_t extent, cursor.Number<uint64_t>());
    tensor.shape.push_back(static_cast<int64_t>(extent));
  }
  const absl::StatusOr<int64_t> expected =
      CheckedByteCount(tensor.shape, ElementSize(tensor.dtype));
  if (!expected.ok()) return absl::DataLossError(expected.status().message());
  TESSERA_ASSIGN_OR_RETURN(const uint64_t bytes, cursor.Number<uint64_t>());
  if (bytes != static_cast<uint64_t>(*expected)) {
    return absl::DataLossError(absl::StrCat("expected ", *expected, " bytes for ",
                                            ShapeToString(tensor.shape), ", found ", bytes));
  }
  tensor.offset_bytes = cursor.offset();
  return cursor.Skip(bytes);
}

}  // namespace

absl::StatusOr<bool> IsInfiniTrainStateFile(const ReadableFile& file) {
  std::array<char, kMagic.size()> magic = {};
  if (file.size_bytes() < magic.size()) return false;
  TESSERA_RETURN_IF_ERROR(file.ReadAt(0, std::as_writable_bytes(std::span(magic))));
  return std::string_view(magic.data(), magic.size()) == kMagic;
}

absl::StatusOr<std::vector<InfiniTrainTensor>> ReadInfiniTrainStateFile(const ReadableFile& file) {
  FileCursor cursor(file, kWindowBytes);
  TESSERA_ASSIGN_OR_RETURN(const std::string_view magic, cursor.Take(kMagic.size()));
  if (magic != kMagic) return absl::DataLossError("not a state dict of InfiniTrain");
  TESSERA_ASSIGN_OR_RETURN(const uint32_t version, cursor.Number<uint32_t>());
  if (version != kVersion) {
    return absl::UnimplementedError(absl::StrCat("version ", version, " of InfiniTrain's files"));
  }
  TESSERA_ASSIGN_OR_RETURN(const uint32_t count, cursor.Number<uint32_t>());
  if (count > cursor.left() / kLeastTensorBytes) {
    return absl::DataLossError(
        absl::StrCat(count, " tensors do not fit into ", file.size_bytes(), " bytes"));
  }
  std::vector<InfiniTrainTensor> tensors;
  std::set<std::string> names;
  for (uint32_t i = 0; i < count; ++i) {
    absl::StatusOr<std::string> name = ReadName(cursor);
    if (!name.ok()) return InTensor(absl::StrCat("number ", i), name.status());
    InfiniTrainTensor tensor = {.name = *std::move(name)};
    if (!names.insert(tensor.name).second) {
      return InTensor(tensor.name, absl::DataLossError("occurs twice"));
    }
    const absl::Status status = ReadContents(cursor, tensor);
    if (!status.ok()) return InTensor(tensor.name, status);
    tensors.push_back(std::move(tensor));
  }
  if (cursor.left() > 0) {
    return absl::DataLossError(absl::StrCat(cursor.left(), " bytes after the last tensor"));
  }
  return tensors;
}

std::optional<int64_t> FindInfiniTrainNumber(std::string_view text, std::string_view key) {
  const std::string quoted = '"' + std::string(key) + '"';
  const size_t begin = text.find(quoted);
  if (begin == std::string_view::npos) return std::nullopt;
  text.remove_prefix(begin + quoted.size());
  if (text.find(quoted) != std::string_view::npos) return std::nullopt;
  text = text.substr(0, text.find_first_of(",\n}"));
  absl::string_view value = absl::StripAsciiWhitespace(View(text));
  int64_t number = 0;
  if (value.empty() || value.front() != ':') return std::nullopt;
  value.remove_prefix(1);
  if (!absl::SimpleAtoi(value, &number)) return std::nullopt;
  return number;
}

}  // namespace tessera::ckpt::convert
