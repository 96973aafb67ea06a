#ifndef TESSERA_CHECKPOINT_TESTING_WATCHED_MEMORY_H_
#define TESSERA_CHECKPOINT_TESTING_WATCHED_MEMORY_H_

// Whoever writes from memory or reads it is seen, and can be stopped.

#include <sys/mman.h>
#include <time.h>

#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "storage/forwarding_storage.h"
#include "storage/storage.h"

namespace tessera::ckpt {

using OnWrite = std::function<absl::Status(std::span<const std::byte>)>;

// Writes from any memory, and calls a function before each write.
class WatchedStorage final : public ForwardingStorage {
 public:
  WatchedStorage(Storage& base, OnWrite on_write)
      : ForwardingStorage(base), on_write_(std::move(on_write)) {}

  StorageTraits Traits() override {
    return {.preferred_write_bytes = 1 << 20, .in_place_alignment_bytes = alignment_bytes};
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(std::string_view path,
                                                       uint64_t size_hint_bytes) override {
    TESSERA_ASSIGN_OR_RETURN(auto file, base().Create(path, size_hint_bytes));
    return std::make_unique<File>(std::move(file), on_write_);
  }

  uint64_t alignment_bytes = 1;

 private:
  class File final : public WritableFile {
   public:
    File(std::unique_ptr<WritableFile> base, const OnWrite& on_write)
        : base_(std::move(base)), on_write_(on_write) {}
    absl::Status WriteAt(uint64_t offset_bytes, std::span<const std::byte> data) override {
      const absl::Status status = on_write_(data);
      return status.ok() ? base_->WriteAt(offset_bytes, data) : status;
    }
    absl::Status Sync() override { return base_->Sync(); }
    absl::Status Close() override { return base_->Close(); }

   private:
    const std::unique_ptr<WritableFile> base_;
    const OnWrite& on_write_;
  };

  const OnWrite on_write_;
};

// Stops the first thread that reads a page, until Open().
class ReadTrap {
 public:
  explicit ReadTrap(std::span<std::byte> memory)
      : page_(reinterpret_cast<std::byte*>(
            (reinterpret_cast<uintptr_t>(memory.data() + memory.size() / 2)) & ~(kPageBytes - 1))) {
    armed_ = this;
    struct sigaction action = {};
    action.sa_sigaction = Stop;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, &before_);
    mprotect(page_, kPageBytes, PROT_NONE);
  }
  ~ReadTrap() {
    Open();
    sigaction(SIGSEGV, &before_, nullptr);
  }
  // Returns false where none comes.
  bool AwaitReader() const {
    for (int i = 0; i < 10'000 && !arrived_; ++i) Sleep();
    return arrived_;
  }
  void Open() { open_ = true; }
  // For writes, which read, too: leaves the trap to a check.
  static void LetOthersBeFirst() { armed_.load()->AwaitReader(); }

 private:
  static constexpr uintptr_t kPageBytes = 4096;

  static void Sleep() {
    const timespec time = {.tv_sec = 0, .tv_nsec = 1'000'000};
    nanosleep(&time, nullptr);
  }
  static void Stop(int signal, siginfo_t* info, void*) {
    ReadTrap* const trap = armed_;
    const auto* const at = static_cast<std::byte*>(info->si_addr);
    if (at < trap->page_ || at >= trap->page_ + kPageBytes) {
      sigaction(signal, &trap->before_, nullptr);
      return;
    }
    mprotect(trap->page_, kPageBytes, PROT_READ | PROT_WRITE);
    if (trap->arrived_.exchange(true)) return;  // another thread was first
    while (!trap->open_) Sleep();
  }

  static inline std::atomic<ReadTrap*> armed_ = nullptr;
  std::byte* const page_;
  struct sigaction before_ = {};
  std::atomic<bool> arrived_ = false, open_ = false;
};

// Stops the first thread that comes, until it is opened.
class Gate {
 public:
  void Pass() {
    std::call_once(first_, [&] {
      arrived_.count_down();
      open_.wait();
    });
  }
  void AwaitArrival() const { arrived_.wait(); }
  void Open() { open_.count_down(); }

 private:
  std::latch arrived_{1}, open_{1};
  std::once_flag first_;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_TESTING_WATCHED_MEMORY_H_
