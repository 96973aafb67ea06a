#include "trainer/metrics/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

constexpr double kNewStepWeight = 0.1;

absl::Status IoError(const char* what, const std::string& path) {
  const std::string text = absl::StrCat(what, " ", path, ": ", std::strerror(errno));
  if (errno == ENOENT) return absl::NotFoundError(text);
  if (errno == ENOSPC || errno == EDQUOT) return absl::ResourceExhaustedError(text);
  if (errno == EACCES || errno == EPERM || errno == EROFS) return absl::PermissionDeniedError(text);
  return absl::UnknownError(text);
}

std::string JsonNumber(double value) {
  return std::isfinite(value) ? absl::StrFormat("%.17g", value) : "null";
}

// What only several ranks have, as the end of a record.
std::string ParallelFields(const StepMetrics& metrics) {
  std::string text;
  if (metrics.pipeline_wait_share >= 0) {
    absl::StrAppend(&text, ",\"pipeline_wait_share\":", JsonNumber(metrics.pipeline_wait_share));
  }
  if (metrics.wire.empty()) return text;
  absl::StrAppend(&text, ",\"wire_bytes\":", metrics.wire_bytes(), ",\"wire\":{");
  const std::string* axis = nullptr;
  for (const WireBytes& part : metrics.wire) {
    if (axis == nullptr || *axis != part.axis) {
      absl::StrAppend(&text, axis == nullptr ? "" : "},", "\"", part.axis, "\":{");
    } else {
      absl::StrAppend(&text, ",");
    }
    absl::StrAppend(&text, "\"", part.operation, "\":", part.bytes);
    axis = &part.axis;
  }
  return absl::StrCat(text, "}}");
}

// The step of one record; nullopt: this is no record.
std::optional<int64_t> RecordStep(const std::string& line) {
  const nlohmann::json record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!record.is_object()) return std::nullopt;
  const auto step = record.find("step");
  if (step == record.end() || !step->is_number_integer()) return std::nullopt;
  return step->get<int64_t>();
}

// The records of a file up to `last_step`, in their order.
absl::StatusOr<std::string> KeptRecords(const std::string& path, int64_t last_step) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    if (errno == ENOENT) return std::string();
    return IoError("cannot read", path);
  }
  std::string kept;
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    // getline meets the end of the file before the newline: the line was being written when the
    // process died.
    if (file.eof()) break;
    const std::optional<int64_t> step = RecordStep(line);
    if (!step.has_value()) {
      return absl::DataLossError(absl::StrCat(path, ":", number, ": not a record of a step"));
    }
    if (*step <= last_step) absl::StrAppend(&kept, line, "\n");
  }
  if (file.bad()) return IoError("cannot read", path);
  return kept;
}

absl::Status Replace(const std::string& path, const std::string& contents) {
  const std::string temporary = path + ".tmp";
  std::FILE* file = std::fopen(temporary.c_str(), "wb");
  if (file == nullptr) return IoError("cannot create", temporary);
  const bool written = std::fwrite(contents.data(), 1, contents.size(), file) == contents.size() &&
                       std::fflush(file) == 0 && ::fsync(::fileno(file)) == 0;
  const absl::Status status = written ? absl::OkStatus() : IoError("cannot write", temporary);
  if (std::fclose(file) != 0 && written) return IoError("cannot close", temporary);
  if (!status.ok()) return status;
  if (std::rename(temporary.c_str(), path.c_str()) != 0) return IoError("cannot rename to", path);
  return absl::OkStatus();
}

}  // namespace

void RateMeter::Measure(double step_seconds, StepMetrics* metrics) {
  mean_seconds_ = mean_seconds_ == 0
                      ? step_seconds
                      : mean_seconds_ + kNewStepWeight * (step_seconds - mean_seconds_);
  metrics->step_seconds = step_seconds;
  metrics->tokens_per_second =
      step_seconds > 0 ? static_cast<double>(options_.tokens_per_step) / step_seconds : 0;
  metrics->peak_share = options_.peak_flops > 0 ? metrics->tokens_per_second *
                                                      options_.flops_per_token / options_.peak_flops
                                                : 0;
  metrics->eta_seconds = mean_seconds_ * static_cast<double>(options_.total_steps - metrics->step);
}

int64_t StepMetrics::wire_bytes() const {
  int64_t sum = 0;
  for (const WireBytes& part : wire) sum += part.bytes;
  return sum;
}

absl::StatusOr<std::unique_ptr<MetricsWriter>> MetricsWriter::Open(
    const std::string& path, std::optional<int64_t> resumed_step) {
  std::string kept;
  if (resumed_step.has_value()) {
    absl::StatusOr<std::string> records = KeptRecords(path, *resumed_step);
    if (!records.ok()) return records.status();
    kept = *std::move(records);
  }
  if (absl::Status status = Replace(path, kept); !status.ok()) return status;
  std::FILE* file = std::fopen(path.c_str(), "ab");
  if (file == nullptr) return IoError("cannot open", path);
  return std::unique_ptr<MetricsWriter>(new MetricsWriter(path, file));
}

MetricsWriter::~MetricsWriter() {
  if (file_ != nullptr) std::fclose(file_);
}

absl::Status MetricsWriter::WriteLine(const std::string& line) {
  if (file_ == nullptr) return absl::FailedPreconditionError(absl::StrCat(path_, " is closed"));
  if (std::fwrite(line.data(), 1, line.size(), file_) != line.size() || std::fflush(file_) != 0) {
    return IoError("cannot write", path_);
  }
  return absl::OkStatus();
}

absl::Status MetricsWriter::Write(const StepMetrics& metrics) {
  return WriteLine(absl::StrFormat(
      "{\"kind\":\"step\",\"step\":%d,\"loss\":%s,\"loss_bits\":\"%s\",\"lr\":%s,"
      "\"grad_norm\":%s,\"skipped\":%s,\"consumed_samples\":%d,\"step_seconds\":%s,"
      "\"tokens_per_second\":%s,\"peak_share\":%s%s}\n",
      metrics.step, JsonNumber(metrics.loss), LossBits(metrics.loss), JsonNumber(metrics.lr),
      JsonNumber(metrics.grad_norm), metrics.skipped ? "true" : "false", metrics.consumed_samples,
      JsonNumber(metrics.step_seconds), JsonNumber(metrics.tokens_per_second),
      JsonNumber(metrics.peak_share), ParallelFields(metrics)));
}

absl::Status MetricsWriter::Write(const EvalMetrics& metrics) {
  return WriteLine(absl::StrFormat(
      "{\"kind\":\"eval\",\"step\":%d,\"eval_loss\":%s,\"eval_loss_bits\":\"%s\",\"tokens\":%d,"
      "\"seconds\":%s,\"best\":%s}\n",
      metrics.step, JsonNumber(metrics.loss), LossBits(metrics.loss), metrics.tokens,
      JsonNumber(metrics.seconds), metrics.best ? "true" : "false"));
}

absl::Status MetricsWriter::Close() {
  if (file_ == nullptr) return absl::OkStatus();
  std::FILE* file = std::exchange(file_, nullptr);
  if (std::fclose(file) != 0) return IoError("cannot close", path_);
  return absl::OkStatus();
}

std::string LossBits(double loss) {
  return absl::StrFormat("%016x", std::bit_cast<uint64_t>(loss));
}

}  // namespace tessera
