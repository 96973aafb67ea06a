#include "compute/kernels/cuda/testing/fiber.h"

#include <glog/logging.h>
#include <sys/mman.h>

#include <cfenv>

#if defined(__SANITIZE_ADDRESS__)
#define TESSERA_FIBER_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TESSERA_FIBER_ASAN 1
#endif
#endif

#ifdef TESSERA_FIBER_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace tessera::simt {
namespace {

namespace context = boost::context::detail;

constexpr size_t kGuardBytes = 4096;
// How far below its end a stack may begin: of lines whose addresses differ by multiples of a page,
// caches hold few.
constexpr size_t kShifts = 16, kShiftBytes = 256;

#ifdef TESSERA_FIBER_ASAN
void StartSwitch(void** fake_stack, const void* bottom, size_t bytes) {
  __sanitizer_start_switch_fiber(fake_stack, bottom, bytes);
}
void FinishSwitch(void* fake_stack, const void** bottom, size_t* bytes) {
  __sanitizer_finish_switch_fiber(fake_stack, bottom, bytes);
}
void Unpoison(char* begin, size_t bytes) { __asan_unpoison_memory_region(begin, bytes); }
#else
void StartSwitch(void**, const void*, size_t) {}
void FinishSwitch(void*, const void**, size_t*) {}
void Unpoison(char*, size_t) {}
#endif

// Restores how the thread rounds and flushes. Boost's switches do so on x86-64, but not on ARM.
class KeptArithmetic {
#if defined(__aarch64__)
 public:
  KeptArithmetic() { fegetenv(&environment_); }
  ~KeptArithmetic() { fesetenv(&environment_); }

 private:
  fenv_t environment_;
#endif
};

}  // namespace

Fiber::Fiber() {
  void* const mapped = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  PCHECK(mapped != MAP_FAILED) << "no memory for the stack of a fiber";
  PCHECK(mprotect(mapped, kGuardBytes, PROT_NONE) == 0);
  stack_ = static_cast<char*>(mapped) + kGuardBytes;
}

Fiber::~Fiber() {
  Unpoison(stack_, kStackBytes);
  PCHECK(munmap(stack_ - kGuardBytes, kGuardBytes + kStackBytes) == 0);
}

void Fiber::Start(const std::function<void()>& body) {
  CHECK(!running_);
  body_ = &body;
  running_ = true;
  // A fiber whose body has returned waits for the next one in Enter().
  if (inside_ == nullptr) {
    const size_t place = reinterpret_cast<uintptr_t>(stack_) / (kGuardBytes + kStackBytes);
    const size_t bytes = kStackBytes - place % kShifts * kShiftBytes;
    inside_ = context::make_fcontext(stack_ + bytes, bytes, &Fiber::Enter);
  }
  Resume();
}

void Fiber::Resume() {
  CHECK(running_);
  StartSwitch(&outside_fake_stack_, stack_, kStackBytes);
  {
    [[maybe_unused]] const KeptArithmetic kept;
    inside_ = context::jump_fcontext(inside_, this).fctx;
  }
  FinishSwitch(outside_fake_stack_, nullptr, nullptr);
}

void Fiber::Yield() {
  StartSwitch(&inside_fake_stack_, outside_bottom_, outside_bytes_);
  {
    [[maybe_unused]] const KeptArithmetic kept;
    outside_ = context::jump_fcontext(outside_, nullptr).fctx;
  }
  FinishSwitch(inside_fake_stack_, &outside_bottom_, &outside_bytes_);
}

void Fiber::Reset() {
  if (!running_) return;
  running_ = false;
  inside_ = nullptr;
  inside_fake_stack_ = nullptr;
  Unpoison(stack_, kStackBytes);  // abandoned frames keep their red zones
}

void Fiber::Enter(context::transfer_t transfer) {
  Fiber* const fiber = static_cast<Fiber*>(transfer.data);
  FinishSwitch(nullptr, &fiber->outside_bottom_, &fiber->outside_bytes_);
  fiber->outside_ = transfer.fctx;
  for (;;) {
    (*fiber->body_)();
    fiber->running_ = false;
    fiber->Yield();
  }
}

}  // namespace tessera::simt
