#include "trainer/data/dataset_summary.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/file_descriptor.h"
#include "base/replace_file.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxSummaryBytes = 64 << 20;
constexpr int64_t kFormatVersion = 1;

Json ToJson(const SplitSummary& split) {
  return {
      {"documents", split.documents}, {"text_bytes", split.text_bytes}, {"tokens", split.tokens}};
}

// Reads fields of the expected type and records the first one that is missing.
class FieldReader {
 public:
  explicit FieldReader(const Json& object) : object_(object) {}

  void Read(const char* name, std::string& out) { Read(name, &Json::is_string, "a string", out); }
  void Read(const char* name, int64_t& out) {
    Read(name, &Json::is_number_integer, "an integer", out);
  }
  void Read(const char* name, double& out) { Read(name, &Json::is_number, "a number", out); }
  void Read(const char* name, SplitSummary& out) {
    const Json* field = Find(name);
    if (field == nullptr || !field->is_object()) return Missing(name, "an object");
    FieldReader inner(*field);
    inner.Read("documents", out.documents);
    inner.Read("text_bytes", out.text_bytes);
    inner.Read("tokens", out.tokens);
    if (!inner.missing_.empty()) missing_ = absl::StrCat(name, ".", inner.missing_);
  }
  void Read(const char* name, std::vector<DatasetSummary::File>& out) {
    const Json* field = Find(name);
    if (field == nullptr || !field->is_array()) return Missing(name, "an array");
    for (const Json& element : *field) {
      FieldReader inner(element);
      DatasetSummary::File& file = out.emplace_back();
      inner.Read("name", file.name);
      inner.Read("size_bytes", file.size_bytes);
      // Names are joined to the folder, and the files are later removed: no path may lead outside
      // it.
      if (file.name.find('/') != file.name.npos) inner.Missing("name", "without a slash");
      if (!inner.missing_.empty()) missing_ = absl::StrCat(name, ".", inner.missing_);
    }
  }

  const std::string& missing() const { return missing_; }

 private:
  template <typename T>
  void Read(const char* name, bool (Json::*is)() const, const char* type, T& out) {
    if (const Json* field = Find(name); field != nullptr && (field->*is)()) {
      out = field->get<T>();
    } else {
      Missing(name, type);
    }
  }
  const Json* Find(const char* name) const {
    if (!object_.is_object()) return nullptr;
    const auto found = object_.find(name);
    return found == object_.end() ? nullptr : &*found;
  }
  void Missing(const char* name, const char* type) {
    if (missing_.empty()) missing_ = absl::StrCat(name, " expected to be ", type);
  }

  const Json& object_;
  std::string missing_;
};

}  // namespace

absl::Status WriteDatasetSummary(const DatasetSummary& summary, const std::string& directory) {
  Json files = Json::array();
  for (const DatasetSummary::File& file : summary.files) {
    files.push_back({{"name", file.name}, {"size_bytes", file.size_bytes}});
  }
  const Json root = {{"format_version", kFormatVersion},
                     {"request", summary.request},
                     {"tokenizer", summary.tokenizer},
                     {"vocab_size", summary.vocab_size},
                     {"end_of_text", summary.end_of_text},
                     {"format", summary.format},
                     {"split", summary.split},
                     {"train", ToJson(summary.train)},
                     {"validation", ToJson(summary.validation)},
                     {"unigram_nats_per_token", summary.unigram_nats_per_token},
                     {"files", files}};
  return ReplaceFile(absl::StrCat(directory, "/", std::string(kDatasetFileName)),
                     root.dump(2) + "\n");
}

absl::StatusOr<DatasetSummary> ReadDatasetSummary(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/", std::string(kDatasetFileName));
  TESSERA_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxSummaryBytes));
  const Json root = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (root.is_discarded()) {
    return absl::DataLossError(absl::StrCat(path, " at offset 0: expected JSON, found ",
                                            text.size(), " bytes that cannot be parsed"));
  }
  DatasetSummary summary;
  int64_t version = 0;
  FieldReader reader(root);
  reader.Read("format_version", version);
  reader.Read("request", summary.request);
  reader.Read("tokenizer", summary.tokenizer);
  reader.Read("vocab_size", summary.vocab_size);
  reader.Read("end_of_text", summary.end_of_text);
  reader.Read("format", summary.format);
  reader.Read("split", summary.split);
  reader.Read("train", summary.train);
  reader.Read("validation", summary.validation);
  reader.Read("unigram_nats_per_token", summary.unigram_nats_per_token);
  reader.Read("files", summary.files);
  if (!reader.missing().empty()) {
    return absl::DataLossError(absl::StrCat(path, ": field ", reader.missing()));
  }
  if (version != kFormatVersion) {
    return absl::DataLossError(absl::StrCat(path, ": field format_version expected to be ",
                                            kFormatVersion, ", found ", version));
  }
  return summary;
}

}  // namespace tessera
