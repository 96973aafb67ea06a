#include "convert/megatron/layer_name.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"

namespace tessera::ckpt::convert {
namespace {

// Bounds how many layers a number in a name can stand for.
constexpr int64_t kMaxLayers = 1'000'000;

}  // namespace

LayerName SplitLayer(std::string_view name) {
  size_t begin = 0;
  while (begin <= name.size()) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    int64_t layer = 0;
    if (!part.empty() && absl::ascii_isdigit(static_cast<unsigned char>(part[0])) &&
        absl::SimpleAtoi(absl::string_view(part.data(), part.size()), &layer) &&
        layer < kMaxLayers) {
      return {std::string(name.substr(0, begin)), layer, std::string(name.substr(end))};
    }
    begin = end + 1;
  }
  return {.before = std::string(name)};
}

}  // namespace tessera::ckpt::convert
