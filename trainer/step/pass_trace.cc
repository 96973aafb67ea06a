#include "trainer/step/pass_trace.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <span>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "compute/parallel/replicas.h"
#include "layout/dtype.h"
#include "tensor/flat_parameter.h"
#include "tensor/memory.h"

namespace tessera {
namespace {

// More than a rank's events of one micro-batch.
constexpr int64_t kEventsOfAPhase = int64_t{1} << 32;

template <typename T>
int64_t DigestOf(std::span<const T> values) {
  return Crc32c(std::as_bytes(values));
}

}  // namespace

int PassTrace::Stages() const {
  return mesh_->topology().pipeline * mesh_->topology().virtual_pipeline;
}

int PassTrace::Stage(int chunk) const {
  return chunk * mesh_->topology().pipeline + mesh_->coordinate().pipeline;
}

void PassTrace::Add(int64_t phase, int64_t digest, std::string what) {
  const int64_t order = phase * kEventsOfAPhase + static_cast<int64_t>(events_.size());
  events_.push_back({.order = order, .digest = digest, .what = std::move(what)});
}

void PassTrace::AddForward(int chunk, const TensorView& output, double loss) {
  if (output.empty()) {
    Add(Stage(chunk), DigestOf(std::span<const double>(&loss, 1)), "the loss");
    return;
  }
  Add(Stage(chunk), TensorChecksum(output, *backend_),
      absl::StrCat("the activations behind stage ", Stage(chunk)));
}

void PassTrace::AddGradient(int chunk, const TensorView& gradient, std::string what) {
  Add(2 * Stages() - 1 - Stage(chunk), TensorChecksum(gradient, *backend_), std::move(what));
}

void PassTrace::AddBackward(int chunk, const TensorView& d_input) {
  if (d_input.empty()) return;
  AddGradient(chunk, d_input,
              absl::StrCat("the gradient of the activations before stage ", Stage(chunk)));
}

int64_t PassTrace::Summary() const {
  std::vector<int64_t> digests;
  for (const Event& event : events_) digests.push_back(event.digest);
  return DigestOf(std::span<const int64_t>(digests));
}

absl::Status TracedGradients::Ready(int64_t begin, int64_t end) {
  const std::vector<Parameter*>& all = parameters_.parameters();
  const auto within = [&](int64_t offset) { return begin <= offset && offset < end; };
  for (const Parameter* parameter : all) {
    if (!parameter->has_second_grad || !within(parameter->second_grad_offset)) continue;
    trace_.AddGradient(chunk_, parameter->second_grad,
                       absl::StrCat("the head's part of the gradient of '", parameter->key, "'"));
  }
  for (auto it = all.rbegin(); it != all.rend(); ++it) {
    if (!within((*it)->flat_offset)) continue;
    trace_.AddGradient(chunk_, (*it)->grad, absl::StrCat("the gradient of '", (*it)->key, "'"));
  }
  return next_.Ready(begin, end);
}

ScratchGradients::ScratchGradients(ParameterSet& parameters, Device device)
    : parameters_(parameters), device_(device) {
  for (const Parameter* parameter : parameters.parameters()) {
    before_.emplace_back(parameter->grad, parameter->second_grad);
  }
}

ScratchGradients::~ScratchGradients() {
  for (size_t i = 0; i < before_.size(); ++i) {
    Parameter& parameter = *parameters_.parameters()[i];
    std::tie(parameter.grad, parameter.second_grad) = before_[i];
  }
}

absl::Status ScratchGradients::Prepare(int64_t begin, int64_t end) {
  const MemoryScope scope(MemoryCategory::kGradients);
  AllocationScope allocations;
  held_.push_back({begin, end, Tensor(parameters_.grad_dtype(), {end - begin}, device_)});
  TESSERA_RETURN_IF_ERROR(allocations.End());
  parameters_.BindGradients(begin, end, held_.back().memory);
  return absl::OkStatus();
}

absl::Status ScratchGradients::Ready(int64_t begin, int64_t end) {
  std::erase_if(held_, [&](const Held& held) { return begin <= held.begin && held.end <= end; });
  return absl::OkStatus();
}

int64_t ScratchGradients::MaxBytes(const ParameterSet& parameters) {
  int64_t tied = 0, largest = 0;
  std::map<std::tuple<int64_t, bool>, int64_t> places;
  for (const Parameter* parameter : parameters.parameters()) {
    const Place& place = parameter->pieces.front().partition.place;
    const int64_t elements = AlignedElements(parameter->elements());
    if (!parameter->tied_name.empty()) {
      tied += elements;
      continue;
    }
    int64_t& here = places[{place.layer, place.before_layers}];
    largest = std::max(largest, here += elements);
  }
  return (tied + largest) * ElementSize(parameters.grad_dtype());
}

}  // namespace tessera
