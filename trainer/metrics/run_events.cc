#include "trainer/metrics/run_events.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

Json Number(double value) {
  const bool whole = value == std::floor(value) && std::abs(value) < 1e15;
  return whole ? Json(static_cast<int64_t>(value)) : Json(value);
}

Json ToJson(const RunEvent& event) {
  Json json = {
      {"kind", "event"}, {"event", event.name}, {"step", event.step}, {"time", SecondsSince1970()}};
  if (!event.topology.empty()) json["topology"] = event.topology;
  json["text"] = event.text;
  for (const auto& [name, value] : event.numbers) json[name] = Number(value);
  for (const auto& [name, value] : event.strings) json[name] = value;
  for (const auto& [rank, numbers] : event.ranks) {
    Json of_rank = {{"rank", rank}};
    for (const auto& [kind, value] : numbers) of_rank[kind] = Number(value);
    json["ranks"].push_back(std::move(of_rank));
  }
  return json;
}

}  // namespace

std::map<int, NumbersOfRank> LargestOf(const std::vector<NumbersOfRank>& ranks,
                                       const std::string& kind, size_t most) {
  std::vector<int> order(ranks.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater(), [&](int rank) { return ranks[rank].at(kind); });
  order.resize(std::min(order.size(), most));
  std::map<int, NumbersOfRank> largest;
  for (const int rank : order) largest[rank] = ranks[rank];
  return largest;
}

RunEvents::RunEvents(const std::string& folder, std::optional<double> idle_seconds, NoteSink failed)
    : path_(absl::StrCat(folder, "/events.jsonl")),
      failed_(std::move(failed)),
      idle_seconds_(idle_seconds) {
  absl::StatusOr<std::unique_ptr<RecordFile>> file = RecordFile::Continue(path_);
  if (file.ok()) file_ = *std::move(file);
  Check(file.status());
}

void RunEvents::Check(const absl::Status& status) {
  if (status.ok()) return;
  failed_(absl::StrCat("no more events are recorded: ", status.message(),
                       "; the run goes on without them"));
  file_ = nullptr;
}

void RunEvents::Add(const RunEvent& event) {
  if (file_ == nullptr) return;
  // A text may come from a model, which knows nothing of UTF-8.
  const std::string line =
      ToJson(event).dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
  Check(file_->Write(line));
}

std::optional<double> IdleSeconds(const std::string& folder) {
  std::optional<double> last;
  for (const char* const name : {"/events.jsonl", "/metrics.jsonl"}) {
    struct stat file;
    if (::stat((folder + name).c_str(), &file) != 0) continue;
    const absl::Duration written = absl::DurationFromTimespec(file.st_mtim);
    last = std::max(last.value_or(0), absl::ToDoubleSeconds(written));
  }
  if (!last.has_value()) return std::nullopt;
  return std::max(0.0, SecondsSince1970() - *last);
}

}  // namespace tessera
