#include "trainer/config/problems.h"

#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"

namespace tessera {
namespace {

// Returns the words of a sentence that may be names of fields.
std::set<std::string> NamesIn(std::string_view sentence) {
  std::set<std::string> names;
  std::string word;
  for (const char byte : std::string(sentence) + " ") {
    if (absl::ascii_isalnum(byte) || byte == '_') {
      word += byte;
    } else if (!word.empty()) {
      names.insert(std::exchange(word, ""));
    }
  }
  return names;
}

}  // namespace

void Problems::Add(const absl::Status& status) {
  if (!status.ok()) sentences_.emplace_back(status.message());
}

std::string Problems::WithOrigins(const std::string& sentence) const {
  std::vector<std::string> places;
  for (const std::string& name : NamesIn(sentence)) {
    const auto origin = origins_.find(name);
    if (origin == origins_.end()) continue;
    places.push_back(origin->second.is_flag ? origin->second.text
                                            : absl::StrCat(name, ": ", origin->second.text));
  }
  return places.empty() ? sentence : absl::StrCat(sentence, " (", absl::StrJoin(places, ", "), ")");
}

absl::Status Problems::ToStatus() const {
  if (sentences_.empty()) return absl::OkStatus();
  if (sentences_.size() == 1) return Wrong(WithOrigins(sentences_.front()));
  std::string text = absl::StrCat(sentences_.size(), " problems with the settings:");
  for (const std::string& sentence : sentences_) {
    absl::StrAppend(&text, "\n  ", WithOrigins(sentence));
  }
  return absl::InvalidArgumentError(text);
}

absl::Status Problems::With(const absl::Status& status) const {
  if (status.ok()) return ToStatus();
  if (empty()) return absl::Status(status.code(), WithOrigins(std::string(status.message())));
  Problems all = *this;
  all.Add(status);
  return all.ToStatus();
}

}  // namespace tessera
