#include "base/no_memory.h"

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace tessera {

// Neither of these throws: without memory for the message, it is empty.
absl::Status NoMemoryStatus(const std::bad_alloc& error, std::string_view action) {
  const auto* const known = dynamic_cast<const NoMemory*>(&error);
  if (known != nullptr && !known->error().ok()) return known->error();
  try {
    return absl::ResourceExhaustedError(
        absl::StrCat("not enough memory", action.empty() ? "" : " to ", View(action), ": ",
                     known != nullptr ? known->what() : "the system gives no more",
                     "; the limit may be the machine's, the control group's or that of ulimit -v"));
  } catch (const std::bad_alloc&) {
    return absl::Status(absl::StatusCode::kResourceExhausted, "");  // which takes no memory
  }
}

absl::Status ExceptionStatus(const std::exception& error, std::string_view action) {
  const auto* const no_memory = dynamic_cast<const std::bad_alloc*>(&error);
  if (no_memory != nullptr) return NoMemoryStatus(*no_memory, action);
  try {
    return absl::InternalError(absl::StrCat(action.empty() ? "" : "cannot ", View(action),
                                            action.empty() ? "" : ": ",
                                            "an exception was thrown: ", error.what()));
  } catch (const std::bad_alloc& missing) {
    return NoMemoryStatus(missing, action);
  }
}

}  // namespace tessera
