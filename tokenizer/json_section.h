#ifndef TESSERA_TOKENIZER_JSON_SECTION_H_
#define TESSERA_TOKENIZER_JSON_SECTION_H_

#include <cstddef>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace tessera {

// A value for a message: what is long or nested is shortened.
std::string JsonInWords(const nlohmann::json& json);

// One object of a JSON file and where it lies, for messages. Refers to the JSON.
class JsonSection {
 public:
  JsonSection(std::string path, std::string name, const nlohmann::json& json)
      : path_(std::move(path)), name_(std::move(name)), json_(json) {}

  const nlohmann::json& json() const { return json_; }
  bool is_null() const { return json_.is_null(); }

  // Null where there is no such member.
  JsonSection operator[](const char* member) const;
  JsonSection At(size_t index) const;
  size_t size() const { return json_.is_array() ? json_.size() : 0; }

  // "" where it is not a string.
  std::string text() const { return json_.is_string() ? json_.get<std::string>() : ""; }
  std::string type() const { return (*this)["type"].text(); }
  bool is_true() const { return json_.is_boolean() && json_.get<bool>(); }
  // True for null, false, 0 and "".
  bool is_off() const { return json_.is_null() || json_ == false || json_ == 0 || json_ == ""; }

  // The members of {"type": "Sequence", `list`: [...]}, or the section itself if it is another
  // type; none of null.
  std::vector<JsonSection> Steps(const char* list) const;

  // InvalidArgument naming the section and its value.
  absl::Status NotSupported() const;
  // DataLoss naming the section, what was expected and its value.
  absl::Status Bad(std::string_view expected) const;
  // Refuses members that are not listed: they may change what the tokenizer does.
  absl::Status AllowOnly(const std::set<std::string>& members) const;

 private:
  std::string path_;
  std::string name_;
  const nlohmann::json& json_;
};

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_JSON_SECTION_H_
