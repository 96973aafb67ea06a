#include "compute/kernels/reference/array.h"

#include <glog/logging.h>

#include <bit>
#include <cmath>
#include <utility>

namespace tessera::reference {

BFloat16 RoundToBFloat16(double value) {
  float nearby = static_cast<float>(value);
  if (std::isnan(value) || static_cast<double>(nearby) == value) return BFloat16(nearby);
  // Rounds to odd: truncates to fp32 and records the lost bits in the last one. Since fp32 has far
  // more than two bits beyond bfloat16, the second rounding knows on which side of a tie the value
  // is.
  if (std::abs(static_cast<double>(nearby)) > std::abs(value)) {
    nearby = std::nextafter(nearby, 0.0f);
  }
  return BFloat16(std::bit_cast<float>(std::bit_cast<uint32_t>(nearby) | 1));
}

double LoadElement(const TensorView& x, int64_t offset) {
  switch (x.dtype()) {
    case DType::kF32:
      return x.as<float>()[offset];
    case DType::kBF16:
      return static_cast<float>(x.as<BFloat16>()[offset]);
    case DType::kF64:
      return x.as<double>()[offset];
    case DType::kI32:
      return x.as<int32_t>()[offset];
    default:
      LOG(FATAL) << "impossible dtype";
  }
}

void StoreElement(const TensorView& x, int64_t offset, double value) {
  switch (x.dtype()) {
    case DType::kF32:
      x.as<float>()[offset] = static_cast<float>(value);
      return;
    case DType::kBF16:
      x.as<BFloat16>()[offset] = RoundToBFloat16(value);
      return;
    case DType::kF64:
      x.as<double>()[offset] = value;
      return;
    case DType::kI32:
      x.as<int32_t>()[offset] = static_cast<int32_t>(value);
      return;
    default:
      LOG(FATAL) << "impossible dtype";
  }
}

double RoundTo(DType dtype, double value) {
  double memory = 0;  // large enough for one element of any dtype
  const TensorView element(&memory, dtype, {1});
  StoreElement(element, 0, value);
  return LoadElement(element, 0);
}

std::vector<int64_t> ElementOffsets(const TensorView& x) {
  std::vector<int64_t> offsets;
  offsets.reserve(x.elements());
  offsets.push_back(0);
  for (int d = 0; d < x.rank(); ++d) {
    std::vector<int64_t> longer;
    longer.reserve(offsets.size() * x.dim(d));
    for (int64_t offset : offsets) {
      for (int64_t i = 0; i < x.dim(d); ++i) longer.push_back(offset + i * x.stride(d));
    }
    offsets = std::move(longer);
  }
  return offsets;
}

Array::Array(Shape shape) : shape_(std::move(shape)), values_(ElementCount(shape_)) {}

Array::Array(const TensorView& x) {
  if (x.empty()) return;
  shape_ = x.shape();
  values_.reserve(x.elements());
  for (int64_t offset : ElementOffsets(x)) values_.push_back(LoadElement(x, offset));
}

void Array::StoreTo(const TensorView& to) const { StoreTo(to, /*accumulate=*/false); }

void Array::AddTo(const TensorView& to) const { StoreTo(to, /*accumulate=*/true); }

void Array::StoreTo(const TensorView& to, bool accumulate) const {
  if (to.empty()) return;
  CHECK(to.shape() == shape_) << "an operand of shape " << ShapeToString(to.shape()) << " must be "
                              << ShapeToString(shape_);
  const double* value = values_.data();
  for (int64_t offset : ElementOffsets(to)) {
    StoreElement(to, offset, *value++ + (accumulate ? LoadElement(to, offset) : 0.0));
  }
}

std::vector<int64_t> LoadIds(const TensorView& ids) {
  CHECK(ids.dtype() == DType::kI32) << DTypeName(ids.dtype());
  CHECK_EQ(ids.rank(), 1);
  std::vector<int64_t> values;
  for (int64_t r = 0; r < ids.dim(0); ++r) values.push_back(ids.as<int32_t>()[r * ids.stride(0)]);
  return values;
}

}  // namespace tessera::reference
