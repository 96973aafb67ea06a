#ifndef TESSERA_TENSOR_TESTING_GUARDED_MEMORY_H_
#define TESSERA_TENSOR_TESTING_GUARDED_MEMORY_H_

#include <cstddef>
#include <cstdint>

namespace tessera {

// Memory for tests that may be touched only between Open() and Close(), which nest; any other
// access ends the process with a message. Starts closed. Memory from Take() is never reused. Not
// thread-safe.
class GuardedMemory {
 public:
  // The first Take() reserves that many bytes of addresses. Memory is used as it is touched.
  explicit GuardedMemory(size_t capacity_bytes);
  ~GuardedMemory();
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  // Returns memory that is aligned to a page. CHECKs that there is room.
  char* Take(int64_t bytes);

  void Open();
  void Close();

 private:
  void Protect(int protection);

  const size_t capacity_bytes_;
  char* memory_;
  size_t used_bytes_ = 0;
  int depth_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_TENSOR_TESTING_GUARDED_MEMORY_H_
