#include "tools/ckpt/report.h"

#include <string>
#include <vector>

namespace tessera::ckpt {

void PrintJson(const nlohmann::ordered_json& json, std::ostream& out) {
  out << json.dump(2, ' ', /*ensure_ascii=*/false, nlohmann::ordered_json::error_handler_t::replace)
      << "\n";
}

void PrintNotes(const std::vector<std::string>& notes, std::ostream& out) {
  for (const std::string& note : notes) out << "note: " << note << "\n";
}

void PrintDamage(const std::vector<Damage>& damage, std::string_view indent, std::ostream& out) {
  for (const Damage& place : damage) {
    out << indent;
    if (place.message.find(place.file) == std::string::npos) {
      out << place.file << " at offset " << place.offset_bytes << ": ";
    }
    if (!place.tensor.empty()) out << "tensor " << place.tensor << ": ";
    out << place.message << "\n";
  }
}

int Fail(const CommandOutput& output, bool json, std::string_view who, std::string_view problem,
         int exit_code) {
  output.err << who << ": " << problem << "\n";
  if (json) PrintJson({{"error", std::string(problem)}}, output.out);
  return exit_code;
}

int Fail(const CommandOutput& output, const CommandOptions& options, std::string_view who,
         const absl::Status& status) {
  const absl::string_view message = status.message();
  return Fail(output, options.json, who, {message.data(), message.size()},
              absl::IsDataLoss(status) ? kExitDifferent : kExitUsage);
}

}  // namespace tessera::ckpt
