#ifndef TESSERA_BASE_STATUS_MACROS_H_
#define TESSERA_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Evaluates an expression of type absl::Status and returns it from the enclosing function unless it
// is OK.
//   TESSERA_RETURN_IF_ERROR(file->Sync());
#define TESSERA_RETURN_IF_ERROR(expression)        \
  do {                                             \
    ::absl::Status tessera_status_ = (expression); \
    if (!tessera_status_.ok()) [[unlikely]]        \
      return tessera_status_;                      \
  } while (false)

// Evaluates an expression of type absl::StatusOr<T>; returns its status on error, otherwise moves
// its value into `lhs`, which may be a declaration. A declaration whose type contains a comma needs
// parentheses or `auto`.
//   TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<ReadableFile> file, storage.Open(path));
#define TESSERA_ASSIGN_OR_RETURN(lhs, expression)                                           \
  TESSERA_ASSIGN_OR_RETURN_IMPL_(TESSERA_STATUS_CONCAT_(tessera_status_or_, __LINE__), lhs, \
                                 expression)

#define TESSERA_STATUS_CONCAT_INNER_(a, b) a##b
#define TESSERA_STATUS_CONCAT_(a, b) TESSERA_STATUS_CONCAT_INNER_(a, b)
// NOLINTBEGIN(bugprone-macro-parentheses): a declaration in parentheses declares something else.
#define TESSERA_ASSIGN_OR_RETURN_IMPL_(temporary, lhs, expression) \
  auto temporary = (expression);                                   \
  if (!temporary.ok()) [[unlikely]]                                \
    return temporary.status();                                     \
  lhs = *std::move(temporary)
// NOLINTEND(bugprone-macro-parentheses)

#endif  // TESSERA_BASE_STATUS_MACROS_H_
