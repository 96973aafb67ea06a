#include "checkpoint/convert/dcp/write.h"

#include <string>
#include <utility>

#include "checkpoint/convert/dcp/folder_layout.h"
#include "checkpoint/convert/dcp/metadata.h"
#include "checkpoint/convert/pickle/write.h"
#include "checkpoint/convert/torch/archive.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/layout/box.h"

namespace tessera::ckpt::convert {

std::vector<OutputFile> PlanDcp(const Manifest& manifest, const DcpOutputOptions& options) {
  const TorchOutputTensors tensors = SelectTensors(manifest, options.tensors);
  DcpDataFiles data(options.max_file_bytes);
  std::vector<DcpBlob> blobs;
  for (const TorchOutputTensor& tensor : tensors.stored) {
    blobs.push_back(data.Add(GlobalShape(*tensor.logical), ToOutputTensor(tensor, 0)));
  }
  std::vector<OutputFile> files = std::move(data).Finish();
  DcpMetadata written;
  for (const TorchOutputTensor& tensor : tensors.all) {
    const Shape shape = GlobalShape(*tensor.logical);
    written.tensors.push_back({.name = tensor.logical->name(),
                               .dtype = tensor.dtype,
                               .shape = shape,
                               .chunks = {{WholeBox(shape), blobs[tensor.stored]}}});
  }
  const auto add_object = [&](const char* name, const char* file, pickle::Writer object) {
    files.push_back(TorchObjectFile(file, std::move(object).Finish()));
    written.objects.push_back(
        {.name = name, .blob = {.file = file, .part = {0, files.back().size_bytes}}});
  };
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
