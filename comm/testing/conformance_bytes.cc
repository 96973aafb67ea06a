#include "comm/testing/conformance_bytes.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tensor/bfloat16.h"

namespace tessera::conformance {
namespace {

int ChildrenInTree(int v, int size) {
  int children = 0;
  for (int bit = 1; (v == 0 || bit < (v & -v)) && v + bit < size; bit *= 2) ++children;
  return children;
}

}  // namespace

absl::Status ExpectEqual(std::string_view what, int64_t expected, int64_t found) {
  if (expected == found) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(std::string(what), ": expected ", expected, ", found ", found));
}

std::vector<int64_t> UnevenCounts(int ranks, int64_t unit) {
  std::vector<int64_t> counts(ranks);
  for (int i = 0; i < ranks; ++i) counts[i] = (i * 5 + 3) % 4 * unit + (i % 3 == 0 ? 1 : 0);
  if (ranks > 1) counts[1] = 0;
  return counts;
}

int64_t Sum(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

absl::Status ReductionBytes(Communicator& comm) {
  const int64_t p = comm.size();
  for (int64_t n : {100, 30000}) {
    std::vector<float> data(n);
    comm.ResetCounters();
    TESSERA_RETURN_IF_ERROR(comm.AllReduce(data, ReduceOp::kSum));
    const int64_t mine = EvenCounts(n, p)[comm.rank()];
    const int64_t expected =
        n * 4 <= kSmallAllReduceBytes ? (p - 1) * n : (n - mine) + (p - 1) * mine;
    const CommCounter& counter = comm.counters()[CommOp::kAllReduce];
    TESSERA_RETURN_IF_ERROR(ExpectEqual("calls of all-reduce", 1, counter.calls));
    TESSERA_RETURN_IF_ERROR(ExpectEqual("bytes of all-reduce", expected * 4, counter.bytes_sent));
    TESSERA_RETURN_IF_ERROR(
        ExpectEqual("bytes in all", expected * 4, comm.counters().bytes_sent()));
  }
  const std::vector<int64_t> counts = UnevenCounts(p, 40000);
  const int64_t mine = counts[comm.rank()];
  std::vector<BFloat16> input(Sum(counts)), output(mine);
  TESSERA_RETURN_IF_ERROR(comm.ReduceScatter(input, output, ReduceOp::kSum, counts));
  return ExpectEqual("bytes of reduce-scatter", (Sum(counts) - mine) * 2,
                     comm.counters()[CommOp::kReduceScatter].bytes_sent);
}

absl::Status MovementBytes(Communicator& comm) {
  const int64_t p = comm.size();
  comm.ResetCounters();
  const std::vector<int64_t> counts = UnevenCounts(p, 100);
  std::vector<double> all(Sum(counts)), mine(counts[comm.rank()]);
  TESSERA_RETURN_IF_ERROR(comm.AllGather(mine, all, counts));
  TESSERA_RETURN_IF_ERROR(ExpectEqual("bytes of all-gather", (p - 1) * counts[comm.rank()] * 8,
                                      comm.counters()[CommOp::kAllGather].bytes_sent));
  const int root = static_cast<int>(p / 2);
  const int v = static_cast<int>((comm.rank() - root + p) % p);
  std::vector<char> small(1000), large(200001);
  TESSERA_RETURN_IF_ERROR(comm.Broadcast(small, root));
  TESSERA_RETURN_IF_ERROR(ExpectEqual("bytes of small broadcast", ChildrenInTree(v, p) * 1000,
                                      comm.counters()[CommOp::kBroadcast].bytes_sent));
  comm.ResetCounters();
  TESSERA_RETURN_IF_ERROR(comm.Broadcast(large, root));
  const int64_t piece = EvenCounts(large.size(), p)[comm.rank()];
  const int64_t from_root = static_cast<int64_t>(large.size()) - piece + (p - 1) * piece;
  return ExpectEqual("bytes of large broadcast",
                     comm.rank() == root ? (p == 1 ? 0 : from_root) : (p - 2) * piece,
                     comm.counters()[CommOp::kBroadcast].bytes_sent);
}

absl::Status ControlBytes(Communicator& comm) {
  const int p = comm.size(), v = comm.rank();
  const auto expect_sent = [&](CommOp op, const char* what, int64_t bytes) {
    return ExpectEqual(absl::StrCat("bytes of ", what), bytes, comm.counters()[op].bytes_sent);
  };
  comm.ResetCounters();
  TESSERA_RETURN_IF_ERROR(comm.GatherBytes(std::string(10, 'x'), 0).status());
  const int in_gather = v == 0 ? 0 : 8 + 18 * std::min(v & -v, p - v);
  TESSERA_RETURN_IF_ERROR(expect_sent(CommOp::kGatherBytes, "gather", in_gather));
  TESSERA_RETURN_IF_ERROR(comm.BroadcastBytes(std::string(10, 'x'), 0).status());
  const int64_t in_broadcast = 18 * ChildrenInTree(v, p);
  TESSERA_RETURN_IF_ERROR(expect_sent(CommOp::kBroadcastBytes, "broadcast", in_broadcast));
  TESSERA_RETURN_IF_ERROR(comm.Barrier());
  TESSERA_RETURN_IF_ERROR(expect_sent(CommOp::kBarrier, "barrier", 0));
  TESSERA_RETURN_IF_ERROR(comm.Split(0, 0, "same").status());
  TESSERA_RETURN_IF_ERROR(expect_sent(CommOp::kSplit, "split", (p - 1) * 16));
  std::vector<float> data(5);
  if (v == 0 && p > 1) TESSERA_RETURN_IF_ERROR(comm.Send(data, 1, 0));
  if (v == 1) TESSERA_RETURN_IF_ERROR(comm.Receive(data, 0, 0));
  TESSERA_RETURN_IF_ERROR(expect_sent(CommOp::kSend, "send", v == 0 && p > 1 ? 20 : 0));
  return expect_sent(CommOp::kReceive, "receive", 0);
}

}  // namespace tessera::conformance
