#include "compute/tensor/tensor.h"

#include <glog/logging.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "compute/tensor/dtype.h"
#include "compute/tensor/memory.h"

namespace tessera {

int64_t ElementCount(const Shape& shape) {
  int64_t count = 1;
  for (int64_t extent : shape) count *= extent;
  return count;
}

std::vector<int64_t> ContiguousStrides(const Shape& shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= shape[d];
  }
  return strides;
}

std::string ToString(const Shape& shape) {
  std::string text = "[";
  for (size_t d = 0; d < shape.size(); ++d) {
    if (d > 0) text += ",";
    text += std::to_string(shape[d]);
  }
  return text + "]";
}

TensorView::TensorView(void* data, DType dtype, Shape shape)
    : data_(data), dtype_(dtype), shape_(std::move(shape)), strides_(ContiguousStrides(shape_)) {}

TensorView::TensorView(void* data, DType dtype, Shape shape, std::vector<int64_t> strides)
    : data_(data), dtype_(dtype), shape_(std::move(shape)), strides_(std::move(strides)) {
  CHECK_EQ(shape_.size(), strides_.size());
}

int64_t TensorView::elements() const { return ElementCount(shape_); }

int64_t TensorView::bytes() const { return elements() * ElementSize(dtype_); }

bool TensorView::contiguous() const {
  int64_t expected = 1;
  for (int d = rank() - 1; d >= 0; --d) {
    if (shape_[d] == 0) return true;
    if (shape_[d] != 1 && strides_[d] != expected) return false;
    expected *= shape_[d];
  }
  return true;
}

TensorView TensorView::Slice(int dim, int64_t begin, int64_t end) const {
  CHECK(dim >= 0 && dim < rank()) << "dim " << dim << " of " << ToString(shape_);
  CHECK(0 <= begin && begin <= end && end <= shape_[dim])
      << "[" << begin << "," << end << ") of dim " << dim << " of " << ToString(shape_);
  TensorView slice = *this;
  slice.data_ = static_cast<char*>(data_) + begin * strides_[dim] * ElementSize(dtype_);
  slice.shape_[dim] = end - begin;
  return slice;
}

TensorView TensorView::Reshape(Shape shape) const {
  CHECK(contiguous()) << "a strided view cannot be reshaped: " << ToString(shape_);
  CHECK_EQ(elements(), ElementCount(shape))
      << ToString(shape_) << " cannot become " << ToString(shape);
  return TensorView(data_, dtype_, std::move(shape));
}

TensorView TensorView::Transpose(int dim0, int dim1) const {
  CHECK(dim0 >= 0 && dim0 < rank() && dim1 >= 0 && dim1 < rank());
  TensorView swapped = *this;
  std::swap(swapped.shape_[dim0], swapped.shape_[dim1]);
  std::swap(swapped.strides_[dim0], swapped.strides_[dim1]);
  return swapped;
}

Tensor::Tensor(DType dtype, Shape shape, Device device) : device_(device) {
  for (int64_t extent : shape) CHECK_GE(extent, 0) << ToString(shape);
  const int64_t size_bytes = ElementCount(shape) * ElementSize(dtype);
  buffer_ = device.type == DeviceType::kCpu ? AllocateHostMemory(size_bytes)
                                            : AllocateDeviceMemory(device.index, size_bytes);
  view_ = TensorView(buffer_.get(), dtype, std::move(shape));
}

}  // namespace tessera
