#ifndef TESSERA_BASE_ERRORS_H_
#define TESSERA_BASE_ERRORS_H_

#include <string_view>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace tessera {

// Makes errors whose messages consist of parts, as by absl::StrCat(); std::string_view is one, too:
//   return DataLoss("tensor ", name, ": expected ", expected, " elements, found ", found);
template <absl::StatusCode kCode>
struct ErrorOf {
  template <typename... Parts>
  absl::Status operator()(const Parts&... parts) const {
    return absl::Status(kCode, absl::StrCat(AsPart(parts)...));
  }

 private:
  template <typename Part>
  static decltype(auto) AsPart(const Part& part) {
    if constexpr (std::is_same_v<Part, std::string_view>) {
      return View(part);
    } else {
      return (part);
    }
  }
};

inline constexpr ErrorOf<absl::StatusCode::kDataLoss> DataLoss;
inline constexpr ErrorOf<absl::StatusCode::kInvalidArgument> InvalidArgument;
inline constexpr ErrorOf<absl::StatusCode::kUnimplemented> Unimplemented;
inline constexpr ErrorOf<absl::StatusCode::kFailedPrecondition> FailedPrecondition;
inline constexpr ErrorOf<absl::StatusCode::kNotFound> NotFound;
inline constexpr ErrorOf<absl::StatusCode::kAlreadyExists> AlreadyExists;

}  // namespace tessera

#endif  // TESSERA_BASE_ERRORS_H_
