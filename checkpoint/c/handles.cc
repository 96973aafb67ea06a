#include "checkpoint/c/handles.h"

#include <cstdlib>

namespace tessera::ckpt::c {
namespace {

thread_local LastError of_program;
thread_local LastError* of_callback = nullptr;  // while this thread is in one

LastError& Last() { return of_callback == nullptr ? of_program : *of_callback; }

}  // namespace

int32_t Report(const absl::Status& status) noexcept {
  if (status.ok()) return TESSERA_OK;
  LastError& last = Last();
  try {
    last.message = std::string(status.message());
    // It is a C string.
    std::ranges::replace(last.message, '\0', ' ');
    last.status = status;
  } catch (...) {
    last.message.clear();
  }
  return static_cast<int32_t>(status.code());
}

CallbackErrors::CallbackErrors() : outer_(std::exchange(of_callback, &last_)) {}
CallbackErrors::~CallbackErrors() { of_callback = outer_; }

absl::Status CallbackErrors::Of(int32_t code) const {
  if (code == TESSERA_OK) return absl::OkStatus();
  if (last_.status.raw_code() == code && !last_.message.empty()) return last_.status;
  const bool known = code > TESSERA_OK && code <= TESSERA_UNAUTHENTICATED;
  return {known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
          last_.message.empty() ? absl::StrCat("a callback returned ", code) : last_.message};
}

absl::Status CheckPointer(const void* pointer, std::string_view name) {
  if (pointer != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(std::string(name), " is NULL"));
}

absl::StatusOr<std::string> Text(const char* text, std::string_view name) {
  TESSERA_RETURN_IF_ERROR(CheckPointer(text, name));
  return std::string(text);
}

absl::StatusOr<std::vector<int64_t>> Numbers(const int64_t* numbers, size_t count,
                                             std::string_view name) {
  if (count == 0) return std::vector<int64_t>();
  TESSERA_RETURN_IF_ERROR(CheckPointer(numbers, name));
  return std::vector<int64_t>(numbers, numbers + count);
}

absl::Status GiveJson(const nlohmann::ordered_json& json, char** out) {
  if (out == nullptr) return absl::OkStatus();
  const std::string text =
      json.dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::ordered_json::error_handler_t::replace);
  auto* const copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) return absl::ResourceExhaustedError("not enough memory");
  std::memcpy(copy, text.c_str(), text.size() + 1);
  *out = copy;
  return absl::OkStatus();
}

std::function<bool()> IsSet(const int32_t* number) {
  if (number == nullptr) return nullptr;
  return [number] { return __atomic_load_n(number, __ATOMIC_RELAXED) != 0; };
}

absl::Status SetCount(int32_t value, std::string_view name, int& to) {
  constexpr int32_t kMost = 1024;
  if (value < 0 || value > kMost) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(name), " is ", value, ", expected at most ", kMost));
  }
  if (value > 0) to = value;
  return absl::OkStatus();
}

absl::Status SetSeconds(double value, std::string_view name, absl::Duration& to) {
  if (!(value >= 0)) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(name), " is ", value));
  }
  if (value > 0) to = absl::Seconds(value);
  return absl::OkStatus();
}

}  // namespace tessera::ckpt::c

extern "C" {

int32_t tessera_abi_version(void) { return TESSERA_ABI_VERSION; }

const char* tessera_error_message(void) { return tessera::ckpt::c::Last().message.c_str(); }

void tessera_set_error_message(const char* message) {
  const char* const text = message == nullptr ? "" : message;
  // A callback hands the error of a function on that it has called.
  if (*text == 0 || text != tessera::ckpt::c::Last().message) {
    tessera::ckpt::c::Report(absl::UnknownError(text));
  }
}

void tessera_text_free(char* text) { std::free(text); }

}  // extern "C"
