#include "tokenizer/json_section.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxQuotedBytes = 200;

}  // namespace

std::string JsonInWords(const nlohmann::json& json) {
  if (json.is_structured()) return json.is_array() ? "a list" : "an object";
  std::string text = json.dump();
  if (text.size() > kMaxQuotedBytes) text = absl::StrCat(text.substr(0, kMaxQuotedBytes), "...");
  return text;
}

JsonSection JsonSection::operator[](const char* member) const {
  static const Json* null = new Json;
  const bool found = json_.is_object() && json_.contains(member);
  return {path_, name_.empty() ? member : absl::StrCat(name_, ".", member),
          found ? json_[member] : *null};
}

JsonSection JsonSection::At(size_t index) const {
  return {path_, absl::StrCat(name_, "[", index, "]"), json_[index]};
}

std::vector<JsonSection> JsonSection::Steps(const char* list) const {
  if (is_null()) return {};
  if (type() != "Sequence") return {*this};
  std::vector<JsonSection> steps;
  const JsonSection members = (*this)[list];
  for (size_t i = 0; i < members.size(); ++i) steps.push_back(members.At(i));
  return steps;
}

absl::Status JsonSection::NotSupported() const {
  const bool typed = json_.is_object() && json_.contains("type");
  return absl::InvalidArgumentError(absl::StrCat(path_, ": ", name_, " is ",
                                                 JsonInWords(typed ? json_["type"] : json_),
                                                 ", which is not supported"));
}

absl::Status JsonSection::Bad(std::string_view expected) const {
  return absl::DataLossError(absl::StrCat(
      path_, ": ", name_.empty() ? "the file" : name_, " expected to be ",
      absl::string_view(expected.data(), expected.size()), ", found ", JsonInWords(json_)));
}

absl::Status JsonSection::AllowOnly(const std::set<std::string>& members) const {
  if (!json_.is_object()) return Bad("an object");
  for (const auto& [member, value] : json_.items()) {
    if (!members.contains(member)) return (*this)[member.c_str()].NotSupported();
  }
  return absl::OkStatus();
}

}  // namespace tessera
