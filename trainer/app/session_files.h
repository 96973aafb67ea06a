#ifndef TESSERA_TRAINER_APP_SESSION_FILES_H_
#define TESSERA_TRAINER_APP_SESSION_FILES_H_

#include "absl/status/status.h"
#include "base/program.h"
#include "trainer/app/session.h"

namespace tessera {

// Opens the data and the tokenizer of a session that stands at its progress. `from_own`: which a
// checkpoint of the run's own has. `at_once` receives a sentence before something that takes long,
// `notes` the others. Collective. Errors name the setting.
absl::Status OpenFiles(Session& session, bool from_own, const NoteSink& at_once,
                       const NoteSink& notes);

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_SESSION_FILES_H_
