#include "convert/megatron/module_order.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <set>
#include <string>

#include "base/status_macros.h"
#include "convert/megatron/layer_name.h"
#include "layout/box.h"

namespace tessera::ckpt::convert {
namespace {

// The same parameters, norms before the others of the module that their first names tell.
std::vector<const ForeignParameter*> WithFusedNorms(
    const std::vector<const ForeignParameter*>& layer) {
  std::vector<const ForeignParameter*> order, norms;
  for (const ForeignParameter* const parameter : layer) {
    (parameter->other_names.empty() ? order : norms).push_back(parameter);
  }
  for (const ForeignParameter* const norm : norms) {
    const std::string module = norm->name.substr(0, norm->name.rfind('.') + 1);
    const auto at = std::ranges::find_if(order, [&](const ForeignParameter* parameter) {
      return parameter->other_names.empty() && parameter->name.starts_with(module);
    });
    order.insert(at, norm);
  }
  return order;
}

}  // namespace

ModuleOrder::ModuleOrder(const MegatronParameters& parameters, bool has_fused_norms) {
  std::set<std::string> stacks;
  for (const ForeignParameter& parameter : parameters.all()) {
    const LayerName name = SplitLayer(parameter.name);
    if (name.layer < 0) continue;
    stacks.insert(name.before.substr(0, name.before.size() - 1) + name.after);
    if (name.layer >= layers()) layers_.resize(static_cast<size_t>(name.layer) + 1);
    layers_[static_cast<size_t>(name.layer)].push_back(&parameter);
  }
  bool is_after_layers = false;
  for (const ForeignParameter& parameter : parameters.all()) {
    if (SplitLayer(parameter.name).layer >= 0) {
      is_after_layers = true;
    } else if (!stacks.contains(parameter.name)) {
      (is_after_layers ? tail_ : head_).push_back(&parameter);
    }
  }
  if (!has_fused_norms) return;
  for (List& layer : layers_) layer = WithFusedNorms(layer);
}

absl::StatusOr<std::vector<RankParameter>> ModuleOrder::Parameters(
    const ChunkOfModel& chunk, const TensorParallelShare& share) const {
  List order;
  const auto append = [&](const List& list) {
    order.insert(order.end(), list.begin(), list.end());
  };
  if (chunk.is_first) append(head_);
  for (int64_t i = 0; i < chunk.layers; ++i) {
    append(layers_[static_cast<size_t>(chunk.first_layer + i)]);
  }
  if (chunk.is_last) append(tail_);
  const bool is_whole = chunk.is_first && chunk.is_last;
  if (chunk.is_last && !is_whole) {
    std::ranges::copy_if(head_, std::back_inserter(order), [](const ForeignParameter* parameter) {
      return MegatronParameters::IsTied(*parameter);
    });
  }
  std::vector<RankParameter> parameters;
  for (const ForeignParameter* const parameter : order) {
    TESSERA_ASSIGN_OR_RETURN(const Shape shape, LocalShape(*parameter, share.size));
    parameters.push_back({.parameter = parameter,
                          .share = share,
                          .elements = ElementCount(shape),
                          .has_own_bucket = !is_whole && MegatronParameters::IsTied(*parameter)});
  }
  return parameters;
}

}  // namespace tessera::ckpt::convert
