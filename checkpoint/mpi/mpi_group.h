#ifndef TESSERA_CHECKPOINT_MPI_MPI_GROUP_H_
#define TESSERA_CHECKPOINT_MPI_MPI_GROUP_H_

// The ranks of an MPI communicator, for programs that save and load together. All of it is in this
// header, so that the library itself needs no MPI.

#if __has_include(<mpi.h>)  // by MPI's compilers
#include <mpi.h>
#else  // by Debian's compilers without an option
#include <mpi/mpi.h>
#endif

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "checkpoint/include/process_group.h"

namespace tessera::ckpt {

// A group of all ranks of a communicator, which it duplicates. Saves in the background need an
// MpiGroup of their own, and MPI initialised for MPI_THREAD_MULTIPLE, because the program's own
// calls of MPI go on meanwhile.
//
// For some hundreds of ranks: in Gather(), rank 0 receives one message after the other, and memory
// is copied once more on each side.
//
// MPI cannot take back what it has begun, and waits for a dead rank for ever. Therefore waits poll,
// each message has memory of its own, and what is given up is left to MPI. A group that has given a
// message up, or met another error, is unusable: call MPI_Abort(), or end the process without
// MPI_Finalize(), which would wait for the ranks that are missing.
class MpiGroup final : public ProcessGroup {
 public:
  // Collective. Precondition: MPI is initialised. If MPI cannot duplicate the communicator, it
  // calls the communicator's error handler, which by default ends all processes.
  explicit MpiGroup(MPI_Comm ranks) {
    MPI_Comm_dup(ranks, &comm_);
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
  }
  // Collective, unless the group is unusable.
  ~MpiGroup() override {
    if (!failed_ && abandoned().ok()) MPI_Comm_free(&comm_);
  }
  MpiGroup(const MpiGroup&) = delete;
  MpiGroup& operator=(const MpiGroup&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  // InvalidArgument, on the rank itself, for a message of more than 1 GiB.
  absl::StatusOr<std::vector<std::string>> Gather(std::string_view mine,
                                                  absl::Duration timeout) override {
    const Deadline deadline = After(timeout);
    std::vector<std::string> all;
    if (mine.size() > kPartBytes) return absl::InvalidArgumentError("more than 1 GiB to gather");
    if (rank_ != 0) {
      const absl::Status sent = Send(mine, 0, kGather)->Await(deadline);
      if (!sent.ok()) return sent;
      return all;
    }
    all.emplace_back(mine);
    for (int source = 1; source < size_; ++source) {
      absl::StatusOr<size_t> bytes = AwaitSize(source, deadline);
      if (!bytes.ok()) return bytes.status();
      std::string& theirs = all.emplace_back(*bytes, '\0');
      const absl::Status received =
          Receive(theirs.data(), *bytes, source, kGather)->Await(deadline);
      if (!received.ok()) return received;
    }
    return all;
  }

  absl::StatusOr<std::string> Broadcast(std::string_view from_rank_0,
                                        absl::Duration timeout) override {
    const Deadline deadline = After(timeout);
    std::string size = absl::StrCat(absl::Dec(from_rank_0.size(), absl::kZeroPad20));
    if (absl::Status status = BroadcastTo(size, deadline); !status.ok()) return status;
    std::string text(from_rank_0);
    if (rank_ != 0) text.resize(std::stoull(size));
    if (absl::Status status = BroadcastTo(text, deadline); !status.ok()) return status;
    return text;
  }

  std::unique_ptr<PendingMessage> StartSend(std::span<const std::byte> data,
                                            int destination) override {
    const auto* bytes = reinterpret_cast<const char*>(data.data());
    return Send({bytes, data.size()}, destination, kTransfer);
  }
  std::unique_ptr<PendingMessage> StartReceive(std::span<std::byte> data, int source) override {
    return Receive(data.data(), data.size(), source, kTransfer);
  }

 private:
  enum Tag { kTransfer, kGather };
  static constexpr size_t kPartBytes = size_t{1} << 30;  // MPI counts bytes by an int
  using Deadline = std::chrono::steady_clock::time_point;

  class Message final : public PendingMessage {
   public:
    // `to` receives as many bytes; null for a message that is sent.
    Message(MpiGroup& group, int peer, std::string bytes, void* to)
        : group_(group), peer_(peer), to_(to), state_(new State{std::move(bytes)}) {}
    ~Message() override {
      if (state_ == nullptr) return;
      group_.failed_ = true;
      state_.release();  // MPI may use it as long as the process lives
    }

    // Calls start(part, bytes, request) for each part, which begins its transfer.
    template <typename Start>
    void Begin(const Start& start) {
      std::string& memory = state_->memory;
      size_t begin = 0;
      do {
        const size_t bytes = std::min(kPartBytes, memory.size() - begin);
        state_->parts.push_back(MPI_REQUEST_NULL);
        Note(start(memory.data() + begin, static_cast<int>(bytes), &state_->parts.back()));
        begin += bytes;
      } while (begin < memory.size());
    }

    absl::Status Wait(absl::Duration timeout) override { return Await(After(timeout)); }
    absl::Status Await(Deadline deadline) {
      int ended = 0;
      while (true) {
        if (group_.failed_) return absl::UnavailableError("the group of ranks failed before");
        if (error_ == MPI_SUCCESS) {
          Note(MPI_Testall(static_cast<int>(state_->parts.size()), state_->parts.data(), &ended,
                           MPI_STATUSES_IGNORE));
        }
        if (error_ != MPI_SUCCESS) return group_.Failed(error_, peer_);
        if (ended != 0) break;
        if (!group_.Pause(deadline)) return group_.Missing(peer_);
      }
      if (to_ != nullptr) std::memcpy(to_, state_->memory.data(), state_->memory.size());
      state_ = nullptr;
      return absl::OkStatus();
    }

   private:
    struct State {
      std::string memory;
      std::vector<MPI_Request> parts = {};
    };
    void Note(int error) {
      if (error_ == MPI_SUCCESS) error_ = error;
    }

    MpiGroup& group_;
    const int peer_;
    void* const to_;
    std::unique_ptr<State> state_;  // until the message has ended
    int error_ = MPI_SUCCESS;
  };

  std::unique_ptr<Message> Send(std::string_view bytes, int destination, Tag tag) {
    auto message = std::make_unique<Message>(*this, destination, std::string(bytes), nullptr);
    message->Begin([&](void* part, int size, MPI_Request* request) {
      return MPI_Isend(part, size, MPI_BYTE, destination, tag, comm_, request);
    });
    return message;
  }
  std::unique_ptr<Message> Receive(void* to, size_t bytes, int source, Tag tag) {
    auto message = std::make_unique<Message>(*this, source, std::string(bytes, '\0'), to);
    message->Begin([&](void* part, int size, MPI_Request* request) {
      return MPI_Irecv(part, size, MPI_BYTE, source, tag, comm_, request);
    });
    return message;
  }

  // Returns the size of the message that a rank has sent to Gather().
  absl::StatusOr<size_t> AwaitSize(int source, Deadline deadline) {
    while (true) {
      int arrived = 0, bytes = 0;
      MPI_Status envelope;
      const int error = MPI_Iprobe(source, kGather, comm_, &arrived, &envelope);
      if (error != MPI_SUCCESS) return Failed(error, source);
      if (arrived != 0) {
        MPI_Get_count(&envelope, MPI_BYTE, &bytes);
        return bytes;
      }
      if (!Pause(deadline)) return Missing(source);
    }
  }

  // Sends rank 0's bytes to all ranks, which have as many.
  absl::Status BroadcastTo(std::string& bytes, Deadline deadline) {
    Message message(*this, 0, bytes, bytes.data());
    message.Begin([&](void* part, int size, MPI_Request* request) {
      return MPI_Ibcast(part, size, MPI_BYTE, 0, comm_, request);
    });
    return message.Await(deadline);
  }

  static Deadline After(absl::Duration timeout) {
    constexpr absl::Duration kLongest = absl::Hours(24 * 365);
    return std::chrono::steady_clock::now() +
           absl::ToChronoMilliseconds(std::min(timeout, kLongest));
  }
  // Lets other threads run; false once the deadline has passed.
  static bool Pause(Deadline deadline) {
    absl::SleepFor(absl::Microseconds(20));
    return std::chrono::steady_clock::now() < deadline;
  }
  absl::Status Missing(int peer) {
    failed_ = true;
    if (peer == rank_) return absl::DeadlineExceededError("missing ranks: not all have received");
    return absl::DeadlineExceededError(absl::StrCat("missing ranks: ", peer));
  }
  absl::Status Failed(int error, int peer) {
    failed_ = true;
    char text[MPI_MAX_ERROR_STRING] = {};
    int length = 0;
    MPI_Error_string(error, text, &length);
    return absl::UnavailableError(absl::StrCat("rank ", peer, ": ", text));
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  bool failed_ = false;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_MPI_MPI_GROUP_H_
