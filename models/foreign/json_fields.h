#ifndef TESSERA_MODELS_FOREIGN_JSON_FIELDS_H_
#define TESSERA_MODELS_FOREIGN_JSON_FIELDS_H_

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/config/config.pb.h"
#include "nlohmann/json.hpp"

namespace tessera {

// The fields of a JSON object, such as a config.json. A field that is null counts as absent.
// Errors: InvalidArgument, one sentence that names the field, for a value of another type.
class JsonFields {
 public:
  // Parses a JSON object, which messages call `source`. InvalidArgument for any other text.
  static absl::StatusOr<JsonFields> Parse(std::string_view text, std::string_view source);

  const std::string& source() const { return source_; }

  bool Has(std::string_view name) const { return Find(name) != nullptr; }
  // Returns the fields of a field that is itself an object; none if the field is absent.
  absl::StatusOr<JsonFields> Object(std::string_view name) const;

  // Returns the field's value. InvalidArgument if the field is absent.
  absl::StatusOr<int64_t> Integer(std::string_view name) const;
  absl::StatusOr<double> Real(std::string_view name) const;
  // Returns the field's value, or `absent` if it is absent.
  absl::StatusOr<int64_t> Integer(std::string_view name, int64_t absent) const;
  absl::StatusOr<double> Real(std::string_view name, double absent) const;
  absl::StatusOr<bool> Bool(std::string_view name, bool absent) const;
  absl::StatusOr<std::string> Text(std::string_view name, std::string_view absent) const;

  // Returns the numbers of a list; none if the field is absent.
  absl::StatusOr<std::vector<double>> Reals(std::string_view name) const;

  // Returns InvalidArgument, naming the field, if a field has another name.
  absl::Status HasOnly(std::initializer_list<std::string_view> names) const;

  // Returns InvalidArgument unless the field is absent or has this value.
  absl::Status Require(std::string_view name, const nlohmann::json& value) const;

  // Returns InvalidArgument, naming the field, if one of these fields is there.
  absl::Status RequireAbsent(std::initializer_list<std::string_view> names) const;

 private:
  JsonFields(nlohmann::json object, std::string source, std::string path)
      : object_(std::move(object)), source_(std::move(source)), path_(std::move(path)) {}
  const nlohmann::json* Find(std::string_view name) const;  // null: absent
  absl::Status Missing(std::string_view name) const;
  absl::Status WrongType(std::string_view name, std::string_view wanted) const;

  nlohmann::json object_;
  std::string source_;
  std::string path_;  // "" or "rope_scaling."
};

// A number or a truth value of a configuration, and its field of the config.
struct ConfigField {
  std::string_view name;
  std::variant<void (ModelConfig::*)(int64_t), void (ModelConfig::*)(double),
               void (ModelConfig::*)(bool)>
      set;
  std::optional<double> absent = std::nullopt;  // if the configuration may lack it
};

// Sets the wanted fields of the config. A truth value is false if the configuration lacks it.
// Errors: those of Integer(), Real() and Bool().
absl::Status ReadFields(const JsonFields& fields, std::initializer_list<ConfigField> wanted,
                        ModelConfig& config);

}  // namespace tessera

#endif  // TESSERA_MODELS_FOREIGN_JSON_FIELDS_H_
