#ifndef TESSERA_BASE_NO_MEMORY_H_
#define TESSERA_BASE_NO_MEMORY_H_

// Missing memory, and other exceptions, as an absl::Status.

#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"

namespace tessera {

// A std::bad_alloc that says what was to be allocated.
class NoMemory : public std::bad_alloc {
 public:
  explicit NoMemory(std::string what) : what_(std::move(what)) {}
  // An error of a device that was to allocate memory.
  explicit NoMemory(absl::Status error) : what_(error.message()), error_(std::move(error)) {}
  const char* what() const noexcept override { return what_.c_str(); }
  const absl::Status& error() const { return error_; }

 private:
  const std::string what_;
  const absl::Status error_;
};

// Returns ResourceExhausted: "not enough memory to ACTION: ..."; `action` may be empty. An error of
// a device is returned as it is.
absl::Status NoMemoryStatus(const std::bad_alloc& error, std::string_view action);

// Returns NoMemoryStatus() of a std::bad_alloc. Returns Internal for another exception, which a
// function of the program has thrown: "cannot ACTION: an exception was thrown: ...".
absl::Status ExceptionStatus(const std::exception& error, std::string_view action);

// Returns body(), an absl::Status or absl::StatusOr, or the status of the exception that it throws.
template <typename Body>
auto CatchExceptions(std::string_view action, const Body& body) -> decltype(body()) {
  try {
    return body();
  } catch (const std::exception& error) {
    return ExceptionStatus(error, action);
  }
}

}  // namespace tessera

#endif  // TESSERA_BASE_NO_MEMORY_H_
