#include "operations/diff.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/internal/damage.h"
#include "convert/core/foreign_checkpoint.h"
#include "google/protobuf/util/message_differencer.h"
#include "operations/diff_values.h"
#include "operations/summary.h"
#include "storage/open_storage.h"

namespace tessera::ckpt {
namespace {

// The entries of TrainerState.extra that hold a trainer's settings in text format: those on which
// the results depend, and those on which only the last bits do.
constexpr char kSettings[] = "settings";
constexpr char kBitSettings[] = "bit_settings";

using Counts = MetadataDifference::Counts;

// Returns a line for each field that differs.
std::vector<std::string> CompareMessages(const Manifest& a, const Manifest& b,
                                         bool with_foreign_names) {
  google::protobuf::util::MessageDifferencer differencer;
  if (!with_foreign_names) {
    differencer.IgnoreField(OptimizerParameter::descriptor()->FindFieldByNumber(
        OptimizerParameter::kForeignNamesFieldNumber));
  }
  std::string report;
  differencer.ReportDifferencesToString(&report);
  differencer.Compare(a, b);
  return absl::StrSplit(report, '\n', absl::SkipEmpty());
}

// Compares what the messages of two manifests tell. `tell_steps`: both tell the training's step.
std::vector<MetadataDifference> CompareFields(const Manifest& a, const Manifest& b,
                                              bool tell_steps) {
  const std::vector<std::string> without_names = CompareMessages(a, b, false);
  const std::set<std::string> told(without_names.begin(), without_names.end());
  std::vector<MetadataDifference> lines;
  for (std::string& line : CompareMessages(a, b, true)) {
    Counts counts = Counts::kInOneFormat;
    if (absl::StartsWith(line, "modified: trainer.step: ")) {
      counts = tell_steps ? Counts::kAlways : Counts::kBetweenOurs;
    } else if (!absl::StartsWith(line, "modified: ") || !told.contains(line)) {
      counts = Counts::kBetweenOurs;
    }
    lines.push_back({std::move(line), counts});
  }
  return lines;
}

struct ConfigLine {
  std::string path;  // of the field, including its parent messages
  std::string value;
};

// Splits text format as written by this program, one field per line. Other text, such as JSON,
// becomes lines without a path.
std::vector<ConfigLine> ConfigLines(const std::string& text) {
  std::vector<ConfigLine> lines;
  std::vector<std::string> inside;
  for (const absl::string_view raw : absl::StrSplit(text, '\n')) {
    const absl::string_view line = absl::StripAsciiWhitespace(raw);
    const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(": ", 1));
    if (absl::EndsWith(line, " {")) {
      inside.push_back(std::string(line.substr(0, line.size() - 2)));
    } else if (line == "}" && !inside.empty()) {
      inside.pop_back();
    } else if (parts.size() == 2 && absl::ascii_isalpha(line[0])) {
      lines.push_back(
          {absl::StrCat(absl::StrJoin(inside, "."), inside.empty() ? "" : ".", parts[0]),
           std::string(parts[1])});
    } else if (!line.empty()) {
      lines.push_back({"", std::string(line)});
    }
  }
  return lines;
}

// Returns one line for each field that differs, "model.hidden_size: 64 -> 128".
std::vector<MetadataDifference> CompareConfigs(absl::string_view title, const std::string& a,
                                               const std::string& b) {
  std::vector<MetadataDifference> report;
  if (a == b) return report;
  std::vector<ConfigLine> only_b = ConfigLines(b), only_a;
  for (ConfigLine& line : ConfigLines(a)) {
    const auto same = std::ranges::find_if(only_b, [&](const ConfigLine& other) {
      return other.path == line.path && other.value == line.value;
    });
    if (same != only_b.end()) {
      only_b.erase(same);
    } else {
      only_a.push_back(std::move(line));
    }
  }
  const auto name = [title](const ConfigLine& line) {
    return absl::StrCat(title, line.path.empty() ? "" : ".", line.path);
  };
  for (const ConfigLine& line : only_a) {
    const auto other = std::ranges::find(only_b, line.path, &ConfigLine::path);
    const bool there = other != only_b.end();
    report.push_back(
        {absl::StrCat(name(line), ": ", line.value, " -> ", there ? other->value : "(not set)"),
         there ? Counts::kInOneFormat : Counts::kBetweenOurs});
    if (there) only_b.erase(other);
  }
  for (const ConfigLine& line : only_b) {
    report.push_back(
        {absl::StrCat(name(line), ": (not set) -> ", line.value), Counts::kBetweenOurs});
  }
  if (report.empty()) {
    report.push_back(
        {absl::StrCat(title, ": the same lines in another order or with other spaces")});
  }
  return report;
}

// A checkpoint of an older version has none.
std::vector<MetadataDifference> CompareSettings(const TrainerState& a, const TrainerState& b) {
  std::vector<MetadataDifference> lines;
  const auto of_a = a.extra().find(kSettings), of_b = b.extra().find(kSettings);
  const bool in_a = of_a != a.extra().end(), in_b = of_b != b.extra().end();
  if (in_a && in_b) {
    lines = CompareConfigs("settings", of_a->second, of_b->second);
  } else if (in_a || in_b) {
    lines.push_back(
        {absl::StrCat("settings: only the ", in_a ? "first" : "second", " checkpoint records them"),
         Counts::kNever});
  }
  const auto bits_a = a.extra().find(kBitSettings), bits_b = b.extra().find(kBitSettings);
  if (bits_a != a.extra().end() && bits_b != b.extra().end()) {
    for (MetadataDifference& line : CompareConfigs("settings", bits_a->second, bits_b->second)) {
      lines.push_back({std::move(line.text), Counts::kNever});
    }
  }
  return lines;
}

std::vector<MetadataDifference> CompareMetadata(const NamedCheckpoint& named_a,
                                                const NamedCheckpoint& named_b) {
  const Manifest &a = named_a.opened->manifest(), &b = named_b.opened->manifest();
  Manifest state_a, state_b;
  const bool optimizer_a = a.optimizer().parameters_size() > 0,
             optimizer_b = b.optimizer().parameters_size() > 0;
  for (auto [from, to] : {std::pair(&a, &state_a), std::pair(&b, &state_b)}) {
    *to->mutable_trainer() = from->trainer();
    to->mutable_trainer()->mutable_extra()->erase(kSettings);
    to->mutable_trainer()->mutable_extra()->erase(kBitSettings);
    to->mutable_model()->set_architecture(from->model().architecture());
    if (optimizer_a == optimizer_b) *to->mutable_optimizer() = from->optimizer();
    // Their order has no meaning.
    std::ranges::sort(*to->mutable_optimizer()->mutable_parameters(), {},
                      [](const OptimizerParameter& p) { return p.parameter(); });
  }
  std::vector<MetadataDifference> lines =
      CompareValues(named_a, named_b, *state_a.mutable_trainer()->mutable_extra(),
                    *state_b.mutable_trainer()->mutable_extra());
  if (optimizer_a != optimizer_b) {
    const OptimizerState& optimizer = (optimizer_a ? a : b).optimizer();
    lines.push_back(
        {absl::StrCat(optimizer_a ? "deleted" : "added", ": optimizer ", optimizer.algorithm(),
                      ", ", Counted(optimizer.parameters_size(), "parameter")),
         Counts::kBetweenOurs});
  }
  const bool tell_steps = convert::TellsStep(a) && convert::TellsStep(b);
  const auto append = [&](std::vector<MetadataDifference> more) {
    std::ranges::move(more, std::back_inserter(lines));
  };
  append(CompareFields(state_a, state_b, tell_steps));
  // The entries of a map come in another order each time.
  std::ranges::sort(lines, {}, &MetadataDifference::text);
  append(CompareConfigs("model", a.model().text(), b.model().text()));
  append(CompareSettings(a.trainer(), b.trainer()));
  if (TopologyText(a.topology()) != TopologyText(b.topology())) {
    lines.push_back(
        {absl::StrCat("topology: ", TopologyText(a.topology()), " | ", TopologyText(b.topology())),
         Counts::kNever});
  }
  return lines;
}

// Metadata of another framework is only as much as its files tell: a difference that does not count
// between two formats, or where one file tells less than the other, is a note.
void AddMetadata(std::vector<MetadataDifference> lines, const NamedCheckpoint& a,
                 const NamedCheckpoint& b, Differences& differences) {
  const Counts least = a.format != b.format ? Counts::kAlways
                       : a.format.empty()   ? Counts::kBetweenOurs
                                            : Counts::kInOneFormat;
  for (MetadataDifference& line : lines) {
    (line.counts >= least ? differences.metadata : differences.notes)
        .push_back(std::move(line.text));
  }
}

bool HasOptimizerState(const Manifest& manifest) {
  return std::ranges::any_of(manifest.tensors(), [](const LogicalTensor& tensor) {
    return BelongsToOptimizer(FromProto(tensor.role()));
  });
}

// Optimizer state that another framework's checkpoint does not have at all was not converted: it
// does not count as a difference.
void ExcuseOptimizer(const Manifest& a, const Manifest& b, Differences& differences) {
  if (HasOptimizerState(a) == HasOptimizerState(b)) return;
  const Manifest& with = HasOptimizerState(a) ? a : b;
  std::set<std::string> states;
  for (const LogicalTensor& tensor : with.tensors()) {
    if (BelongsToOptimizer(FromProto(tensor.role()))) states.insert(tensor.name());
  }
  std::erase_if(differences.tensors, [&](const TensorDifference& difference) {
    return states.contains(difference.tensor);
  });
  differences.notes.push_back(absl::StrCat("optimizer state: only in the ",
                                           HasOptimizerState(a) ? "first" : "second", ", ",
                                           Counted(states.size(), "tensor")));
}

std::string Describe(const LogicalTensor& tensor) {
  std::string text =
      absl::StrCat(RoleProto_Name(tensor.role()), " ", DTypeProto_Name(tensor.dtype()), " ",
                   ShapeToString(GlobalShape(tensor)));
  if (!tensor.alias_of().empty()) absl::StrAppend(&text, " alias of ", tensor.alias_of());
  return text;
}

// A tensor without elements needs no digest.
bool HasDigest(const LogicalTensor& tensor) {
  return tensor.has_digest() || ElementCount(GlobalShape(tensor)) == 0;
}

using NamesByStored = std::map<std::string, std::set<std::string>>;

// Returns the names of each stored tensor: its own and those of its aliases.
NamesByStored TiedNames(const Manifest& manifest) {
  NamesByStored names;
  for (const LogicalTensor& tensor : manifest.tensors()) {
    names[tensor.alias_of().empty() ? tensor.name() : tensor.alias_of()].insert(tensor.name());
  }
  return names;
}

// Which of several tied tensors is stored differs from format to format. Returns the tensors of `b`
// that `a` ties under the same names, with the one as stored that `a` stores.
std::vector<LogicalTensor> TiedLike(const Manifest& a, const Manifest& b) {
  std::map<std::string_view, const LogicalTensor*> index;
  for (const LogicalTensor& tensor : b.tensors()) index[tensor.name()] = &tensor;
  const NamesByStored in_b = TiedNames(b);
  std::vector<LogicalTensor> tied;
  for (const auto& [stored, names] : TiedNames(a)) {
    const auto at = index.find(stored);
    const auto other = at == index.end() ? in_b.end() : in_b.find(at->second->alias_of());
    if (other == in_b.end() || other->second != names) continue;
    for (const std::string& name : names) {
      LogicalTensor& tensor = tied.emplace_back(*index.at(name));
      const LogicalTensor& saved = *index.at(other->first);
      tensor.set_alias_of(name == stored ? "" : stored);
      if (saved.has_digest()) *tensor.mutable_digest() = saved.digest();
    }
  }
  return tied;
}

// Returns the names of the tensors whose contents must be compared.
std::vector<std::string> CompareTensors(const Manifest& a, const Manifest& b,
                                        const DiffOptions& options, Differences& differences) {
  std::vector<std::string> by_contents;
  std::map<std::string, const LogicalTensor*> index_b;
  for (const LogicalTensor& tensor : b.tensors()) index_b[tensor.name()] = &tensor;
  const std::vector<LogicalTensor> tied = TiedLike(a, b);
  for (const LogicalTensor& tensor : tied) index_b[tensor.name()] = &tensor;
  for (const LogicalTensor& in_a : a.tensors()) {
    const auto at = index_b.find(in_a.name());
    if (at == index_b.end()) {
      differences.tensors.push_back({in_a.name(), "only in the first"});
      continue;
    }
    const LogicalTensor& in_b = *at->second;
    index_b.erase(at);
    const bool same = Describe(in_a) == Describe(in_b);
    if (!same) {
      differences.tensors.push_back(
          {in_a.name(), absl::StrCat(Describe(in_a), " | ", Describe(in_b))});
    }
    if (!in_a.alias_of().empty() || !in_b.alias_of().empty()) {
      if (same) ++differences.equal_aliases;
    } else if (options.data || (same && (!HasDigest(in_a) || !HasDigest(in_b))) ||
               (!same && options.distances)) {
      by_contents.push_back(in_a.name());
    } else if (same && DigestText(in_a.digest()) != DigestText(in_b.digest())) {
      if (options.distances) {
        by_contents.push_back(in_a.name());
      } else {
        differences.tensors.push_back({in_a.name(), "contents differ"});
      }
    } else if (same) {
      ++differences.equal_by_digest;
    }
  }
  for (const auto& [name, tensor] : index_b) {
    differences.tensors.push_back({name, "only in the second"});
  }
  return by_contents;
}

// Returns whether both are the same files of another framework, read in one way.
bool AreOne(const NamedCheckpoint& a, const NamedCheckpoint& b) {
  if (a.foreign == nullptr || b.foreign == nullptr || a.format != b.format) return false;
  if (a.foreign_name == b.foreign_name) return true;
  std::error_code error;
  const auto path_a = LocalPathOfName(a.foreign_name), path_b = LocalPathOfName(b.foreign_name);
  return path_a && path_b && std::filesystem::equivalent(*path_a, *path_b, error);
}

// Names the tensors that only one side's files were read for, or none's: they may differ, unless
// both sides are one.
void AddUnread(const NamedCheckpoint& a, const NamedCheckpoint& b, Differences& differences) {
  if (AreOne(a, b)) return;
  std::map<std::string, std::string> unread;
  const auto add = [&](const NamedCheckpoint& side, const char* which) {
    if (side.foreign == nullptr) return;
    for (const auto& [name, why] : side.foreign->unread()) {
      std::string& text = unread[name];
      absl::StrAppend(&text, text.empty() ? "" : "; ", "not read in the ", which, ": ", why);
    }
  };
  add(a, "first");
  add(b, "second");
  std::erase_if(differences.tensors, [&](const TensorDifference& difference) {
    return unread.contains(difference.tensor);
  });
  for (auto& [name, text] : unread) differences.tensors.push_back({name, std::move(text)});
}

absl::Status CompareContents(const NamedCheckpoint& a, const NamedCheckpoint& b,
                             const std::vector<std::string>& names, const DiffOptions& options,
                             Differences& differences) {
  auto compared = CompareData(*a.opened, *b.opened, names, options.io_threads);
  if (compared.ok()) differences.data = *std::move(compared);
  if (compared.ok() || !options.distances || !MayBeDamage(compared.status())) {
    return compared.status();
  }
  for (const std::string& name : names) {
    compared = CompareData(*a.opened, *b.opened, {name}, options.io_threads);
    if (compared.ok()) {
      differences.data.merge(*compared);
    } else if (MayBeDamage(compared.status())) {
      differences.tensors.push_back({name, std::string(compared.status().message())});
    } else {
      return compared.status();
    }
  }
  return absl::OkStatus();
}

void AddDataDifferences(Differences& differences) {
  for (const auto& [name, difference] : differences.data) {
    if (difference.same_bits) {
      ++differences.equal_by_contents;
    } else if (difference.different_elements == 0) {
      differences.tensors.push_back({name, "the same values, in other bits"});
    } else {
      std::string text = absl::StrCat(Counted(difference.different_elements, "element"),
                                      difference.different_elements == 1 ? " differs" : " differ");
      // How far integers are apart is not known.
      if (difference.max_abs > 0) {
        absl::StrAppend(&text, ", by at most ", NumberText(difference.max_abs));
      }
      differences.tensors.push_back({name, std::move(text)});
    }
  }
}

}  // namespace

absl::StatusOr<Differences> Diff(const NamedCheckpoint& a, const NamedCheckpoint& b,
                                 const DiffOptions& options) {
  TESSERA_RETURN_IF_ERROR(a.opened.status());
  TESSERA_RETURN_IF_ERROR(b.opened.status());
  const Manifest &manifest_a = a.opened->manifest(), &manifest_b = b.opened->manifest();
  Differences differences;
  for (const NamedCheckpoint* side : {&a, &b}) {
    for (const std::string& note : side->notes) {
      differences.notes.push_back(absl::StrCat(side->Describe(), ": ", note));
    }
  }
  AddMetadata(CompareMetadata(a, b), a, b, differences);
  const std::vector<std::string> by_contents =
      CompareTensors(manifest_a, manifest_b, options, differences);
  if (!a.format.empty() || !b.format.empty()) {
    ExcuseOptimizer(manifest_a, manifest_b, differences);
  }
  AddUnread(a, b, differences);
  if (!by_contents.empty()) {
    TESSERA_RETURN_IF_ERROR(CompareContents(a, b, by_contents, options, differences));
    AddDataDifferences(differences);
  }
  return differences;
}

nlohmann::ordered_json ToJson(const Differences& differences) {
  nlohmann::ordered_json json = {{"same_state", differences.none()},
                                 {"equal_tensors", differences.equal()},
                                 {"equal_by_digest", differences.equal_by_digest},
                                 {"equal_by_contents", differences.equal_by_contents},
                                 {"notes", differences.notes},
                                 {"metadata", differences.metadata},
                                 {"tensors", nlohmann::ordered_json::array()}};
  for (const TensorDifference& difference : differences.tensors) {
    nlohmann::ordered_json entry = {{"tensor", difference.tensor}, {"message", difference.message}};
    if (const auto at = differences.data.find(difference.tensor); at != differences.data.end()) {
      entry["different_elements"] = at->second.different_elements;
      entry["max_abs"] = NumberText(at->second.max_abs);
    }
    json["tensors"].push_back(std::move(entry));
  }
  return json;
}

}  // namespace tessera::ckpt
