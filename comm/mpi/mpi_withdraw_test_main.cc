// Two ranks: rank 1 sends a message that MPI delivers in many pieces, and rank 0 withdraws its
// receive after the first of them. The exit code is 1 if anything is written to its memory
// afterwards.

#include <mpi/mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include "comm/mpi/monitor.h"
#include "comm/mpi/mpi_transport.h"
#include "comm/transport.h"
#include "glog/logging.h"

namespace tessera {
namespace {

constexpr int64_t kBytes = int64_t{256} << 20;
constexpr char kSent = 1, kOurs = 2;

Transfer Message(bool is_send, uint32_t match, std::vector<char>& memory) {
  return {.is_send = is_send,
          .peer = is_send ? 0 : 1,
          .match = match,
          .data = memory.data(),
          .bytes = static_cast<int64_t>(memory.size())};
}

// Returns a description of the failure, or an empty string.
const char* Receive(MpiTransport& transport) {
  std::vector<char> memory(kBytes), never(8), unmatched(8);
  Transfer message = Message(false, 7, memory);
  Transfer other = Message(false, 8, never);
  Transfer early = Message(false, 9, unmatched);
  std::vector<Transfer*> ended;
  transport.Post(&early);
  transport.Withdraw(&early);
  if (transport.abandoned_requests() != 0)
    return "a receive that matched no message was not cancelled";
  transport.Post(&message);
  // With this one posted there is always something to poll for.
  transport.Post(&other);
  while (memory[0] != kSent && ended.empty()) transport.Poll(&ended);
  if (!ended.empty()) return "the message is too small for this test";
  transport.Withdraw(&message);
  if (transport.abandoned_requests() != 1) return "MPI cancelled a message that had begun";
  std::fill(memory.begin(), memory.end(), kOurs);
  // Within this time the whole message would arrive.
  for (int i = 0; i < 2000; ++i) {
    transport.Poll(&ended);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (!ended.empty()) return "a withdrawn receive has ended";
  if (std::count(memory.begin(), memory.end(), kOurs) != kBytes) {
    return "memory is written to after its receive was withdrawn";
  }
  transport.Withdraw(&other);
  // MPI continues the transfer when it is finalized.
  static std::vector<char> kept;
  kept.swap(memory);
  return "";
}

void Send(MpiTransport& transport) {
  static std::vector<char> memory(kBytes, kSent);
  static Transfer message = Message(true, 7, memory);
  std::vector<Transfer*> ended;
  transport.Post(&message);
  while (!transport.failed()) transport.Poll(&ended);
}

int Main() {
  auto monitor = Monitor::Create();
  CHECK(monitor.ok()) << monitor.status();
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
  MpiTransport transport(MPI_COMM_WORLD, monitor->get(), kBytes);
  CHECK_EQ(transport.size(), 2);
  std::vector<MonitorAddress> peers(2);
  MPI_Allgather(&(*monitor)->address(), sizeof(MonitorAddress), MPI_BYTE, peers.data(),
                sizeof(MonitorAddress), MPI_BYTE, MPI_COMM_WORLD);
  (*monitor)->Start(transport.rank(), peers, 1, [] { return PeerState{}; });
  const char* wrong = "";
  if (transport.rank() == 0) {
    wrong = Receive(transport);
    std::printf("%s\n", *wrong == 0 ? "withdrawn" : wrong);
    std::fflush(stdout);
    transport.Fail({absl::StatusCode::kAborted, "done", 0, true});
  } else {
    Send(transport);
  }
  MPI_Finalize();
  return *wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tessera

int main() { return tessera::Main(); }
