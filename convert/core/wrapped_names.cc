#include "convert/core/wrapped_names.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace tessera::ckpt::convert {
namespace {

constexpr std::string_view kAnywhere[] = {"_orig_mod", "_fsdp_wrapped_module",
                                          "_checkpoint_wrapped_module"};
constexpr std::string_view kAtTheBegin[] = {"module.", "base_model.model."};

}  // namespace

std::string WithoutWrappers(std::string_view name) {
  std::vector<std::string> parts = absl::StrSplit(std::string(name), '.');
  std::erase_if(parts, [](const std::string& part) {
    return std::ranges::find(kAnywhere, part) != std::end(kAnywhere);
  });
  const std::string joined = absl::StrJoin(parts, ".");
  std::string_view rest = joined;
  const auto wraps = [&](std::string_view wrapper) { return rest.starts_with(wrapper); };
  for (const auto* wrapper = std::ranges::find_if(kAtTheBegin, wraps);
       wrapper != std::end(kAtTheBegin); wrapper = std::ranges::find_if(kAtTheBegin, wraps)) {
    rest.remove_prefix(wrapper->size());
  }
  return std::string(rest);
}

std::string SomeOf(const std::vector<std::string>& names) {
  constexpr size_t kMost = 3;
  std::vector<std::string> shown;
  for (size_t i = 0; i < std::min(names.size(), kMost); ++i) {
    shown.push_back(absl::CHexEscape(names[i]));
  }
  std::string text = absl::StrJoin(shown, ", ");
  if (names.size() > kMost) absl::StrAppend(&text, " and ", names.size() - kMost, " more");
  return text;
}

}  // namespace tessera::ckpt::convert
