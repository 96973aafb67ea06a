#ifndef TESSERA_COMPUTE_KERNELS_CUDA_TESTING_SIMT_HOST_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_TESTING_SIMT_HOST_H_

// simt.h on a simulated device: each thread of a block is a fiber of the calling thread, one block
// after the other. Included by simt.h; tests include it for SimulatorOptions and Counters.

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "compute/kernels/cuda/simt_common.h"
#include "compute/kernels/cuda/testing/memory_access.h"
#include "tensor/bfloat16.h"

#define TESSERA_KERNEL
#define TESSERA_BOUNDS(threads, blocks)
#define TESSERA_DEVICE inline
#define TESSERA_HOST_DEVICE inline
// A function whose accesses the compiler does not report.
#define TESSERA_UNWATCHED __attribute__((no_sanitize("thread")))

namespace tessera::simt {

// The shared memory that a block may have at compute capability 9.0. At 8.0 it is 163 KiB, at 8.6,
// 8.9 and 12.0 99 KiB.
inline constexpr int64_t kMaxSharedBytes = 227 * 1024;

// The address at which the shared memory of every block begins. On a device it is at least as
// aligned; kernels must not rely on more than 16 bytes.
inline constexpr int64_t kSharedAddress = 0x410;

// A simulated stream: runs launches in the order in which they are queued, now or later.
class WorkQueue {
 public:
  virtual ~WorkQueue() = default;
  virtual void Add(std::function<void()> work) = 0;
  // Returns the shared memory that a block may have on the stream's device.
  virtual int64_t max_shared_bytes() const { return kMaxSharedBytes; }
  // Returns what finds the device's memory while the work runs; null: all memory is the device's.
  virtual GlobalAccess::FindMemory find_memory() const { return nullptr; }
};
using Stream = WorkQueue*;  // null: launches run at once

struct SimulatorOptions {
  uint64_t seed = 1;  // of the order of blocks and threads
  // Number of blocks to run of larger grids: the first, the last, and others at random. 0: all.
  int64_t sampled_blocks = 0;
};
// Sets the options for launches of the calling thread. After an error, they do nothing until it is
// taken by TakeLaunchError().
void SetSimulatorOptions(const SimulatorOptions& options);

// Counts of what this thread's launches have run.
struct Counters {
  int64_t launches = 0;
  int64_t blocks = 0;
  int64_t threads = 0;
  int64_t barriers = 0;
  int64_t global_accesses = 0;  // of sources that report them
};
Counters TakeCounters();

// A place in a kernel: a barrier, or a shuffle.
struct Site {
  const char* file;
  int line;

  static constexpr Site Here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
  bool operator==(const Site& other) const { return line == other.line && file == other.file; }
};

struct Position {
  int thread = 0;
  int threads = 0;
  Grid block;
};

namespace internal {

extern constinit thread_local Position position;
using Use = SharedAccess::Use;

// Makes `what` the error of the running thread, unless its launch has one already.
void SetError(const std::string& what);
// Ends the running thread, its block and the launch after SetError(). Nothing on the thread's stack
// is unwound: callers must own nothing.
[[noreturn]] void EndThread();

inline constexpr int kMaxExchangeBytes = 64;
// Lets the lanes of `lanes` meet. When all are there, `exchange` gets each lane's input and output,
// null for the other lanes. `kind` names the operation in messages.
using Exchange = void (*)(const void* const inputs[kWarpSize], void* const outputs[kWarpSize]);
void MeetLanes(const char* kind, uint32_t lanes, const void* input, void* output, Exchange exchange,
               Site site);
// Ends the running thread if `lane` reads from a lane that has not come to the meeting.
void CheckSource(const void* const inputs[kWarpSize], int lane, int from);

// End the running thread, which uses shared memory wrongly.
[[noreturn]] void OutOfBounds(int64_t i, int64_t count);
[[noreturn]] void TakesTooMuch(int64_t bytes);
[[noreturn]] void PackIsNotAligned();

// Checks an access of the running thread to shared memory, and returns its address.
char* AccessShared(int64_t begin_byte, int64_t bytes, Use use);
// Begins the copy of a pack, of zeros if `from` is null. Called after an access for the copy.
void CopyAsync(char* to, const void* from);
// Return, or set, what is at a place of shared memory.
template <typename T>
TESSERA_UNWATCHED T ReadShared(int64_t begin_byte) {
  T value;
  std::memcpy(&value, AccessShared(begin_byte, sizeof(T), Use::kRead), sizeof(T));
  return value;
}
template <typename T>
TESSERA_UNWATCHED void WriteShared(int64_t begin_byte, T value) {
  std::memcpy(AccessShared(begin_byte, sizeof(T), Use::kWrite), &value, sizeof(T));
}
int64_t SharedBytes();
// Copies from or to `used`, global memory that blocks use in turn, after a check of the access.
void CopyInTurn(const int32_t* turn, const void* used, const void* from, int64_t bytes, void* to);
void CheckAlignment(const void* address, int64_t alignment);

// What each thread of a launch does, and the arguments of the kernel: memory that any thread reads.
struct ThreadBody {
  std::shared_ptr<const void> arguments;
  int64_t bytes = 0;
  void (*run)(const void* arguments) = nullptr;
};

void RunLaunch(std::string_view pretty_name, Grid grid, int threads, int64_t shared_bytes,
               Stream stream, ThreadBody body);

}  // namespace internal

TESSERA_UNWATCHED inline int ThreadIndex() { return internal::position.thread; }
TESSERA_UNWATCHED inline int ThreadCount() { return internal::position.threads; }
TESSERA_UNWATCHED inline int64_t BlockX() { return internal::position.block.x; }
TESSERA_UNWATCHED inline int64_t BlockY() { return internal::position.block.y; }
TESSERA_UNWATCHED inline int64_t BlockZ() { return internal::position.block.z; }

void WaitForCopies();
void SyncThreads(Site site = Site::Here());
void SyncWarp(Site site = Site::Here());

// In one meeting of the lanes.
template <int... kDistances, typename T, typename Combine>
T CombineLanes(uint32_t lanes, T value, const Combine& combine, Site site = Site::Here()) {
  struct Offer {
    T value;
    const Combine* combine;
  };
  static_assert(sizeof(Offer) <= internal::kMaxExchangeBytes);
  const Offer offer = {value, &combine};
  T result = value;
  internal::MeetLanes(
      "a shuffle", lanes, &offer, &result,
      [](const void* const inputs[kWarpSize], void* const outputs[kWarpSize]) {
        T values[sizeof...(kDistances) + 1][kWarpSize];
        for (int lane = 0; lane < kWarpSize; ++lane) {
          if (inputs[lane] != nullptr) {
            values[0][lane] = static_cast<const Offer*>(inputs[lane])->value;
          }
        }
        const auto step = [&](int distance, const T* before, T* after) {
          for (int lane = 0; lane < kWarpSize; ++lane) {
            if (inputs[lane] == nullptr) continue;
            internal::CheckSource(inputs, lane, lane ^ distance);
            const Offer& own = *static_cast<const Offer*>(inputs[lane]);
            after[lane] = (*own.combine)(before[lane], before[lane ^ distance]);
          }
        };
        int round = 0;
        ((step(kDistances, values[round], values[round + 1]), ++round), ...);
        for (int lane = 0; lane < kWarpSize; ++lane) {
          if (inputs[lane] != nullptr) *static_cast<T*>(outputs[lane]) = values[round][lane];
        }
      },
      site);
  return result;
}

template <typename T>
T ShuffleFrom(uint32_t lanes, T value, int source, Site site = Site::Here()) {
  struct Offer {
    T value;
    int source;
  };
  static_assert(sizeof(Offer) <= internal::kMaxExchangeBytes);
  const Offer offer = {value, source};
  T result = value;
  internal::MeetLanes(
      "a shuffle", lanes, &offer, &result,
      [](const void* const inputs[kWarpSize], void* const outputs[kWarpSize]) {
        for (int lane = 0; lane < kWarpSize; ++lane) {
          if (inputs[lane] == nullptr) continue;
          const int from = static_cast<const Offer*>(inputs[lane])->source;
          internal::CheckSource(inputs, lane, from);
          *static_cast<T*>(outputs[lane]) = static_cast<const Offer*>(inputs[from])->value;
        }
      },
      site);
  return result;
}

template <typename T>
T ShuffleXor(uint32_t lanes, T value, int distance, Site site = Site::Here()) {
  return ShuffleFrom(lanes, value, (ThreadIndex() % kWarpSize) ^ distance, site);
}

int32_t AtomicAdd(int32_t* address, int32_t value);
void AwaitTurn(const int32_t* turn, int32_t count);
void PassTurn(int32_t* turn);

template <typename T>
class SharedArray {
 public:
  SharedArray(int64_t begin_byte, int64_t count) : begin_byte_(begin_byte), count_(count) {}

  T Get(int i) const { return internal::ReadShared<T>(Place(i, 1)); }
  void Set(int i, T value) const { internal::WriteShared(Place(i, 1), value); }
  void SetPair(int i, uint32_t word) const {
    static_assert(sizeof(T) == 2);
    internal::WriteShared(Place(i, 2), word);
  }
  SharedArray Slice(int begin, int count) const {
    if (begin < 0 || count < 0 || begin + count > count_) {
      internal::OutOfBounds(begin + count, count_);
    }
    return SharedArray(begin_byte_ + begin * Bytes(1), count);
  }
  static constexpr int kPack = 16 / sizeof(T);
  void GetPack(int i, T (&to)[kPack]) const {
    const auto pack = internal::ReadShared<std::array<T, kPack>>(PackPlace(i));
    std::memcpy(to, pack.data(), sizeof(pack));
  }
  void CopyPackAsync(int i, const T* from, bool copies) const {
    internal::CheckAlignment(from, 16);
    internal::CopyAsync(AccessPack(i, internal::Use::kCopy), copies ? from : nullptr);
  }
  uint32_t Address(int i) const {
    return static_cast<uint32_t>(kSharedAddress + begin_byte_ + Bytes(i));
  }
  // Returns the address of a pack that every lane of the warp may read.
  const char* PackForWarp(int i) const { return AccessPack(i, internal::Use::kReadByWarp); }

 private:
  static int64_t Bytes(int64_t count) { return count * static_cast<int64_t>(sizeof(T)); }
  int64_t Place(int i, int count) const {
    if (i < 0 || i + count > count_) internal::OutOfBounds(i, count_);
    return begin_byte_ + Bytes(i);
  }

  int64_t PackPlace(int i) const {
    if ((begin_byte_ + Bytes(i)) % 16 != 0) internal::PackIsNotAligned();
    return Place(i, kPack);
  }
  char* AccessPack(int i, internal::Use use) const {
    return internal::AccessShared(PackPlace(i), Bytes(kPack), use);
  }

  int64_t begin_byte_;
  int64_t count_;
};

class SharedMemory {
 public:
  template <typename T>
  SharedArray<T> Take(int count) {
    const SharedArray<T> array(next_, count);
    const int64_t end = next_ + count * static_cast<int64_t>(sizeof(T));
    if (end > internal::SharedBytes()) internal::TakesTooMuch(end);
    next_ = (end + 15) / 16 * 16;
    return array;
  }
  void AlignTo(int bytes) { next_ += -(kSharedAddress + next_) & (bytes - 1); }

 private:
  int64_t next_ = 0;
};

inline float ToFloat(float value) { return value; }
inline float ToFloat(BFloat16 value) { return static_cast<float>(value); }
inline float Exp2(float x) { return std::exp2(x); }
inline float MaxOrNan(float a, float b) { return a > b || a != a ? a : b; }
template <typename T>
T FromFloat(float value) {
  const T rounded = static_cast<T>(value);
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (value != value) return std::bit_cast<BFloat16>(uint16_t{0x7fff});  // as the device has it
  }
  return rounded;
}
inline uint32_t BFloat16Pair(float first, float second) {
  return FromFloat<BFloat16>(first).bits | static_cast<uint32_t>(FromFloat<BFloat16>(second).bits)
                                               << 16;
}

template <int kCount, typename T>
Stored<T, kCount> LoadStored(const T* from) {
  internal::CheckAlignment(from, kPackAlignment<T, kCount>);
  Pack<T, kCount> pack;
  for (int i = 0; i < kCount; ++i) pack.elements[i] = from[i];
  return std::bit_cast<Stored<T, kCount>>(pack);
}

template <typename T, int kCount>
void Unpack(const Stored<T, kCount>& stored, float (&to)[kCount]) {
  const auto pack = std::bit_cast<Pack<T, kCount>>(stored);
  for (int i = 0; i < kCount; ++i) to[i] = ToFloat(pack.elements[i]);
}

template <typename T, int kCount>
void StoreStored(const Stored<T, kCount>& from, T* to) {
  internal::CheckAlignment(to, kPackAlignment<T, kCount>);
  const auto pack = std::bit_cast<Pack<T, kCount>>(from);
  for (int i = 0; i < kCount; ++i) to[i] = pack.elements[i];
}

template <int kCount, typename T>
void LoadPack(const T* from, float (&to)[kCount]) {
  Unpack<T>(LoadStored<kCount>(from), to);
}

template <int kCount, typename T>
void StorePack(const float (&from)[kCount], T* to) {
  internal::CheckAlignment(to, kPackAlignment<T, kCount>);
  for (int i = 0; i < kCount; ++i) to[i] = FromFloat<T>(from[i]);
}

template <int kCount>
void LoadInTurn(const int32_t* turn, const float* from, float (&to)[kCount]) {
  internal::CheckAlignment(from, kPackAlignment<float, kCount>);
  internal::CopyInTurn(turn, from, from, sizeof(to), to);
}
template <int kCount>
void StoreInTurn(const int32_t* turn, const float (&from)[kCount], float* to) {
  internal::CheckAlignment(to, kPackAlignment<float, kCount>);
  internal::CopyInTurn(turn, to, from, sizeof(from), to);
}

template <auto kKernel, typename... Arguments>
void Launch(Grid grid, int threads, int64_t shared_bytes, Stream stream, Arguments... arguments) {
  using All = std::tuple<Arguments...>;
  internal::RunLaunch(PrettyKernelName<kKernel>(), grid, threads, shared_bytes, stream,
                      {std::make_shared<const All>(arguments...), sizeof(All), [](const void* all) {
                         std::apply(kKernel, *static_cast<const All*>(all));
                       }});
}

}  // namespace tessera::simt

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_TESTING_SIMT_HOST_H_
