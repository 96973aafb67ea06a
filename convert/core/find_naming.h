#ifndef TESSERA_CONVERT_CORE_FIND_NAMING_H_
#define TESSERA_CONVERT_CORE_FIND_NAMING_H_

// The names that a state dict has for the parameters of a model.

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/known_model.h"
#include "layout/foreign_parameter.h"

namespace tessera::ckpt::convert {

// Returns all names of a parameter.
std::vector<std::string> NamesOf(const ForeignParameter& parameter);

// A naming of a model's parameters, and what precedes all of its names in a state dict.
struct PrefixedNaming {
  const Parameters* naming = nullptr;
  std::string prefix;
};

// Finds the naming, of those that a model may have, that a state dict uses: the one of which every
// parameter is among the weights, below one prefix. Call Index(), then Find(). The model and the
// checkpoint must outlive this object.
class NamingFinder {
 public:
  // `where` is the folder, for messages.
  NamingFinder(const KnownModel& model, const ForeignCheckpoint& checkpoint, std::string where)
      : model_(model), checkpoint_(checkpoint), where_(std::move(where)) {}

  // Indexes the weights by their names without wrappers. DataLoss if two have the same name.
  absl::Status Index();

  // Returns the naming whose tensors have the shapes of the parameters, or else the first one of
  // which all are there; nullopt without such a naming. DataLoss if two parts of the state dict
  // could be the model.
  //
  // Two namings may differ in the layout of matrices alone. Which one a square matrix has is proven
  // by the others, all of which have to fit.
  absl::StatusOr<std::optional<PrefixedNaming>> Find();

  // Returns why Find() found nothing: a parameter that is missing.
  const std::string& missing() const { return missing_; }
  // Returns a description of missing parameters, if most of the model's are there; empty for other
  // tensors.
  std::string DescribeMismatch() const;

  // Returns the index of the stored tensor of a weight, by its name without wrappers. An alias is
  // the tensor that it is an alias of.
  std::optional<size_t> FindTensor(const std::string& name) const;
  // Returns the index of the weight itself, which may be an alias.
  std::optional<size_t> FindWeight(const std::string& name) const;

  // Returns DataLoss, naming the tensor.
  absl::Status Damaged(const ForeignTensor& tensor, const absl::AlphaNum& problem) const;

 private:
  // The parameters of one naming that are there below one prefix.
  struct Present : PrefixedNaming {
    std::set<const ForeignParameter*> parameters;
  };

  absl::StatusOr<std::optional<std::string>> FindPrefix(const Parameters& naming);
  bool HasAll(const Parameters& naming, const std::string& prefix);
  bool HasShapes(const Parameters& naming, const std::string& prefix) const;
  std::string NotThere(const std::string& name) const;
  Present FindMostPresent() const;

  const KnownModel& model_;
  const ForeignCheckpoint& checkpoint_;
  const std::string where_;
  std::map<std::string, size_t> by_name_;  // indices of tensors
  std::map<std::string, size_t> weights_;  // of weights, by their names without wrappers
  std::string missing_;
};

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_FIND_NAMING_H_
