#include "models/layers/module.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace tessera {

Module::Module(const ParameterSet& parameters, const std::vector<std::string>& names) {
  std::map<std::string, std::vector<NamedParameter::Part>> parts;
  for (Parameter* const parameter : parameters.parameters()) {
    for (const ParameterPiece& piece : parameter->pieces) {
      parts[piece.name].push_back({parameter, &piece});
    }
  }
  for (const std::string& name : names) {
    const auto found = parts.find(name);
    if (found != parts.end()) parameters_.push_back({name, std::move(found->second)});
  }
}

std::vector<NamedParameter> Module::NamedParameters(std::string_view prefix, bool recurse) const {
  std::vector<NamedParameter> named;
  for (const NamedParameter& parameter : parameters_) {
    if (!recurse && parameter.name.find('.') != parameter.name.npos) continue;
    named.push_back(parameter);
    if (!prefix.empty()) named.back().name = absl::StrCat(View(prefix), ".", parameter.name);
  }
  return named;
}

Module Module::Submodule(std::string_view name) const {
  if (name.empty()) return *this;
  const std::string prefix = absl::StrCat(View(name), ".");
  Module module;
  for (const NamedParameter& parameter : parameters_) {
    if (!parameter.name.starts_with(prefix)) continue;
    module.parameters_.push_back({parameter.name.substr(prefix.size()), parameter.parts});
  }
  return module;
}

}  // namespace tessera
