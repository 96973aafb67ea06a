#include "convert/formats/gguf/gguf_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstddef>
#include <optional>
#include <set>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "base/byte_order.h"
#include "base/checked_math.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "convert/core/reading.h"

namespace tessera::ckpt::convert {
namespace {

constexpr uint32_t kVersion = 3;
constexpr uint64_t kDefaultAlignment = 32;
constexpr char kAlignmentKey[] = "general.alignment";
constexpr uint64_t kWindowBytes = uint64_t{1} << 20;
constexpr uint32_t kMaxDims = 4;
// The least that an entry of the metadata and a tensor take up in a header.
constexpr uint64_t kLeastEntryBytes = 8 + 4 + 1, kLeastTensorBytes = 8 + 4 + 4 + 8;

// Types of values, as they are numbered in files.
enum class ValueType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kText,
  kArray,
  kU64,
  kI64,
  kF64
};

// Types of tensors that are read, and the names of others.
constexpr std::pair<uint32_t, DType> kTensorTypes[] = {
    {0, DType::kF32}, {1, DType::kF16}, {30, DType::kBF16}};
constexpr std::pair<uint32_t, const char*> kOtherTypes[] = {
    {2, "Q4_0"},     {3, "Q4_1"},    {6, "Q5_0"},     {7, "Q5_1"},   {8, "Q8_0"},    {9, "Q8_1"},
    {10, "Q2_K"},    {11, "Q3_K"},   {12, "Q4_K"},    {13, "Q5_K"},  {14, "Q6_K"},   {15, "Q8_K"},
    {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"},
    {22, "IQ2_S"},   {23, "IQ4_XS"}, {24, "I8"},      {25, "I16"},   {26, "I32"},    {27, "I64"},
    {28, "F64"},     {29, "IQ1_M"},  {34, "TQ1_0"},   {35, "TQ2_0"}, {39, "MXFP4"},  {40, "NVFP4"}};

// Returns the shortest decimal number that rounds to the fp32.
double AsDecimal(float value) {
  std::array<char, 32> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  double decimal = value;
  std::from_chars(text.data(), end, decimal);
  return decimal;
}

// Returns a string; nullopt if it has more than kMaxGgufTextBytes or is not UTF-8.
absl::StatusOr<std::optional<std::string>> ReadText(FileCursor& cursor) {
  TESSERA_ASSIGN_OR_RETURN(const auto bytes, cursor.Number<uint64_t>());
  if (bytes > kMaxGgufTextBytes) {
    TESSERA_RETURN_IF_ERROR(cursor.Skip(bytes));
    return std::nullopt;
  }
  TESSERA_ASSIGN_OR_RETURN(const std::string_view text, cursor.Take(bytes));
  if (!IsValidUtf8(text)) return std::nullopt;
  return std::string(text);
}

// Returns a key or the name of a tensor. `what` is used in messages.
absl::StatusOr<std::string> ReadKey(FileCursor& cursor, const char* what) {
  const uint64_t begin = cursor.offset();
  TESSERA_ASSIGN_OR_RETURN(std::optional<std::string> name, ReadText(cursor));
  if (name.has_value() && !name->empty()) return *std::move(name);
  return DataLoss("the ", what, " at byte ", begin, " is ",
                  name.has_value() ? "empty" : "too long or not UTF-8");
}

// Returns the bytes of a value of a type, of texts and arrays the least; 0 for unknown types.
uint64_t SizeOf(ValueType type) {
  constexpr uint64_t kSizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};
  const auto number = static_cast<uint32_t>(type);
  return number < std::size(kSizes) ? kSizes[number] : 0;
}

// Parses the header in the order of the file: version, counts, metadata, and the tensors'
// descriptions, whose offsets are checked last.
class HeaderReader {
 public:
  explicit HeaderReader(const ReadableFile& file)
      : cursor_(file, kWindowBytes), file_bytes_(file.size_bytes()) {}

  absl::StatusOr<GgufHeader> Read() {
    TESSERA_RETURN_IF_ERROR(ReadVersion());
    TESSERA_ASSIGN_OR_RETURN(const uint64_t tensors, ReadCount("tensors", kLeastTensorBytes));
    TESSERA_ASSIGN_OR_RETURN(const uint64_t entries, ReadCount("entries", kLeastEntryBytes));
    for (uint64_t i = 0; i < entries; ++i) TESSERA_RETURN_IF_ERROR(ReadEntry());
    for (uint64_t i = 0; i < tensors; ++i) TESSERA_RETURN_IF_ERROR(ReadTensor());
    TESSERA_RETURN_IF_ERROR(PlaceTensors());
    return std::move(header_);
  }

 private:
  absl::Status ReadVersion() {
    TESSERA_ASSIGN_OR_RETURN(const std::string_view magic, cursor_.Take(kGgufMagic.size()));
    if (magic != kGgufMagic) return DataLoss("does not begin with GGUF");
    TESSERA_ASSIGN_OR_RETURN(const auto version, cursor_.Number<uint32_t>());
    if (version == 2 || version == kVersion) return absl::OkStatus();
    if (const uint32_t swapped = __builtin_bswap32(version); swapped >= 1 && swapped <= kVersion) {
      return InvalidArgument("big-endian GGUF files are not supported");
    }
    return InvalidArgument("version ", version, " of GGUF is not read, only 2 and 3");
  }

  absl::StatusOr<uint64_t> ReadCount(const char* what, uint64_t least_bytes) {
    TESSERA_ASSIGN_OR_RETURN(const auto count, cursor_.Number<uint64_t>());
    if (count <= cursor_.left() / least_bytes) return count;
    return DataLoss("cut off: ", count, " ", what, " do not fit into the ", file_bytes_,
                    " bytes of the file");
  }

  absl::Status ReadEntry() {
    TESSERA_ASSIGN_OR_RETURN(std::string key, ReadKey(cursor_, "key"));
    if (!names_.insert(key).second) return DataLoss("key ", key, " occurs twice");
    TESSERA_ASSIGN_OR_RETURN(const auto type, cursor_.Number<ValueType>());
    TESSERA_ASSIGN_OR_RETURN(GgufValue value, In(absl::StrCat("key ", key), ReadValue(type)));
    if (key == kAlignmentKey) {
      const int64_t* const alignment = std::get_if<int64_t>(&value);
      if (alignment == nullptr || !std::has_single_bit(static_cast<uint64_t>(*alignment))) {
        return DataLoss(kAlignmentKey, " is not a power of two");
      }
      alignment_ = static_cast<uint64_t>(*alignment);
    }
    header_.metadata.emplace_back(std::move(key), std::move(value));
    return absl::OkStatus();
  }

  template <typename Number>
  absl::StatusOr<GgufValue> Integer() {
    TESSERA_ASSIGN_OR_RETURN(const Number number, cursor_.Number<Number>());
    if (!std::in_range<int64_t>(number)) return GgufValue();
    return static_cast<int64_t>(number);
  }

  absl::StatusOr<GgufValue> ReadValue(ValueType type) {
    switch (type) {
      case ValueType::kU8:
        return Integer<uint8_t>();
      case ValueType::kI8:
        return Integer<int8_t>();
      case ValueType::kU16:
        return Integer<uint16_t>();
      case ValueType::kI16:
        return Integer<int16_t>();
      case ValueType::kU32:
        return Integer<uint32_t>();
      case ValueType::kI32:
        return Integer<int32_t>();
      case ValueType::kU64:
        return Integer<uint64_t>();
      case ValueType::kI64:
        return Integer<int64_t>();
      case ValueType::kF32: {
        TESSERA_ASSIGN_OR_RETURN(const auto number, cursor_.Number<float>());
        return AsDecimal(number);
      }
      case ValueType::kF64:
        return cursor_.Number<double>();
      case ValueType::kBool: {
        TESSERA_ASSIGN_OR_RETURN(const auto truth, cursor_.Number<uint8_t>());
        return truth != 0;
      }
      case ValueType::kText: {
        TESSERA_ASSIGN_OR_RETURN(std::optional<std::string> text, ReadText(cursor_));
        return text.has_value() ? GgufValue(*std::move(text)) : GgufValue();
      }
      case ValueType::kArray:
        TESSERA_RETURN_IF_ERROR(SkipArray());
        return GgufValue();
    }
    return UnknownType(type);
  }

  static absl::Status UnknownType(ValueType type) {
    return DataLoss("values of type ", static_cast<uint32_t>(type), " are not known");
  }

  absl::Status SkipArray() {
    for (uint64_t arrays = 1; arrays > 0; --arrays) {  // those in an array follow it
      TESSERA_ASSIGN_OR_RETURN(const auto type, cursor_.Number<ValueType>());
      const uint64_t size = SizeOf(type);
      if (size == 0) return UnknownType(type);
      TESSERA_ASSIGN_OR_RETURN(const uint64_t count, ReadCount("elements", size));
      const bool is_text = type == ValueType::kText, is_array = type == ValueType::kArray;
      if (is_array) arrays += count;
      const uint64_t texts = is_text ? count : 0;
      for (uint64_t i = 0; i < texts; ++i) TESSERA_RETURN_IF_ERROR(ReadText(cursor_).status());
      if (!is_array && !is_text) TESSERA_RETURN_IF_ERROR(cursor_.Skip(count * size));
    }
    return absl::OkStatus();
  }

  absl::Status ReadTensor() {
    GgufTensor tensor;
    TESSERA_ASSIGN_OR_RETURN(tensor.name, ReadKey(cursor_, "name"));
    const auto damaged = [&](const auto&... problem) {
      return DataLoss("tensor ", tensor.name, ": ", problem...);
    };
    if (!tensor_names_.insert(tensor.name).second) return damaged("occurs twice");
    TESSERA_ASSIGN_OR_RETURN(const auto dims, cursor_.Number<uint32_t>());
    if (dims > kMaxDims) return damaged(dims, " dims, only ", kMaxDims, " are known");
    for (uint32_t dim = 0; dim < dims; ++dim) {
      TESSERA_ASSIGN_OR_RETURN(const auto extent, cursor_.Number<int64_t>());
      tensor.shape.insert(tensor.shape.begin(), extent);
    }
    TESSERA_ASSIGN_OR_RETURN(const auto type, cursor_.Number<uint32_t>());
    const auto* const known =
        std::ranges::find(kTensorTypes, type, &std::pair<uint32_t, DType>::first);
    if (known == std::end(kTensorTypes)) return UnreadType(tensor.name, type);
    tensor.dtype = known->second;
    TESSERA_ASSIGN_OR_RETURN(tensor.offset_bytes, cursor_.Number<uint64_t>());
    if (tensor.offset_bytes % alignment_ != 0) {
      return damaged("offset ", tensor.offset_bytes, " is not a multiple of ", alignment_,
                     ", the alignment");
    }
    header_.tensors.push_back(std::move(tensor));
    return absl::OkStatus();
  }

  static absl::Status UnreadType(const std::string& tensor, uint32_t type) {
    const auto* const other =
        std::ranges::find(kOtherTypes, type, &std::pair<uint32_t, const char*>::first);
    return InvalidArgument(
        "tensor ", tensor, " is ",
        other == std::end(kOtherTypes) ? absl::StrCat("of type ", type) : other->second,
        ": only F32, F16 and BF16 are read, and no quantised tensors");
  }

  // Turns offsets in the data into offsets in the file, and checks them.
  absl::Status PlaceTensors() {
    const uint64_t data = RoundUp(cursor_.offset(), alignment_);
    if (data > file_bytes_ && !header_.tensors.empty()) {
      return DataLoss("cut off: the file ends before its tensors");
    }
    std::vector<std::pair<uint64_t, uint64_t>> ranges;
    for (GgufTensor& tensor : header_.tensors) {
      const absl::StatusOr<int64_t> count = CheckedElementCount(tensor.shape);
      const std::optional<int64_t> bytes =
          count.ok() ? CheckedMultiply(*count, int64_t{ElementSize(tensor.dtype)}) : std::nullopt;
      const uint64_t room = file_bytes_ - data;
      if (!bytes || *bytes < 0 || tensor.offset_bytes > room ||
          static_cast<uint64_t>(*bytes) > room - tensor.offset_bytes) {
        return DataLoss("cut off: tensor ", tensor.name, " of shape ", ShapeToString(tensor.shape),
                        " at byte ", tensor.offset_bytes,
                        " of the data is not inside the file, which has ", file_bytes_, " bytes");
      }
      tensor.offset_bytes += data;
      ranges.emplace_back(tensor.offset_bytes, tensor.offset_bytes + static_cast<uint64_t>(*bytes));
    }
    std::ranges::sort(ranges);
    for (size_t i = 1; i < ranges.size(); ++i) {
      if (ranges[i].first >= ranges[i - 1].second) continue;
      return DataLoss("two tensors overlap at byte ", ranges[i].first, " of the file");
    }
    return absl::OkStatus();
  }

  FileCursor cursor_;
  const uint64_t file_bytes_;
  uint64_t alignment_ = kDefaultAlignment;
  GgufHeader header_;
  std::set<std::string> names_, tensor_names_;
};

void AppendText(std::string_view text, std::string& out) {
  AppendLittleEndian(uint64_t{text.size()}, out);
  out += text;
}

void AppendType(ValueType type, std::string& out) {
  AppendLittleEndian(static_cast<uint32_t>(type), out);
}

void AppendArrayOf(ValueType type, size_t count, std::string& out) {
  AppendType(ValueType::kArray, out);
  AppendType(type, out);
  AppendLittleEndian(uint64_t{count}, out);
}

struct AppendValue {
  std::string& out;

  void operator()(std::monostate) const {}
  void operator()(bool truth) const {
    AppendType(ValueType::kBool, out);
    out += static_cast<char>(truth);
  }
  void operator()(int64_t number) const {
    AppendType(ValueType::kU32, out);
    AppendLittleEndian(static_cast<uint32_t>(number), out);
  }
  void operator()(double number) const {
    AppendType(ValueType::kF32, out);
    AppendLittleEndian(std::bit_cast<uint32_t>(static_cast<float>(number)), out);
  }
  void operator()(const std::string& text) const {
    AppendType(ValueType::kText, out);
    AppendText(text, out);
  }
  void operator()(const std::vector<std::string>& texts) const {
    AppendArrayOf(ValueType::kText, texts.size(), out);
    for (const std::string& text : texts) AppendText(text, out);
  }
  template <typename Number>
  void operator()(const std::vector<Number>& numbers) const {
    constexpr bool kIsInt = std::is_same_v<Number, int32_t>;
    AppendArrayOf(kIsInt ? ValueType::kI32 : ValueType::kF32, numbers.size(), out);
    for (const Number number : numbers) AppendLittleEndian(std::bit_cast<uint32_t>(number), out);
  }
};

}  // namespace

absl::StatusOr<GgufHeader> ReadGgufHeader(const ReadableFile& file) {
  return HeaderReader(file).Read();
}

uint64_t PaddedGgufBytes(const GgufTensor& tensor) {
  return RoundUp(ByteCount(tensor.shape, tensor.dtype), kDefaultAlignment);
}

std::string BuildGgufHeader(GgufHeader& header) {
  std::string bytes(kGgufMagic);
  AppendLittleEndian(kVersion, bytes);
  AppendLittleEndian(uint64_t{header.tensors.size()}, bytes);
  AppendLittleEndian(uint64_t{header.metadata.size()}, bytes);
  for (const auto& [key, value] : header.metadata) {
    AppendText(key, bytes);
    std::visit(AppendValue{bytes}, value);
  }
  uint64_t offset = 0;
  for (GgufTensor& tensor : header.tensors) {
    AppendText(tensor.name, bytes);
    AppendLittleEndian(static_cast<uint32_t>(tensor.shape.size()), bytes);
    for (size_t dim = tensor.shape.size(); dim-- > 0;) {
      AppendLittleEndian(static_cast<uint64_t>(tensor.shape[dim]), bytes);
    }
    const auto* const type =
        std::ranges::find(kTensorTypes, tensor.dtype, &std::pair<uint32_t, DType>::second);
    AppendLittleEndian(type->first, bytes);
    AppendLittleEndian(offset, bytes);
    tensor.offset_bytes = offset;
    offset += PaddedGgufBytes(tensor);
  }
  bytes.resize(RoundUp<uint64_t>(bytes.size(), kDefaultAlignment));
  for (GgufTensor& tensor : header.tensors) tensor.offset_bytes += bytes.size();
  return bytes;
}

}  // namespace tessera::ckpt::convert
