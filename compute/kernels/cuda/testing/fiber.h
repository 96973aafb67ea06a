#ifndef TESSERA_COMPUTE_KERNELS_CUDA_TESTING_FIBER_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_TESTING_FIBER_H_

#include <boost/context/detail/fcontext.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "compute/kernels/cuda/simt_common.h"

namespace tessera::simt {

// A stack of its own on which the calling thread runs a function until it yields or returns.
//
// Unlike boost::context::fiber, a fiber that yielded may be abandoned: nothing on its stack is
// unwound, so functions that may be abandoned must own nothing. Every switch is announced to
// AddressSanitizer. Not thread-safe: a run is the thread's that started it.
class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Begins `body`, which must outlive the run. Returns when it yields or returns. Precondition: no
  // run is in progress, or it was abandoned by Reset().
  void Start(const std::function<void()>& body);
  // Continues the run after Yield(). Returns as Start() does.
  void Resume();
  bool running() const { return running_; }  // started, and not returned
  Extent stack() const {
    const auto begin = reinterpret_cast<uintptr_t>(stack_);
    return {begin, begin + kStackBytes};
  }
  // Abandons the run in progress.
  void Reset();

  // Returns from Start() or Resume(), until the next Resume(). Called on the fiber.
  void Yield();

 private:
  static constexpr size_t kStackBytes = 256 * 1024;  // frames grow several times under a sanitizer

  static void Enter(boost::context::detail::transfer_t transfer);

  char* stack_;
  const std::function<void()>* body_ = nullptr;
  bool running_ = false;
  boost::context::detail::fcontext_t inside_ = nullptr;   // where the fiber stands
  boost::context::detail::fcontext_t outside_ = nullptr;  // where its caller stands
  void* inside_fake_stack_ = nullptr;
  void* outside_fake_stack_ = nullptr;
  const void* outside_bottom_ = nullptr;
  size_t outside_bytes_ = 0;
};

}  // namespace tessera::simt

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_TESTING_FIBER_H_
