#include "convert/pickle/numpy_array.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "base/status_macros.h"
#include "convert/core/reading.h"

namespace tessera::ckpt::pickle {
namespace {

template <typename... Parts>
absl::Status Malformed(const Parts&... problem) {
  return DataLoss("numpy array: ", problem...);
}

// numpy.core was renamed numpy._core by version 2.
bool IsFunctionOfNumpy(const Value& value, std::string_view module, std::string_view name) {
  const std::string found = value.callable().GlobalName();
  for (const std::string_view core : {"numpy.core.", "numpy._core."}) {
    std::string wanted(core);
    wanted.append(module).append(".").append(name);
    if (found == wanted) return true;
  }
  return false;
}

struct NamedDType {
  std::string_view name;
  DType dtype;
};
constexpr NamedDType kDTypes[] = {{"f8", DType::kF64}, {"f4", DType::kF32}, {"f2", DType::kF16},
                                  {"i8", DType::kI64}, {"i4", DType::kI32}, {"i2", DType::kI16},
                                  {"i1", DType::kI8},  {"u8", DType::kU64}, {"u4", DType::kU32},
                                  {"u2", DType::kU16}, {"u1", DType::kU8},  {"b1", DType::kBool}};

// Parses numpy.dtype("f4", False, True) with the state (3, "<", None, None, None, -1, -1, 0).
absl::StatusOr<DType> ResolveDType(const Value& value) {
  const std::optional<std::string_view> name = value.arguments()[0].AsText();
  if (!value.IsObjectOf("numpy.dtype") || !name) return Malformed("its dtype is malformed");
  const std::optional<std::string_view> order = value.state()[1].AsText();
  if (order == ">") return Unimplemented("big-endian elements of a numpy array");
  for (const NamedDType& known : kDTypes) {
    if (*name == known.name) return known.dtype;
  }
  return Unimplemented("a numpy array of the dtype ", name->substr(0, 40));
}

// What an array is described by, whichever function makes it.
struct Parts {
  Value shape, dtype, is_fortran, bytes;
};

Parts PartsOf(const Value& value) {
  if (IsFunctionOfNumpy(value, "numeric", "_frombuffer")) {
    const Value arguments = value.arguments();  // bytes, dtype, shape, order
    return {arguments[2], arguments[1], arguments[3], arguments[0]};
  }
  if (IsNumpyScalar(value)) return {{}, value.arguments()[0], {}, value.arguments()[1]};
  const Value state = value.state();  // version, shape, dtype, is_fortran, bytes
  return {state[1], state[2], state[3], state[4]};
}

bool IsFortran(const Value& order) { return order.AsBool().value_or(false) || order.IsText("F"); }

// Appends the bytes of _codecs.encode(text, "latin1"), whose text has a character for each of them.
absl::Status AppendEncoded(const Value& encoded, uint64_t bytes, const ReadableFile& file,
                           std::string& decoded) {
  const Value text = encoded.arguments()[0];
  std::string in_file;
  if (const std::optional<Extent> extent = text.extent()) {
    if (extent->length > 2 * bytes) return Malformed("its text is longer than its elements");
    TESSERA_ASSIGN_OR_RETURN(in_file, ReadPart(file, extent->offset, extent->length));
  }
  const std::optional<std::string> elements = DecodeLatin1(text.AsText().value_or(in_file));
  if (!elements) return Malformed("its elements are not stored as text in latin1");
  decoded += *elements;
  if (encoded.arguments()[1].IsText("latin1") && elements->size() == bytes) return absl::OkStatus();
  return Malformed("expected ", bytes, " bytes as text in latin1, found ", elements->size());
}

// Row-major strides, or those of Fortran.
std::vector<int64_t> StridesOf(const Shape& shape, bool is_fortran) {
  if (!is_fortran) return ContiguousStrides(shape);
  std::vector<int64_t> strides = ContiguousStrides(Shape(shape.rbegin(), shape.rend()));
  return {strides.rbegin(), strides.rend()};
}

}  // namespace

void BeginNumpyArray(DType dtype, const Shape& shape, Writer& writer) {
  writer.Global("numpy.core.multiarray", "_reconstruct");
  writer.BeginTuple();
  writer.Global("numpy", "ndarray");
  writer.IntTuple({0});
  writer.Bytes("b");
  writer.EndTuple();
  writer.Call();
  writer.BeginTuple();  // the state
  writer.Int(1);
  writer.IntTuple(shape);
  writer.Global("numpy", "dtype");
  writer.BeginTuple();
  writer.Text(std::ranges::find(kDTypes, dtype, &NamedDType::dtype)->name);
  writer.Bool(false);
  writer.Bool(true);
  writer.EndTuple();
  writer.Call();
  writer.Bool(false);  // in the order of C
  writer.BeginBytes(static_cast<uint64_t>(ElementCount(shape)) * ElementSize(dtype));
}

void EndNumpyArray(Writer& writer) {
  writer.EndTuple();
  writer.SetState();
}

bool IsNumpyArray(const Value& value) {
  return IsFunctionOfNumpy(value, "multiarray", "_reconstruct") ||
         IsFunctionOfNumpy(value, "numeric", "_frombuffer");
}

bool IsNumpyScalar(const Value& value) { return IsFunctionOfNumpy(value, "multiarray", "scalar"); }

absl::StatusOr<NumpyArray> ResolveNumpyArray(const Value& value, const ReadableFile& file,
                                             std::string& decoded) {
  const Parts parts = PartsOf(value);
  NumpyArray array;
  TESSERA_ASSIGN_OR_RETURN(array.dtype, ResolveDType(parts.dtype));
  std::optional<Shape> shape = IsNumpyScalar(value) ? Shape() : DimsOf(parts.shape);
  if (!shape) return Malformed("its shape is malformed");
  const absl::StatusOr<int64_t> bytes = CheckedByteCount(*shape, ElementSize(array.dtype));
  if (!bytes.ok()) return Malformed(bytes.status().message());
  array.shape = *std::move(shape);
  array.strides = StridesOf(array.shape, IsFortran(parts.is_fortran));
  if (parts.bytes.is(Kind::kText) && *bytes > 0) {
    return Unimplemented("a numpy array that Python 2 wrote: save it again with Python 3");
  }
  if (parts.bytes.IsObjectOf("_codecs.encode")) {
    array.offset_bytes = file.size_bytes() + decoded.size();
    TESSERA_RETURN_IF_ERROR(
        AppendEncoded(parts.bytes, static_cast<uint64_t>(*bytes), file, decoded));
    return array;
  }
  const std::optional<Extent> extent = parts.bytes.extent();
  const uint64_t found = extent ? extent->length : 0;
  if (found != static_cast<uint64_t>(*bytes)) {
    return Malformed("shape ", ShapeToString(array.shape), " takes ", *bytes, " bytes, it has ",
                     found);
  }
  array.offset_bytes = extent ? extent->offset : 0;
  return array;
}

}  // namespace tessera::ckpt::pickle
