#include "comm/nccl/nccl_messages.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

// Kinds of messages, apart from every collective operation's.
constexpr int kAnnouncePhase = 0, kAnswerPhase = 15;

struct Announcement {
  int64_t bytes = 0;
  const void* data = nullptr;  // for a message from a rank to itself
};

struct Answer {
  uint64_t place = 0;
  NcclApi::UniqueId id = {};
};

class SendTask final : public NcclTask {
 public:
  SendTask(NcclRank& shared, NcclLanes& outgoing, ConstBuffer data, int destination)
      : NcclTask(shared), outgoing_(outgoing), data_(data), destination_(destination) {}

  std::vector<int> Awaited() const override { return {destination_}; }

 private:
  absl::Status Begin() override {
    if (destination_ != rank()) CountSent(data_.bytes());
    announcement_ = {data_.bytes(), data_.data};
    SendUncounted(destination_, &announcement_, sizeof(announcement_), kAnnouncePhase);
    answered_ = Receive(destination_, &answer_, sizeof(answer_), kAnswerPhase);
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Agree() override {
    if (!answered_->done) return false;
    // A message to this rank: the receiver copies it before it answers.
    if (destination_ == rank()) return outstanding() == 0;
    std::unique_ptr<NcclLane>& lane = outgoing_[destination_];
    if (lane == nullptr) {
      TESSERA_ASSIGN_OR_RETURN(lane, NcclLane::Create(shared()));
      TESSERA_RETURN_IF_ERROR(lane->Connect(2, answer_.id, 0));
    }
    Enter(lane.get(), answer_.place);
    if (data_.bytes() == 0) return false;
    AddStep([this, lane = lane.get()] {
      return lane->Call([&](NcclApi& api, NcclApi::Comm comm) {
        return api.Send(data_.data, static_cast<size_t>(data_.bytes()), 1, comm,
                        lane->stream().handle());
      });
    });
    return false;
  }

  bool Finish() override { return outstanding() == 0; }

  NcclLanes& outgoing_;
  const ConstBuffer data_;
  const int destination_;
  Announcement announcement_;
  Answer answer_;
  const Transfer* answered_ = nullptr;
};

class ReceiveTask final : public NcclTask {
 public:
  ReceiveTask(NcclRank& shared, NcclLanes& incoming, Buffer data, int source)
      : NcclTask(shared), incoming_(incoming), data_(data), source_(source) {}

  std::vector<int> Awaited() const override { return {source_}; }

 private:
  absl::Status Begin() override {
    announced_ = Receive(source_, &announcement_, sizeof(announcement_), kAnnouncePhase);
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Agree() override {
    if (!announced_->done) return false;
    if (announcement_.bytes != data_.bytes()) {
      return absl::InternalError(absl::StrCat("rank ", world_rank(source_), " sent ",
                                              announcement_.bytes, " bytes where rank ",
                                              world_rank(rank()), " expected ", data_.bytes()));
    }
    std::unique_ptr<NcclLane>& lane = incoming_[source_];
    if (lane == nullptr) {
      TESSERA_ASSIGN_OR_RETURN(lane, NcclLane::Create(shared()));
      TESSERA_RETURN_IF_ERROR(Connect(*lane));
    }
    answer_.id = lane->id();
    answer_.place = lane->TakePlace();
    Enter(lane.get(), answer_.place);
    if (source_ == rank()) return CopyFromSelf();
    AnswerSender();
    if (data_.bytes() == 0) return false;
    AddStep([this, lane = lane.get()] {
      return lane->Call([&](NcclApi& api, NcclApi::Comm comm) {
        return api.Receive(data_.data, static_cast<size_t>(data_.bytes()), 0, comm,
                           lane->stream().handle());
      });
    });
    return false;
  }

  bool Finish() override {
    if (!answer_sent_) AnswerSender();
    return outstanding() == 0;
  }

  absl::Status Connect(NcclLane& lane) {
    if (source_ == rank()) return absl::OkStatus();
    TESSERA_ASSIGN_OR_RETURN(const NcclApi::UniqueId id, shared().NewId());
    return lane.Connect(2, id, 1);
  }

  // Copies a message of this device to itself, and then completes the sender's side.
  absl::StatusOr<bool> CopyFromSelf() {
    // The sender may have been started later than this task.
    TESSERA_RETURN_IF_ERROR(FollowCompute());
    AddStep([this] {
      lane()->stream().Copy(announcement_.data, data_.bytes(), data_.data);
      return absl::OkStatus();
    });
    return false;
  }

  void AnswerSender() {
    SendUncounted(source_, &answer_, sizeof(answer_), kAnswerPhase);
    answer_sent_ = true;
  }

  NcclLanes& incoming_;
  const Buffer data_;
  const int source_;
  Announcement announcement_;
  Answer answer_;
  const Transfer* announced_ = nullptr;
  bool answer_sent_ = false;
};

}  // namespace

std::unique_ptr<Task> MakeNcclSendTask(NcclRank& shared, NcclLanes& outgoing, ConstBuffer data,
                                       int destination) {
  return std::make_unique<SendTask>(shared, outgoing, data, destination);
}

std::unique_ptr<Task> MakeNcclReceiveTask(NcclRank& shared, NcclLanes& incoming, Buffer data,
                                          int source) {
  return std::make_unique<ReceiveTask>(shared, incoming, data, source);
}

}  // namespace tessera
