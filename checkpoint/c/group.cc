// A group of ranks that communicate by the program's callbacks.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/text.h"
#include "checkpoint/c/handles.h"

namespace tessera::ckpt::c {
namespace {

class CallbackMessage final : public PendingMessage {
 public:
  CallbackMessage(const tessera_group& group, const absl::Status& started, void* pending)
      : group_(group), started_(started), pending_(pending) {}
  ~CallbackMessage() override {
    if (started_.ok()) group_.release(group_.context, pending_);
  }
  absl::Status Wait(absl::Duration timeout) override {
    TESSERA_RETURN_IF_ERROR(started_);
    return CallBack(
        [&] { return group_.wait(group_.context, pending_, absl::ToDoubleSeconds(timeout)); });
  }

 private:
  const tessera_group& group_;
  const absl::Status started_;
  void* const pending_;
};

class CallbackGroup final : public ProcessGroup {
 public:
  explicit CallbackGroup(const tessera_group& group) : group_(group) {
    const tessera_abandoned* const earlier = group.abandoned;
    if (earlier == nullptr || earlier->code == TESSERA_OK) return;
    const std::string message(earlier->message, strnlen(earlier->message, kMessageBytes));
    ProcessGroup::Abandon({static_cast<absl::StatusCode>(earlier->code), message});
  }
  int rank() const override { return group_.rank; }
  int size() const override { return group_.size; }

  absl::StatusOr<std::vector<std::string>> Gather(std::string_view mine,
                                                  absl::Duration timeout) override {
    return CollectMessages(group_.rank == 0 ? group_.size : 0, [&](tessera_messages* messages) {
      return group_.gather(group_.context, mine.data(), mine.size(), absl::ToDoubleSeconds(timeout),
                           messages);
    });
  }

  absl::StatusOr<std::string> Broadcast(std::string_view from_rank_0,
                                        absl::Duration timeout) override {
    TESSERA_ASSIGN_OR_RETURN(
        std::vector<std::string> messages, CollectMessages(1, [&](tessera_messages* messages) {
          return group_.broadcast(group_.context, from_rank_0.data(), from_rank_0.size(),
                                  absl::ToDoubleSeconds(timeout), messages);
        }));
    return std::move(messages[0]);
  }

  std::unique_ptr<PendingMessage> StartSend(std::span<const std::byte> data,
                                            int destination) override {
    void* pending = nullptr;
    const absl::Status started = CallBack([&] {
      return group_.start_send(group_.context, data.data(), data.size(), destination, &pending);
    });
    return std::make_unique<CallbackMessage>(group_, started, pending);
  }

  std::unique_ptr<PendingMessage> StartReceive(std::span<std::byte> data, int source) override {
    void* pending = nullptr;
    const absl::Status started = CallBack([&] {
      return group_.start_receive(group_.context, data.data(), data.size(), source, &pending);
    });
    return std::make_unique<CallbackMessage>(group_, started, pending);
  }

  void Abandon(const absl::Status& reason) override {
    ProcessGroup::Abandon(reason);
    tessera_abandoned* const kept = group_.abandoned;
    if (kept == nullptr || kept->code != TESSERA_OK) return;
    const std::string_view message(reason.message().data(), reason.message().size());
    const size_t bytes = WholeCharacters(message.substr(0, kMessageBytes - 1));
    std::memcpy(kept->message, message.data(), bytes);
    kept->message[bytes] = '\0';
    kept->code = static_cast<int32_t>(reason.code());
  }

 private:
  static constexpr size_t kMessageBytes = sizeof(tessera_abandoned::message);
  const tessera_group group_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ProcessGroup>> MakeGroup(const tessera_group* group) {
  if (group == nullptr) return nullptr;
  TESSERA_ASSIGN_OR_RETURN(const tessera_group copy, ReadStruct(group, "group"));
  if (copy.size < 1 || copy.rank < 0 || copy.rank >= copy.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("group: rank ", copy.rank, " of ", copy.size, " ranks"));
  }
  if (copy.gather == nullptr || copy.broadcast == nullptr || copy.start_send == nullptr ||
      copy.start_receive == nullptr || copy.wait == nullptr || copy.release == nullptr) {
    return absl::InvalidArgumentError("group: a callback is NULL");
  }
  return std::make_unique<CallbackGroup>(copy);
}

}  // namespace tessera::ckpt::c

extern "C" int32_t tessera_messages_add(tessera_messages* messages, const void* data,
                                        size_t bytes) {
  using namespace tessera::ckpt::c;  // NOLINT(google-build-using-namespace)
  return RunOn(messages, "messages", [&]() -> absl::Status {
    if (bytes > 0) TESSERA_RETURN_IF_ERROR(CheckPointer(data, "data"));
    messages->messages.emplace_back(static_cast<const char*>(data), bytes);
    return absl::OkStatus();
  });
}
