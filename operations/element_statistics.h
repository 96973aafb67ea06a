#ifndef TESSERA_OPERATIONS_ELEMENT_STATISTICS_H_
#define TESSERA_OPERATIONS_ELEMENT_STATISTICS_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "layout/dtype.h"

namespace tessera::ckpt {

// Statistics of elements, of any dtype, taken in one pass without knowing their range. Integers and
// truth values count as numbers.
//
// The histogram has fixed bins: the sign, the exponent and the first two bits of the mantissa, as
// fp32 has them: sign * 1024 + (exponent + 127) * 4 + quarter. So each power of two has four bins
// of equal width. Magnitudes that are subnormal in fp32, or below, are all in the first bin of
// their sign; magnitudes that are too large for fp32 are in its last one.
//
// Counts, extremes and bins do not depend on the order in which elements are added; sums do, in
// their last bits.
struct ElementStatistics {
  static constexpr int kBinsPerSign = 1024;
  static constexpr int kBins = 2 * kBinsPerSign;

  int64_t elements = 0;
  int64_t zeros = 0;
  int64_t nans = 0;
  int64_t positive_infinities = 0;
  int64_t negative_infinities = 0;
  // The statistics below describe the finite elements. Without finite elements, min is above max.
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();
  // The sum, in a type that is wide enough for the squares of every dtype.
  long double sum = 0;
  long double squares = 0;
  // Counts of the finite elements that are not zero, by bin. Empty: they are not counted.
  std::vector<int64_t> bins;

  int64_t not_finite() const { return nans + positive_infinities + negative_infinities; }
  int64_t finite() const { return elements - not_finite(); }
  double mean() const { return static_cast<double>(sum / finite()); }  // NaN without elements
  double norm() const;

  // Adds the statistics of `other`. Bins are added if this object has bins.
  void Merge(const ElementStatistics& other);
};

// Adds `count` contiguous elements at `data`, which need not be aligned. Elements of an unknown
// dtype are not added.
void AddElements(DType dtype, const std::byte* data, int64_t count, ElementStatistics& statistics);

}  // namespace tessera::ckpt

#endif  // TESSERA_OPERATIONS_ELEMENT_STATISTICS_H_
