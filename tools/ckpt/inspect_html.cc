#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/checked_math.h"
#include "base/errors.h"
#include "base/page/page.h"
#include "base/replace_file.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "base/units.h"
#include "base/version.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/include/manifest.h"
#include "nlohmann/json.hpp"
#include "operations/diff.h"
#include "operations/summary.h"
#include "operations/survey.h"
#include "operations/verify.h"
#include "tools/ckpt/commands.h"
#include "tools/ckpt/inspect_page.h"
#include "tools/ckpt/report.h"

namespace tessera::ckpt {
namespace {

using PageJson = nlohmann::json;

// What a page has at most, so that one of a checkpoint of any size opens in a browser: some tens of
// megabytes.
constexpr int kMaxTensors = 20000;
constexpr size_t kMaxFiles = 5000;
constexpr size_t kMaxBoxes = 60000;
constexpr size_t kMaxBoxesOfTensor = 1024;
constexpr int kMaxBars = 128;       // of a histogram that can have fewer, wider ones
constexpr size_t kMaxLines = 1000;  // of damage, of the head, of a difference
constexpr size_t kMaxText = 20000;  // characters of an entry of the head

// Infinities and NaN, which JSON does not have, become texts.
PageJson PageNumber(double value) {
  if (std::isfinite(value)) return value;
  return NumberText(value);
}

// Sets the entry unless it is the usual one.
void SetUnlessZero(PageJson& json, const char* key, int64_t value) {
  if (value != 0) json[key] = value;
}

// Returns the number of the rank that wrote a file: they are numbered by their ranks, if every rank
// wrote one.
std::optional<int64_t> RankOfFile(absl::string_view path, const TopologyProto& topology) {
  const std::vector<absl::string_view> words = absl::StrSplit(path, absl::ByAnyChar("-."));
  const auto of = std::ranges::find(words, "of");
  if (of == words.begin() || of == words.end() || of + 1 == words.end()) return std::nullopt;
  int64_t index = 0, count = 0;
  for (const auto& [word, number] : {std::pair(*(of - 1), &index), std::pair(*(of + 1), &count)}) {
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), *number);
    if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  }
  const int64_t ranks =
      int64_t{topology.data_parallel()} * topology.tensor_parallel() * topology.pipeline_parallel();
  if (count != ranks || index < 1) return std::nullopt;
  return index - 1;
}

// A part of a tensor in a file.
struct PlacedBox {
  uint32_t file;  // into the page's files
  uint64_t offset_bytes;
  uint64_t size_bytes;
  Box box;
};

// Builds the JSON of the page. Build() finds the parameters and the boxes in files first, and
// limits their number; what the page has no room for is counted.
class PageData {
 public:
  PageData(const NamedCheckpoint& named, const CheckpointSurvey& survey)
      : named_(named), manifest_(named.opened->manifest()), survey_(survey) {}

  PageJson Build(const std::string& head, const NamedCheckpoint* other,
                 const Differences* differences) {
    FindParameters();
    FindPlaces();
    LimitBoxes();
    AddHead(head);
    AddDamage();
    AddFiles();
    if (other != nullptr) AddOther(*other, *differences);
    AddTensors(other, differences);
    data_["left_out"] = left_out_;
    return std::move(data_);
  }

 private:
  void LeaveOut(size_t count, absl::string_view what) {
    if (count > 0) left_out_.push_back(absl::StrCat(count, " ", what));
  }

  void FindParameters() {
    for (const LogicalTensor& tensor : manifest_.tensors()) {
      if (tensor.role() == WEIGHT && tensor.alias_of().empty()) {
        state_of_[tensor.name()] = {tensor.name(), "weight"};
      }
    }
    for (const OptimizerParameter& parameter : manifest_.optimizer().parameters()) {
      for (const auto& [state, name] : parameter.states()) {
        state_of_[name] = {parameter.parameter(), state};
      }
    }
  }

  // Finds the places of tensors: in another framework's files, not in the one per tensor that
  // ForeignStorage presents.
  void FindPlaces() {
    places_.resize(manifest_.tensors_size());
    if (named_.foreign == nullptr) {
      for (const DataFile& file : manifest_.files()) {
        PageJson entry = {{"path", file.path()}, {"bytes", file.size_bytes()}};
        if (const auto rank = RankOfFile(file.path(), manifest_.topology())) entry["rank"] = *rank;
        if (HasChecksums(file)) entry["checksums"] = true;
        files_.push_back(std::move(entry));
      }
      for (int t = 0; t < manifest_.tensors_size(); ++t) {
        const LogicalTensor& tensor = manifest_.tensors(t);
        for (int64_t s = 0; s < ShardCount(tensor); ++s) {
          places_[t].push_back({tensor.shards().file_index(s), tensor.shards().file_offset(s),
                                ShardBytes(tensor, s), ShardBox(tensor, s)});
        }
      }
      return;
    }
    std::map<std::string, int> index;
    for (int t = 0; t < manifest_.tensors_size(); ++t) index[manifest_.tensors(t).name()] = t;
    std::map<std::string, uint32_t> files;
    std::vector<uint64_t> ends;
    for (const convert::ForeignStorage::Extent& extent : named_.foreign->Extents()) {
      const auto [file, is_new] = files.emplace(extent.file, ends.size());
      if (is_new) {
        files_.push_back({{"path", extent.file}});
        ends.push_back(0);
      }
      // How long a file is beyond its tensors does not matter here.
      ends[file->second] = std::max(ends[file->second], extent.bytes.end);
      places_[index.at(extent.tensor)].push_back(
          {file->second, extent.bytes.begin, extent.bytes.end - extent.bytes.begin, extent.box});
    }
    for (size_t f = 0; f < ends.size(); ++f) files_[f]["bytes"] = ends[f];
  }

  void AddHead(const std::string& head) {
    std::vector<std::pair<std::string, std::string>> entries;
    for (const absl::string_view line : absl::StrSplit(head, '\n', absl::SkipEmpty())) {
      constexpr size_t kLabel = 12;
      if (absl::StartsWith(line, "  ") && !entries.empty()) {
        absl::StrAppend(&entries.back().second, "\n", line.substr(2));
        continue;
      }
      std::string label(line.substr(0, kLabel));
      label.erase(label.find_last_not_of(' ') + 1);
      const size_t begin = std::min(line.size(), kLabel);
      entries.emplace_back(std::move(label), std::string(line.substr(begin)));
    }
    PageJson& json = data_["head"] = PageJson::array();
    size_t cut = 0;
    for (size_t i = 0; i < std::min(entries.size(), kMaxLines); ++i) {
      if (entries[i].second.size() > kMaxText) {
        entries[i].second.resize(kMaxText);
        entries[i].second += " ...";
        ++cut;
      }
      json.push_back({entries[i].first, entries[i].second});
    }
    LeaveOut(entries.size() - json.size(), "lines of the head, which ckpt inspect prints");
    LeaveOut(cut, "texts of the head are cut short");
    data_["name"] = named_.Describe();
    data_["version"] = std::string(kVersion);
    data_["bytes_read"] = survey_.bytes_read;
    data_["seconds"] = absl::ToDoubleSeconds(survey_.duration);
    data_["tensor_count"] = manifest_.tensors_size();
    data_["file_count"] = files_.size();
    PageJson& bytes_of_role = data_["bytes_of_role"] = PageJson::object();
    for (const LogicalTensor& tensor : manifest_.tensors()) {
      PageJson& bytes = bytes_of_role[RoleProto_Name(tensor.role())];
      bytes = (bytes.is_null() ? 0 : bytes.get<uint64_t>()) + BytesOfTensor(tensor);
    }
  }

  void AddDamage() {
    const std::span all(survey_.damage);
    const std::span shown = all.first(std::min(all.size(), kMaxLines));
    data_["damage"] = ToJson(shown);
    LeaveOut(all.size() - shown.size(), "damaged places, which ckpt verify prints");
    if (survey_.damage.empty()) data_["proof"] = Proof(named_, {}, /*digests=*/false);
  }

  void AddFiles() {
    PageJson& json = data_["files"] = PageJson::array();
    for (size_t f = 0; f < std::min(files_.size(), kMaxFiles); ++f) json.push_back(files_[f]);
    LeaveOut(files_.size() - json.size(), "files");
  }

  void AddOther(const NamedCheckpoint& other, const Differences& differences) {
    PageJson json = {{"name", other.Describe()},
                     {"same", differences.none()},
                     {"equal", differences.equal()},
                     {"equal_by_digest", differences.equal_by_digest},
                     {"tensors", differences.tensors.size()},
                     {"metadata", PageJson::array()},
                     {"notes", PageJson::array()},
                     {"only", PageJson::array()}};
    size_t lines = 0;
    for (const auto& [key, texts] :
         {std::pair("metadata", &differences.metadata), std::pair("notes", &differences.notes)}) {
      for (size_t i = 0; i < std::min(texts->size(), kMaxLines); ++i) {
        json[key].push_back((*texts)[i].substr(0, kMaxText));
      }
      lines += texts->size() - json[key].size();
    }
    std::set<std::string_view> here;
    for (const LogicalTensor& tensor : manifest_.tensors()) here.insert(tensor.name());
    size_t only = 0;
    for (const LogicalTensor& tensor : other.opened->manifest().tensors()) {
      if (here.contains(tensor.name())) continue;
      if (++only <= kMaxLines) json["only"].push_back(tensor.name());
    }
    json["only_count"] = only;
    LeaveOut(lines + only - json["only"].size(), "lines of the difference, which ckpt diff prints");
    data_["other"] = std::move(json);
  }

  static uint64_t BytesOfTensor(const LogicalTensor& tensor) {
    return tensor.alias_of().empty() ? TensorBytes(tensor) : 0;
  }

  void AddTensors(const NamedCheckpoint* other, const Differences* differences) {
    std::map<std::string, std::vector<std::string>> messages;
    std::set<std::string_view> there;
    if (other != nullptr) {
      for (const TensorDifference& difference : differences->tensors) {
        messages[difference.tensor].push_back(difference.message);
      }
      for (const LogicalTensor& tensor : other->opened->manifest().tensors()) {
        there.insert(tensor.name());
      }
    }
    PageJson& json = data_["tensors"] = PageJson::array();
    size_t without_histogram = 0;
    const int count = std::min(manifest_.tensors_size(), kMaxTensors);
    for (int t = 0; t < count; ++t) {
      const LogicalTensor& tensor = manifest_.tensors(t);
      PageJson entry = DescribeTensor(tensor);
      if (tensor.alias_of().empty()) {
        AddStatistics(survey_.tensors[t], entry);
        AddBoxes(t, entry);
        if (survey_.tensors[t].statistics.bins.empty() && entry["elements"] != 0) {
          ++without_histogram;
        }
      }
      if (other != nullptr) {
        const auto found = differences->data.find(tensor.name());
        entry["difference"] = Difference(
            messages[tensor.name()], there.contains(tensor.name()),
            found == differences->data.end() ? nullptr : &found->second, entry["elements"]);
      }
      json.push_back(std::move(entry));
    }
    LeaveOut(manifest_.tensors_size() - count, "tensors, with all that is known of them");
    LeaveOut(without_histogram, "histograms, those of the tensors with the fewest elements");
    LeaveOut(boxes_left_out_, "boxes of tensors that are in very many pieces");
  }

  PageJson DescribeTensor(const LogicalTensor& tensor) const {
    PageJson entry = {{"name", tensor.name()},
                      {"shape", GlobalShape(tensor)},
                      {"dtype", DTypeProto_Name(tensor.dtype())},
                      {"role", RoleProto_Name(tensor.role())},
                      {"bytes", BytesOfTensor(tensor)},
                      {"elements", ElementCount(GlobalShape(tensor))}};
    if (!tensor.alias_of().empty()) entry["alias_of"] = tensor.alias_of();
    if (tensor.has_digest()) entry["digest"] = DigestText(tensor.digest());
    if (const auto state = state_of_.find(tensor.name()); state != state_of_.end()) {
      entry["of"] = state->second.first;
      entry["kind"] = state->second.second;
    }
    return entry;
  }

  static void AddStatistics(const TensorSurvey& survey, PageJson& entry) {
    const ElementStatistics& statistics = survey.statistics;
    if (survey.damaged) entry["damaged"] = true;
    if (statistics.finite() > 0) {
      entry["norm"] = PageNumber(statistics.norm());
      entry["mean"] = PageNumber(statistics.mean());
      entry["min"] = PageNumber(statistics.min);
      entry["max"] = PageNumber(statistics.max);
    }
    entry["zeros"] = statistics.zeros;
    SetUnlessZero(entry, "nan", statistics.nans);
    SetUnlessZero(entry, "positive_infinities", statistics.positive_infinities);
    SetUnlessZero(entry, "negative_infinities", statistics.negative_infinities);
    if (statistics.elements > 0 && !statistics.bins.empty()) {
      entry["histogram"] = Histogram(statistics.bins);
    }
  }

  // Returns bars of one, two or four bins: no wider than is needed to have few of them.
  static PageJson Histogram(const std::vector<int64_t>& bins) {
    constexpr int kSide = ElementStatistics::kBinsPerSign;
    PageJson json;
    for (const int step : {1, 2, 4}) {
      json = {{"step", step}};
      int bars = 0;
      for (const auto& [side, begin] : {std::pair("positive", 0), std::pair("negative", kSide)}) {
        // The first four bins hold what is subnormal in fp32.
        int first = 4, last = kSide;
        while (first < kSide && bins[begin + first] == 0) ++first;
        if (first == kSide) continue;
        while (bins[begin + last - 1] == 0) --last;
        first = first / step * step;
        std::vector<int64_t> counts(CeilDivide(last - first, step));
        for (int bin = first; bin < last; ++bin) counts[(bin - first) / step] += bins[begin + bin];
        bars += static_cast<int>(counts.size());
        json[side] = {{"first", first}, {"counts", std::move(counts)}};
      }
      if (bars <= kMaxBars) break;
    }
    SetUnlessZero(json, "tiny", bins[0] + bins[kSide]);
    return json;
  }

  // Limits the boxes of each tensor, so that the page has no more than it may have.
  void LimitBoxes() {
    for (boxes_of_tensor_ = kMaxBoxesOfTensor; boxes_of_tensor_ > 1; boxes_of_tensor_ /= 2) {
      size_t boxes = 0;
      for (const auto& places : places_) boxes += std::min(places.size(), boxes_of_tensor_);
      if (boxes <= kMaxBoxes) return;
    }
  }

  void AddBoxes(int t, PageJson& entry) {
    const size_t shown = std::min(places_[t].size(), boxes_of_tensor_);
    std::set<uint32_t> files;
    PageJson boxes = PageJson::array();
    for (const PlacedBox& place : places_[t]) {
      files.insert(place.file);
      if (boxes.size() == shown) continue;
      boxes.push_back({{"file", place.file},
                       {"at", place.offset_bytes},
                       {"bytes", place.size_bytes},
                       {"offset", place.box.global_offset},
                       {"shape", place.box.shape}});
    }
    // The boxes name them.
    entry["file_count"] = files.size();
    entry["boxes"] = std::move(boxes);
    if (shown == places_[t].size()) return;
    entry["boxes_left_out"] = places_[t].size() - shown;
    boxes_left_out_ += places_[t].size() - shown;
  }

  static PageJson Difference(const std::vector<std::string>& messages, bool is_there,
                             const DataDifference* data, int64_t elements) {
    if (messages.empty()) return {{"short", is_there ? "equal" : "not in the other"}};
    PageJson json = {{"messages", messages}, {"short", messages[0]}};
    if (data == nullptr) return json;
    json["elements"] = data->different_elements;
    // Integers have no distances.
    if (data->different_elements > 0 && data->max_abs == 0) return json;
    json["max"] = PageNumber(data->max_abs);
    json["norm"] = PageNumber(std::sqrt(data->squares));
    json["rms"] = PageNumber(std::sqrt(data->squares / static_cast<double>(elements)));
    SetUnlessZero(json, "without_distance", data->without_distance);
    return json;
  }

  const NamedCheckpoint& named_;
  const Manifest& manifest_;
  const CheckpointSurvey& survey_;
  PageJson data_;
  std::vector<std::string> left_out_;
  std::vector<PageJson> files_;
  std::vector<std::vector<PlacedBox>> places_;                           // by tensor
  std::map<std::string, std::pair<std::string, std::string>> state_of_;  // parameter and kind
  size_t boxes_of_tensor_ = 0, boxes_left_out_ = 0;
};

// Digests in the manifests say nothing about the contents of a tensor that is damaged.
void AddDamagedTensors(const Manifest& manifest, const Manifest& other,
                       const CheckpointSurvey& survey, Differences& differences) {
  std::set<std::string> known, there;
  for (const LogicalTensor& tensor : other.tensors()) there.insert(tensor.name());
  for (const TensorDifference& difference : differences.tensors) known.insert(difference.tensor);
  for (int t = 0; t < manifest.tensors_size(); ++t) {
    const std::string& name = manifest.tensors(t).name();
    if (!survey.tensors[t].damaged || known.contains(name)) continue;
    // Optimizer state that another framework's checkpoint lacks counts neither way.
    if (there.contains(name)) {
      --(differences.data.contains(name) ? differences.equal_by_contents
                                         : differences.equal_by_digest);
    }
    differences.tensors.push_back({name, "damaged in the first"});
  }
}

void PrintResult(const CommandOptions& options, const CheckpointSurvey& survey,
                 const Differences* differences, size_t page_bytes, std::ostream& out) {
  if (options.json) {
    nlohmann::ordered_json json = {{"page", options.html},
                                   {"page_bytes", page_bytes},
                                   {"bytes_read", survey.bytes_read},
                                   {"seconds", absl::ToDoubleSeconds(survey.duration)},
                                   {"damage", ToJson(survey.damage)}};
    if (differences != nullptr) json["same_state"] = differences->none();
    return PrintJson(json, out);
  }
  PrintDamage(survey.damage, "", out);
  out << options.html << ": " << HumanBytes(page_bytes) << "; " << HumanBytes(survey.bytes_read)
      << " read in " << HumanSeconds(absl::ToDoubleSeconds(survey.duration)) << ", "
      << (survey.damage.empty()
              ? "no damage"
              : absl::StrCat("DAMAGED in ", Counted(survey.damage.size(), "place")))
      << "\n";
  if (differences != nullptr) {
    out << (differences->none()
                ? "the two hold the same state"
                : absl::StrCat("equal tensors: ", differences->equal(),
                               ", tensor differences: ", differences->tensors.size(),
                               ", metadata differences: ", differences->metadata.size()))
        << "\n";
  }
}

}  // namespace

absl::StatusOr<int> WriteInspectPage(const NamedCheckpoint& named, const std::string& head,
                                     const CommandOptions& options, const CommandOutput& output) {
  // Where it cannot be written, nothing is read first.
  std::error_code error;
  if (std::filesystem::is_directory(options.html, error)) {
    return InvalidArgument(options.html, " is a folder");
  }
  TESSERA_ASSIGN_OR_RETURN(const auto file, FileReplacement::Create(options.html));
  std::optional<NamedCheckpoint> other;
  if (!options.other.empty()) {
    TESSERA_ASSIGN_OR_RETURN(other, FindCheckpoint(options.other, options.source));
    TESSERA_RETURN_IF_ERROR(other->opened.status());
  }
  TESSERA_ASSIGN_OR_RETURN(CheckpointSurvey survey,
                           Survey(named, {.io_threads = options.threads,
                                          .progress = ProgressBar(output.progress).callback()}));
  std::optional<Differences> differences;
  if (other.has_value()) {
    TESSERA_ASSIGN_OR_RETURN(
        differences, Diff(named, *other, {.distances = true, .io_threads = options.threads}));
    AddDamagedTensors(named.opened->manifest(), other->opened->manifest(), survey, *differences);
  }
  const std::string page =
      FillPage(kInspectPage, PageData(named, survey)
                                 .Build(head, other.has_value() ? &*other : nullptr,
                                        differences.has_value() ? &*differences : nullptr));
  TESSERA_RETURN_IF_ERROR(file->Append(std::as_bytes(std::span(page))));
  TESSERA_RETURN_IF_ERROR(file->Commit());
  const Differences* const found = differences.has_value() ? &*differences : nullptr;
  PrintResult(options, survey, found, page.size(), output.out);
  return survey.damage.empty() && (found == nullptr || found->none()) ? kExitOk : kExitDifferent;
}

}  // namespace tessera::ckpt
