#include "tools/compare_runs/run_records.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "nlohmann/json.hpp"
#include "tools/compare_runs/foreign_runs.h"
#include "trainer/config/config.h"
#include "trainer/config/config.pb.h"
#include "trainer/metrics/record_fields.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxNotes = 20;
// What is looked at below a folder in search of event files.
constexpr size_t kMaxEntries = 10000;
constexpr char kLookedFor[] =
    "looked for a run's metrics.jsonl, an event file of TensorBoard, and a log of llm.c or "
    "InfiniTrain (\"s:0 trl:...\", \"step 1/10 | loss ...\"), of Megatron-LM (\"iteration 1/ 10 | "
    "... | lm loss: ...\") or of torchtitan (\"step: 1  loss: ...\")";

// Adds a line to `records` if it is the record of a step or an evaluation. Returns false if it is
// not a record of metrics.jsonl.
bool AddRecord(const std::string& line, RunRecords& records) {
  const std::optional<nlohmann::json> read = RecordOf(line);
  if (!read.has_value()) return false;
  const nlohmann::json& record = *read;
  const std::string_view kind = KindOf(record);
  if (kind != "step" && kind != "eval") return true;
  const std::optional<int64_t> found = StepOf(record);
  if (!found || *found > kMaxStep || *found < -kMaxStep) return false;
  const int64_t step = *found;
  bool is_new = true;
  if (kind == "step") {
    const StepRecord numbers = {.loss = ExactNumberOf(record, "loss"),
                                .grad_norm = ExactNumberOf(record, "grad_norm"),
                                .lr = NumberOf(record, "lr"),
                                .tokens_per_second = NumberOf(record, "tokens_per_second")};
    is_new = records.steps.insert_or_assign(step, numbers).second;
    const auto rounding = [&record](const char* name) {
      return record.contains(name) ? 0.0 : kNotRecorded;
    };
    const StepRecord missing = {.loss = rounding("loss"),
                                .grad_norm = rounding("grad_norm"),
                                .lr = rounding("lr"),
                                .tokens_per_second = rounding("tokens_per_second")};
    records.roundings.erase(step);
    if (missing.loss + missing.grad_norm + missing.lr + missing.tokens_per_second > 0) {
      records.roundings[step] = missing;
    }
  } else {
    is_new =
        records.evaluation_losses.insert_or_assign(step, ExactNumberOf(record, "eval_loss")).second;
  }
  if (!is_new) {
    records.Note(
        absl::StrCat("step ", step, " is recorded more than once: the last record is used"));
  }
  return true;
}

absl::Status AddPrecision(const fs::path& config_file, RunRecords& records) {
  std::error_code error;
  if (records.bf16.has_value() || !fs::exists(config_file, error)) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const TrainConfig config, LoadConfig(config_file.string()));
  records.bf16 = config.training().bf16();
  return absl::OkStatus();
}

// Reads lines: of metrics.jsonl, or of another trainer's log, whichever begins first.
void ReadLines(InputStream& file, RunRecords& records) {
  LogReader log(records);
  bool is_log = false, is_metrics = false, is_complete = true;
  std::vector<int64_t> unknown;  // the first lines, as long as it may be either
  int64_t number = 0;
  for (std::string line; file.ReadLine(line, is_complete);) {
    ++number;
    const auto note = [&records](int64_t which) {
      records.Note(absl::StrCat("line ", which, " is not a record and is left out"));
    };
    if (!is_log && AddRecord(line, records)) {
      if (!std::exchange(is_metrics, true)) std::for_each(unknown.begin(), unknown.end(), note);
    } else if (is_metrics) {
      note(number);
    } else if (!is_complete) {
      // The number at its end may lack digits.
      RunRecords of_last_line;
      if (LogReader(of_last_line).Add(line))
        records.Note("its last line is incomplete and left out");
    } else if (log.Add(line)) {
      is_log = true;
    } else if (!is_log && unknown.size() < kMaxNotes) {
      unknown.push_back(number);
    }
  }
  log.Finish();
}

bool IsEventFileName(const fs::path& path) {
  return path.filename().string().find("tfevents") != std::string::npos;
}

std::vector<fs::path> EventFilesIn(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (IsEventFileName(entry.path()) && !entry.is_directory(error)) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

// Returns the only folder below `folder` that has event files. TensorBoard shows each as a run of
// its own.
absl::StatusOr<fs::path> FindEventFiles(const fs::path& folder) {
  std::set<std::string> found;
  std::error_code error;
  size_t entries = 0;
  for (auto entry = fs::recursive_directory_iterator(folder, error);
       !error && entry != fs::recursive_directory_iterator() && entries < kMaxEntries;
       entry.increment(error), ++entries) {
    if (IsEventFileName(entry->path())) found.insert(entry->path().parent_path().string());
  }
  if (entries == kMaxEntries) {
    return absl::InvalidArgumentError(absl::StrCat(
        folder.string(), " holds more than ", kMaxEntries, " files: name the run's own folder"));
  }
  if (found.size() == 1) return *found.begin();
  if (found.empty()) {
    return absl::NotFoundError(absl::StrCat(
        folder.string(), " holds no run: looked for metrics.jsonl, event files of TensorBoard ",
        "(*tfevents*) and llm.c's main.log; a log of another name is to be named itself"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(folder.string(), " holds several runs of TensorBoard, name one: ",
                   JoinFirst(std::vector(found.begin(), found.end()), ", ")));
}

absl::Status ReadEventFiles(const std::vector<fs::path>& files, RunRecords& records) {
  EventReader reader(records);
  for (const fs::path& path : files) {
    InputStream file(path.string());
    reader.Read(file, path.filename().string());
    TESSERA_RETURN_IF_ERROR(file.status());
  }
  return reader.Finish();
}

absl::Status ReadFile(RunRecords& records, bool may_be_pipe) {
  InputStream file(records.path, may_be_pipe);
  if (file.status().ok() && (IsEventFileName(records.path) || EventReader::IsEventFile(file))) {
    return ReadEventFiles({records.path}, records);
  }
  ReadLines(file, records);
  TESSERA_RETURN_IF_ERROR(file.status());
  if (records.steps.empty() && records.evaluation_losses.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(records.path, " holds no record of a step: ", kLookedFor));
  }
  return absl::OkStatus();
}

absl::Status ReadFolder(RunRecords& records) {
  fs::path folder = records.path;
  std::error_code error;
  const auto read = [&](const char* name) {
    records.path = (folder / name).string();
    return ReadFile(records, /*may_be_pipe=*/false);
  };
  if (fs::exists(folder / "metrics.jsonl", error)) return read("metrics.jsonl");
  if (EventFilesIn(folder).empty()) {
    if (fs::exists(folder / "main.log", error)) return read("main.log");
    TESSERA_ASSIGN_OR_RETURN(folder, FindEventFiles(folder));
    records.path = folder.string();
  }
  return ReadEventFiles(EventFilesIn(folder), records);
}

}  // namespace

double RunRecords::Rounding(int64_t step, double StepRecord::*number) const {
  const auto found = roundings.find(step);
  return found == roundings.end() ? 0 : found->second.*number;
}

double RunRecords::EvaluationRounding(int64_t step) const {
  const auto found = evaluation_roundings.find(step);
  return found == evaluation_roundings.end() ? 0 : found->second;
}

void RunRecords::Note(const std::string& note) {
  if (notes.size() < kMaxNotes) {
    notes.push_back(note);
    return;
  }
  notes.resize(kMaxNotes + 1);
  notes.back() = absl::StrCat("and ", ++more_notes, " more");
}

absl::StatusOr<RunRecords> ReadRunRecords(const std::string& path) {
  RunRecords records{.path = path};
  std::error_code error;
  const bool is_folder = fs::is_directory(path, error);
  const absl::Status read =
      is_folder ? ReadFolder(records) : ReadFile(records, /*may_be_pipe=*/true);
  if (!read.ok()) {
    return absl::Status(read.code(), absl::StrCat(read.message(), records.notes.empty() ? "" : "; ",
                                                  JoinFirst(records.notes, "; ")));
  }
  const fs::path place = records.path;
  const absl::Status precision = AddPrecision(
      (fs::is_directory(place, error) ? place : place.parent_path()) / "config.textproto", records);
  if (!precision.ok()) {
    records.Note(absl::StrCat("its precision is not known: ", std::string(precision.message())));
  }
  return records;
}

}  // namespace tessera
