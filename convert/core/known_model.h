#ifndef TESSERA_CONVERT_CORE_KNOWN_MODEL_H_
#define TESSERA_CONVERT_CORE_KNOWN_MODEL_H_

// Finds the model of a state dict, and the parameter that each of its names means.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/errors.h"
#include "checkpoint/include/manifest.pb.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/models.h"
#include "layout/foreign_parameter.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

// Ends a note about a program whose GPT-2 has another GELU than this library's.
inline constexpr char kExactGelu[] =
    " computes GELU exactly (nn.GELU), and GPT-2 here by its tanh approximation: activations "
    "differ by up to 0.0005.";

using Parameters = std::vector<ForeignParameter>;

// A model, and the ways in which state dicts name its parameters.
struct KnownModel {
  ModelDescription description;
  std::optional<HuggingFaceDescription> hugging_face;  // where that is known
  // Namings in the order in which they are tried; parameters in the order of the modules.
  std::vector<Parameters> namings;
  std::vector<std::string> notes;  // how its computation differs here, one sentence each
};

// Returns the model of a state dict; nullopt if neither the files beside it nor the caller describe
// one. See NameStateDict() for the arguments. InvalidArgument or Unimplemented if they describe an
// unknown model.
absl::StatusOr<std::optional<KnownModel>> FindModel(Storage& storage, const ModelProto* model,
                                                    std::string_view framework,
                                                    const ForeignCheckpoint& checkpoint);

inline constexpr std::string_view kMetaConfig = "params.json";

// Reads Meta's params.json, and adds the size of the vocabulary from the table of embeddings, since
// Llama 2's file has vocab_size -1. `tensors` are all tensors of one of `parts` files, each of
// which has an equal part of the table's rows or columns. Returns the text unchanged if it is not
// JSON. Errors: those of ReadAll().
absl::StatusOr<std::string> ReadMetaConfig(Storage& storage, std::span<const ForeignTensor> tensors,
                                           int64_t parts);

// Returns all names of a parameter.
std::vector<std::string> NamesOf(const ForeignParameter& parameter);

// A naming of a model's parameters, and the prefix of all its names in a state dict.
struct PrefixedNaming {
  const Parameters* naming = nullptr;
  std::string prefix;
  // Further prefixes below which there is a whole model, and those of equal ones.
  std::vector<std::string> others = {}, equal = {};
};

// Finds out which of a model's possible namings a state dict uses: the one whose parameters are all
// among the weights, below one prefix. The prefix may be a wrapper of the whole model. The
// arguments must outlive this object.
class NamingFinder {
 public:
  NamingFinder(Storage& storage, const KnownModel& model, const ForeignCheckpoint& checkpoint);

  // Returns the naming whose tensors have the shapes of the parameters, or else the first one that
  // is complete; nullopt if none is. Namings may differ only in the layout of matrices: those that
  // are not square decide. A file may hold several whole models, such as one and its average. Then
  // Find() chooses
  // - the models whose tensors have the shapes of the parameters, and among these
  // - the one whose prefix has "state_dict", "model_state_dict", "model" or "module" behind what
  //   all prefixes have in common, or whose prefix all others begin with.
  // If several are left, Find() reads them, and returns nullopt if they differ. Returns errors of
  // reading.
  absl::StatusOr<std::optional<PrefixedNaming>> Find();

  // Returns why Find() found nothing: a parameter that is missing, or, if it is not empty, what
  // there is more than once.
  const std::string& missing() const { return missing_; }
  const std::string& ambiguity() const { return ambiguity_; }
  // Returns a description of the missing parameters if most of the model's are there; otherwise "".
  std::string DescribeMismatch() const;

  // Returns the name of a weight without wrappers: without inner ones alone, if there are two
  // weights that those at the beginning tell apart.
  std::string NameOf(const ForeignTensor& tensor) const;
  // Returns the index of the stored tensor of a weight, by NameOf(). An alias is the tensor that it
  // is an alias of.
  std::optional<size_t> FindTensor(const std::string& name) const;
  // Returns the index of the weight itself, which may be an alias.
  std::optional<size_t> FindWeight(const std::string& name) const;

  // Returns DataLoss, naming the tensor.
  template <typename... Parts>
  absl::Status Damaged(const ForeignTensor& tensor, const Parts&... problem) const {
    return DataLoss(storage_.Describe(""), ": tensor ", tensor.name, ": ", problem...);
  }

 private:
  // The parameters of one naming that are there below one prefix.
  struct Present : PrefixedNaming {
    std::set<const ForeignParameter*> parameters;
  };

  using Pairs = std::vector<std::pair<size_t, size_t>>;

  absl::StatusOr<std::optional<PrefixedNaming>> FindPlace(const Parameters& naming);
  // Sets ambiguity_ if the model below one of these prefixes differs from that below the first one,
  // or if there are several tensors for one parameter of it.
  absl::Status Compare(const Parameters& naming, const std::vector<std::string>& prefixes);
  // Returns whether the two tensors of each pair have the same elements.
  absl::StatusOr<bool> AreEqual(const Pairs& pairs) const;
  size_t Stored(size_t tensor) const;  // follows an alias
  bool HasAll(const Parameters& naming, const std::string& prefix);
  bool HasShapes(const Parameters& naming, const std::string& prefix) const;
  std::string NotThere(const std::string& name) const;
  Present FindMostPresent() const;

  Storage& storage_;
  const KnownModel& model_;
  const ForeignCheckpoint& checkpoint_;
  bool is_unwrapped_ = true;                 // see NameOf()
  std::map<std::string, size_t> by_name_;    // indices of tensors
  std::map<std::string, size_t> weights_;    // of weights, by NameOf()
  std::map<std::string, size_t> namesakes_;  // of further weights that have such a name
  std::string missing_, ambiguity_;
};

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_KNOWN_MODEL_H_
