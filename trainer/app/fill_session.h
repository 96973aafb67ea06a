#ifndef TESSERA_TRAINER_APP_FILL_SESSION_H_
#define TESSERA_TRAINER_APP_FILL_SESSION_H_

#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "trainer/app/session.h"
#include "trainer/state/find_saved.h"

namespace tessera {

// Gives a session that stands at the progress of `saved` its weights and optimizer state: those of
// the checkpoint, or of an llm.c file, or initial ones; notes say which. Collective.
absl::Status FillSession(const std::optional<SavedRun>& saved, Session& session,
                         const std::function<void(const std::string&)>& notes);

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_FILL_SESSION_H_
