#ifndef TESSERA_TENSOR_TENSOR_H_
#define TESSERA_TENSOR_TENSOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "layout/box.h"
#include "layout/dtype.h"

namespace tessera {

enum class DeviceType { kCpu, kCuda };

struct Device {
  DeviceType type = DeviceType::kCpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};

// A strided view of memory that another object owns. Cheap to copy. The view does not express
// const-ness: every operation documents which operands it writes.
class TensorView {
 public:
  TensorView() = default;
  // A contiguous, row-major view.
  TensorView(void* data, DType dtype, Shape shape);
  TensorView(void* data, DType dtype, Shape shape, std::vector<int64_t> strides);

  void* data() const { return data_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  const std::vector<int64_t>& strides() const { return strides_; }  // in elements
  int rank() const { return static_cast<int>(shape_.size()); }
  int64_t dim(int d) const { return shape_[d]; }
  int64_t stride(int d) const { return strides_[d]; }
  int64_t elements() const;
  int64_t bytes() const;       // elements * element size, whatever the strides
  int64_t span_bytes() const;  // from the first element to the end of the last; 0 without elements
  bool contiguous() const;
  bool empty() const { return data_ == nullptr; }  // no tensor (an omitted optional operand)

  // Returns the view of elements [begin, end) of one dim.
  TensorView Slice(int dim, int64_t begin, int64_t end) const;
  // Returns the same memory with another shape. Precondition: contiguous, same number of elements.
  TensorView Reshape(Shape shape) const;
  // Swaps two dims; moves no data.
  TensorView Transpose(int dim0, int dim1) const;

 private:
  void* data_ = nullptr;
  DType dtype_ = DType::kF32;
  Shape shape_;
  std::vector<int64_t> strides_;
};

// A function that is called with memory right before an update overwrites it, to wait for pending
// reads of the memory. Null if there are no such reads.
using BeforeOverwrite = std::function<void(const TensorView& memory)>;

// An owning, contiguous tensor, zero-initialised; aligned to 4096 bytes on the host, to 256 on a
// GPU. Move-only. The memory is counted, see memory.h. GPU memory is in the order of the GPU's
// compute stream, see device_tensors.h; the host cannot access it.
class Tensor {
 public:
  Tensor() = default;
  Tensor(DType dtype, Shape shape, Device device = {});
  Tensor(Tensor&&) = default;
  Tensor& operator=(Tensor&&) = default;

  const TensorView& view() const { return view_; }
  operator const TensorView&() const { return view_; }
  const Device& device() const { return device_; }

 private:
  std::shared_ptr<void> buffer_;
  TensorView view_;
  Device device_;
};

}  // namespace tessera

#endif  // TESSERA_TENSOR_TENSOR_H_
