#include "comm/testing/conformance.h"

#include <glog/logging.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>
#include <string_view>
#include <thread>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "comm/testing/conformance_bytes.h"
#include "tensor/bfloat16.h"

namespace tessera {
namespace {

using conformance::ExpectEqual;
using conformance::Sum;
using conformance::UnevenCounts;

// ---- The oracle.

inline constexpr CommType kReducibleTypes[] = {CommType::kF32, CommType::kBF16, CommType::kF64,
                                               CommType::kI32, CommType::kI64};

// Elements of any type, zero until filled.
struct TestArray {
  TestArray(CommType type, int64_t elements)
      : type(type), elements(elements), bytes(elements * ElementSize(type)) {}
  Buffer buffer() { return Buffer(bytes.data(), type, elements); }
  // Elements [begin, begin + count).
  Buffer piece(int64_t begin, int64_t count) {
    return Buffer(bytes.data() + begin * ElementSize(type), type, count);
  }
  CommType type;
  int64_t elements;
  std::vector<char> bytes;
};

uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 31)) * 0x7fb5d329728ea185;
  x = (x ^ (x >> 27)) * 0x81dadef4bc2dd44d;
  return x ^ (x >> 33);
}

// Calls visit(T()) with the element type.
template <typename Visit>
auto WithElement(CommType type, const Visit& visit) {
  switch (type) {
    case CommType::kF32:
      return visit(float());
    case CommType::kBF16:
      return visit(BFloat16());
    case CommType::kF64:
      return visit(double());
    case CommType::kI32:
      return visit(int32_t());
    case CommType::kI64:
      return visit(int64_t());
    case CommType::kBytes:
      return visit(char());
  }
  LOG(FATAL) << "unknown type";
}

template <typename T>
T Value(int rank, int64_t i, int salt) {
  const uint64_t bits = Mix(Mix(static_cast<uint64_t>(rank) * 1000003 + salt) + i);
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(bits);  // sums wrap around
  } else {
    const double value = static_cast<double>(static_cast<int64_t>(bits) >> 32) * 1e-7;
    return static_cast<T>(static_cast<std::conditional_t<sizeof(T) == 2, float, T>>(value));
  }
}

template <typename T>
struct SumType {
  using A = T;
};
template <>
struct SumType<BFloat16> {
  using A = float;
};

template <typename A>
A Pair(ReduceOp op, A a, A b) {
  if (op == ReduceOp::kMax) return a > b ? a : b;
  if constexpr (std::is_integral_v<A>) {
    return static_cast<A>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  } else {
    return a + b;
  }
}

template <typename T>
typename SumType<T>::A Subtree(ReduceOp op, int begin, int end, int64_t i, int salt) {
  using A = typename SumType<T>::A;
  if (end - begin == 1) return static_cast<A>(Value<T>(begin, i, salt));
  int half = 1;
  while (half * 2 < end - begin) half *= 2;
  return Pair<A>(op, Subtree<T>(op, begin, begin + half, i, salt),
                 Subtree<T>(op, begin + half, end, i, salt));
}

// The contribution of rank `rank`: a pure function of its arguments. Sums of contributions need
// rounding.
TestArray Contribution(CommType type, int64_t elements, int rank, int salt = 0) {
  TestArray array(type, elements);
  WithElement(type, [&](auto element) {
    using T = decltype(element);
    for (int64_t i = 0; i < elements; ++i) {
      const T value = Value<T>(rank, i, salt);
      std::memcpy(array.bytes.data() + i * sizeof(T), &value, sizeof(T));
    }
  });
  return array;
}

// The reduction of all ranks' contributions, element by element in the order that ReduceOp
// promises.
TestArray Reduced(CommType type, int64_t elements, int ranks, ReduceOp op, int salt = 0) {
  CHECK(type != CommType::kBytes);
  TestArray array(type, elements);
  WithElement(type, [&](auto element) {
    using T = decltype(element);
    for (int64_t i = 0; i < elements; ++i) {
      const T value = static_cast<T>(Subtree<T>(op, 0, ranks, i, salt));
      std::memcpy(array.bytes.data() + i * sizeof(T), &value, sizeof(T));
    }
  });
  return array;
}

std::string CommTypeName(CommType type) {
  static constexpr const char* kNames[] = {"float32", "bfloat16", "float64",
                                           "int32",   "int64",    "bytes"};
  return kNames[static_cast<int>(type)];
}

// An error that names `what` and the first element that differs.
absl::Status ExpectSame(std::string_view what, const TestArray& expected, const TestArray& found) {
  if (expected.bytes == found.bytes) return absl::OkStatus();
  size_t at = 0;
  while (at < found.bytes.size() && expected.bytes[at] == found.bytes[at]) ++at;
  return absl::InternalError(absl::StrCat(std::string(what), ": ", CommTypeName(found.type),
                                          " element ", at / ElementSize(found.type), " of ",
                                          found.elements, " differs"));
}

// ---- The cases.

// No element, one, fewer than ranks, few enough for one step, and too many for it.
constexpr int64_t kSizes[] = {0, 1, 3, 200, 5001};

int64_t Before(const std::vector<int64_t>& counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0});
}

absl::Status AllReduces(Communicator& comm) {
  for (CommType type : kReducibleTypes) {
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
      for (int64_t elements : kSizes) {
        TestArray data = Contribution(type, elements, comm.rank());
        TESSERA_RETURN_IF_ERROR(comm.AllReduce(data.buffer(), op));
        TESSERA_RETURN_IF_ERROR(
            ExpectSame("all-reduce", Reduced(type, elements, comm.size(), op), data));
      }
    }
  }
  // Several segments per piece (of 256 KB), the last one short. Limited by the number of ranks
  // because the oracle is slow.
  const int64_t elements = comm.size() <= 5 ? 70000 * comm.size() + 1 : 0;
  TestArray data = Contribution(CommType::kF32, elements, comm.rank());
  TESSERA_RETURN_IF_ERROR(comm.AllReduce(data.buffer(), ReduceOp::kSum));
  TESSERA_RETURN_IF_ERROR(ExpectSame(
      "large all-reduce", Reduced(CommType::kF32, elements, comm.size(), ReduceOp::kSum), data));
  return absl::OkStatus();
}

absl::Status ReduceScatterOnce(Communicator& comm, CommType type, ReduceOp op,
                               const std::vector<int64_t>& counts, bool say_counts, bool in_place) {
  const int64_t elements = Sum(counts), begin = Before(counts, comm.rank());
  const int64_t mine = counts[comm.rank()];
  TestArray input = Contribution(type, elements, comm.rank());
  TestArray output(type, mine);
  const Buffer target = in_place ? input.piece(begin, mine) : output.buffer();
  const std::span<const int64_t> said =
      say_counts ? std::span<const int64_t>(counts) : std::span<const int64_t>();
  TESSERA_RETURN_IF_ERROR(comm.ReduceScatter(input.buffer(), target, op, said));
  TestArray expected = Contribution(type, elements, comm.rank());
  const TestArray reduced = Reduced(type, elements, comm.size(), op);
  const int64_t at = begin * ElementSize(type), bytes = mine * ElementSize(type);
  TestArray piece(type, mine);
  if (bytes > 0) std::memcpy(piece.bytes.data(), reduced.bytes.data() + at, bytes);
  if (!in_place) {
    TESSERA_RETURN_IF_ERROR(ExpectSame("reduce-scatter's output", piece, output));
  } else if (bytes > 0) {
    std::memcpy(expected.bytes.data() + at, piece.bytes.data(), bytes);
  }
  return ExpectSame("reduce-scatter's input", expected, input);
}

absl::Status ReduceScatters(Communicator& comm) {
  for (CommType type : kReducibleTypes) {
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
      for (bool in_place : {false, true}) {
        for (int64_t each : {0, 1, 500}) {
          TESSERA_RETURN_IF_ERROR(ReduceScatterOnce(
              comm, type, op, std::vector<int64_t>(comm.size(), each), false, in_place));
        }
        TESSERA_RETURN_IF_ERROR(
            ReduceScatterOnce(comm, type, op, UnevenCounts(comm.size(), 100), true, in_place));
      }
    }
  }
  // More than the number of segments in flight, and one rank without any.
  return ReduceScatterOnce(comm, CommType::kF32, ReduceOp::kSum, UnevenCounts(comm.size(), 80000),
                           true, false);
}

absl::Status AllGathers(Communicator& comm) {
  for (CommType type : {CommType::kF32, CommType::kBF16, CommType::kF64, CommType::kI32,
                        CommType::kI64, CommType::kBytes}) {
    for (int64_t unit : {0, 7, 20000}) {
      for (bool in_place : {false, true}) {
        const std::vector<int64_t> counts = UnevenCounts(comm.size(), unit);
        TestArray expected(type, Sum(counts)), output(type, Sum(counts));
        for (int rank = 0; rank < comm.size(); ++rank) {
          const TestArray theirs = Contribution(type, counts[rank], rank);
          std::copy(theirs.bytes.begin(), theirs.bytes.end(),
                    expected.bytes.begin() + Before(counts, rank) * ElementSize(type));
        }
        TestArray mine = Contribution(type, counts[comm.rank()], comm.rank());
        const Buffer piece = output.piece(Before(counts, comm.rank()), counts[comm.rank()]);
        if (in_place)
          std::copy(mine.bytes.begin(), mine.bytes.end(), static_cast<char*>(piece.data));
        TESSERA_RETURN_IF_ERROR(
            comm.AllGather(in_place ? piece : mine.buffer(), output.buffer(), counts));
        TESSERA_RETURN_IF_ERROR(ExpectSame("all-gather", expected, output));
      }
    }
  }
  std::vector<int32_t> one = {comm.rank() * 3}, all(comm.size());
  TESSERA_RETURN_IF_ERROR(comm.AllGather(one, all));
  for (int i = 0; i < comm.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(ExpectEqual("all-gather of one element", i * 3, all[i]));
  }
  return absl::OkStatus();
}

absl::Status Broadcasts(Communicator& comm) {
  for (int root = 0; root < comm.size(); ++root) {
    for (int64_t elements : {0, 1, 999, 40001}) {
      const TestArray expected = Contribution(CommType::kF32, elements, root);
      TestArray data = Contribution(CommType::kF32, elements, comm.rank());
      TESSERA_RETURN_IF_ERROR(comm.Broadcast(data.buffer(), root));
      TESSERA_RETURN_IF_ERROR(ExpectSame("broadcast", expected, data));
    }
  }
  return absl::OkStatus();
}

std::string StringOf(int rank) {
  return std::string(rank % 3 == 1 ? 0 : rank * 100, 'a' + rank % 26);
}

absl::Status ByteStrings(Communicator& comm) {
  for (int root = 0; root < comm.size(); ++root) {
    TESSERA_ASSIGN_OR_RETURN(std::vector<std::string> all,
                             comm.GatherBytes(StringOf(comm.rank()), root));
    TESSERA_RETURN_IF_ERROR(
        ExpectEqual("gathered strings", comm.rank() == root ? comm.size() : 0, all.size()));
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i] != StringOf(i)) return absl::InternalError(absl::StrCat("string of rank ", i));
    }
    TESSERA_ASSIGN_OR_RETURN(all, comm.AllGatherBytes(StringOf(comm.rank())));
    TESSERA_RETURN_IF_ERROR(ExpectEqual("strings of all ranks", comm.size(), all.size()));
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i] != StringOf(i)) return absl::InternalError(absl::StrCat("string of rank ", i));
    }
    for (size_t length : {0, 5, 100000}) {
      const std::string expected(length, 'r');
      TESSERA_ASSIGN_OR_RETURN(std::string got,
                               comm.BroadcastBytes(comm.rank() == root ? expected : "mine", root));
      if (got != expected) return absl::InternalError("broadcast of bytes differs");
    }
  }
  return absl::OkStatus();
}

absl::Status Messages(Communicator& comm) {
  const int next = (comm.rank() + 1) % comm.size();
  const int previous = (comm.rank() + comm.size() - 1) % comm.size();
  // Two messages with one tag keep their order; tags need not be received in the order of sending;
  // sizes range from empty to large; the peer is this rank itself where there is no other.
  const int64_t sizes[] = {0, 1, 10, 60000};
  std::vector<TestArray> sent, received, expected;
  std::vector<Pending> pending;
  for (int i = 0; i < 4; ++i) {
    sent.push_back(Contribution(CommType::kF64, sizes[i], comm.rank(), i));
    expected.push_back(Contribution(CommType::kF64, sizes[i], previous, i));
    received.emplace_back(CommType::kF64, sizes[i]);
  }
  for (int i = 0; i < 4; ++i) pending.push_back(comm.StartSend(sent[i].buffer(), next, i / 2));
  for (int i : {2, 3, 0, 1}) {
    pending.push_back(comm.StartReceive(received[i].buffer(), previous, i / 2));
  }
  for (Pending& each : pending) TESSERA_RETURN_IF_ERROR(each.Wait());
  for (int i = 0; i < 4; ++i) {
    TESSERA_RETURN_IF_ERROR(ExpectSame(absl::StrCat("message ", i), expected[i], received[i]));
  }
  // Blocking calls along the line of ranks.
  std::vector<int64_t> token = {41};
  if (comm.rank() > 0) TESSERA_RETURN_IF_ERROR(comm.Receive(token, comm.rank() - 1, 9));
  TESSERA_RETURN_IF_ERROR(ExpectEqual("token", 41 + (comm.rank() > 0 ? comm.rank() : 0), token[0]));
  ++token[0];
  if (comm.rank() + 1 < comm.size()) TESSERA_RETURN_IF_ERROR(comm.Send(token, comm.rank() + 1, 9));
  return absl::OkStatus();
}

int64_t NowNanoseconds() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

absl::Status Barriers(Communicator& comm) {
  for (int round = 0; round < 3; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds((comm.rank() + round) % comm.size() * 2));
    std::vector<int64_t> called = {NowNanoseconds()};
    TESSERA_RETURN_IF_ERROR(comm.Barrier());
    const int64_t returned = NowNanoseconds();
    TESSERA_RETURN_IF_ERROR(comm.AllReduce(called, ReduceOp::kMax));
    if (returned < called[0]) return absl::InternalError("returned before the last rank called");
  }
  return absl::OkStatus();
}

// Sums 1 over the group.
absl::Status CountMembers(Communicator& group, int expected) {
  std::vector<int32_t> one = {1};
  TESSERA_RETURN_IF_ERROR(group.AllReduce(one, ReduceOp::kSum));
  return ExpectEqual("members", expected, one[0]);
}

absl::Status Splits(Communicator& comm) {
  const int parity = comm.rank() % 2;
  // Ranks in reverse order.
  TESSERA_ASSIGN_OR_RETURN(auto split, comm.Split(parity, -comm.rank(), "parity"));
  Communicator& group = *split;
  const int members = (comm.size() + 1 - parity) / 2;
  TESSERA_RETURN_IF_ERROR(ExpectEqual("size", members, group.size()));
  TESSERA_RETURN_IF_ERROR(ExpectEqual("rank", members - 1 - comm.rank() / 2, group.rank()));
  for (int i = 0; i < group.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(
        ExpectEqual("world rank", (members - 1 - i) * 2 + parity, group.WorldRank(i)));
  }
  if (group.name() != "parity") return absl::InternalError("name");

  // Runs operations of both groups and of the world at once.
  TestArray in_group = Contribution(CommType::kF32, 30001, group.rank(), parity);
  TestArray in_world = Contribution(CommType::kBF16, 70000, comm.rank());
  Pending first = group.StartAllReduce(in_group.buffer(), ReduceOp::kSum);
  Pending second = comm.StartAllReduce(in_world.buffer(), ReduceOp::kSum);
  // Even ranks wait in one order, odd ones in the other.
  TESSERA_RETURN_IF_ERROR((parity == 0 ? first : second).Wait());
  TESSERA_RETURN_IF_ERROR((parity == 0 ? second : first).Wait());
  TESSERA_RETURN_IF_ERROR(ExpectSame(
      "group's", Reduced(CommType::kF32, 30001, group.size(), ReduceOp::kSum, parity), in_group));
  TESSERA_RETURN_IF_ERROR(ExpectSame(
      "world's", Reduced(CommType::kBF16, 70000, comm.size(), ReduceOp::kSum), in_world));

  // One rank takes no part; then a group is split from a group.
  TESSERA_ASSIGN_OR_RETURN(auto others, comm.Split(comm.rank() == 0 ? -1 : 7, 0, "others"));
  if ((others == nullptr) != (comm.rank() == 0)) return absl::InternalError("color -1");
  TESSERA_ASSIGN_OR_RETURN(auto pairs, group.Split(group.rank() / 2, group.rank(), "pairs"));
  TESSERA_RETURN_IF_ERROR(CountMembers(*pairs, std::min(2, members - group.rank() / 2 * 2)));
  if (others != nullptr) TESSERA_RETURN_IF_ERROR(CountMembers(*others, comm.size() - 1));
  return CountMembers(comm, comm.size());
}

absl::Status Overlapping(Communicator& comm) {
  constexpr int kRounds = 6;
  std::vector<TestArray> reduced, gathered, pieces, broadcast;
  for (int i = 0; i < kRounds; ++i) {
    const int64_t n = 1 << (3 * i);
    reduced.push_back(Contribution(CommType::kF32, n, comm.rank(), i));
    pieces.push_back(Contribution(CommType::kI32, n, comm.rank(), i));
    gathered.emplace_back(CommType::kI32, n * comm.size());
    broadcast.push_back(Contribution(CommType::kI64, n, comm.rank(), i));
  }
  std::vector<Pending> pending;
  for (int i = 0; i < kRounds; ++i) {
    pending.push_back(comm.StartAllReduce(reduced[i].buffer(), ReduceOp::kSum));
    pending.push_back(comm.StartAllGather(pieces[i].buffer(), gathered[i].buffer()));
    pending.push_back(comm.StartBroadcast(broadcast[i].buffer(), i % comm.size()));
  }
  // Every rank waits in a different order; the first operation is tested instead of waited for.
  for (absl::StatusOr<bool> done = false; !*done;) {
    done = pending[comm.rank() % pending.size()].Test();
    if (!done.ok()) return done.status();
    std::this_thread::yield();
  }
  for (size_t i = 0; i < pending.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(pending[(i * 5 + comm.rank()) % pending.size()].Wait());
  }
  for (int i = 0; i < kRounds; ++i) {
    const int64_t n = reduced[i].elements;
    TESSERA_RETURN_IF_ERROR(ExpectSame(
        "all-reduce", Reduced(CommType::kF32, n, comm.size(), ReduceOp::kSum, i), reduced[i]));
    TestArray all(CommType::kI32, 0);
    for (int rank = 0; rank < comm.size(); ++rank) {
      const TestArray theirs = Contribution(CommType::kI32, n, rank, i);
      all.bytes.insert(all.bytes.end(), theirs.bytes.begin(), theirs.bytes.end());
    }
    TESSERA_RETURN_IF_ERROR(ExpectSame("all-gather", all, gathered[i]));
    TESSERA_RETURN_IF_ERROR(
        ExpectSame("broadcast", Contribution(CommType::kI64, n, i % comm.size(), i), broadcast[i]));
  }
  return absl::OkStatus();
}

absl::Status BorderValues(Communicator& comm) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> data = {comm.rank() == comm.size() - 1 ? nan : 1.0f,
                             comm.rank() == 0 ? nan : 1.0f, -inf, -0.0f};
  TESSERA_RETURN_IF_ERROR(comm.AllReduce(data, ReduceOp::kMax));
  if (!std::isnan(data[0]) || !std::isnan(data[1])) return absl::InternalError("NaN was lost");
  if (data[2] != -inf || data[3] != 0) return absl::InternalError("maximum of border values");
  std::vector<int32_t> wraps = {std::numeric_limits<int32_t>::max()};
  TESSERA_RETURN_IF_ERROR(comm.AllReduce(wraps, ReduceOp::kSum));
  const uint32_t expected = 0x7fffffffu * static_cast<uint32_t>(comm.size());
  return ExpectEqual("sum that wraps", static_cast<int32_t>(expected), wraps[0]);
}

absl::Status ExpectInvalid(std::string_view what, const absl::Status& status) {
  if (status.code() == absl::StatusCode::kInvalidArgument) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(std::string(what), " gave: ", status.ToString()));
}

absl::Status BadArguments(Communicator& comm) {
  std::vector<float> data(comm.size() + 1), piece(1);
  std::vector<char> bytes(1);
  const std::vector<int64_t> too_many(comm.size() + 1, 1), negative(comm.size(), -1);
  const std::vector<int64_t> ones(comm.size(), 1);
  TESSERA_RETURN_IF_ERROR(ExpectInvalid("reduced bytes", comm.AllReduce(bytes, ReduceOp::kSum)));
  TESSERA_RETURN_IF_ERROR(
      ExpectInvalid("number of pieces", comm.ReduceScatter(data, piece, ReduceOp::kSum, too_many)));
  TESSERA_RETURN_IF_ERROR(
      ExpectInvalid("negative piece", comm.ReduceScatter(data, piece, ReduceOp::kSum, negative)));
  TESSERA_RETURN_IF_ERROR(ExpectInvalid("sum of pieces", comm.AllGather(piece, data, ones)));
  TESSERA_RETURN_IF_ERROR(ExpectInvalid("size of the output", comm.AllGather(piece, data)));
  TESSERA_RETURN_IF_ERROR(ExpectInvalid("types", comm.AllGather(bytes, data)));
  TESSERA_RETURN_IF_ERROR(ExpectInvalid("root", comm.Broadcast(data, comm.size())));
  TESSERA_RETURN_IF_ERROR(ExpectInvalid("destination", comm.Send(data, -1, 0)));
  TESSERA_RETURN_IF_ERROR(ExpectInvalid("tag", comm.Send(data, 0, Communicator::kTagLimit)));
  TESSERA_RETURN_IF_ERROR(ExpectInvalid("gather's root", comm.GatherBytes("", -1).status()));
  // Nothing was sent: the communicator stays usable.
  return CountMembers(comm, comm.size());
}

}  // namespace

std::vector<ConformanceCase> ConformanceCases() {
  return {{"AllReduces", AllReduces},
          {"ReduceScatters", ReduceScatters},
          {"AllGathers", AllGathers},
          {"Broadcasts", Broadcasts},
          {"ByteStrings", ByteStrings},
          {"Messages", Messages},
          {"Barriers", Barriers},
          {"Splits", Splits},
          {"Overlapping", Overlapping},
          {"BorderValues", BorderValues},
          {"BadArguments", BadArguments},
          {"ReductionBytes", conformance::ReductionBytes},
          {"MovementBytes", conformance::MovementBytes},
          {"ControlBytes", conformance::ControlBytes}};
}

}  // namespace tessera
