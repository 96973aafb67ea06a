#include "comm/mpi/mpi_transport.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

// Calls of Idle() that only spin, because the next message is likely to be a microsecond away, and
// calls after which a wait is long enough to sleep.
constexpr int64_t kSpinPolls = 200;
constexpr int64_t kSpinsAndYields = 20000;
constexpr std::chrono::microseconds kBackoffSleep(100);

std::string ErrorText(int error) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(error, text, &length) != MPI_SUCCESS) return "unknown MPI error";
  return std::string(text, length);
}

}  // namespace

MpiTransport::MpiTransport(MPI_Comm comm, Monitor* monitor, int64_t part_bytes)
    : comm_(comm), monitor_(monitor), part_bytes_(part_bytes) {
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
}

void MpiTransport::Post(Transfer* transfer) {
  if (abandoned_requests_ > 0) return;
  char* data = static_cast<char*>(transfer->data);
  int64_t left = transfer->bytes;
  const int tag = static_cast<int>(transfer->match);
  do {
    const int bytes = static_cast<int>(std::min(left, part_bytes_));
    MPI_Request request = MPI_REQUEST_NULL;
    const int error = transfer->is_send
                          ? MPI_Isend(data, bytes, MPI_BYTE, transfer->peer, tag, comm_, &request)
                          : MPI_Irecv(data, bytes, MPI_BYTE, transfer->peer, tag, comm_, &request);
    if (error != MPI_SUCCESS) {
      transfer->error = ErrorText(error);
      break;
    }
    requests_.push_back(request);
    parts_.push_back({transfer, bytes});
    ++transfer->parts;
    data += bytes;
    left -= bytes;
  } while (left > 0);
  if (transfer->parts == 0) ended_.push_back(transfer);
}

void MpiTransport::Finish(const Part& part, const MPI_Status& status, int error) {
  Transfer* transfer = part.transfer;
  if (error != MPI_SUCCESS) {
    int kind = 0;
    MPI_Error_class(error, &kind);
    transfer->error = kind == MPI_ERR_TRUNCATE
                          ? absl::StrCat("rank ", transfer->peer, " sent more bytes where rank ",
                                         rank_, " expected ", transfer->bytes)
                          : absl::StrCat("rank ", transfer->peer, ": ", ErrorText(error));
  } else if (!transfer->is_send) {
    int received = 0;
    MPI_Get_count(&status, MPI_BYTE, &received);
    if (received != part.bytes) {
      transfer->error = absl::StrCat("rank ", transfer->peer, " sent ", received,
                                     " bytes where rank ", rank_, " expected ", part.bytes);
    }
  }
  if (--transfer->parts == 0) ended_.push_back(transfer);
}

uint64_t MpiTransport::Poll(std::vector<Transfer*>* ended) {
  if (!requests_.empty() && abandoned_requests_ == 0) {
    const int count = static_cast<int>(requests_.size());
    if (static_cast<int>(indices_.size()) < count) {
      indices_.resize(count);
      statuses_.resize(count);
    }
    int completed = 0;
    const int result =
        MPI_Testsome(count, requests_.data(), &completed, indices_.data(), statuses_.data());
    if (completed == MPI_UNDEFINED) completed = 0;
    for (int i = 0; i < completed; ++i) {
      const int error = result == MPI_ERR_IN_STATUS ? statuses_[i].MPI_ERROR : MPI_SUCCESS;
      Finish(parts_[indices_[i]], statuses_[i], error);
    }
    if (completed > 0) {
      size_t kept = 0;
      for (size_t i = 0; i < requests_.size(); ++i) {
        if (requests_[i] == MPI_REQUEST_NULL) continue;
        requests_[kept] = requests_[i];
        parts_[kept++] = parts_[i];
      }
      requests_.resize(kept);
      parts_.resize(kept);
    }
  }
  events_ += ended_.size();
  ended->insert(ended->end(), ended_.begin(), ended_.end());
  ended_.clear();
  return events_;
}

bool MpiTransport::TakeBack(MPI_Request* request, bool is_send) {
  if (abandoned_requests_ > 0) return false;
  // Cancelling succeeds for a receive that has not matched a message.
  if (!is_send) MPI_Cancel(request);
  int done = 0;
  return MPI_Test(request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done != 0;
}

void MpiTransport::Withdraw(Transfer* transfer) {
  std::erase(ended_, transfer);
  size_t kept = 0;
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (parts_[i].transfer == transfer) {
      if (!TakeBack(&requests_[i], transfer->is_send)) ++abandoned_requests_;
      continue;
    }
    requests_[kept] = requests_[i];
    parts_[kept++] = parts_[i];
  }
  requests_.resize(kept);
  parts_.resize(kept);
}

bool MpiTransport::Idle(uint64_t, int64_t idle_calls, absl::Duration longest) {
  if (idle_calls < kSpinPolls) return false;
  if (idle_calls < kSpinsAndYields) {
    sched_yield();
    return false;
  }
  std::this_thread::sleep_for(
      std::min<std::chrono::nanoseconds>(kBackoffSleep, absl::ToChronoNanoseconds(longest)));
  return true;
}

}  // namespace tessera
