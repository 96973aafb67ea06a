#ifndef TESSERA_COMPUTE_KERNELS_REFERENCE_ARRAY_H_
#define TESSERA_COMPUTE_KERNELS_REFERENCE_ARRAY_H_

// Access to operands for the reference kernels: they read a view of any dtype and strides into a
// dense array of doubles, compute, and write the result back with one rounding. A kernel that reads
// before it writes therefore also works in place.

#include <cstdint>
#include <vector>

#include "compute/kernels/backend.h"
#include "layout/dtype.h"
#include "tensor/bfloat16.h"
#include "tensor/tensor.h"

namespace tessera::reference {

// Returns the element `offset` elements after x.data(); I32 elements are exact.
double LoadElement(const TensorView& x, int64_t offset);
// Stores a value, rounded once to the dtype of x, to nearest even.
void StoreElement(const TensorView& x, int64_t offset, double value);
// Rounds to nearest even in one step: going through fp32 would round twice.
BFloat16 RoundToBFloat16(double value);

// Returns `value` after a round trip through memory of this dtype.
double RoundTo(DType dtype, double value);

// Returns the offsets of all elements of x from x.data(), in row-major order of the indices.
std::vector<int64_t> ElementOffsets(const TensorView& x);

// A dense row-major array of doubles of rank 1 to 4.
class Array {
 public:
  // An array of zeros.
  explicit Array(Shape shape);
  // Copies x. An empty view (an omitted operand) becomes an array without elements.
  explicit Array(const TensorView& x);

  // Writes the array to `to`, which has its shape or is empty (an output that is not requested).
  void StoreTo(const TensorView& to) const;
  // Adds the array to `to`; the sum is rounded once.
  void AddTo(const TensorView& to) const;
  // Calls AddTo() if `accumulate`, otherwise StoreTo().
  void StoreTo(const TensorView& to, bool accumulate) const;

  const Shape& shape() const { return shape_; }
  int64_t dim(int d) const { return shape_[d]; }
  bool empty() const { return values_.empty(); }
  std::vector<double>& values() { return values_; }
  const std::vector<double>& values() const { return values_; }

  template <typename... Indices>
  double& operator()(Indices... indices) {
    return values_[Offset(indices...)];
  }
  template <typename... Indices>
  double operator()(Indices... indices) const {
    return values_[Offset(indices...)];
  }

 private:
  template <typename... Indices>
  size_t Offset(Indices... indices) const {
    size_t offset = 0;
    int d = 0;
    ((offset = offset * shape_[d++] + indices), ...);
    return offset;
  }

  Shape shape_;
  std::vector<double> values_;
};

// Returns the contents of an I32 tensor of rank 1.
std::vector<int64_t> LoadIds(const TensorView& ids);

// The backend of MakeReferenceBackend(). The formula of each operation is above its definition.
// Internal to this package.
class ReferenceBackend final : public Backend {
 public:
  Device device() const override { return {}; }
  bool takes_any_operands() const override { return true; }

 protected:
  using Backend::Run;
  TESSERA_PRIMITIVE_OPERATIONS(TESSERA_DECLARE_RUN)
};

}  // namespace tessera::reference

#endif  // TESSERA_COMPUTE_KERNELS_REFERENCE_ARRAY_H_
