#ifndef TESSERA_COMM_COMMUNICATOR_H_
#define TESSERA_COMM_COMMUNICATOR_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "layout/dtype.h"
#include "tensor/bfloat16.h"
#include "tensor/tensor.h"

namespace tessera {

// How a group of ranks exchanges data. One interface has three implementations: threads/ (ranks are
// threads of one process), mpi/ (ranks are processes), and nccl/ (either of them, with a GPU a
// rank).
//
// - Buffers are plain addresses. A communicator is made for one device, and so are its buffers.
// - Every rank knows every size beforehand, except in the operations on byte strings, which are for
//   the host.
// - Reductions have one fixed order (see ReduceOp), so that results have the same bits in every
//   implementation.

// The type of one element on the wire. kBytes can be moved but not reduced.
enum class CommType : uint8_t { kF32, kBF16, kF64, kI32, kI64, kBytes };

CommType ToCommType(DType dtype);
int64_t ElementSize(CommType type);  // in bytes

template <typename T>
constexpr CommType CommTypeOf() {
  if constexpr (std::is_same_v<T, float>) return CommType::kF32;
  if constexpr (std::is_same_v<T, BFloat16>) return CommType::kBF16;
  if constexpr (std::is_same_v<T, double>) return CommType::kF64;
  if constexpr (std::is_same_v<T, int32_t>) return CommType::kI32;
  if constexpr (std::is_same_v<T, int64_t>) return CommType::kI64;
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, BFloat16> ||
                    std::is_same_v<T, double> || std::is_same_v<T, int32_t> ||
                    std::is_same_v<T, int64_t> || sizeof(T) == 1,
                "not an element that ranks exchange");
  return CommType::kBytes;
}

// A view of contiguous elements that an operation reads and writes. A tensor that is converted to
// one must be contiguous (CHECKed). The memory must stay valid, and the caller must not modify it,
// until the operation has completed.
struct Buffer {
  Buffer() = default;
  Buffer(void* data, CommType type, int64_t elements)
      : data(data), type(type), elements(elements) {}
  Buffer(const TensorView& tensor);                        // NOLINT: a tensor is a buffer
  Buffer(const Tensor& tensor) : Buffer(tensor.view()) {}  // NOLINT
  template <typename T>
  requires(!std::is_const_v<T>) Buffer(std::span<T> span)  // NOLINT: so is a span
      : Buffer(span.data(), CommTypeOf<T>(), static_cast<int64_t>(span.size())) {}
  template <typename T>
  Buffer(std::vector<T>& vector) : Buffer(std::span<T>(vector)) {}  // NOLINT

  int64_t bytes() const { return elements * ElementSize(type); }

  void* data = nullptr;
  CommType type = CommType::kBytes;
  int64_t elements = 0;
};

// A view of contiguous elements that an operation only reads. The memory must stay valid until the
// operation has completed.
struct ConstBuffer {
  ConstBuffer() = default;
  ConstBuffer(const void* data, CommType type, int64_t elements)
      : data(data), type(type), elements(elements) {}
  ConstBuffer(const Buffer& buffer)  // NOLINT
      : ConstBuffer(buffer.data, buffer.type, buffer.elements) {}
  ConstBuffer(const TensorView& tensor) : ConstBuffer(Buffer(tensor)) {}     // NOLINT
  ConstBuffer(const Tensor& tensor) : ConstBuffer(Buffer(tensor.view())) {}  // NOLINT
  template <typename T>
  ConstBuffer(std::span<T> span)  // NOLINT
      : ConstBuffer(span.data(), CommTypeOf<std::remove_const_t<T>>(),
                    static_cast<int64_t>(span.size())) {}
  template <typename T>
  ConstBuffer(const std::vector<T>& vector) : ConstBuffer(std::span<const T>(vector)) {}  // NOLINT

  int64_t bytes() const { return elements * ElementSize(type); }

  const void* data = nullptr;
  CommType type = CommType::kBytes;
  int64_t elements = 0;
};

// Reductions add (or compare) in one fixed order, whatever the size, the implementation and the
// order of arrival. They follow a binary tree over group ranks, T(0, P). In this tree, T(a, b) is
// T(a, m) plus T(m, b), and m is a plus the largest power of two below b - a. Six ranks are added
// as ((0+1)+(2+3))+(4+5). Fixed-point sums wrap around. bf16 is added in fp32 and rounded once, at
// the end. A maximum is NaN where any input is NaN.
enum class ReduceOp { kSum, kMax };

// Sets output[i] to the reduction over inputs[0][i], inputs[1][i], ... in the order of ReduceOp, in
// host memory. `output` may be one of the inputs; no other overlap. Precondition: a type that can
// be reduced.
void ReduceInTreeOrder(ReduceOp op, CommType type, std::span<const void* const> inputs,
                       void* output, int64_t elements);

enum class CommOp : uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kGatherBytes,
  kBroadcastBytes,
  kSend,
  kReceive,
  kBarrier,
  kSplit,
};
inline constexpr int kCommOpCount = static_cast<int>(CommOp::kSplit) + 1;
std::string_view CommOpName(CommOp op);  // "all-reduce", ...

// Payload bytes that this rank sent, without the transport's own headers. Each operation sends, in
// a group of P ranks, on rank r, for n bytes of data in total and n_i bytes in piece i:
//   all-reduce        (P-1) n                     where n <= kSmallAllReduceBytes, else
//                     (n - n_r) + (P-1) n_r       over nearly equal pieces (EvenCounts):
//                     about 2n(P-1)/P
//   reduce-scatter    n - n_r
//   all-gather        (P-1) n_r
//   broadcast         n per child in the binomial tree where n <= kSmallBroadcastBytes, else
//                     scatter and all-gather: root (n - n_root) + (P-1) n_root, others (P-2) n_r
//   gather of bytes   8 + 8 s + the strings of its subtree of s ranks in the binomial tree; root 0
//   broadcast of bytes  8 + n per child in the binomial tree
//   send              n
//   barrier           0
//   split             as an all-gather of 16 bytes a rank
struct CommCounter {
  int64_t calls = 0;
  int64_t bytes_sent = 0;
};
inline constexpr int64_t kSmallAllReduceBytes = 2 << 10;
inline constexpr int64_t kSmallBroadcastBytes = 64 << 10;

struct CommCounters {
  std::array<CommCounter, kCommOpCount> by_op;
  const CommCounter& operator[](CommOp op) const { return by_op[static_cast<int>(op)]; }
  CommCounter& operator[](CommOp op) { return by_op[static_cast<int>(op)]; }
  int64_t bytes_sent() const;
};

// Settings of a whole world of ranks.
struct CommOptions {
  // Default timeout of a wait. Must cover the longest time that ranks may drift apart, such as a
  // checkpoint's write or an evaluation on one rank.
  absl::Duration timeout = absl::Minutes(10);
  // The time that all processes of a world may take to find each other.
  absl::Duration start_timeout = absl::Minutes(5);
  // A wait that has lasted this long asks, once per such period, whether the ranks that it waits
  // for still exist. A rank that no longer exists ends the wait immediately.
  absl::Duration probe_interval = absl::Seconds(1);
  // Longer messages are sent in parts (MPI counts bytes in an int). At most INT_MAX.
  int64_t part_bytes = int64_t{1} << 30;
};

// Settings of one call.
struct CallOptions {
  std::optional<absl::Duration> timeout;  // default: CommOptions::timeout
  std::string_view what;                  // names the data in diagnostics: "gradients of bucket 3"
};

class Endpoint;
class Task;
struct Exchange;

// An operation in progress: a future, which must not outlive its communicator. The operation owns
// its buffers until Wait() or Follow() returns or Test() returns true.
class Pending {
 public:
  Pending() = default;  // nothing to wait for
  explicit Pending(absl::Status failed) : result_(std::move(failed)) {}
  Pending(Pending&&) noexcept = default;
  // Waits for the operation that this object held before.
  Pending& operator=(Pending&&) noexcept;
  // Waits until the operation completes or the group fails, so that no transfer outlives its
  // buffers.
  ~Pending();

  // Waits for the operation and returns its result; later calls return the same result. The timeout
  // starts with this call.
  absl::Status Wait(std::optional<absl::Duration> timeout = std::nullopt);
  // Waits for a result that only work of the device reads, or a buffer that only such work writes.
  // With device memory (nccl/), returns once the operation has been queued: work that is queued on
  // the compute stream from now on runs after it, and the host continues. A later error, a missing
  // rank or the timeout included, is returned by Synchronize() of the device's streams and by later
  // operations. With host memory, Follow() is Wait().
  absl::Status Follow(std::optional<absl::Duration> timeout = std::nullopt);
  // True once the operation has completed successfully. Never blocks. Makes progress, like
  // Communicator::Progress().
  absl::StatusOr<bool> Test();

 private:
  friend class Communicator;
  Pending(Endpoint* endpoint, std::shared_ptr<Task> task);
  bool running() const { return task_ != nullptr && !ended_; }
  absl::Status End(absl::Status result);

  Endpoint* endpoint_ = nullptr;
  std::shared_ptr<Task> task_;  // kept after a failure: the transport may still use it
  bool ended_ = false;
  absl::Status result_;
};

// The members of a group, from the view of one of them.
struct CommGroup {
  uint32_t id = 0;               // the same for all members and for no other group of any of them
  int rank = 0;                  // this member's
  std::vector<int> world_ranks;  // by group rank; empty where this rank takes no part
  std::string name;              // appears in messages: the axis of the mesh
};

// One rank's membership of a group of ranks.
//
// Collective operations (everything but Send and Receive) must be called by every rank of the group
// in the same order, with the same types, counts and roots. Several may be in progress at once, and
// they may be waited for in any order.
//
// `counts`: the number of elements of each rank's piece, by group rank; empty means that all pieces
// are equal.
//
// Errors:
// - InvalidArgument for inconsistent sizes, before anything is sent;
// - DeadlineExceeded when a wait times out, and Unavailable when a rank is gone. Both name the
//   missing ranks, by their rank in the world, and their last known activity;
// - another rank's own error when that rank aborted, with its code and "rank 3: " before its
//   message.
//
// After any error but InvalidArgument the whole world is unusable: later calls return the same
// error.
//
// Threads: one thread at a time on one communicator; communicators of one rank may be used from
// different threads at once.
class Communicator {
 public:
  // Creates the group of all ranks of the endpoint's world. The endpoint must outlive this object
  // and the groups that are split from it.
  explicit Communicator(Endpoint* endpoint);
  // Waits for followed operations.
  virtual ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return group_.rank; }
  int size() const { return static_cast<int>(group_.world_ranks.size()); }
  // Returns the rank in the world, which messages name. WorldRank(rank()) is the calling rank.
  int WorldRank(int group_rank) const { return group_.world_ranks[group_rank]; }
  const std::string& name() const { return group_.name; }
  const CommCounters& counters() const { return counters_; }
  void ResetCounters() { counters_ = {}; }

  // Sets every rank's `data` to the reduction of all.
  Pending StartAllReduce(Buffer data, ReduceOp op, CallOptions options = {});
  // Sets `output` to piece rank() of the reduction of all ranks' `input`. `output` may be that
  // piece of `input`, which is otherwise left unmodified.
  Pending StartReduceScatter(ConstBuffer input, Buffer output, ReduceOp op,
                             std::span<const int64_t> counts = {}, CallOptions options = {});
  // Sets `output` to the pieces of all ranks in order. `input` may be piece rank() of `output`.
  Pending StartAllGather(ConstBuffer input, Buffer output, std::span<const int64_t> counts = {},
                         CallOptions options = {});
  // Sets every rank's `data` to the root's.
  Pending StartBroadcast(Buffer data, int root, CallOptions options = {});
  // Sends a message. Messages between one pair of ranks with one tag arrive in the order in which
  // they were sent. A send may complete before the message is received, but need not. 0 <= tag <
  // kTagLimit. A rank may send to itself if both sides are started before either is waited for.
  Pending StartSend(ConstBuffer data, int destination, int tag, CallOptions options = {});
  // Receives a message. `data` must have the size of the message.
  Pending StartReceive(Buffer data, int source, int tag, CallOptions options = {});
  static constexpr int kTagLimit = 1 << 12;

  // Returns the strings of all ranks, by rank, on `root`, and an empty vector elsewhere. For small
  // control messages; uses a binomial tree.
  absl::StatusOr<std::vector<std::string>> GatherBytes(std::string_view mine, int root,
                                                       CallOptions options = {});
  // Returns `root`'s string on every rank.
  absl::StatusOr<std::string> BroadcastBytes(std::string_view from_root, int root,
                                             CallOptions options = {});
  // Returns the strings of all ranks, by rank, on every rank.
  absl::StatusOr<std::vector<std::string>> AllGatherBytes(std::string_view mine,
                                                          CallOptions options = {});
  // Returns on no rank before every rank has called it.
  absl::Status Barrier(CallOptions options = {});

  // Creates a group for each color, with its ranks ordered by (key, rank in this group); null on
  // ranks with color < 0. Every rank of this group must call it. `name` appears in messages: the
  // mesh axis.
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key, std::string_view name,
                                                      CallOptions options = {});

  // Makes progress on this rank's operations of all its communicators. Never blocks. In the
  // background, operations progress only as far as the transport does by itself, so a long
  // computation that overlaps one should call Progress() or Test() from time to time. Any Wait()
  // makes progress on all operations, too.
  void Progress();

  // Aborts the run: every wait of every rank of the world, current and future, fails with this
  // error. The first error wins. Returning an error from a rank's main function has the same
  // effect.
  void Abort(const absl::Status& error);

  // Start the operation of the same name, and wait for it.
  absl::Status AllReduce(Buffer data, ReduceOp op, CallOptions options = {});
  absl::Status ReduceScatter(ConstBuffer input, Buffer output, ReduceOp op,
                             std::span<const int64_t> counts = {}, CallOptions options = {});
  absl::Status AllGather(ConstBuffer input, Buffer output, std::span<const int64_t> counts = {},
                         CallOptions options = {});
  absl::Status Broadcast(Buffer data, int root, CallOptions options = {});
  absl::Status Send(ConstBuffer data, int destination, int tag, CallOptions options = {});
  absl::Status Receive(Buffer data, int source, int tag, CallOptions options = {});

  // Agrees with all members of this group on a group for each color, as Split() does, without
  // creating a communicator. For implementations.
  absl::StatusOr<CommGroup> Agree(int color, int key, std::string_view name, CallOptions options);
  Endpoint* endpoint() const { return endpoint_; }

 protected:
  Communicator(Endpoint* endpoint, CommGroup group);
  // Waits for followed operations. Called first in the destructor of a class whose members these
  // operations use.
  void EndFollowed();

  // Make the task of each operation whose buffers the caller provides. By default the buffers are
  // in host memory and move as messages over the endpoint's transport (tasks.h); nccl/ overrides
  // all of these methods. Arguments have been validated; counts have one entry per rank. Operations
  // on byte strings, barriers and Agree() always use the transport.
  virtual std::unique_ptr<Task> MakeAllReduce(Buffer data, ReduceOp op);
  virtual std::unique_ptr<Task> MakeReduceScatter(ConstBuffer input, Buffer output, ReduceOp op,
                                                  std::vector<int64_t> counts);
  virtual std::unique_ptr<Task> MakeExchange(Exchange exchange);  // all-gather
  virtual std::unique_ptr<Task> MakeBroadcast(Buffer data, int root);
  virtual std::unique_ptr<Task> MakeSend(ConstBuffer data, int destination);
  virtual std::unique_ptr<Task> MakeReceive(Buffer data, int source);
  // Sets *child to the communicator of this rank's new group, null if the rank takes no part.
  // Returns a task that must end before the child is used, null if there is nothing to wait for.
  virtual std::unique_ptr<Task> MakeSplit(int color, CommGroup group,
                                          std::unique_ptr<Communicator>* child);

 private:
  Pending Launch(CommOp op, std::unique_ptr<Task> task, const CallOptions& options, int tag = -1);
  absl::Status Invalid(CommOp op, const std::string& message) const;
  absl::Status CheckRank(CommOp op, std::string_view role, int rank) const;
  absl::Status CheckPeer(CommOp op, std::string_view role, int rank, int tag) const;
  // Returns the piece sizes in elements; an error unless there is one per rank and they add up to
  // `elements`.
  absl::StatusOr<std::vector<int64_t>> Pieces(CommOp op, std::string_view role,
                                              std::span<const int64_t> counts,
                                              int64_t elements) const;
  // Returns Pieces() of an operation in which `whole` consists of the pieces and `piece` is this
  // rank's.
  absl::StatusOr<std::vector<int64_t>> PiecesOf(CommOp op, ConstBuffer whole,
                                                std::string_view whole_role, ConstBuffer piece,
                                                std::string_view piece_role,
                                                std::span<const int64_t> counts) const;

  Endpoint* const endpoint_;
  const CommGroup group_;
  const std::string* const name_;  // lives as long as the endpoint
  CommCounters counters_;
  uint64_t collectives_ = 0;
};

// Splits `elements` into `ranks` pieces, of which the first `elements % ranks` are one longer.
std::vector<int64_t> EvenCounts(int64_t elements, int ranks);

}  // namespace tessera

#endif  // TESSERA_COMM_COMMUNICATOR_H_
