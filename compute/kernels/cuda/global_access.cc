#include "compute/kernels/cuda/global_access.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace tessera::simt {
namespace {

constexpr uint32_t kSeveral = ~uint32_t{0};
constexpr size_t kMaxKeptPages = 4096;

// Whether a block other than `self` is recorded.
bool HasOther(uint32_t recorded, uint32_t self) { return recorded != 0 && recorded != self; }

bool Race(GlobalAccess::Kind kind, uint32_t other, const char* how, std::string* error) {
  *error += kind == GlobalAccess::Kind::kRead ? "reads what " : "writes what ";
  *error += other == kSeveral ? "other blocks" : "block " + std::to_string(other - 1);
  *error += how;
  return false;
}

}  // namespace

void GlobalAccess::Reset() {
  ++launch_;
  if (pages_.size() <= kMaxKeptPages) return;
  pages_.clear();
  recent_ = {};
}

GlobalAccess::Page& GlobalAccess::FindPage(uintptr_t index) {
  std::unique_ptr<Page>& page = pages_[index];
  if (page == nullptr) page = std::make_unique<Page>();
  if (page->launch != launch_) {
    page->index = index;
    page->launch = launch_;
    page->cells.fill({});
  }
  recent_[index % kRecentPages] = page.get();
  return *page;
}

bool GlobalAccess::Check(int64_t block, const void* address, int64_t bytes, Kind kind,
                         std::string* error) {
  const uint32_t self = static_cast<uint32_t>(block) + 1;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(address) / kCellBytes * kCellBytes;
  const uintptr_t end = reinterpret_cast<uintptr_t>(address) + static_cast<uintptr_t>(bytes);
  Page* page = &PageAt(begin / kPageBytes);
  for (uintptr_t at = begin; at < end; at += kCellBytes) {
    if (at > begin && at % kPageBytes == 0) page = &PageAt(at / kPageBytes);
    Cell& cell = page->cells[at % kPageBytes / kCellBytes];
    uint32_t& own = kind == Kind::kRead    ? cell.reader
                    : kind == Kind::kWrite ? cell.writer
                                           : cell.atomic;
    // What races with an access that is recorded has been found.
    if (own == self || own == kSeveral) continue;
    if (HasOther(cell.writer, self)) return Race(kind, cell.writer, " writes", error);
    if (kind != Kind::kAtomic && HasOther(cell.atomic, self)) {
      return Race(kind, cell.atomic, " changes by an atomic operation", error);
    }
    if (kind != Kind::kRead && HasOther(cell.reader, self)) {
      return Race(kind, cell.reader, " reads", error);
    }
    own = own == 0 ? self : kSeveral;
  }
  return true;
}

}  // namespace tessera::simt

#if !__has_feature(thread_sanitizer)

// What code calls that was compiled with -fsanitize=thread.
extern "C" {

// NOLINTBEGIN(bugprone-reserved-identifier): their names are the compiler's
void __tsan_init() {}
void __tsan_func_entry(void* /*caller*/) {}
void __tsan_func_exit() {}
void __tsan_vptr_read(void** /*at*/) {}
void __tsan_vptr_update(void** /*at*/, void* /*value*/) {}

// The standard library counts references by these.
int __tsan_atomic32_fetch_add(int* at, int value, int order) {
  (void)order;
  return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST);
}
int __tsan_atomic32_fetch_sub(int* at, int value, int order) {
  return __tsan_atomic32_fetch_add(at, -value, order);
}

#define TESSERA_DEFINE_ACCESSES(bytes)                                                           \
  void __tsan_read##bytes(void* at) {                                                            \
    tessera::simt::internal::AccessGlobal(at, bytes, tessera::simt::GlobalAccess::Kind::kRead);  \
  }                                                                                              \
  void __tsan_write##bytes(void* at) {                                                           \
    tessera::simt::internal::AccessGlobal(at, bytes, tessera::simt::GlobalAccess::Kind::kWrite); \
  }

TESSERA_DEFINE_ACCESSES(1)
TESSERA_DEFINE_ACCESSES(2)
TESSERA_DEFINE_ACCESSES(4)
TESSERA_DEFINE_ACCESSES(8)
TESSERA_DEFINE_ACCESSES(16)
#undef TESSERA_DEFINE_ACCESSES

void __tsan_unaligned_read2(void* at) { __tsan_read2(at); }
void __tsan_unaligned_read4(void* at) { __tsan_read4(at); }
void __tsan_unaligned_read8(void* at) { __tsan_read8(at); }
void __tsan_unaligned_read16(void* at) { __tsan_read16(at); }
void __tsan_unaligned_write2(void* at) { __tsan_write2(at); }
void __tsan_unaligned_write4(void* at) { __tsan_write4(at); }
void __tsan_unaligned_write8(void* at) { __tsan_write8(at); }
void __tsan_unaligned_write16(void* at) { __tsan_write16(at); }
// NOLINTEND(bugprone-reserved-identifier)

}  // extern "C"

#endif
