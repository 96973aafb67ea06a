#include "convert/torch/plain_values.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/utf8.h"

namespace tessera::ckpt::convert {
namespace {

using pickle::Kind;
using pickle::Value;

constexpr int kMaxDepth = 64;

// The integers of a list or tuple; nullopt for an empty one and where there is anything else.
std::optional<std::vector<int64_t>> Integers(const Value& list) {
  std::vector<int64_t> integers;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::optional<int64_t> integer = list[i].AsInt();
    if (!integer.has_value()) return std::nullopt;
    integers.push_back(*integer);
  }
  if (integers.empty()) return std::nullopt;
  return integers;
}

class Walker {
 public:
  Walker(pickle::Budget& budget, std::vector<ForeignValue>& values)
      : values_(values), budget_(budget) {}

  void Walk(const Value& value, const std::string& name, int depth) {
    if (name.size() > kMaxPlainTextBytes || depth > kMaxDepth) return;
    if (!budget_.Has(pickle::Budget::kVisitBytes)) return;
    if (IsTorchDict(value)) {
      for (size_t i = 0; i < value.entry_count(); ++i) {
        const auto [key, child] = value.entry(i);
        if (const auto text = key.AsText(); text && text->size() <= kMaxPlainTextBytes) {
          Walk(child, Below(name, *text), depth + 1);
        } else if (const auto number = key.AsInt()) {
          Walk(child, Below(name, absl::StrCat(*number)), depth + 1);
        }
      }
    } else if (value.is(Kind::kList) || value.is(Kind::kTuple)) {
      WalkList(value, name, depth);
    } else if (!name.empty()) {
      AddScalar(value, name);
    }
  }

 private:
  static std::string Below(const std::string& name, std::string_view child) {
    std::string path = name.empty() ? "" : name + ".";
    path.append(child);
    return path;
  }

  void WalkList(const Value& list, const std::string& name, int depth) {
    if (!name.empty() && budget_.Has(list.size())) {
      if (std::optional<std::vector<int64_t>> integers = Integers(list)) {
        const uint64_t bytes = integers->size() * sizeof(int64_t);
        return Add(name, *std::move(integers), bytes);
      }
    }
    for (size_t i = 0; i < list.size(); ++i) {
      Walk(list[i], Below(name, absl::StrCat(i)), depth + 1);
    }
  }

  void AddScalar(const Value& value, const std::string& name) {
    if (const auto truth = value.AsBool()) return Add(name, *truth);
    if (const auto integer = value.AsInt()) return Add(name, *integer);
    if (const auto number = value.AsFloat()) return Add(name, *number);
    const std::optional<std::string_view> text = value.AsText();
    if (text && text->size() <= kMaxPlainTextBytes && IsValidUtf8(*text)) {
      Add(name, std::string(*text), text->size());
    }
  }

  template <typename T>
  void Add(const std::string& name, T value, uint64_t value_bytes = 0) {
    if (!IsValidUtf8(name) || !budget_.Has(sizeof(ForeignValue) + name.size() + value_bytes)) {
      return;
    }
    values_.push_back({name, std::move(value)});
  }

  std::vector<ForeignValue>& values_;
  pickle::Budget& budget_;
};

}  // namespace

bool IsTorchDict(const Value& value) {
  return value.is(Kind::kDict) || value.IsObjectOf("collections.OrderedDict") ||
         value.IsObjectOf("collections.defaultdict") || value.IsObjectOf("builtins.dict") ||
         value.IsObjectOf("__builtin__.dict");
}

void AddPlainValues(const pickle::Pickle& contents, const std::string& name, pickle::Budget& budget,
                    std::vector<ForeignValue>& values) {
  Walker(budget, values).Walk(contents.root(), name, 0);
}

}  // namespace tessera::ckpt::convert
