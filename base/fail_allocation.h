#ifndef TESSERA_BASE_FAIL_ALLOCATION_H_
#define TESSERA_BASE_FAIL_ALLOCATION_H_

#include <cstdint>

namespace tessera {

// Makes allocations fail, for tests of what happens without memory. A program that links this has
// an operator new that throws std::bad_alloc when it is told to.
//
//   bool happened = true;
//   for (int64_t n = 0; happened; ++n) {
//     const FailAllocation fail(n);
//     ...
//     happened = fail.happened();
//   }
//
// Counts the allocations of the thread that makes the object, from 0, while the object exists. Only
// one object may exist at a time.
class FailAllocation {
 public:
  // Lets the allocation with this number fail and, with `and_later`, all that follow it.
  explicit FailAllocation(int64_t number, bool and_later = false);
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
