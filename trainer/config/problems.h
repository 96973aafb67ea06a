#ifndef TESSERA_TRAINER_CONFIG_PROBLEMS_H_
#define TESSERA_TRAINER_CONFIG_PROBLEMS_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tessera {

// The place where a setting was given.
struct Origin {
  bool is_flag = false;
  std::string text;  // "--lr=1e-3" or "run.textproto:3"
};

// Origins by the names of the fields. Settings that are not in the map have been given together.
using Origins = std::map<std::string, Origin, std::less<>>;

// Returns InvalidArgument with a message of these parts.
template <typename... Parts>
absl::Status Wrong(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// The problems of a run's settings, collected so that all are reported at once.
//
//   Problems problems(origins);
//   if (min_lr > lr) problems.Add("min_lr=", min_lr, " is more than lr=", lr);
//   problems.Add(CheckTheRest());
//   return problems.ToStatus();
class Problems {
 public:
  // `origins` must outlive this object.
  explicit Problems(const Origins& origins) : origins_(origins) {}

  // Adds a sentence, which names fields and their values.
  template <typename... Parts>
  void Add(const Parts&... parts) {
    sentences_.push_back(absl::StrCat(parts...));
  }
  // Adds the message of an error; OK adds nothing.
  void Add(const absl::Status& status);

  bool empty() const { return sentences_.empty(); }

  // Returns InvalidArgument: one sentence, or a line for each of several problems, each with the
  // origins of the fields that it names. OK without problems.
  absl::Status ToStatus() const;
  // Returns ToStatus() with one more problem, which keeps its code if it is the only one.
  absl::Status With(const absl::Status& status) const;

 private:
  std::string WithOrigins(const std::string& sentence) const;

  const Origins& origins_;
  std::vector<std::string> sentences_;
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_CONFIG_PROBLEMS_H_
