#include "convert/core/find_naming.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "convert/core/reading.h"

namespace tessera::ckpt::convert {
namespace {

// Returns the name that is nearest; empty where none is called alike.
std::string NearestTo(const std::string& name, const std::vector<std::string>& others) {
  constexpr size_t kMostBytes = 200, kMostOthers = 1000;
  std::string nearest;
  int best = 4;
  if (name.size() > kMostBytes || others.size() > kMostOthers) return nearest;
  for (const std::string& other : others) {
    if (other.size() > kMostBytes) continue;
    const int distance = TypingDistance(name, other);
    if (distance >= best) continue;
    best = distance;
    nearest = other;
  }
  return nearest;
}

}  // namespace

std::vector<std::string> NamesOf(const ForeignParameter& parameter) {
  std::vector<std::string> names = {parameter.name};
  names.insert(names.end(), parameter.other_names.begin(), parameter.other_names.end());
  return names;
}

absl::Status NamingFinder::Index() {
  for (size_t i = 0; i < checkpoint_.tensors.size(); ++i) {
    const ForeignTensor& tensor = checkpoint_.tensors[i];
    by_name_[tensor.name] = i;
    if (tensor.role != TensorRole::kWeight) continue;
    const auto [at, is_new] = weights_.emplace(WithoutWrappers(tensor.name), i);
    if (!is_new) {
      return Damaged(tensor, absl::StrCat("without its wrappers it is called as ",
                                          checkpoint_.tensors[at->second].name));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<PrefixedNaming>> NamingFinder::Find() {
  std::optional<PrefixedNaming> misshapen;
  for (const Parameters& naming : model_.namings) {
    TESSERA_ASSIGN_OR_RETURN(const std::optional<std::string> prefix, FindPrefix(naming));
    if (!prefix.has_value()) continue;
    if (HasShapes(naming, *prefix)) return PrefixedNaming{&naming, *prefix};
    if (!misshapen.has_value()) misshapen = {&naming, *prefix};
  }
  return misshapen;
}

std::optional<size_t> NamingFinder::FindTensor(const std::string& name) const {
  const auto at = weights_.find(name);
  if (at == weights_.end()) return std::nullopt;
  const std::string& other = checkpoint_.tensors[at->second].alias_of;
  if (other.empty()) return at->second;
  const auto stored = by_name_.find(other);
  return stored == by_name_.end() ? std::nullopt : std::optional(stored->second);
}

std::optional<size_t> NamingFinder::FindWeight(const std::string& name) const {
  const auto at = weights_.find(name);
  return at == weights_.end() ? std::nullopt : std::optional(at->second);
}

absl::Status NamingFinder::Damaged(const ForeignTensor& tensor,
                                   const absl::AlphaNum& problem) const {
  return absl::DataLossError(absl::StrCat(where_, ": tensor ", tensor.name, ": ", problem));
}

std::string NamingFinder::NotThere(const std::string& name) const {
  std::vector<std::string> found;
  for (const auto& [other, unused] : weights_) found.push_back(other);
  return absl::StrCat("the model's ", name, " is not among ",
                      found.empty() ? "them" : SomeOf(found));
}

bool NamingFinder::HasAll(const Parameters& naming, const std::string& prefix) {
  for (const ForeignParameter& parameter : naming) {
    if (parameter.blocks.empty()) continue;  // no part of the model
    const std::vector<std::string> names = NamesOf(parameter);
    if (std::ranges::any_of(
            names, [&](const std::string& n) { return FindTensor(prefix + n).has_value(); })) {
      continue;
    }
    if (missing_.empty()) {
      missing_ = NotThere(prefix + parameter.name);
    }
    return false;
  }
  return true;
}

// Returns whether the tensors of all parameters have their shapes. Precondition: HasAll().
bool NamingFinder::HasShapes(const Parameters& naming, const std::string& prefix) const {
  return std::ranges::all_of(naming, [&](const ForeignParameter& parameter) {
    if (parameter.blocks.empty()) return true;
    return std::ranges::all_of(NamesOf(parameter), [&](const std::string& name) {
      const std::optional<size_t> at = FindTensor(prefix + name);
      return !at.has_value() || checkpoint_.tensors[*at].shape == parameter.shape;
    });
  });
}

// Returns the prefix of all parameters' names; nullopt where they are not all there.
absl::StatusOr<std::optional<std::string>> NamingFinder::FindPrefix(const Parameters& naming) {
  std::set<std::string> prefixes;
  for (const std::string& end : NamesOf(naming.front())) {
    for (const auto& [name, unused] : weights_) {
      if (!name.ends_with(end)) continue;
      std::string prefix = name.substr(0, name.size() - end.size());
      if (prefix.empty() || prefix.back() == '.') prefixes.insert(std::move(prefix));
    }
  }
  std::optional<std::string> found;
  for (const std::string& prefix : prefixes) {
    if (!HasAll(naming, prefix)) continue;
    if (found.has_value()) {
      return absl::DataLossError(
          absl::StrCat(where_, ": the tensors below \"", *found, "\" and those below \"", prefix,
                       "\" are a whole model each: keep one of them in the file"));
    }
    found = prefix;
  }
  if (prefixes.empty() && missing_.empty()) {
    missing_ = NotThere(naming.front().name);
  }
  return found;
}

// Returns the naming and prefix with the most parameters.
NamingFinder::Present NamingFinder::FindMostPresent() const {
  Present most;
  for (const Parameters& naming : model_.namings) {
    std::map<std::string, const ForeignParameter*> by_name;
    size_t longest = 0;
    for (const ForeignParameter& parameter : naming) {
      for (const std::string& name : NamesOf(parameter)) {
        by_name[name] = &parameter;
        longest = std::max(longest, name.size());
      }
    }
    std::map<std::string, Present> by_prefix;
    for (const auto& [name, unused] : weights_) {
      for (size_t begin = 0; begin <= name.size(); begin = name.find('.', begin) + 1) {
        if (name.size() - begin <= longest) {
          const auto found = by_name.find(name.substr(begin));
          if (found != by_name.end()) {
            Present& present = by_prefix[name.substr(0, begin)];
            present.naming = &naming;
            present.parameters.insert(found->second);
          }
        }
        if (name.find('.', begin) == name.npos) break;
      }
    }
    for (auto& [prefix, present] : by_prefix) {
      present.prefix = prefix;
      if (present.parameters.size() > most.parameters.size()) most = std::move(present);
    }
  }
  return most;
}

std::string NamingFinder::DescribeMismatch() const {
  const Present most = FindMostPresent();
  if (most.naming == nullptr || 2 * most.parameters.size() < most.naming->size()) return "";
  std::set<std::string> known;
  for (const ForeignParameter& parameter : *most.naming) {
    for (const std::string& name : NamesOf(parameter)) known.insert(most.prefix + name);
  }
  std::vector<std::string> unexpected, missing;
  for (const auto& [name, unused] : weights_) {
    if (!known.contains(name)) unexpected.push_back(name);
  }
  for (const ForeignParameter& parameter : *most.naming) {
    if (parameter.blocks.empty() || most.parameters.contains(&parameter)) continue;
    const std::string name = most.prefix + parameter.name;
    const std::string nearest = NearestTo(name, unexpected);
    missing.push_back(
        absl::StrCat("the model's ", name, " is missing",
                     nearest.empty() ? ""
                                     : absl::StrCat("; the files have ", absl::CHexEscape(nearest),
                                                    ", which no parameter is called")));
  }
  if (missing.empty()) return "";
  std::string message = JoinFirst(missing, "; ");
  const bool shows_some = message.find("; the files have ") != message.npos;
  if (!shows_some && !unexpected.empty()) {
    absl::StrAppend(&message, "; the files have ", SomeOf(unexpected),
                    ", which no parameter is called");
  }
  return message;
}

}  // namespace tessera::ckpt::convert
