#include "trainer/report/run_data.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "base/replace_file.h"
#include "trainer/metrics/input_stream.h"
#include "trainer/metrics/record_fields.h"
#include "trainer/report/step_curves.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr size_t kMaxRanks = 4096;

// Returns a text, cut at the end of a character; FillPage() replaces what is not UTF-8.
std::string Text(const Json& record, const char* name, int64_t max_bytes) {
  const std::string text(TextOf(record, name));
  if (text.size() <= static_cast<size_t>(max_bytes)) return text;
  size_t end = static_cast<size_t>(max_bytes);
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

// Everything that is read of one run, before it is thinned.
struct Reading {
  std::vector<RecordedStep> steps;
  std::vector<RecordedStep> evaluations;                       // their losses
  std::map<std::pair<std::string, std::string>, double> wire;  // sums over `wire_steps`
  int64_t wire_steps = 0;
  Json ledger;
  std::vector<std::string> notes;
};

// Calls `take` with each record of a file; what is not an object of a kind, or is refused by
// `take`, is counted as damaged. `skip` (may be null) is asked before a line is parsed. Returns
// false if there is no such file.
bool ForEachRecord(const fs::path& path, const std::function<bool(std::string_view)>& skip,
                   const std::function<bool(const Json&)>& take, std::vector<std::string>& notes) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return false;
  InputStream file(path.string());
  int64_t damaged = 0;
  bool is_complete = false;
  for (std::string line; file.ReadLine(line, is_complete);) {
    if (skip != nullptr && skip(line)) continue;
    const std::optional<Json> record = RecordOf(line);
    const bool is_good = record.has_value() && take(*record);
    // The last line of a killed process may be torn: nothing is damaged.
    const bool is_torn = !is_complete && line.size() < InputStream::kMaxLineBytes;
    if (!is_good && !is_torn) ++damaged;
  }
  if (!file.status().ok()) {
    notes.push_back(absl::StrCat(path.filename().string(), " cannot be read to its end"));
  }
  if (damaged > 0) {
    notes.push_back(absl::StrCat(path.filename().string(), ": ", damaged,
                                 damaged == 1 ? " damaged line is" : " damaged lines are",
                                 " left out"));
  }
  return true;
}

void AddWire(const Json& record, Reading& reading) {
  const auto wire = record.find("wire");
  if (wire == record.end() || !wire->is_object()) return;
  ++reading.wire_steps;
  for (const auto& [axis, operations] : wire->items()) {
    if (!operations.is_object()) continue;
    for (const auto& [operation, bytes] : operations.items()) {
      if (!bytes.is_number()) continue;
      // A run has a handful of axes and operations; what else claims to be one is left out.
      if (reading.wire.size() < 100) reading.wire[{axis, operation}] += bytes.get<double>();
    }
  }
}

bool AddMetrics(const Json& record, Reading& reading) {
  const std::optional<int64_t> found = StepOf(record);
  if (!found) return false;
  const int64_t step = *found;
  if (KindOf(record) == "eval") {
    RecordedStep evaluation{.step = step};
    evaluation.values.fill(kNone);
    evaluation.values[CurveIndex("loss")] = NumberOf(record, "eval_loss");
    reading.evaluations.push_back(evaluation);
  } else if (KindOf(record) == "step") {
    reading.steps.push_back(ReadStep(step, record));
    AddWire(record, reading);
    const std::string head = Text(record, "ledger", 200);
    if (!head.empty()) reading.ledger = {{"step", step}, {"head", head}};
  }
  return true;
}

// Returns which part of the steps was read: every line, every second, ...
int64_t ReadMetrics(const fs::path& path, const RunDataLimits& limits, bool& found,
                    Reading& reading) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  const int64_t every =
      error || size == 0 ? 1 : CeilDivide(static_cast<int64_t>(size), limits.metrics_bytes);
  int64_t steps = 0;
  std::string last;  // the last line of a step, if it was not read
  const auto skip = [&](std::string_view line) {
    if (line.find("\"kind\":\"step\"") == line.npos) return false;
    const bool skips = steps++ % every != 0;
    last = skips ? line : std::string_view();
    return skips;
  };
  found |= ForEachRecord(
      path, every > 1 ? std::function<bool(std::string_view)>(skip) : nullptr,
      [&](const Json& record) { return AddMetrics(record, reading); }, reading.notes);
  if (const std::optional<Json> record = RecordOf(last)) AddMetrics(*record, reading);
  KeepLast(reading.steps);
  KeepLast(reading.evaluations);
  return every;
}

constexpr std::string_view kMemory[] = {"rank", "weights", "gradients", "optimizer", "activations"};
constexpr std::string_view kSavePhases[] = {"rank",    "planning", "copying",
                                            "writing", "syncing",  "seconds"};

// Returns these fields of each rank, as numbers: a field of another type is 0.
Json RanksOf(const Json& record, std::span<const std::string_view> kinds) {
  Json ranks = Json::array();
  const auto field = record.find("ranks");
  if (field == record.end() || !field->is_array()) return ranks;
  for (const Json& rank : *field) {
    if (!rank.is_object() || ranks.size() == kMaxRanks) continue;
    Json numbers;
    for (const std::string_view kind : kinds) {
      const double value = NumberOf(rank, kind);
      numbers[kind] = std::isfinite(value) ? value : 0;
    }
    ranks.push_back(std::move(numbers));
  }
  return ranks;
}

Json EventOf(const Json& record, const RunDataLimits& limits) {
  Json event = {{"event", Text(record, "event", 100)}, {"step", NumberOf(record, "step")}};
  for (const char* name : {"time", "lost_steps", "lost_seconds", "down_seconds", "seconds", "bytes",
                           "parameters", "predicted_step_seconds"}) {
    const double value = NumberOf(record, name);
    if (std::isfinite(value)) event[name] = value;
  }
  for (const char* name : {"topology", "text", "prompt", "directory"}) {
    const std::string text = Text(record, name, limits.text_bytes);
    if (!text.empty()) event[name] = text;
  }
  // A checkpoint is in the run's folder, or where the settings say.
  if (event.contains("directory")) {
    event["directory"] = fs::path(event["directory"].get<std::string>()).filename().string();
  }
  return event;
}

// Keeps the phases of the last save, and of the slowest.
void KeepPhases(const Json& record, Json& latest) {
  Json save = {{"step", NumberOf(record, "step")},
               {"seconds", NumberOf(record, "seconds")},
               {"ranks", RanksOf(record, kSavePhases)}};
  if (save["ranks"].empty() || !std::isfinite(NumberOf(record, "seconds"))) return;
  if (!latest.contains("slowest_save") || latest["slowest_save"]["seconds"] < save["seconds"]) {
    latest["slowest_save"] = save;
  }
  latest["save"] = std::move(save);
}

// Adds what the page says of all events, also of those that it has no room for.
void SumUp(const Json& record, const Json& event, Json& run) {
  Json& latest = run["latest"];
  for (const char* name : {"topology", "parameters", "predicted_step_seconds"}) {
    if (event.contains(name)) latest[name] = event[name];
  }
  if (event["event"] == "saved") return KeepPhases(record, latest);
  if (Json ranks = RanksOf(record, kMemory); !ranks.empty()) latest["ranks"] = std::move(ranks);
  if (event["event"] != "resume") return;
  Json& resumes = run["resumes"];
  resumes["count"] = resumes.value("count", 0) + 1;
  for (const char* name : {"lost_steps", "lost_seconds", "down_seconds"}) {
    if (event.contains(name)) {
      resumes[name] = resumes.value(name, 0.0) + std::max(0.0, event[name].get<double>());
    }
  }
}

// Keeps the first and the last ones of too many.
void Shorten(Json& list, int64_t most, const char* what, std::vector<std::string>& notes) {
  const auto size = static_cast<int64_t>(list.size());
  if (size <= most) return;
  notes.push_back(absl::StrCat(size - most, " of ", size, " ", what, " are left out"));
  const int64_t first = most / 10;
  list.erase(list.begin() + first, list.end() - (most - first));
}

void AddEvents(const fs::path& path, const RunDataLimits& limits, bool& found, Json& run,
               std::vector<std::string>& notes) {
  Json events = Json::array(), samples = Json::array();
  run["latest"] = run["resumes"] = Json::object();
  const auto take = [&](const Json& record) {
    if (KindOf(record) != "event" || Text(record, "event", 100).empty()) return false;
    Json event = EventOf(record, limits);
    if (event["event"] != "sample") {
      SumUp(record, event, run);
      events.push_back(std::move(event));
    } else {
      samples.push_back({{"step", event["step"]},
                         {"prompt", event.value("prompt", "")},
                         {"text", event.value("text", "")}});
    }
    return true;
  };
  found |= ForEachRecord(path, nullptr, take, notes);
  Shorten(events, limits.events, "events", notes);
  Shorten(samples, limits.samples, "text samples", notes);
  run["events"] = std::move(events);
  run["samples"] = std::move(samples);
}

void AddSaves(const fs::path& path, const RunDataLimits& limits, bool& found, Json& run,
              std::vector<std::string>& notes) {
  Json saves = Json::array();
  std::set<std::pair<double, std::string>> known;
  const auto take = [&](const Json& record) {
    if (!std::isfinite(NumberOf(record, "step"))) return false;
    Json save = {{"step", NumberOf(record, "step")}};
    constexpr char kSaveDigest[] = "save";
    for (const char* name : {"ledger", "state", kSaveDigest}) save[name] = Text(record, name, 200);
    // A resumed run says again what it has loaded.
    const std::string digest = Text(record, kSaveDigest, 200);
    if (digest.empty() || known.insert({NumberOf(record, "step"), digest}).second) {
      saves.push_back(std::move(save));
    }
    return true;
  };
  found |= ForEachRecord(path, nullptr, take, notes);
  Shorten(saves, limits.saves, "saves", notes);
  run["saves"] = std::move(saves);
}

// Returns the beginning of config.textproto.
std::string Settings(const fs::path& path, int64_t max_bytes, bool& found) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return "";
  found = true;
  return std::string(InputStream(path.string()).Peek(static_cast<size_t>(max_bytes)));
}

// Returns the absolute path of a run's folder, without a slash at its end.
fs::path PlaceOf(const std::string& run_dir) {
  const fs::path path = fs::absolute(run_dir).lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

// Returns the path of the run's folder when it wrote its settings; empty where they do not say.
fs::path RecordedPlace(const std::string& settings) {
  constexpr std::string_view kField = "\n  run_dir: \"";
  const size_t at = settings.find(kField);
  if (at == settings.npos) return {};
  const size_t begin = at + kField.size();
  const fs::path path = settings.substr(begin, settings.find_first_of("\"\n", begin) - begin);
  return path.is_absolute() ? PlaceOf(path.string()) : fs::path();
}

// Shortens paths so that they begin with the folder's name, without its place on the machine.
void HidePlace(const fs::path& place, Json& json) {
  const std::string parent = place.parent_path().string() + "/";
  if (parent.size() < 3 || !json.is_string()) return;
  std::string text = json.get<std::string>();
  for (size_t at = text.find(parent); at != text.npos; at = text.find(parent, at)) {
    // The end of a longer path is another one.
    const char before = at == 0 ? ' ' : text[at - 1];
    if (absl::ascii_isalnum(static_cast<unsigned char>(before)) ||
        std::string_view("/._-").find(before) != std::string_view::npos) {
      at += parent.size();
    } else {
      text.erase(at, parent.size());
    }
  }
  json = std::move(text);
}

void HidePlaces(const fs::path& place, Json& run) {
  for (const fs::path& each : {place, RecordedPlace(run["settings"].get<std::string>())}) {
    HidePlace(each, run["settings"]);
    for (Json& event : run["events"]) {
      if (event.contains("text")) HidePlace(each, event["text"]);
    }
  }
}

// Counts and times are estimates for all steps, made from those that were read.
void AddTotals(const Reading& reading, int64_t every, Json& run) {
  const std::vector<double> seconds = CurveValues(reading.steps, "step_seconds");
  const double sum = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  run["steps"] = reading.steps.size();
  run["read_every"] = every;
  run["skipped"] = every * std::ranges::count_if(reading.steps, &RecordedStep::skipped);
  run["seconds"] = RoundedNumber(sum * static_cast<double>(every));
  run["mean_step_seconds"] = RoundedNumber(sum / static_cast<double>(seconds.size()));
  run["tokens_per_second"] =
      RoundedNumber(MedianOfFinite(CurveValues(reading.steps, "tokens_per_second")));
  run["time"] = TimeStretches(reading.steps, every);
}

}  // namespace

absl::StatusOr<Json> ReadRunData(const std::string& run_dir, const RunDataLimits& limits) {
  std::error_code error;
  const fs::path folder = run_dir;
  if (!fs::is_directory(folder, error)) {
    return absl::NotFoundError(absl::StrCat(run_dir, ": there is no such folder"));
  }
  bool found = false;
  Reading reading;
  const fs::path place = PlaceOf(run_dir);
  Json run = {{"name", place.filename().string()}};
  run["settings"] = Settings(folder / "config.textproto", limits.settings_bytes, found);
  const int64_t every = ReadMetrics(folder / "metrics.jsonl", limits, found, reading);
  AddSaves(folder / "saves.jsonl", limits, found, run, reading.notes);
  AddEvents(folder / "events.jsonl", limits, found, run, reading.notes);
  if (!found) {
    return absl::NotFoundError(absl::StrCat(
        run_dir,
        " has no records of a run: expected config.textproto, metrics.jsonl, saves.jsonl "
        "or events.jsonl"));
  }

  const std::vector<size_t> chosen = ThinSteps(reading.steps, limits.points);
  if (every > 1) {
    reading.notes.push_back(absl::StrCat("metrics.jsonl is long: one of ", every,
                                         " recorded steps is read, and times and counts of steps "
                                         "are multiplied by ",
                                         every));
  }
  if (chosen.size() < reading.steps.size()) {
    reading.notes.push_back(absl::StrCat("the curves show ", chosen.size(), " of ",
                                         reading.steps.size(),
                                         " steps: the ends, and the extremes between them"));
  }
  AddTotals(reading, every, run);
  run["columns"] = CurveColumns(reading.steps, chosen);
  Json& evaluations = run["eval"] = {{"step", Json::array()}, {"loss", Json::array()}};
  for (const size_t i : ThinSteps(reading.evaluations, limits.points)) {
    evaluations["step"].push_back(reading.evaluations[i].step);
    evaluations["loss"].push_back(RoundedNumber(reading.evaluations[i].values[CurveIndex("loss")]));
  }
  run["wire"] = Json::array();
  for (const auto& [part, bytes] : reading.wire) {
    run["wire"].push_back({{"axis", part.first},
                           {"operation", part.second},
                           {"bytes", bytes / static_cast<double>(reading.wire_steps)}});
  }
  run["ledger"] = reading.ledger;
  HidePlaces(place, run);
  run["notes"] = reading.notes;
  return run;
}

}  // namespace tessera
