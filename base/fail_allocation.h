#ifndef TESSERA_BASE_FAIL_ALLOCATION_H_
#define TESSERA_BASE_FAIL_ALLOCATION_H_

#include <cstdint>

namespace tessera {

// Makes allocations fail, for tests of what happens without memory. A program that links this has
// an operator new that throws std::bad_alloc when it is told to.
//
//   bool happened = true;
//   for (int64_t n = 0; happened; ++n) {
//     const FailAllocation fail(FailAllocation::Of::kEveryThread, n);
//     ...
//     happened = fail.happened();
//   }
//
// Allocations are counted from 0 while the object exists. Only one object may exist at a time.
class FailAllocation {
 public:
  enum class Of { kThisThread, kEveryThread };

  // Lets the allocation with this number fail and, with `and_later`, all that follow it.
  FailAllocation(Of of, int64_t number, bool and_later = false);
  ~FailAllocation();
  FailAllocation(const FailAllocation&) = delete;
  FailAllocation& operator=(const FailAllocation&) = delete;

  // Returns whether an allocation has failed.
  bool happened() const;
  // Returns the number of allocations.
  int64_t count() const;
};

}  // namespace tessera

#endif  // TESSERA_BASE_FAIL_ALLOCATION_H_
