#include "trainer/metrics/metrics.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/replace_file.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "nlohmann/json.hpp"
#include "trainer/metrics/record_fields.h"

namespace tessera {
namespace {

constexpr double kNewStepWeight = 0.1;

std::string JsonNumber(double value) {
  return std::isfinite(value) ? absl::StrFormat("%.17g", value) : "null";
}

// Returns the bits of a number that JSON cannot express, as a field.
std::string BitsUnlessFinite(const char* name, double value) {
  return std::isfinite(value) ? "" : absl::StrCat("\"", name, "\":\"", LossBits(value), "\",");
}

// Returns the last fields of a record: memory, those of the ledger, the split of the time, and
// those that only runs with several ranks have.
std::string LastFields(const StepMetrics& metrics) {
  std::string text;
  if (metrics.memory_bytes > 0) absl::StrAppend(&text, ",\"memory_bytes\":", metrics.memory_bytes);
  if (metrics.gpu_memory_bytes > 0) {
    absl::StrAppend(&text, ",\"gpu_memory_bytes\":", metrics.gpu_memory_bytes);
  }
  if (!metrics.ledger.empty()) {
    absl::StrAppend(&text, ",\"first_sample\":", metrics.first_sample, ",\"settings\":\"",
                    metrics.ledger_settings, "\",\"ledger\":\"", metrics.ledger, "\"");
  }
  if (metrics.pipeline_wait_share >= 0) {
    absl::StrAppend(&text, ",\"pipeline_wait_share\":", JsonNumber(metrics.pipeline_wait_share));
  }
  if (metrics.time.has_value()) {
    absl::StrAppend(&text, ",\"time\":{\"compute\":", JsonNumber(metrics.time->compute),
                    ",\"communication\":", JsonNumber(metrics.time->communication),
                    ",\"waiting\":", JsonNumber(metrics.time->waiting),
                    ",\"saving\":", JsonNumber(metrics.time->saving), "}");
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

// Keeps a copy of a file with these records. A start without its checkpoints, on a file system that
// is not mounted for example, must not delete them.
absl::Status KeepEarlierRecords(const std::string& path, std::string_view log,
                                const NoteSink& notes) {
  if (log.empty()) return absl::OkStatus();
  const std::string kept = path + ".before";
  // If such a start is repeated, the longer ones are kept.
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(kept, error);
  const bool has_longer = !error && size > log.size();
  if (!has_longer) TESSERA_RETURN_IF_ERROR(ReplaceFile(kept, log));
  if (notes == nullptr) return absl::OkStatus();
  notes(has_longer ? absl::StrCat("the earlier records of ", path,
                                  " are deleted: there are longer ones in ", kept)
                   : absl::StrCat("the earlier records are kept in ", kept));
  return absl::OkStatus();
}

struct Record {
  std::string kind;  // empty where the line has none
  int64_t step = 0;
  double seconds = 0;  // that the step took
  std::string ledger;  // likewise
};

struct KeptLine {
  std::string_view text;  // without the newline
  Record record;
};

std::optional<Record> ParseRecord(const nlohmann::json& json) {
  const std::optional<int64_t> step = StepOf(json);
  if (!step) return std::nullopt;
  const double seconds = NumberOf(json, "step_seconds");
  return Record{.kind = std::string(KindOf(json)),
                .step = *step,
                .seconds = std::isnan(seconds) ? 0 : seconds,
                .ledger = std::string(TextOf(json, "ledger"))};
}

// Returns the steps up to last_step without a record: all that follow the first recorded one or,
// where no line was damaged, those at the end.
std::vector<std::string> MissingSteps(const std::set<int64_t>& recorded, int64_t last_step,
                                      bool damaged) {
  std::vector<std::string> missing;
  if (recorded.empty()) return missing;
  int64_t previous = damaged ? *recorded.begin() : *recorded.rbegin();
  const auto add_up_to = [&](int64_t step) {
    if (previous + 2 == step) missing.push_back(absl::StrCat(previous + 1));
    if (previous + 2 < step) missing.push_back(absl::StrCat(previous + 1, " to ", step - 1));
    previous = step;
  };
  for (auto it = recorded.find(previous); it != recorded.end(); ++it) add_up_to(*it);
  add_up_to(last_step + 1);
  return missing;
}

// Drops the earlier of two lines of one kind and step. Returns their steps.
std::vector<std::string> DropRepeated(std::vector<KeptLine>& lines) {
  std::map<std::pair<std::string, int64_t>, int> count;
  for (const KeptLine& line : lines) ++count[{line.record.kind, line.record.step}];
  std::set<int64_t> repeated;
  std::erase_if(lines, [&](const KeptLine& line) {
    if (line.record.kind.empty()) return false;
    if (--count[{line.record.kind, line.record.step}] == 0) return false;
    repeated.insert(line.record.step);
    return true;
  });
  std::vector<std::string> steps;
  for (const int64_t step : repeated) steps.push_back(absl::StrCat(step));
  return steps;
}

// Returns whether a run has recorded, in this file, the save of a step after this one.
absl::StatusOr<bool> HasSavedAfter(int64_t step, const std::filesystem::path& saves) {
  TESSERA_ASSIGN_OR_RETURN(const std::string log, ReadRecordFile(saves.string()));
  bool found = false;
  ForEachLine(log, [&](const RecordLine& line) {
    found = found || StepOf(line.value).value_or(step) > step;
  });
  return found;
}

std::string Plural(std::string_view noun, const std::vector<std::string>& of) {
  return absl::StrCat(std::string(noun), of.size() == 1 ? " " : "s ", JoinFirst(of, ", "));
}

}  // namespace

void RateMeter::Measure(double step_seconds, StepMetrics* metrics) {
  mean_seconds_ = mean_seconds_ == 0
                      ? step_seconds
                      : mean_seconds_ + kNewStepWeight * (step_seconds - mean_seconds_);
  metrics->step_seconds = step_seconds;
  metrics->tokens_per_second =
      step_seconds > 0 ? static_cast<double>(options_.tokens_per_step) / step_seconds : 0;
  const double flops = metrics->tokens_per_second * options_.flops_per_token;
  if (peak_flops_ > 0) {
    peak_flops_ = std::max(peak_flops_, flops);
    metrics->peak_share = flops / peak_flops_;
  }
  metrics->eta_seconds = mean_seconds_ * static_cast<double>(options_.total_steps - metrics->step);
}

int64_t StepMetrics::wire_bytes() const {
  int64_t sum = 0;
  for (const WireBytes& part : wire) sum += part.bytes;
  return sum;
}

absl::StatusOr<std::unique_ptr<MetricsWriter>> MetricsWriter::Open(
    const std::string& path, std::optional<int64_t> resumed_step, const NoteSink& notes,
    const std::string* loaded_ledger) {
  TESSERA_ASSIGN_OR_RETURN(const std::string log, ReadRecordFile(path));
  KeptRecords kept;
  if (resumed_step.has_value()) kept = KeepRecords(log, *resumed_step);
  for (const std::string& note : kept.notes) {
    if (notes != nullptr) notes(absl::StrCat(path, ": ", note));
  }
  const bool is_other = loaded_ledger != nullptr;
  const bool continues = resumed_step.has_value() &&
                         (!is_other || (!loaded_ledger->empty() && kept.ledger == *loaded_ledger));
  if (!continues || (is_other && kept.lost_steps > 0)) {
    TESSERA_RETURN_IF_ERROR(KeepEarlierRecords(path, log, notes));
  }
  if (!continues && kept.begins_after) {
    // A run that has saved would resume from there.
    const std::filesystem::path saves = std::filesystem::path(path).replace_filename("saves.jsonl");
    TESSERA_ASSIGN_OR_RETURN(const bool has_saved, HasSavedAfter(*resumed_step, saves));
    kept.begins_after = !has_saved;
  }
  std::optional<ResumeMetrics> lost;
  if (!log.empty() && (continues || kept.begins_after)) {
    lost = {
        .step = *resumed_step, .lost_steps = kept.lost_steps, .lost_seconds = kept.lost_seconds};
  }
  if (!continues) kept = {};
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<RecordFile> file, RecordFile::Replace(path, kept.text));
  std::unique_ptr<MetricsWriter> writer(new MetricsWriter(std::move(file)));
  writer->lost_ = lost;
  writer->evaluated_step_ = kept.evaluated_step;
  writer->continues_ = continues;
  return writer;
}

absl::StatusOr<std::unique_ptr<MetricsWriter>> MetricsWriter::Append(const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<RecordFile> file, RecordFile::Continue(path));
  return std::unique_ptr<MetricsWriter>(new MetricsWriter(std::move(file)));
}

absl::StatusOr<bool> IsRecorded(const EvalMetrics& metrics, const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(const std::string log, ReadRecordFile(path));
  bool found = false;
  ForEachLine(log, [&](const RecordLine& line) {
    found = found || (KindOf(line.value) == "eval" && StepOf(line.value) == metrics.step &&
                      TextOf(line.value, "eval_loss_bits") == LossBits(metrics.loss));
  });
  return found;
}

absl::Status MetricsWriter::Write(const StepMetrics& metrics) {
  return file_->Write(absl::StrFormat(
      "{\"kind\":\"step\",\"step\":%d,\"loss\":%s,\"loss_bits\":\"%s\",\"lr\":%s,"
      "\"grad_norm\":%s,%s\"skipped\":%s,\"consumed_samples\":%d,\"step_seconds\":%s,"
      "\"tokens_per_second\":%s,\"peak_share\":%s%s}\n",
      metrics.step, JsonNumber(metrics.loss), LossBits(metrics.loss), JsonNumber(metrics.lr),
      JsonNumber(metrics.grad_norm), BitsUnlessFinite("grad_norm_bits", metrics.grad_norm),
      metrics.skipped ? "true" : "false", metrics.consumed_samples,
      JsonNumber(metrics.step_seconds), JsonNumber(metrics.tokens_per_second),
      JsonNumber(metrics.peak_share), LastFields(metrics)));
}

absl::Status MetricsWriter::Write(const EvalMetrics& metrics) {
  return file_->Write(absl::StrFormat(
      "{\"kind\":\"eval\",\"step\":%d,\"eval_loss\":%s,\"eval_loss_bits\":\"%s\",\"tokens\":%d,"
      "\"seconds\":%s,\"best\":%s}\n",
      metrics.step, JsonNumber(metrics.loss), LossBits(metrics.loss), metrics.tokens,
      JsonNumber(metrics.seconds), metrics.best ? "true" : "false"));
}

absl::Status MetricsWriter::Write(const SaveRecord& record) {
  return file_->Write(absl::StrFormat(
      "{\"kind\":\"save\",\"step\":%d,\"ledger\":\"%s\",\"state\":\"%s\",\"save\":\"%s\"}\n",
      record.step, record.ledger, record.state, record.save));
}

std::string LossBits(double loss) {
  return absl::StrFormat("%016x", std::bit_cast<uint64_t>(loss));
}

KeptRecords KeepRecords(std::string_view log, int64_t last_step) {
  std::vector<KeptLine> lines;
  std::vector<std::string> damaged;
  std::map<int64_t, double> lost;  // seconds by step
  ForEachLine(log, [&](const RecordLine& line) {
    std::optional<Record> record = line.value.is_object() ? ParseRecord(line.value) : std::nullopt;
    if (line.damaged || !record.has_value()) damaged.push_back(absl::StrCat(line.number));
    if (!record.has_value()) return;
    if (record->step <= last_step) {
      lines.push_back({line.text, *std::move(record)});
    } else if (record->kind == "step") {
      lost[record->step] = record->seconds;
    }
  });

  KeptRecords kept = {.lost_steps = static_cast<int64_t>(lost.size())};
  for (const auto& [step, seconds] : lost) kept.lost_seconds += seconds;
  const std::vector<std::string> repeated = DropRepeated(lines);
  std::set<int64_t> recorded;
  for (const KeptLine& line : lines) {
    kept.text.append(line.text).append("\n");
    if (line.record.kind == "step") recorded.insert(line.record.step);
    if (line.record.step == last_step && !line.record.ledger.empty()) {
      kept.ledger = line.record.ledger;
    }
    if (line.record.kind == "eval") kept.evaluated_step = line.record.step;
  }
  kept.begins_after = recorded.empty() && lost.contains(last_step + 1);
  if (!damaged.empty()) {
    kept.notes.push_back(absl::StrCat(Plural("line", damaged), damaged.size() == 1 ? " is" : " are",
                                      " damaged and dropped: not a record of a step"));
  }
  const std::vector<std::string> missing = MissingSteps(recorded, last_step, !damaged.empty());
  if (!missing.empty()) {
    const bool one = missing.size() == 1 && missing[0].find(' ') == missing[0].npos;
    kept.notes.push_back(absl::StrCat("there is no record of ", one ? "step " : "steps ",
                                      JoinFirst(missing, ", "), "; the training is not affected"));
  }
  if (!repeated.empty()) {
    kept.notes.push_back(absl::StrCat(Plural("step", repeated),
                                      repeated.size() == 1 ? " is" : " are",
                                      " recorded more than once: the last record is kept"));
  }
  return kept;
}

}  // namespace tessera
