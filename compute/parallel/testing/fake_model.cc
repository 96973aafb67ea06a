#include "compute/parallel/testing/fake_model.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/status_macros.h"
#include "glog/logging.h"

namespace tessera {
namespace {

uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

float* Inside(const TensorView& memory, int64_t begin, int64_t at) {
  return memory.empty() ? nullptr : memory.as<float>() + (at - begin);
}

}  // namespace

GradientLayout FakeLayout(const std::vector<FakeParameter>& parameters) {
  GradientLayout layout;
  for (const FakeParameter& parameter : parameters) {
    layout.parameters.push_back({.key = parameter.key,
                                 .begin = layout.value_elements,
                                 .elements = parameter.elements,
                                 .tied = parameter.tied,
                                 .second_begin = -1,
                                 .on_two_stages = parameter.on_two_stages});
    layout.value_elements += AlignedElements(parameter.elements);
  }
  layout.gradient_elements = layout.value_elements;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].second) continue;
    layout.parameters[i].second_begin = layout.gradient_elements;
    layout.gradient_elements += AlignedElements(parameters[i].elements);
  }
  return layout;
}

float FakeGradient(std::string_view key, int contribution, int64_t element, int64_t micro_batch) {
  uint64_t bits = Mix(std::hash<std::string_view>()(key) + static_cast<uint64_t>(contribution));
  bits = Mix(Mix(bits + static_cast<uint64_t>(element)) + static_cast<uint64_t>(micro_batch));
  const float fraction = static_cast<float>(bits >> 40) * 0x1p-23f - 1.0f;
  return std::ldexp(fraction, static_cast<int>(bits % 13) - 6);
}

float FakeGradientTree(std::string_view key, int contribution, int64_t element, int64_t begin,
                       int64_t end) {
  if (end - begin == 1) return FakeGradient(key, contribution, element, begin);
  int64_t half = 1;
  while (half * 2 < end - begin) half *= 2;
  return FakeGradientTree(key, contribution, element, begin, begin + half) +
         FakeGradientTree(key, contribution, element, begin + half, end);
}

void FakeModel::BindGradients(int64_t begin, int64_t end, const TensorView& memory) {
  CHECK(memory.empty() || memory.elements() == end - begin);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const FlatParameter& parameter = layout_.parameters[i];
    if (begin <= parameter.begin && parameter.begin + parameter.elements <= end) {
      grads_[i] = Inside(memory, begin, parameter.begin);
    }
    const int64_t second = parameter.second_begin;
    if (second >= begin && second + parameter.elements <= end) {
      second_grads_[i] = Inside(memory, begin, second);
    }
  }
}

void FakeModel::Write(float* grad, int parameter, int contribution, int64_t micro_batch,
                      bool accumulate) {
  CHECK(grad != nullptr) << parameters_[parameter].key << " has no memory";
  for (int64_t e = 0; e < parameters_[parameter].elements; ++e) {
    const float g = FakeGradient(parameters_[parameter].key, contribution, e, micro_batch);
    grad[e] = accumulate ? grad[e] + g : g;
  }
}

absl::Status FakeModel::BackwardSecond(int64_t micro_batch, bool accumulate,
                                       GradientObserver& observer) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const FlatParameter& parameter = layout_.parameters[i];
    if (parameter.second_begin < 0) continue;
    const int64_t begin = parameter.second_begin, end = begin + parameter.elements;
    TESSERA_RETURN_IF_ERROR(observer.Prepare(begin, end));
    Write(second_grads_[i], static_cast<int>(i), 1, micro_batch, accumulate);
    TESSERA_RETURN_IF_ERROR(observer.Ready(begin, end));
  }
  return absl::OkStatus();
}

absl::Status FakeModel::Backward(int64_t micro_batch, bool accumulate, GradientObserver& observer) {
  TESSERA_RETURN_IF_ERROR(BackwardSecond(micro_batch, accumulate, observer));
  const auto range = [this](int first, int last) {
    return std::pair(layout_.parameters[first].begin,
                     layout_.parameters[last].begin + layout_.parameters[last].elements);
  };
  // A tied table without a second gradient accumulates both contributions in one place: from the
  // head, which comes first, and from the embedding, which comes last.
  const auto at_both_ends = [this](int i) {
    return parameters_[i].tied && !parameters_[i].second && !parameters_[i].on_two_stages;
  };
  const int count = static_cast<int>(parameters_.size());
  for (int i = 0; i < count; ++i) {
    if (!at_both_ends(i)) continue;
    TESSERA_RETURN_IF_ERROR(observer.Prepare(range(i, i).first, range(i, i).second));
    Write(grads_[i], i, 1, micro_batch, accumulate);
  }
  for (int last = count - 1; last >= 0;) {
    const int first = std::max(0, last - parameters_per_call_ + 1);
    const auto [begin, end] = range(first, last);
    TESSERA_RETURN_IF_ERROR(observer.Prepare(begin, end));
    for (int i = last; i >= first; --i) {
      Write(grads_[i], i, parameters_[i].contribution, micro_batch, accumulate || at_both_ends(i));
    }
    TESSERA_RETURN_IF_ERROR(observer.Ready(begin, end));
    last = first - 1;
  }
  return absl::OkStatus();
}

}  // namespace tessera
