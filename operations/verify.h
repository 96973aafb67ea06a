#ifndef TESSERA_OPERATIONS_VERIFY_H_
#define TESSERA_OPERATIONS_VERIFY_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/include/verify_options.h"
#include "nlohmann/json.hpp"
#include "operations/named_checkpoint.h"

namespace tessera::ckpt {

// CheckpointFolder::Verify() for any checkpoint. For another framework's, the report also has the
// damage that reading every tensor does not show, and names places as its own files do. One that is
// sealed is compared with its seal: see convert::VerifySealed(). A damaged seal is damage.
absl::StatusOr<VerifyReport> Verify(const NamedCheckpoint& named, const VerifyOptions& options);

// Gives damage of what another framework's checkpoint is presented as the names that its own files
// have. Leaves that of a checkpoint of this library as it is.
void NameForeignPlaces(const NamedCheckpoint& named, std::vector<Damage>& damage);

// `name`: of the checkpoint. `digests`: whether they were compared.
nlohmann::ordered_json ToJson(const NamedCheckpoint& named, const VerifyReport& report,
                              bool digests);
nlohmann::ordered_json ToJson(const std::string& name, const VerifyReport& report, bool digests);

}  // namespace tessera::ckpt

#endif  // TESSERA_OPERATIONS_VERIFY_H_
