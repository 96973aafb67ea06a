#include "convert/pickle/write.h"

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/byte_order.h"
#include "checkpoint/format/manifest.h"
#include "convert/dcp/dcp.h"
#include "convert/dcp/metadata.h"
#include "convert/torch/archive.h"
#include "convert/torch/write.h"
#include "layout/box.h"

namespace tessera::ckpt::convert {

namespace {

// What get_optimizer_state_dict() of torch.distributed.checkpoint.state_dict gives beside moments,
// with flatten_optimizer_state_dict: the number of updates of each parameter, which share one
// tensor, and the settings of its group. Returns their file; `steps` are the keys of the numbers.
OutputFile AddOptimizer(const TorchOutputTensors& tensors, const Manifest& manifest,
                        DcpMetadata& written, std::vector<std::string>& steps) {
  OutputFile file = {.name = "__3_0.distcp"};
  const auto add = [&](pickle::Writer object, std::string_view storage) {
    const OutputFile archive = TorchObjectFile("", std::move(object).Finish(), storage);
    const DcpBlob blob = {.file = file.name, .part = {file.header.size(), archive.header.size()}};
    file.header += archive.header;
    return blob;
  };
  pickle::Writer step;
  WriteTorchTensor(DType::kF32, {}, 0, step);
  std::string updates;
  AppendLittleEndian(std::bit_cast<uint32_t>(static_cast<float>(UpdatesOf(manifest))), updates);
  const DcpBlob step_blob = add(std::move(step), updates);
  for (const TorchOutputGroup& group : tensors.groups) {
    std::vector<std::pair<std::string, DcpBlob>> settings;
    for (const TorchSetting& setting : SettingsOf(group, manifest)) {
      pickle::Writer value;
      setting.write(value);
      settings.emplace_back(setting.name, add(std::move(value), ""));
    }
    for (const TorchOutputState& state : group.states) {
      steps.push_back(absl::StrCat("optimizer.state.", state.parameter, ".step"));
      written.tensors.push_back({.name = steps.back(),
                                 .dtype = DType::kF32,
                                 .shape = {},
                                 .chunks = {{WholeBox({}), step_blob}}});
      for (const auto& [name, blob] : settings) {
        written.objects.push_back(
            {.name = absl::StrCat("optimizer.param_groups.", state.parameter, ".", name),
             .blob = blob});
      }
    }
  }
  file.size_bytes = file.header.size();
  return file;
}

}  // namespace

std::vector<OutputFile> PlanDcp(const Manifest& manifest, const DcpOutputOptions& options) {
  const TorchOutputTensors tensors = SelectTensors(manifest, options.tensors);
  DcpDataFiles data(options.max_file_bytes);
  std::vector<DcpBlob> blobs;
  for (const TorchOutputTensor& tensor : tensors.stored) {
    blobs.push_back(data.Add(GlobalShape(*tensor.logical), ToOutputTensor(tensor, 0)));
  }
  std::vector<OutputFile> files = std::move(data).Finish();
  DcpMetadata written = {.is_nested = HasNames(tensors)};
  for (const TorchOutputTensor& tensor : tensors.all) {
    const Shape shape = GlobalShape(*tensor.logical);
    written.tensors.push_back({.name = tensor.key,
                               .dtype = tensor.dtype,
                               .shape = shape,
                               .chunks = {{WholeBox(shape), blobs[tensor.stored]}}});
  }
  const auto add_object = [&](const char* name, const char* file, pickle::Writer object) {
    files.push_back(TorchObjectFile(file, std::move(object).Finish()));
    written.objects.push_back(
        {.name = name, .blob = {.file = file, .part = {0, files.back().size_bytes}}});
  };
  if (HasNames(tensors)) {
    std::vector<std::string> steps;
    files.push_back(AddOptimizer(tensors, manifest, written, steps));
    pickle::Writer names;
    WriteNames(tensors, steps, names);
    add_object(kTorchNamesKey, "__4_0.distcp", std::move(names));
  }
  if (HasRoles(tensors)) {
    pickle::Writer roles;
    WriteRoles(tensors, roles);
    add_object(kTorchRolesKey, "__1_0.distcp", std::move(roles));
  }
  if (HasTrainer(manifest, options.tensors)) {
    pickle::Writer trainer;
    WriteTrainer(manifest.trainer(), trainer);
    add_object(kTorchTrainerKey, "__2_0.distcp", std::move(trainer));
  }
  OutputFile metadata = {.name = kDcpMetadataFile, .header = DcpMetadataPickle(written)};
  metadata.size_bytes = metadata.header.size();
  metadata.commits = true;
  files.push_back(std::move(metadata));
  return files;
}

}  // namespace tessera::ckpt::convert
