#include "checkpoint/load/named_tensors.h"

#include <cstdint>
#include <set>

#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/include/manifest.h"

namespace tessera::ckpt {

NamedTensors::NamedTensors(const Manifest& manifest)
    : manifest_(manifest), masters_(MasterNames(manifest)) {
  for (const LogicalTensor& tensor : manifest.tensors()) tensors_[tensor.name()] = &tensor;
}

const LogicalTensor* NamedTensors::Find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : found->second;
}

Manifest NamedTensors::ManifestOf(std::span<const std::string> names) const {
  Manifest part;
  part.set_format_major(manifest_.format_major());
  part.set_format_minor(manifest_.format_minor());
  std::map<uint32_t, uint32_t> files;  // from indices in the whole manifest
  std::set<const LogicalTensor*> added;
  std::set<std::string_view> from_masters;
  for (const std::string& name : names) {
    const auto master = Find(name) == nullptr ? masters_.find(name) : masters_.end();
    if (master != masters_.end() && from_masters.insert(name).second) {
      OptimizerParameter& parameter = *part.mutable_optimizer()->add_parameters();
      parameter.set_parameter(name);
      (*parameter.mutable_states())[kMasterState] = std::string(master->second);
    }
    const std::string_view saved = master == masters_.end() ? name : master->second;
    for (const LogicalTensor* tensor = Find(saved);
         tensor != nullptr && added.insert(tensor).second; tensor = Find(tensor->alias_of())) {
      LogicalTensor& copy = *part.add_tensors();
      copy = *tensor;
      for (uint32_t& file : *copy.mutable_shards()->mutable_file_index()) {
        const auto [at, is_new] = files.emplace(file, files.size());
        if (is_new) *part.add_files() = manifest_.files(static_cast<int>(file));
        file = at->second;
      }
    }
  }
  return part;
}

}  // namespace tessera::ckpt
