#ifndef TESSERA_OPERATIONS_VERIFY_H_
#define TESSERA_OPERATIONS_VERIFY_H_

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/include/verify_options.h"
#include "nlohmann/json.hpp"
#include "operations/named_checkpoint.h"

namespace tessera::ckpt {

// Verifies any checkpoint, as CheckpointFolder::Verify() does. For another framework's checkpoint,
// the report also has damage that reading every tensor does not show, and names places in its own
// files. A sealed checkpoint is compared with its seal: see convert::VerifySealed(). A damaged seal
// is damage.
absl::StatusOr<VerifyReport> Verify(const NamedCheckpoint& named, const VerifyOptions& options);

// Renames damaged places of another framework's checkpoint, which is presented under other names,
// to places in its own files. Does not change damage of a checkpoint of this library.
void NameForeignPlaces(const NamedCheckpoint& named, std::vector<Damage>& damage);

// Returns damaged places as a JSON array.
nlohmann::ordered_json ToJson(std::span<const Damage> damage);

// Returns the report as JSON. `digests` tells whether digests were compared.
nlohmann::ordered_json ToJson(const NamedCheckpoint& named, const VerifyReport& report,
                              bool digests);
nlohmann::ordered_json ToJson(const std::string& name, const VerifyReport& report, bool digests);

}  // namespace tessera::ckpt

#endif  // TESSERA_OPERATIONS_VERIFY_H_
