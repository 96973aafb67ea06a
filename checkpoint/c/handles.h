#ifndef TESSERA_CHECKPOINT_C_HANDLES_H_
#define TESSERA_CHECKPOINT_C_HANDLES_H_

// The objects behind the handles of tessera_checkpoint.h, and the parts of its functions: none of
// them throws, each checks its arguments, and errors become a code and a message.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "checkpoint/c/tessera_checkpoint.h"
#include "checkpoint/include/async_saver.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/checkpoint_manager.h"
#include "checkpoint/include/device_memory.h"
#include "checkpoint/include/process_group.h"
#include "nlohmann/json.hpp"
#include "storage/storage.h"

// Each handle begins with a number that identifies its kind.
struct tessera_state {
  static constexpr uint32_t kKind = 0x7e550001;
  uint32_t kind = kKind;
  tessera::ckpt::StateDict dict;
  tessera::ckpt::Metadata metadata;
};

struct tessera_messages {
  static constexpr uint32_t kKind = 0x7e550002;
  uint32_t kind = kKind;
  std::vector<std::string> messages;
};

struct tessera_folder {
  static constexpr uint32_t kKind = 0x7e550003;
  uint32_t kind = kKind;
  tessera::ckpt::CheckpointFolder folder;
};

struct tessera_checkpoint {
  static constexpr uint32_t kKind = 0x7e550004;
  uint32_t kind = kKind;
  std::shared_ptr<tessera::Storage> storage;  // if the checkpoint does not own it
  tessera::ckpt::Checkpoint checkpoint;
  std::vector<std::string> notes;
  std::string format;                                // empty: this library's, without the next two
  std::map<std::string, std::string> foreign_names;  // by the names of tensors
  nlohmann::ordered_json values = nlohmann::ordered_json::object();
  tessera::ckpt::Metadata metadata;  // whose entries tessera_checkpoint_entry() points to
};

struct tessera_saver {
  static constexpr uint32_t kKind = 0x7e550005;
  uint32_t kind = kKind;
  tessera::ckpt::CheckpointFolder folder;
  std::unique_ptr<tessera::ckpt::ProcessGroup> group;
  std::unique_ptr<tessera::ckpt::AsyncSaver> saver;
};

struct tessera_manager {
  static constexpr uint32_t kKind = 0x7e550006;
  uint32_t kind = kKind;
  std::unique_ptr<tessera::ckpt::ProcessGroup> group, background_group;
  std::unique_ptr<tessera::ckpt::CheckpointManager> manager;
};

namespace tessera::ckpt::c {

// Keeps the message for tessera_error_message(). Returns the code.
int32_t Report(const absl::Status& status) noexcept;

// Runs a function's body, which returns an absl::Status.
template <typename Body>
int32_t Run(const Body& body) noexcept {
  try {
    return Report(body());
  } catch (const std::bad_alloc&) {
    return Report(absl::ResourceExhaustedError("not enough memory"));
  } catch (const std::exception& error) {
    return Report(absl::InternalError(error.what()));
  } catch (...) {
    return Report(absl::InternalError("an unknown exception"));
  }
}

// The error of the last call that failed.
struct LastError {
  std::string message;  // for tessera_error_message()
  absl::Status status;
};

// Keeps the errors of this thread while it is in a callback, so that the program's own last one
// stays as it is.
class CallbackErrors {
 public:
  CallbackErrors();
  ~CallbackErrors();
  CallbackErrors(const CallbackErrors&) = delete;
  CallbackErrors& operator=(const CallbackErrors&) = delete;

  // Returns the error whose code the callback has returned.
  absl::Status Of(int32_t code) const;

 private:
  LastError last_;
  LastError* const outer_;
};

// Calls a function of the program. Returns what went wrong there.
template <typename Call>
absl::Status CallBack(const Call& call) {
  const CallbackErrors errors;
  return errors.Of(call());
}

template <typename Handle>
absl::Status CheckHandle(const Handle* handle, std::string_view name) {
  if (handle == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(name), " is NULL"));
  }
  if (reinterpret_cast<uintptr_t>(handle) % alignof(Handle) == 0 && handle->kind == Handle::kKind) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(name), " is not a handle of its kind, or was freed"));
}

// Runs the body of a function of a handle, which is checked before.
template <typename Handle, typename Body>
int32_t RunOn(const Handle* handle, std::string_view name, const Body& body) noexcept {
  return Run([&]() -> absl::Status {
    TESSERA_RETURN_IF_ERROR(CheckHandle(handle, name));
    return body();
  });
}

// Calls a function of the program that adds messages, as many as are expected. Returns them.
template <typename Call>
absl::StatusOr<std::vector<std::string>> CollectMessages(int expected, const Call& call) {
  tessera_messages messages;
  TESSERA_RETURN_IF_ERROR(CallBack([&] { return call(&messages); }));
  const int found = static_cast<int>(messages.messages.size());
  if (found != expected) {
    return absl::InternalError(
        absl::StrCat("a callback has added ", found, " messages, expected ", expected));
  }
  return std::move(messages.messages);
}

template <typename Handle>
void Free(Handle* handle) noexcept {
  if (!CheckHandle(handle, "").ok()) return;
  handle->kind = 0;
  delete handle;
}

absl::Status CheckPointer(const void* pointer, std::string_view name);
absl::StatusOr<std::string> Text(const char* text, std::string_view name);  // not NULL
inline std::string TextOrEmpty(const char* text) { return text == nullptr ? "" : text; }

// Returns `count` numbers.
absl::StatusOr<std::vector<int64_t>> Numbers(const int64_t* numbers, size_t count,
                                             std::string_view name);

// Returns whether a structure of a program can have this size, whatever its version. Sizes are
// multiples of the alignment: another one would cut a member in two.
template <typename Struct>
bool IsStructSize(size_t bytes, size_t least) {
  constexpr size_t kLargest = 1024;
  return bytes >= least && bytes <= kLargest && bytes % alignof(Struct) == 0;
}

// Returns a structure of the program, whose version may be older or newer than this one; all zero
// for NULL.
template <typename Struct>
absl::StatusOr<Struct> ReadStruct(const Struct* from, std::string_view name) {
  Struct copy = {};
  if (from == nullptr) return copy;
  const size_t bytes = from->struct_bytes;
  if (!IsStructSize<Struct>(bytes, sizeof(size_t))) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(name), ": struct_bytes is ", bytes,
                                                   ", expected ", sizeof(Struct)));
  }
  std::memcpy(&copy, from, std::min(bytes, sizeof(Struct)));
  const char* const raw = reinterpret_cast<const char*>(from);
  for (size_t i = sizeof(Struct); i < bytes; ++i) {
    if (raw[i] == 0) continue;
    return absl::UnimplementedError(absl::StrCat(
        std::string(name), ": an option that this version of the library does not know"));
  }
  return copy;
}

// Hands a JSON text to the program, which frees it. `out` may be null.
absl::Status GiveJson(const nlohmann::ordered_json& json, char** out);

// Returns a function that returns whether `*number`, which another thread may set, differs from 0.
// Null if `number` is null.
std::function<bool()> IsSet(const int32_t* number);
// Sets a count, unless `value` is 0, which stands for the default.
absl::Status SetCount(int32_t value, std::string_view name, int& to);
// As SetCount(), for a time.
absl::Status SetSeconds(double value, std::string_view name, absl::Duration& to);

// Reads the options of saves and their group, which must stay as long as the options are used.
absl::StatusOr<AsyncSaveOptions> ReadSaveOptions(const tessera_save_options* from,
                                                 std::string_view name,
                                                 std::unique_ptr<ProcessGroup>& group);

// Waits until memory is copied; all memory for a null `data`.
template <typename Saver>
absl::Status WaitUntilCopied(Saver& saver, const void* data, size_t bytes) {
  if (data == nullptr) {
    saver.WaitUntilAllCopied();
  } else {
    saver.WaitUntilCopied(data, bytes);
  }
  return absl::OkStatus();
}

// Hands an opened checkpoint to the program, with the notes about it.
absl::Status Give(absl::StatusOr<Checkpoint> opened, tessera_checkpoint** out,
                  std::vector<std::string> notes = {});

// Returns [{"step", "directory", ...}, ...].
nlohmann::ordered_json ToJson(const std::vector<SaveOutcome>& outcomes);

// Returns the structure's group; null for this process alone.
absl::StatusOr<std::unique_ptr<ProcessGroup>> MakeGroup(const tessera_group* group);

// Returns the structure's device: the same one for equal structures, as long as anything uses it.
absl::StatusOr<std::shared_ptr<DeviceMemory>> MakeDevice(const tessera_device* device);

}  // namespace tessera::ckpt::c

#endif  // TESSERA_CHECKPOINT_C_HANDLES_H_
