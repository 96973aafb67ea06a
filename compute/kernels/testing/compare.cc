#include "compute/kernels/testing/compare.h"

#include <glog/logging.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iomanip>
#include <limits>
#include <sstream>

#include "compute/kernels/reference/array.h"
#include "layout/dtype.h"

namespace tessera::testing {
namespace {

// "[2,0,5]" for a row-major index.
std::string IndexText(int64_t element, const Shape& shape) {
  Shape indices(shape.size());
  for (size_t d = shape.size(); d-- > 0; element /= shape[d]) indices[d] = element % shape[d];
  return ShapeToString(indices);
}

// By how much the difference exceeds the tolerance, in absolute terms; at most 0 when within it.
double Excess(double actual, double expected, double allowed) {
  if (actual == expected || (std::isnan(actual) && std::isnan(expected))) return 0;
  const double error = std::abs(actual - expected);
  return std::isfinite(error) ? error - allowed : std::numeric_limits<double>::infinity();
}

// Returns whether the shapes agree, and reports a failure when they do not.
bool ExpectSameShape(const TensorView& actual, const TensorView& expected, const std::string& what,
                     const char* file, int line) {
  if (actual.shape() == expected.shape()) return true;
  ADD_FAILURE_AT(file, line) << what << ": shape " << ShapeToString(actual.shape()) << ", expected "
                             << ShapeToString(expected.shape());
  return false;
}

std::string HexBits(const TensorView& x, int64_t offset) {
  std::ostringstream text;
  const auto* bytes = x.as<unsigned char>() + offset * ElementSize(x.dtype());
  text << "0x" << std::hex << std::setfill('0');
  for (int64_t i = ElementSize(x.dtype()); i-- > 0;) text << std::setw(2) << int{bytes[i]};
  return text.str();
}

}  // namespace

Difference Compare(const TensorView& actual, const TensorView& expected,
                   const Tolerance& tolerance) {
  CHECK(actual.shape() == expected.shape());
  const reference::Array found(actual), wanted(expected);
  Difference difference;
  for (double value : wanted.values()) {
    if (std::isfinite(value)) {
      difference.max_expected = std::max(difference.max_expected, std::abs(value));
    }
  }
  double worst_excess = 0;
  for (size_t i = 0; i < wanted.values().size(); ++i) {
    const double a = found.values()[i], e = wanted.values()[i];
    const double magnitude = std::isfinite(e) ? std::abs(e) : 0;
    const double excess = Excess(a, e,
                                 tolerance.absolute + tolerance.relative * magnitude +
                                     tolerance.of_maximum * difference.max_expected);
    if (a != e && !(std::isnan(a) && std::isnan(e))) {
      const double error =
          std::isfinite(a - e) ? std::abs(a - e) : std::numeric_limits<double>::infinity();
      difference.max_absolute = std::max(difference.max_absolute, error);
      if (magnitude > 0) {
        difference.max_relative = std::max(difference.max_relative, error / magnitude);
      }
    }
    if (excess <= 0) continue;
    ++difference.wrong_elements;
    if (excess > worst_excess) {
      worst_excess = excess;
      difference.worst_element = static_cast<int64_t>(i);
    }
  }
  return difference;
}

double At(const TensorView& x, const std::vector<int64_t>& indices) {
  CHECK_EQ(static_cast<int>(indices.size()), x.rank());
  int64_t offset = 0;
  for (int d = 0; d < x.rank(); ++d) {
    CHECK(indices[d] >= 0 && indices[d] < x.dim(d)) << ShapeToString(indices);
    offset += indices[d] * x.stride(d);
  }
  return reference::LoadElement(x, offset);
}

void ExpectClose(const TensorView& actual, const TensorView& expected, const Tolerance& tolerance,
                 const std::string& what, const char* file, int line) {
  if (!ExpectSameShape(actual, expected, what, file, line)) return;
  const Difference difference = Compare(actual, expected, tolerance);
  if (difference.wrong_elements == 0) return;
  const int64_t worst = difference.worst_element;
  ADD_FAILURE_AT(file, line) << what << " " << ShapeToString(expected.shape()) << ": "
                             << difference.wrong_elements << " of " << expected.elements()
                             << " elements differ too much. Worst: "
                             << IndexText(worst, expected.shape()) << " is "
                             << std::setprecision(10) << reference::Array(actual).values()[worst]
                             << ", expected " << reference::Array(expected).values()[worst]
                             << ". Largest error: absolute " << std::setprecision(4)
                             << difference.max_absolute << ", relative " << difference.max_relative
                             << "; largest expected value " << difference.max_expected
                             << ". Allowed: absolute " << tolerance.absolute << " + relative "
                             << tolerance.relative << " + " << tolerance.of_maximum
                             << " of the largest.";
}

void ExpectBitwiseEqual(const TensorView& actual, const TensorView& expected,
                        const std::string& what, const char* file, int line) {
  if (!ExpectSameShape(actual, expected, what, file, line)) return;
  if (actual.dtype() != expected.dtype()) {
    ADD_FAILURE_AT(file, line) << what << ": dtype " << DTypeName(actual.dtype()) << ", expected "
                               << DTypeName(expected.dtype());
    return;
  }
  const std::vector<int64_t> found = reference::ElementOffsets(actual);
  const std::vector<int64_t> wanted = reference::ElementOffsets(expected);
  const int64_t size = ElementSize(actual.dtype());
  int64_t differing = 0, first = -1;
  for (size_t i = 0; i < found.size(); ++i) {
    if (std::memcmp(actual.as<char>() + found[i] * size, expected.as<char>() + wanted[i] * size,
                    size) == 0) {
      continue;
    }
    if (differing++ == 0) first = static_cast<int64_t>(i);
  }
  if (differing == 0) return;
  ADD_FAILURE_AT(file, line) << what << " " << ShapeToString(expected.shape()) << ": " << differing
                             << " of " << found.size() << " elements differ in their bits. First: "
                             << IndexText(first, expected.shape()) << " is "
                             << HexBits(actual, found[first]) << " ("
                             << reference::LoadElement(actual, found[first]) << "), expected "
                             << HexBits(expected, wanted[first]) << " ("
                             << reference::LoadElement(expected, wanted[first]) << ").";
}

}  // namespace tessera::testing
