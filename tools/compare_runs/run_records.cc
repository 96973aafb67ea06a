#include "tools/compare_runs/run_records.h"

#include <bit>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "trainer/config/config.h"
#include "trainer/config/config.pb.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

double Number(const Json& record, const char* name) {
  const auto field = record.find(name);
  if (field == record.end() || !field->is_number()) return std::numeric_limits<double>::quiet_NaN();
  return field->get<double>();
}

// The 16 hexadecimal digits of `bits_name` where they are there, else the number `name`.
double ExactNumber(const Json& record, const char* name, const char* bits_name) {
  const auto field = record.find(bits_name);
  if (field == record.end() || !field->is_string()) return Number(record, name);
  const std::string digits = field->get<std::string>();
  uint64_t bits = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), bits, /*base=*/16);
  if (error != std::errc() || end != digits.data() + digits.size() || digits.size() != 16) {
    return Number(record, name);
  }
  return std::bit_cast<double>(bits);
}

// Adds one line to `records`. Returns false if it is not a record of a step or an evaluation.
bool AddRecord(const std::string& line, RunRecords& records) {
  const Json record = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!record.is_object()) return false;
  const auto step_field = record.find("step"), kind = record.find("kind");
  if (step_field == record.end() || !step_field->is_number_integer()) return false;
  if (kind == record.end() || !kind->is_string()) return false;
  const int64_t step = step_field->get<int64_t>();
  bool is_new = true;
  if (*kind == "step") {
    is_new = records.steps
                 .insert_or_assign(
                     step, StepRecord{.loss = ExactNumber(record, "loss", "loss_bits"),
                                      .grad_norm = Number(record, "grad_norm"),
                                      .lr = Number(record, "lr"),
                                      .tokens_per_second = Number(record, "tokens_per_second")})
                 .second;
  } else if (*kind == "eval") {
    is_new = records.evaluation_losses
                 .insert_or_assign(step, ExactNumber(record, "eval_loss", "eval_loss_bits"))
                 .second;
  }
  if (!is_new) {
    records.notes.push_back(
        absl::StrCat("step ", step, " is recorded more than once: the last record counts"));
  }
  return true;
}

absl::Status AddPrecision(const std::filesystem::path& config_file, RunRecords& records) {
  std::error_code error;
  if (!std::filesystem::exists(config_file, error)) return absl::OkStatus();
  const absl::StatusOr<TrainConfig> config = LoadConfig(config_file.string());
  if (!config.ok()) return config.status();
  records.bf16 = config->training().bf16();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RunRecords> ReadRunRecords(const std::string& path) {
  std::error_code error;
  std::filesystem::path file_path = path;
  if (std::filesystem::is_directory(file_path, error)) file_path /= "metrics.jsonl";
  RunRecords records{.path = file_path.string()};
  std::ifstream file(file_path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", records.path));
  int64_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (AddRecord(line, records)) continue;
    records.notes.push_back(absl::StrCat("line ", number, " is not a record and is left out"));
  }
  if (records.steps.empty() && records.evaluation_losses.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(records.path, " holds no record of a step: expected a run's metrics.jsonl"));
  }
  const absl::Status precision =
      AddPrecision(file_path.parent_path() / "config.textproto", records);
  if (!precision.ok()) {
    records.notes.push_back(
        absl::StrCat("its precision is not known: ", std::string(precision.message())));
  }
  return records;
}

}  // namespace tessera
