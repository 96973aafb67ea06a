#include "tensor/tensor.h"

#include <glog/logging.h>

#include <utility>

#include "tensor/memory.h"

namespace tessera {

TensorView::TensorView(void* data, DType dtype, Shape shape)
    : data_(data), dtype_(dtype), shape_(std::move(shape)), strides_(ContiguousStrides(shape_)) {}

TensorView::TensorView(void* data, DType dtype, Shape shape, std::vector<int64_t> strides)
    : data_(data), dtype_(dtype), shape_(std::move(shape)), strides_(std::move(strides)) {
  CHECK_EQ(shape_.size(), strides_.size());
}

int64_t TensorView::elements() const { return ElementCount(shape_); }

int64_t TensorView::bytes() const { return elements() * ElementSize(dtype_); }

int64_t TensorView::span_bytes() const {
  if (elements() == 0) return 0;
  int64_t last = 0;
  for (int d = 0; d < rank(); ++d) last += (shape_[d] - 1) * strides_[d];
  return (last + 1) * ElementSize(dtype_);
}

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
  CHECK(dim >= 0 && dim < rank()) << "dim " << dim << " of " << ShapeToString(shape_);
  CHECK(0 <= begin && begin <= end && end <= shape_[dim])
      << "[" << begin << "," << end << ") of dim " << dim << " of " << ShapeToString(shape_);
  TensorView slice = *this;
  slice.data_ = static_cast<char*>(data_) + begin * strides_[dim] * ElementSize(dtype_);
  slice.shape_[dim] = end - begin;
  return slice;
}

TensorView TensorView::Reshape(Shape shape) const {
  CHECK(contiguous()) << "a strided view cannot be reshaped: " << ShapeToString(shape_);
  CHECK_EQ(elements(), ElementCount(shape))
      << ShapeToString(shape_) << " cannot become " << ShapeToString(shape);
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
  for (int64_t extent : shape) CHECK_GE(extent, 0) << ShapeToString(shape);
  const int64_t size_bytes = ElementCount(shape) * ElementSize(dtype);
  buffer_ = device.type == DeviceType::kCpu ? AllocateHostMemory(size_bytes)
                                            : AllocateDeviceMemory(device.index, size_bytes);
  view_ = TensorView(buffer_.get(), dtype, std::move(shape));
}

}  // namespace tessera
