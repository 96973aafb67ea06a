#include "models/foreign/json_fields.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/parse_json.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

constexpr size_t kMaxShown = 64;

std::string Shown(const nlohmann::json& value) {
  std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > kMaxShown) text = text.substr(0, kMaxShown) + "...";
  return text;
}

}  // namespace

absl::StatusOr<JsonFields> JsonFields::Parse(std::string_view text, std::string_view source) {
  nlohmann::json object = ParseJson(text);
  if (object.is_object()) return JsonFields(std::move(object), std::string(source), "");
  return absl::InvalidArgumentError(absl::StrCat(
      std::string(source), " is not a JSON object of at most ", kMaxJsonDepth, " levels"));
}

const nlohmann::json* JsonFields::Find(std::string_view name) const {
  const auto found = object_.find(std::string(name));
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

absl::Status JsonFields::Missing(std::string_view name) const {
  return absl::InvalidArgumentError(
      absl::StrCat(source_, ": ", path_, std::string(name), " is missing"));
}

absl::Status JsonFields::WrongType(std::string_view name, std::string_view wanted) const {
  return absl::InvalidArgumentError(absl::StrCat(source_, ": ", path_, std::string(name), " is ",
                                                 Shown(*Find(name)), ", expected ",
                                                 std::string(wanted)));
}

absl::StatusOr<JsonFields> JsonFields::Object(std::string_view name) const {
  std::string path = absl::StrCat(path_, std::string(name), ".");
  const nlohmann::json* const value = Find(name);
  if (value == nullptr) return JsonFields(nlohmann::json::object(), source_, std::move(path));
  if (!value->is_object()) return WrongType(name, "an object");
  return JsonFields(*value, source_, std::move(path));
}

absl::StatusOr<int64_t> JsonFields::Integer(std::string_view name) const {
  const nlohmann::json* const value = Find(name);
  if (value == nullptr) return Missing(name);
  if (!value->is_number_integer() ||
      (value->is_number_unsigned() && value->get<uint64_t>() > uint64_t{INT64_MAX})) {
    return WrongType(name, "an integer");
  }
  return value->get<int64_t>();
}

absl::StatusOr<double> JsonFields::Real(std::string_view name) const {
  const nlohmann::json* const value = Find(name);
  if (value == nullptr) return Missing(name);
  if (!value->is_number()) return WrongType(name, "a number");
  return value->get<double>();
}

absl::StatusOr<int64_t> JsonFields::Integer(std::string_view name, int64_t absent) const {
  if (!Has(name)) return absent;
  return Integer(name);
}

absl::StatusOr<double> JsonFields::Real(std::string_view name, double absent) const {
  if (!Has(name)) return absent;
  return Real(name);
}

absl::StatusOr<bool> JsonFields::Bool(std::string_view name, bool absent) const {
  const nlohmann::json* const value = Find(name);
  if (value == nullptr) return absent;
  if (!value->is_boolean()) return WrongType(name, "true or false");
  return value->get<bool>();
}

absl::StatusOr<std::string> JsonFields::Text(std::string_view name, std::string_view absent) const {
  const nlohmann::json* const value = Find(name);
  if (value == nullptr) return std::string(absent);
  if (!value->is_string()) return WrongType(name, "a string");
  return value->get<std::string>();
}

absl::StatusOr<std::vector<double>> JsonFields::Reals(std::string_view name) const {
  std::vector<double> reals;
  const nlohmann::json* const value = Find(name);
  if (value == nullptr) return reals;
  if (!value->is_array()) return WrongType(name, "a list of numbers");
  for (const nlohmann::json& real : *value) {
    if (!real.is_number()) return WrongType(name, "a list of numbers");
    reals.push_back(real.get<double>());
  }
  return reals;
}

absl::Status JsonFields::HasOnly(std::initializer_list<std::string_view> names) const {
  for (const auto& [name, value] : object_.items()) {
    if (std::ranges::find(names, name) != names.end()) continue;
    return absl::InvalidArgumentError(absl::StrCat(source_, ": ", path_, name, " is ", Shown(value),
                                                   ", which is not known here"));
  }
  return absl::OkStatus();
}

absl::Status JsonFields::Require(std::string_view name, const nlohmann::json& value) const {
  const nlohmann::json* const found = Find(name);
  if (found == nullptr || *found == value) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(source_, ": ", path_, std::string(name), " is ",
                                                 Shown(*found), ", only ", Shown(value),
                                                 " is supported"));
}

absl::Status JsonFields::RequireAbsent(std::initializer_list<std::string_view> names) const {
  for (const std::string_view name : names) {
    if (!Has(name)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(source_, ": ", path_, std::string(name), " is set, which is not supported"));
  }
  return absl::OkStatus();
}

absl::Status ReadFields(const JsonFields& fields, std::initializer_list<ConfigField> wanted,
                        ModelConfig& config) {
  for (const auto& [name, set, absent] : wanted) {
    if (const auto* const integer = std::get_if<0>(&set)) {
      TESSERA_ASSIGN_OR_RETURN(
          const int64_t value,
          absent ? fields.Integer(name, static_cast<int64_t>(*absent)) : fields.Integer(name));
      (config.**integer)(value);
    } else if (const auto* const truth = std::get_if<2>(&set)) {
      TESSERA_ASSIGN_OR_RETURN(const bool value, fields.Bool(name, false));
      (config.**truth)(value);
    } else {
      TESSERA_ASSIGN_OR_RETURN(const double value,
                               absent ? fields.Real(name, *absent) : fields.Real(name));
      (config.*std::get<1>(set))(value);
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera
