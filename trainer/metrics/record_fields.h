#ifndef TESSERA_TRAINER_METRICS_RECORD_FIELDS_H_
#define TESSERA_TRAINER_METRICS_RECORD_FIELDS_H_

// What programs read from the records of a run, whatever a damaged file has in their fields.

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"

namespace tessera {

// The record that a line is, without what a power loss has left before it; nullopt if the line is
// not a JSON object with a kind.
std::optional<nlohmann::json> RecordOf(std::string_view line);

// "step", "eval", "save" or "event"; empty if the record has no such text.
std::string_view KindOf(const nlohmann::json& record);

// The number of completed steps; nullopt unless it is an integer.
std::optional<int64_t> StepOf(const nlohmann::json& record);

// NaN unless the field is a number.
double NumberOf(const nlohmann::json& record, std::string_view name);

// "loss" or "eval_loss", exactly: from the 16 hexadecimal digits of "loss_bits" or "eval_loss_bits"
// where they are there.
double LossOf(const nlohmann::json& record, std::string_view name);

// The median of the finite numbers; NaN without any.
double MedianOfFinite(std::vector<double> numbers);

}  // namespace tessera

#endif  // TESSERA_TRAINER_METRICS_RECORD_FIELDS_H_
