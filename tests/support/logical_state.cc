#include "tests/support/logical_state.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::testing {
namespace {

constexpr std::string_view kMasterSuffix = ".master";

// A row of a piece: `count` neighbours in the local buffer that are also neighbours in the whole
// tensor.
struct Row {
  int64_t local = 0;
  int64_t logical = 0;
  int64_t count = 0;
};

void ForEachRow(const Parameter& parameter, const ParameterPiece& piece,
                const std::function<void(const Row&)>& visit) {
  const size_t dims = piece.shape.size();
  if (ElementCount(piece.shape) == 0) return;
  const std::vector<int64_t> local_strides = ContiguousStrides(parameter.shape);
  const std::vector<int64_t> logical_strides = ContiguousStrides(piece.global_shape);
  std::vector<int64_t> index(dims, 0);
  while (true) {
    Row row{.count = piece.shape[dims - 1]};
    for (size_t d = 0; d < dims; ++d) {
      row.local += (piece.local_offset[d] + index[d]) * local_strides[d];
      row.logical += (piece.global_offset[d] + index[d]) * logical_strides[d];
    }
    visit(row);
    size_t d = dims - 1;
    while (d > 0 && ++index[d - 1] == piece.shape[d - 1]) index[--d] = 0;
    if (d == 0) return;
  }
}

// The intersection of a row with [begin, end) of the local buffer.
Row Clip(const Row& row, int64_t begin, int64_t end) {
  const int64_t first = std::max(row.local, begin);
  const int64_t last = std::min(row.local + row.count, end);
  return {.local = first,
          .logical = row.logical + first - row.local,
          .count = std::max<int64_t>(last - first, 0)};
}

// Visits every buffer of a chunk: visit(parameter, begin, values, suffix), where `begin` is the
// element of the parameter at which the buffer begins.
template <typename Visit>
absl::Status ForEachBuffer(const TrainedChunk& chunk, const Visit& visit) {
  const std::vector<Parameter*>& parameters = chunk.parameters->parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(visit(*parameters[i], int64_t{0}, parameters[i]->value, ""));
    if (chunk.optimizer == nullptr) continue;
    const AdamW::ParameterState state = chunk.optimizer->State(static_cast<int>(i));
    for (const auto& [values, suffix] :
         {std::pair(state.master, ".master"), std::pair(state.exp_avg, ".exp_avg"),
          std::pair(state.exp_avg_sq, ".exp_avg_sq")}) {
      if (values.empty() || values.elements() == 0) continue;
      TESSERA_RETURN_IF_ERROR(visit(*parameters[i], state.begin, values, suffix));
    }
  }
  return absl::OkStatus();
}

uint64_t Mix(uint64_t x) {  // SplitMix64's
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9;
  x ^= x >> 27;
  x *= 0x94d049bb133111eb;
  return x ^ x >> 31;
}

// Uses all 24 significant bits, so that rounding to bf16 is visible.
float ValueOf(uint64_t key) {
  const uint64_t bits = Mix(key);
  const float magnitude = std::ldexp(static_cast<float>((1 << 23) | (bits & ((1 << 23) - 1))),
                                     static_cast<int>(bits >> 32 & 15) - 30);
  return (bits >> 40 & 1) != 0 ? -magnitude : magnitude;
}

uint16_t Bf16Bits(float value) {  // to nearest, ties to even; finite values
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void Write(float value, DType dtype, std::byte* to) {
  const uint16_t bf16 = Bf16Bits(value);
  if (dtype == DType::kBF16) {
    std::memcpy(to, &bf16, sizeof(bf16));
  } else {
    std::memcpy(to, &value, sizeof(value));
  }
}

bool EndsWith(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

bool IsMoment(std::string_view name) {
  return EndsWith(name, ".exp_avg") || EndsWith(name, ".exp_avg_sq");
}

}  // namespace

int64_t Bytes(const LogicalState& state) {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : state) bytes += static_cast<int64_t>(tensor.bytes.size());
  return bytes;
}

absl::Status StateCollector::Add(std::span<const TrainedChunk> chunks) {
  for (const TrainedChunk& chunk : chunks) {
    TESSERA_RETURN_IF_ERROR(ForEachBuffer(
        chunk,
        [this](const Parameter& parameter, int64_t begin, const TensorView& values,
               const std::string& suffix) { return AddBuffer(parameter, begin, values, suffix); }));
  }
  return absl::OkStatus();
}

absl::Status StateCollector::AddBuffer(const Parameter& parameter, int64_t begin,
                                       const TensorView& values, const std::string& suffix) {
  const int64_t elements = values.elements(), element_size = ElementSize(values.dtype());
  const std::byte* const data = values.as<const std::byte>();
  std::vector<bool> meant(elements);
  absl::Status status;
  const MutexLock lock(&mutex_);
  for (const ParameterPiece& piece : parameter.pieces) {
    const std::string name = piece.name + suffix;
    Collected& all = tensors_[name];
    if (all.tensor.shape.empty()) {
      all.tensor = {values.dtype(), piece.global_shape,
                    std::vector<std::byte>(ElementCount(piece.global_shape) * element_size)};
      all.known.resize(ElementCount(piece.global_shape));
    }
    ForEachRow(parameter, piece, [&](const Row& whole) {
      const Row row = Clip(whole, begin, begin + elements);
      if (row.count == 0) return;
      std::fill_n(meant.begin() + (row.local - begin), row.count, true);
      const absl::Status added =
          AddRow(row.logical, row.count, data + (row.local - begin) * element_size, all);
      if (!added.ok()) status = absl::InternalError(absl::StrCat(name, ": ", added.message()));
    });
  }
  TESSERA_RETURN_IF_ERROR(status);
  for (int64_t i = 0; i < elements; ++i) {
    if (meant[i]) continue;
    const std::byte* element = data + i * element_size;
    if (std::all_of(element, element + element_size, [](std::byte b) { return b == std::byte{0}; }))
      continue;
    return absl::InternalError(
        absl::StrCat(parameter.key, suffix, ": element ", begin + i, " is padding and not zero"));
  }
  return absl::OkStatus();
}

absl::Status StateCollector::AddRow(int64_t first, int64_t count, const std::byte* from,
                                    Collected& to) {
  const int64_t element_size = ElementSize(to.tensor.dtype);
  for (int64_t i = 0; i < count; ++i) {
    std::byte* const element = to.tensor.bytes.data() + (first + i) * element_size;
    if (to.known[first + i] && std::memcmp(element, from + i * element_size, element_size) != 0) {
      return absl::InternalError(absl::StrCat("two ranks disagree about element ", first + i));
    }
    std::memcpy(element, from + i * element_size, element_size);
    to.known[first + i] = true;
  }
  return absl::OkStatus();
}

absl::Status StateCollector::CheckComplete() const {
  const MutexLock lock(&mutex_);
  for (const auto& [name, all] : tensors_) {
    const auto unknown = std::find(all.known.begin(), all.known.end(), false);
    if (unknown == all.known.end()) continue;
    return absl::InternalError(absl::StrCat(name, ": no rank holds element ",
                                            unknown - all.known.begin(), " of ", all.known.size()));
  }
  return absl::OkStatus();
}

LogicalState StateCollector::Take() {
  LogicalState state;
  const MutexLock lock(&mutex_);
  for (auto& [name, all] : tensors_) state.emplace(name, std::move(all.tensor));
  tensors_.clear();
  return state;
}

absl::Status SetState(std::span<const TrainedChunk> chunks, const LogicalState& state) {
  const auto set = [&state](const Parameter& parameter, int64_t begin, const TensorView& values,
                            const std::string& suffix) -> absl::Status {
    const int64_t element_size = ElementSize(values.dtype());
    for (const ParameterPiece& piece : parameter.pieces) {
      const auto found = state.find(piece.name + suffix);
      if (found == state.end()) {
        return absl::InternalError(absl::StrCat(piece.name, suffix, " is missing"));
      }
      const LogicalTensor& tensor = found->second;
      if (tensor.dtype != values.dtype() || tensor.shape != piece.global_shape) {
        return absl::InternalError(absl::StrCat(piece.name, suffix, ": other dtype or shape"));
      }
      ForEachRow(parameter, piece, [&](const Row& whole) {
        const Row row = Clip(whole, begin, begin + values.elements());
        if (row.count == 0) return;
        std::memcpy(values.as<std::byte>() + (row.local - begin) * element_size,
                    tensor.bytes.data() + row.logical * element_size, row.count * element_size);
      });
    }
    return absl::OkStatus();
  };
  for (const TrainedChunk& chunk : chunks) TESSERA_RETURN_IF_ERROR(ForEachBuffer(chunk, set));
  return absl::OkStatus();
}

void FillState(std::span<const TrainedChunk> chunks, uint64_t seed) {
  for (const TrainedChunk& chunk : chunks) {
    const auto fill = [seed](const Parameter& parameter, int64_t begin, const TensorView& values,
                             const std::string& suffix) {
      const int64_t element_size = ElementSize(values.dtype());
      for (const ParameterPiece& piece : parameter.pieces) {
        const uint64_t key = Mix(seed ^ std::hash<std::string>()(piece.name + suffix));
        ForEachRow(parameter, piece, [&](const Row& whole) {
          const Row row = Clip(whole, begin, begin + values.elements());
          for (int64_t i = 0; i < row.count; ++i) {
            Write(ValueOf(key + static_cast<uint64_t>(row.logical + i)), values.dtype(),
                  values.as<std::byte>() + (row.local - begin + i) * element_size);
          }
        });
      }
      return absl::OkStatus();
    };
    ForEachBuffer(chunk, fill).IgnoreError();
  }
}

LogicalState AsBf16Run(const LogicalState& fp32_run) {
  LogicalState state;
  for (const auto& [name, tensor] : fp32_run) {
    if (IsMoment(name)) {
      state[name] = tensor;
      continue;
    }
    state[absl::StrCat(name, ".master")] = tensor;
    LogicalTensor rounded{DType::kBF16, tensor.shape,
                          std::vector<std::byte>(tensor.bytes.size() / 2)};
    for (size_t i = 0; i < tensor.bytes.size() / sizeof(float); ++i) {
      float value = 0;
      std::memcpy(&value, tensor.bytes.data() + i * sizeof(value), sizeof(value));
      Write(value, DType::kBF16, rounded.bytes.data() + i * sizeof(uint16_t));
    }
    state[name] = std::move(rounded);
  }
  return state;
}

LogicalState AsFp32Run(const LogicalState& bf16_run) {
  LogicalState state;
  for (const auto& [name, tensor] : bf16_run) {
    if (IsMoment(name)) state[name] = tensor;
    if (EndsWith(name, kMasterSuffix))
      state[name.substr(0, name.size() - kMasterSuffix.size())] = tensor;
  }
  return state;
}

std::string FirstStateDifference(const LogicalState& a, const LogicalState& b) {
  for (const auto& [name, tensor] : b) {
    if (!a.contains(name)) return absl::StrCat(name, " is only in the second");
  }
  for (const auto& [name, tensor] : a) {
    const auto other = b.find(name);
    if (other == b.end()) return absl::StrCat(name, " is only in the first");
    if (tensor.dtype != other->second.dtype || tensor.shape != other->second.shape) {
      return absl::StrCat(name, ": other dtype or shape");
    }
    const auto differing =
        std::mismatch(tensor.bytes.begin(), tensor.bytes.end(), other->second.bytes.begin());
    if (differing.first == tensor.bytes.end()) continue;
    return absl::StrCat(name, ": element ",
                        (differing.first - tensor.bytes.begin()) / ElementSize(tensor.dtype),
                        " of ", tensor.bytes.size() / ElementSize(tensor.dtype));
  }
  return "";
}

}  // namespace tessera::testing
