#include "checkpoint/c/handles.h"

#include <cstdlib>

namespace tessera::ckpt::c {
namespace {

thread_local std::string error_message;
thread_local absl::Status last_error;  // of that message

}  // namespace

int32_t Report(const absl::Status& status) noexcept {
  if (status.ok()) return TESSERA_OK;
  try {
    error_message = std::string(status.message());
    // It is a C string.
    std::ranges::replace(error_message, '\0', ' ');
    last_error = status;
  } catch (...) {
    error_message.clear();
  }
  return static_cast<int32_t>(status.code());
}

absl::Status ErrorOf(int32_t code) {
  if (last_error.raw_code() == code && !error_message.empty()) return last_error;
  const bool known = code > TESSERA_OK && code <= TESSERA_UNAUTHENTICATED;
  return {known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
          error_message.empty() ? absl::StrCat("a callback returned ", code) : error_message};
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

using tessera::ckpt::c::error_message;

extern "C" {

int32_t tessera_abi_version(void) { return TESSERA_ABI_VERSION; }

const char* tessera_error_message(void) { return error_message.c_str(); }

void tessera_set_error_message(const char* message) {
  const char* const text = message == nullptr ? "" : message;
  // A callback hands the error of a function on that it has called.
  if (*text == 0 || text != error_message) tessera::ckpt::c::Report(absl::UnknownError(text));
}

void tessera_text_free(char* text) { std::free(text); }

}  // extern "C"
