#ifndef TESSERA_TRAINER_METRICS_RECORD_FIELDS_H_
#define TESSERA_TRAINER_METRICS_RECORD_FIELDS_H_

// The fields of a run's records, read safely from files that may be damaged.

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"

namespace tessera {

// Returns the record in a line, without bytes that a power loss has left before it; nullopt if the
// line is not a JSON object with a kind.
std::optional<nlohmann::json> RecordOf(std::string_view line);

// Returns a text, which belongs to the record; empty unless the field is one.
std::string_view TextOf(const nlohmann::json& record, std::string_view name);

// Returns "step", "eval", "save" or "event"; empty if the record has no such text.
std::string_view KindOf(const nlohmann::json& record);

// Returns the number of completed steps; nullopt unless it is an integer.
std::optional<int64_t> StepOf(const nlohmann::json& record);

// Returns a number; NaN unless the field is one.
double NumberOf(const nlohmann::json& record, std::string_view name);

// Returns a number exactly: from the 16 hexadecimal digits of NAME_bits if the record has them.
double ExactNumberOf(const nlohmann::json& record, std::string_view name);

// Returns the median of the finite numbers; NaN without any.
double MedianOfFinite(std::vector<double> numbers);

}  // namespace tessera

#endif  // TESSERA_TRAINER_METRICS_RECORD_FIELDS_H_
