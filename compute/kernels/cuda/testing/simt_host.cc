#include "compute/kernels/cuda/testing/simt_host.h"

#include <glog/logging.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <algorithm>
#include <cfenv>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <sstream>
#include <unordered_map>
#include <utility>
#include <vector>

#include "compute/kernels/cuda/testing/fiber.h"
#include "compute/kernels/cuda/testing/simulated_arithmetic.h"
#include "compute/kernels/cuda/testing/simulated_products.h"

namespace tessera::simt {
namespace internal {
namespace {

constexpr Extent kAllMemory = {0, UINTPTR_MAX};

}  // namespace

constinit thread_local Position position;
constinit thread_local Extent unchecked = kAllMemory;

namespace {

thread_local Arithmetic arithmetic = Arithmetic::kIeee;

// What the calling fiber's processor is to do otherwise than IEEE 754 says.
#if defined(__x86_64__)
constexpr unsigned kFlush = 0x8040, kRoundTowardZero = 0x6000;  // of MXCSR
void SetMode(unsigned mode) {
  constexpr unsigned kMasks = 0x1f80;  // no exception is a signal
  _mm_setcsr(kMasks | mode);
}
#elif defined(__aarch64__)
constexpr unsigned kFlush = 1 << 24, kRoundTowardZero = 3 << 22;  // of FPCR
void SetMode(unsigned mode) {
  fenv_t environment;
  fegetenv(&environment);
  environment.__fpcr = mode;
  fesetenv(&environment);
}
#endif

// Makes the calling fiber compute so. Switches between fibers keep it.
void ApplyArithmetic() {
  SetMode(arithmetic == Arithmetic::kFlushesSubnormals  ? kFlush
          : arithmetic == Arithmetic::kRoundsTowardZero ? kRoundTowardZero
                                                        : 0);
}

// SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014). Each
// switch of threads takes a number.
class Random {
 public:
  using result_type = uint64_t;
  explicit Random(uint64_t seed) : state_(seed) {}
  static constexpr uint64_t min() { return 0; }
  static constexpr uint64_t max() { return UINT64_MAX; }
  uint64_t operator()() {
    state_ += 0x9e3779b97f4a7c15;
    uint64_t x = state_;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
  }
  // Returns a number below `end`, which has 32 bits.
  size_t Below(size_t end) { return ((*this)() >> 32) * end >> 32; }

 private:
  uint64_t state_;
};

enum class State { kNotStarted, kReady, kAtBarrier, kAtMeeting, kDone };

// A thread of the block that runs.
struct Thread {
  State state = State::kNotStarted;
  Fiber* fiber = nullptr;
  Site site = {};            // of the barrier or meeting
  const char* meeting = "";  // "a shuffle", ...
  uint32_t lanes = 0;        // that the meeting names
  const void* input = nullptr;
  void* output = nullptr;
  const int32_t* turn = nullptr;  // that it has, until a thread of the block passes it
};

std::string ToString(const Site& site) {
  const std::string_view path = site.file;
  const size_t slash = path.rfind('/');
  return std::string(slash == std::string_view::npos ? path : path.substr(slash + 1)) + ":" +
         std::to_string(site.line);
}

// The fibers that no simulator has. Threads come and go, and memory for a stack takes the system
// much longer than a launch takes to use it.
class FreeFibers {
 public:
  std::unique_ptr<Fiber> Take() {
    const std::lock_guard lock(mutex_);
    if (fibers_.empty()) return std::make_unique<Fiber>();
    std::unique_ptr<Fiber> fiber = std::move(fibers_.back());
    fibers_.pop_back();
    return fiber;
  }
  void Return(std::vector<std::unique_ptr<Fiber>> fibers) {
    const std::lock_guard lock(mutex_);
    for (std::unique_ptr<Fiber>& fiber : fibers) fibers_.push_back(std::move(fiber));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
};

FreeFibers& TheFreeFibers() {
  static FreeFibers& fibers = *new FreeFibers;
  return fibers;
}

// Runs the blocks of this thread's launches.
class Simulator;
thread_local Simulator* running = nullptr;  // while a thread of a block runs

class Simulator {
 public:
  Simulator() = default;
  Simulator(const Simulator&) = delete;
  Simulator& operator=(const Simulator&) = delete;
  ~Simulator() { TheFreeFibers().Return(std::move(fibers_)); }

  void SetOptions(const SimulatorOptions& options) {
    options_ = options;
    random_ = Random(options.seed);
  }
  void SetSimulatedArithmetic(Arithmetic arithmetic) { internal::arithmetic = arithmetic; }

  Counters TakeCounters() { return std::exchange(counters_, {}); }

  void Run(std::string_view pretty_name, Grid grid, int threads, int64_t shared_bytes,
           int64_t max_shared_bytes, const GlobalAccess::FindMemory& find_memory,
           const std::string& scope, const std::vector<Extent>& operands, const ThreadBody& body);

  // Called on fibers.
  void SetError(const std::string& what);
  [[noreturn]] void EndThread();
  void Barrier(Site site);
  void Meet(const char* kind, uint32_t lanes, const void* input, void* output, Exchange exchange,
            Site site);
  SharedAccess& shared() { return shared_; }
  WarpgroupProducts& products() { return products_; }
  // Ends the thread if something is wrong.
  void Require(const std::string& wrong);
  void CheckGlobal(const void* address, int64_t bytes, GlobalAccess::Kind kind);
  void AwaitTurn(const int32_t* turn, int32_t count);
  void PassTurn(int32_t* turn);
  void AccessInTurn(const int32_t* turn, const void* address, int64_t bytes);

 private:
  // Called before the text of an error is made, by functions of strings that may be those that the
  // linker has found in the sources of kernels, which report their accesses.
  void StopWatching() { unchecked = kAllMemory; }
  bool WithinLimits(Grid grid, int threads, int64_t shared_bytes);
  std::vector<int64_t> BlockOrder(int64_t blocks);
  void RunBlock(int threads, int64_t shared_bytes, const std::function<void()>& thread_body);
  void RunThread(int index, const std::function<void()>& thread_body);
  std::string DescribeOperand(uintptr_t address) const;
  Fiber* TakeFiber();
  void MakeReady(int index);
  void Wait();
  // Why no thread can run although some have not finished.
  std::string Deadlock() const;
  std::string Describe(int index) const;

  SimulatorOptions options_;
  Random random_{options_.seed};
  std::string& error_ = LaunchError();
  Counters counters_;
  std::string kernel_;
  Grid grid_;
  int64_t max_shared_bytes_ = 0;

  // The state of the block that runs.
  std::vector<Thread> threads_;
  std::vector<int> runnable_;  // not started, or ready
  int finished_ = 0;
  int at_barrier_ = 0;
  int first_at_barrier_ = 0;
  SharedAccess shared_;
  WarpgroupProducts products_{shared_};
  int64_t block_index_ = 0;
  GlobalAccess global_;
  std::unordered_map<uintptr_t, const int32_t*> turns_;  // by the memory that is used in them
  Extent arguments_;                                     // of the kernel
  std::vector<Extent> operands_;                         // of the operation
  std::string race_;
  // The lanes of each warp that wait for all of it, at the place of the first, while no lane of it
  // has returned or waits for some: what most meetings are.
  struct Warp {
    int at_whole_meeting = 0;
    int first = 0;
    bool ordinary = true;
  };
  std::vector<Warp> warps_;

  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_fibers_;
};

Simulator& ThisSimulator() {
  thread_local Simulator simulator;
  return simulator;
}

bool Simulator::WithinLimits(Grid grid, int threads, int64_t shared_bytes) {
  std::string what;
  if (!IsWithinLimits(grid)) {
    what = "a grid of " + ToString(grid);
  } else if (threads < 1 || threads > kMaxThreads || threads % kWarpSize != 0) {
    what = "blocks of " + std::to_string(threads) + " threads";
  } else if (shared_bytes < 0 || shared_bytes > max_shared_bytes_) {
    what = std::to_string(shared_bytes) + " bytes of shared memory";
  } else {
    return true;
  }
  error_ = kernel_ + ": launched with " + what;
  return false;
}

// All blocks, or a sample of them, in random order.
std::vector<int64_t> Simulator::BlockOrder(int64_t blocks) {
  std::vector<int64_t> order;
  const int64_t sample = options_.sampled_blocks;
  if (sample == 0 || blocks <= sample) {
    order.resize(blocks);
    std::iota(order.begin(), order.end(), 0);
  } else {
    order = {0, blocks - 1};
    std::uniform_int_distribution<int64_t> any(0, blocks - 1);
    while (static_cast<int64_t>(order.size()) < sample) order.push_back(any(random_));
    std::sort(order.begin(), order.end());
    order.erase(std::unique(order.begin(), order.end()), order.end());
  }
  std::shuffle(order.begin(), order.end(), random_);
  return order;
}

void Simulator::Run(std::string_view pretty_name, Grid grid, int threads, int64_t shared_bytes,
                    int64_t max_shared_bytes, const GlobalAccess::FindMemory& find_memory,
                    const std::string& scope, const std::vector<Extent>& operands,
                    const ThreadBody& body) {
  if (!error_.empty()) return;
  max_shared_bytes_ = max_shared_bytes;
  const auto arguments = reinterpret_cast<uintptr_t>(body.arguments.get());
  arguments_ = {arguments, arguments + static_cast<uintptr_t>(body.bytes)};
  operands_ = operands;
  kernel_ = ShortKernelName(pretty_name);
  grid_ = grid;
  if (WithinLimits(grid, threads, shared_bytes) && grid.x > 0 && grid.y > 0 && grid.z > 0) {
    ++counters_.launches;
    global_.Reset(find_memory);
    turns_.clear();
    const std::function<void()> run = [&body] {
      ApplyArithmetic();
      body.run(body.arguments.get());
    };
    for (const int64_t block : BlockOrder(grid.x * grid.y * grid.z)) {
      position.block = {block % grid.x, block / grid.x % grid.y, block / grid.x / grid.y};
      block_index_ = block;
      RunBlock(threads, shared_bytes, run);
      if (!error_.empty()) break;
    }
  }
  if (!error_.empty()) error_ += scope;
}

void Simulator::RunBlock(int threads, int64_t shared_bytes,
                         const std::function<void()>& thread_body) {
  ++counters_.blocks;
  counters_.threads += threads;
  position.threads = threads;
  threads_.assign(threads, Thread());
  warps_.assign(threads / kWarpSize, Warp());
  shared_.Reset(shared_bytes, threads);
  products_.Reset(threads);
  finished_ = 0;
  at_barrier_ = 0;
  runnable_.resize(threads);
  std::iota(runnable_.begin(), runnable_.end(), 0);
  while (error_.empty() && finished_ < threads) {
    if (runnable_.empty()) {
      error_ = Deadlock();
      break;
    }
    const int index = std::exchange(runnable_[random_.Below(runnable_.size())], runnable_.back());
    runnable_.pop_back();
    RunThread(index, thread_body);
  }
  if (const std::string wrong = products_.CheckEnd(); !wrong.empty()) SetError(wrong);
  if (!error_.empty()) shared_.Abandon();
  for (Thread& thread : threads_) {
    if (thread.state == State::kDone || thread.fiber == nullptr) continue;
    thread.fiber->Reset();
    idle_fibers_.push_back(thread.fiber);
  }
}

Fiber* Simulator::TakeFiber() {
  if (idle_fibers_.empty()) {
    fibers_.push_back(TheFreeFibers().Take());
    return fibers_.back().get();
  }
  Fiber* const fiber = idle_fibers_.back();
  idle_fibers_.pop_back();
  return fiber;
}

// Until the thread waits, fails or returns.
void Simulator::RunThread(int index, const std::function<void()>& thread_body) {
  Thread& thread = threads_[index];
  position.thread = index;
  const bool start = thread.state == State::kNotStarted;
  thread.state = State::kReady;
  running = this;
  if (start) {
    thread.fiber = TakeFiber();
    unchecked = thread.fiber->stack();
    thread.fiber->Start(thread_body);
  } else {
    unchecked = thread.fiber->stack();
    thread.fiber->Resume();
  }
  unchecked = kAllMemory;
  running = nullptr;
  if (thread.fiber->running()) return;
  if (shared_.IsCopying(index)) SetError("returns and has not waited for its copies");
  if (products_.IsPending(index)) SetError("returns and has not waited for its products");
  thread.state = State::kDone;
  warps_[index / kWarpSize].ordinary = false;
  ++finished_;
  idle_fibers_.push_back(thread.fiber);
}

void Simulator::MakeReady(int index) {
  threads_[index].state = State::kReady;
  runnable_.push_back(index);
}

void Simulator::Wait() {
  const int index = position.thread;
  threads_[index].fiber->Yield();
  CHECK_EQ(position.thread, index);
}

void Simulator::SetError(const std::string& what) {
  StopWatching();
  if (!error_.empty()) return;
  error_ = kernel_ + ": block " + ToString(position.block) + " of " + ToString(grid_) +
           ", thread " + std::to_string(position.thread) + ": " + what;
}

void Simulator::EndThread() {
  for (;;) Wait();  // RunBlock() ends with the error and abandons the fiber.
}

void Simulator::Require(const std::string& wrong) {
  if (wrong.empty()) return;
  SetError(wrong);
  EndThread();
}

std::string Simulator::Describe(int index) const {
  const Thread& thread = threads_[index];
  const std::string name = "thread " + std::to_string(index);
  switch (thread.state) {
    case State::kAtBarrier:
      return name + " waits at the barrier " + ToString(thread.site);
    case State::kAtMeeting:
      return name + " waits at " + thread.meeting + " at " + ToString(thread.site);
    default:
      return name + " has returned";
  }
}

std::string Simulator::Deadlock() const {
  // One thread of each kind explains it.
  std::string text;
  std::array<bool, 5> described = {};
  for (int i = 0; i < static_cast<int>(threads_.size()); ++i) {
    bool& done = described[static_cast<size_t>(threads_[i].state)];
    if (done) continue;
    done = true;
    text += (text.empty() ? "" : ", ") + Describe(i);
  }
  return kernel_ + ": block " + ToString(position.block) + " of " + ToString(grid_) +
         ": divergent barrier: " + text;
}

void Simulator::Barrier(Site site) {
  const int index = position.thread;
  Thread& thread = threads_[index];
  thread.state = State::kAtBarrier;
  thread.site = site;
  if (at_barrier_ == 0) first_at_barrier_ = index;
  if (!(threads_[first_at_barrier_].site == site)) {
    StopWatching();
    SetError("divergent barrier: it waits at " + ToString(site) + ", and " +
             Describe(first_at_barrier_));
    EndThread();
  }
  ++at_barrier_;
  if (at_barrier_ == static_cast<int>(threads_.size())) {
    ++counters_.barriers;
    at_barrier_ = 0;
    shared_.SyncBlock();
    for (int i = 0; i < static_cast<int>(threads_.size()); ++i) MakeReady(i);
  }
  Wait();
}

void Simulator::Meet(const char* kind, uint32_t lanes, const void* input, void* output,
                     Exchange exchange, Site site) {
  const int index = position.thread;
  const int first = index / kWarpSize * kWarpSize;
  if ((lanes >> (index - first) & 1) == 0) {
    StopWatching();
    SetError(std::string("lane mask of ") + kind + " at " + ToString(site) +
             " does not name the lane that uses it");
    EndThread();
  }
  Thread& self = threads_[index];
  self = {State::kAtMeeting, self.fiber, site, kind, lanes, input, output, self.turn};
  Warp& warp = warps_[index / kWarpSize];
  warp.ordinary = warp.ordinary && lanes == kAllLanes;
  if (warp.ordinary) {
    if (warp.at_whole_meeting++ == 0) warp.first = index;
    const bool same = threads_[warp.first].site == site;
    if (same && warp.at_whole_meeting < kWarpSize) return Wait();
    warp.at_whole_meeting = 0;
  }
  const void* inputs[kWarpSize] = {};
  void* outputs[kWarpSize] = {};
  bool complete = true;
  for (int lane = 0; lane < kWarpSize; ++lane) {
    if ((lanes >> lane & 1) == 0) continue;
    const Thread& other = threads_[first + lane];
    if (other.state == State::kDone) {
      StopWatching();
      SetError(std::string("lane mask of ") + kind + " at " + ToString(site) + " names lane " +
               std::to_string(lane) + ", and " + Describe(first + lane));
      EndThread();
    }
    if (other.state != State::kAtMeeting) {
      complete = false;
      continue;
    }
    const bool same = other.lanes == lanes && other.site == site;
    if (!same && (other.lanes >> (index - first) & 1) != 0) {
      StopWatching();
      SetError(std::string("lane mask of ") + kind + " at " + ToString(site) +
               ": the lanes disagree, " + Describe(first + lane) + " with another mask or place");
      EndThread();
    }
    complete = complete && same;
    inputs[lane] = other.input;
    outputs[lane] = other.output;
  }
  if (complete) {
    // Reads and writes what is on the stacks of other threads.
    const Extent stack = std::exchange(unchecked, kAllMemory);
    exchange(inputs, outputs);
    unchecked = stack;
    for (int lane = 0; lane < kWarpSize; ++lane) {
      if ((lanes >> lane & 1) != 0) MakeReady(first + lane);
    }
  }
  Wait();
}

void Simulator::CheckGlobal(const void* address, int64_t bytes, GlobalAccess::Kind kind) {
  const char* const at = static_cast<const char*>(address);
  const auto number = reinterpret_cast<uintptr_t>(at);
  const auto own = reinterpret_cast<uintptr_t>(&position);
  if (number - arguments_.begin < arguments_.end - arguments_.begin) return;
  if (number - own < sizeof(position)) return;
  if (at >= shared_.data() && at < shared_.data() + shared_.bytes()) return;
  ++counters_.global_accesses;
  if (global_.Check(block_index_, address, bytes, kind, &race_)) return;
  StopWatching();
  std::ostringstream text;
  text << std::exchange(race_, "") << " (" << bytes << " bytes of global memory at 0x" << std::hex
       << reinterpret_cast<uintptr_t>(address) << ")"
       << DescribeOperand(reinterpret_cast<uintptr_t>(address));
  SetError(text.str());
  text.str("");
  EndThread();
}

// Blocks run one after the other: what a block waits for has happened, or never will.
void Simulator::AwaitTurn(const int32_t* turn, int32_t count) {
  internal::AccessGlobal(turn, sizeof(*turn), GlobalAccess::Kind::kAtomic);
  if (*turn != count) {
    StopWatching();
    SetError("waits for turn " + std::to_string(count) + ", which no block before has passed");
    EndThread();
  }
  threads_[position.thread].turn = turn;
}

void Simulator::PassTurn(int32_t* turn) {
  internal::AccessGlobal(turn, sizeof(*turn), GlobalAccess::Kind::kAtomic);
  if (threads_[position.thread].turn != turn) {
    StopWatching();
    SetError("passes a turn that it does not have");
    EndThread();
  }
  for (Thread& thread : threads_) {
    if (thread.turn == turn) thread.turn = nullptr;
  }
  ++*turn;
}

void Simulator::AccessInTurn(const int32_t* turn, const void* address, int64_t bytes) {
  internal::AccessGlobal(address, bytes, GlobalAccess::Kind::kAtomic);
  const auto [first, added] = turns_.emplace(reinterpret_cast<uintptr_t>(address), turn);
  if (threads_[position.thread].turn == turn && first->second == turn) return;
  StopWatching();
  SetError("uses memory out of turn");
  EndThread();
}

// Returns "; operand 2", in the order of the operation's description, which names the first ones.
std::string Simulator::DescribeOperand(uintptr_t address) const {
  for (size_t i = 0; i < operands_.size(); ++i) {
    if (address < operands_[i].begin || address >= operands_[i].end) continue;
    return "; operand " + std::to_string(i + 1);
  }
  return operands_.empty() ? "" : "; another operand than these";
}

}  // namespace

void CheckGlobal(const void* address, int64_t bytes, GlobalAccess::Kind kind) {
  running->CheckGlobal(address, bytes, kind);
}

void SetError(const std::string& what) { running->SetError(what); }

void EndThread() { running->EndThread(); }

void MeetLanes(const char* kind, uint32_t lanes, const void* input, void* output, Exchange exchange,
               Site site) {
  running->Meet(kind, lanes, input, output, exchange, site);
}

void CheckSource(const void* const inputs[kWarpSize], int lane, int from) {
  if (from >= 0 && from < kWarpSize && inputs[from] != nullptr) return;
  SetError("lane " + std::to_string(lane) + " reads from lane " + std::to_string(from) +
           ", which the lane mask does not name");
  EndThread();
}

void OutOfBounds(int64_t i, int64_t count) {
  SetError("element " + std::to_string(i) + " of an array of " + std::to_string(count) +
           " in shared memory");
  EndThread();
}

void TakesTooMuch(int64_t bytes) {
  SetError("takes " + std::to_string(bytes) + " bytes of shared memory, launched with " +
           std::to_string(SharedBytes()));
  EndThread();
}

void PackIsNotAligned() {
  SetError("a pack in shared memory is not aligned");
  EndThread();
}

// Apart from AccessShared(), most of whose calls take as long as a frame with texts.
[[noreturn, gnu::noinline]] void FailShared(const char* error, int64_t begin_byte, int64_t bytes) {
  SetError(std::string(error) + " (bytes " + std::to_string(begin_byte) + " to " +
           std::to_string(begin_byte + bytes) + " of shared memory)");
  EndThread();
}

char* AccessShared(int64_t begin_byte, int64_t bytes, Use use) {
  SharedAccess& shared = running->shared();
  const char* const error = shared.Check(position.thread, begin_byte, bytes, use);
  if (error != nullptr) FailShared(error, begin_byte, bytes);
  return shared.data() + begin_byte;
}

void CopyInTurn(const int32_t* turn, const void* used, const void* from, int64_t bytes, void* to) {
  running->AccessInTurn(turn, used, bytes);
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

int64_t SharedBytes() { return running->shared().bytes(); }

void CopyAsync(char* to, const void* from) {
  if (from != nullptr) AccessGlobal(from, 16, GlobalAccess::Kind::kRead);
  running->shared().CopyPack(position.thread, to, from);
}

void CheckAlignment(const void* address, int64_t alignment) {
  if (reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(alignment) != 0) {
    SetError("a pack of " + std::to_string(alignment) + " bytes is not aligned");
    EndThread();
  }
}

void RunLaunch(std::string_view pretty_name, Grid grid, int threads, int64_t shared_bytes,
               Stream stream, ThreadBody body) {
  const int64_t max_shared_bytes = stream == nullptr ? kMaxSharedBytes : stream->max_shared_bytes();
  const auto run = [=, find_memory = stream == nullptr ? nullptr : stream->find_memory(),
                    scope = LaunchScope::DescribeCurrent(),
                    operands = LaunchScope::CurrentOperands()] {
    ThisSimulator().Run(pretty_name, grid, threads, shared_bytes, max_shared_bytes, find_memory,
                        scope, operands, body);
  };
  if (stream == nullptr) {
    run();
  } else {
    stream->Add(run);
  }
}

}  // namespace internal

void SetSimulatorOptions(const SimulatorOptions& options) {
  internal::ThisSimulator().SetOptions(options);
}

void SetSimulatedArithmetic(Arithmetic arithmetic) { internal::arithmetic = arithmetic; }

Counters TakeCounters() { return internal::ThisSimulator().TakeCounters(); }

int32_t AtomicAdd(int32_t* address, int32_t value) {
  internal::AccessGlobal(address, sizeof(int32_t), GlobalAccess::Kind::kAtomic);
  return std::exchange(*address, *address + value);
}

void AwaitTurn(const int32_t* turn, int32_t count) { internal::running->AwaitTurn(turn, count); }
void PassTurn(int32_t* turn) { internal::running->PassTurn(turn); }

void WaitForCopies() { internal::running->shared().FinishCopies(internal::position.thread); }

void FenceProxy() { internal::running->shared().FenceProxy(internal::position.thread); }

void FenceRegisters(std::initializer_list<Registers> registers, Site site) {
  internal::MeetLanes(
      "a fence of products", kAllLanes, &registers, nullptr,
      [](const void* const inputs[kWarpSize], void* const*) {
        const std::initializer_list<Registers>* lanes[kWarpSize];
        for (int lane = 0; lane < kWarpSize; ++lane) {
          lanes[lane] = static_cast<const std::initializer_list<Registers>*>(inputs[lane]);
        }
        internal::running->products().Fence(internal::position.thread, lanes);
      },
      site);
}

void QueueProduct(const QueuedProduct& product) {
  internal::MeetLanes(
      "a product", kAllLanes, &product, nullptr,
      [](const void* const inputs[kWarpSize], void* const*) {
        const QueuedProduct* lanes[kWarpSize];
        for (int lane = 0; lane < kWarpSize; ++lane) {
          lanes[lane] = static_cast<const QueuedProduct*>(inputs[lane]);
        }
        internal::Simulator& simulator = *internal::running;
        simulator.Require(simulator.products().Queue(internal::position.thread, lanes));
      },
      product.site);
}

void CommitProducts(Site site) {
  internal::MeetLanes(
      "a commit of products", kAllLanes, nullptr, nullptr,
      [](const void* const*, void* const*) {
        internal::running->products().Commit(internal::position.thread);
      },
      site);
}

void FinishProducts(int groups_left, Site site) {
  const std::pair<int, Site> wait(groups_left, site);
  internal::MeetLanes(
      "a wait for products", kAllLanes, &wait, nullptr,
      [](const void* const inputs[kWarpSize], void* const*) {
        const auto& [left, at] = *static_cast<const std::pair<int, Site>*>(inputs[0]);
        internal::Simulator& simulator = *internal::running;
        simulator.Require(simulator.products().Finish(internal::position.thread, left, at));
      },
      site);
}

void SyncThreads(Site site) { internal::running->Barrier(site); }

void SyncWarp(Site site) {
  internal::MeetLanes(
      "a warp's barrier", kAllLanes, nullptr, nullptr,
      [](const void* const*, void* const*) {
        internal::running->shared().SyncWarp(internal::position.thread / kWarpSize);
      },
      site);
}

}  // namespace tessera::simt
