#ifndef TESSERA_TOOLS_CKPT_REPORT_H_
#define TESSERA_TOOLS_CKPT_REPORT_H_

#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "checkpoint/include/checkpoint.h"
#include "convert/operations/named_checkpoint.h"
#include "nlohmann/json.hpp"
#include "tools/ckpt/commands.h"

namespace tessera::ckpt {

// Paths and names need not be UTF-8, but JSON must be: other bytes are replaced.
void PrintJson(const nlohmann::ordered_json& json, std::ostream& out);

// A line each: what a command says of another framework's checkpoint beside its result.
void PrintNotes(const std::vector<std::string>& notes, std::ostream& out);

// A line for each damaged place. The message of a file that cannot be read at all names it itself.
void PrintDamage(const std::vector<Damage>& damage, std::string_view indent, std::ostream& out);

// A sentence on what a verification without findings has proven.
std::string Proof(const NamedCheckpoint& named, const VerifyReport& report, bool digests);

// Reports why a command ends without a result: "ckpt ls: ..." on stderr and, for machines, one
// object {"error": "..."} on stdout. Returns `exit_code`.
int Fail(const CommandOutput& output, bool json, std::string_view who, std::string_view problem,
         int exit_code);

// The same for a checkpoint that cannot be read; the exit code distinguishes damage from other
// errors.
int Fail(const CommandOutput& output, const CommandOptions& options, std::string_view who,
         const absl::Status& status);

}  // namespace tessera::ckpt

#endif  // TESSERA_TOOLS_CKPT_REPORT_H_
