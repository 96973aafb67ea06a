#include "trainer/metrics/kept_records.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

struct Record {
  std::string kind;  // empty where the line has none
  int64_t step = 0;
  double seconds = 0;  // that the step took
};

struct RecordLine {
  std::string_view text;  // without the newline
  Record record;
};

std::optional<Record> ParseRecord(std::string_view line) {
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  const auto step = json.find("step");
  if (step == json.end() || !step->is_number_integer()) return std::nullopt;
  const auto kind = json.find("kind");
  const bool named = kind != json.end() && kind->is_string();
  const auto seconds = json.find("step_seconds");
  const bool timed = seconds != json.end() && seconds->is_number();
  return Record{.kind = named ? kind->get<std::string>() : "",
                .step = step->get<int64_t>(),
                .seconds = timed ? seconds->get<double>() : 0};
}

// Steps up to last_step without a record: all that follow the first recorded one or, where no line
// was damaged, those at the end.
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
std::vector<std::string> DropRepeated(std::vector<RecordLine>& lines) {
  std::map<std::pair<std::string, int64_t>, int> count;
  for (const RecordLine& line : lines) ++count[{line.record.kind, line.record.step}];
  std::set<int64_t> repeated;
  std::erase_if(lines, [&](const RecordLine& line) {
    if (line.record.kind.empty()) return false;
    if (--count[{line.record.kind, line.record.step}] == 0) return false;
    repeated.insert(line.record.step);
    return true;
  });
  std::vector<std::string> steps;
  for (const int64_t step : repeated) steps.push_back(absl::StrCat(step));
  return steps;
}

std::string Plural(std::string_view noun, const std::vector<std::string>& of) {
  return absl::StrCat(std::string(noun), of.size() == 1 ? " " : "s ", JoinFirst(of, ", "));
}

}  // namespace

KeptRecords KeepRecords(std::string_view log, int64_t last_step) {
  std::vector<RecordLine> lines;
  std::vector<std::string> damaged;
  std::map<int64_t, double> lost;  // seconds by step
  for (int64_t number = 1; !log.empty(); ++number) {
    const size_t end = log.find('\n');
    if (end == log.npos) break;
    std::string_view text = log.substr(0, end);
    log.remove_prefix(end + 1);
    const size_t zeros_end = text.rfind('\0') + 1;  // 0 without any
    text.remove_prefix(zeros_end);
    std::optional<Record> record = ParseRecord(text);
    if (zeros_end > 0 || !record.has_value()) damaged.push_back(absl::StrCat(number));
    if (!record.has_value()) continue;
    if (record->step > last_step) {
      if (record->kind == "step") lost[record->step] = record->seconds;
      continue;
    }
    lines.push_back({text, *std::move(record)});
  }

  KeptRecords kept = {.lost_steps = static_cast<int64_t>(lost.size())};
  for (const auto& [step, seconds] : lost) kept.lost_seconds += seconds;
  const std::vector<std::string> repeated = DropRepeated(lines);
  std::set<int64_t> recorded;
  for (const RecordLine& line : lines) {
    kept.text.append(line.text).append("\n");
    if (line.record.kind == "step") recorded.insert(line.record.step);
  }
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
