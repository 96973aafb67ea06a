#include "convert/formats/torch/write.h"

#include <bit>
#include <string_view>

#include "base/byte_order.h"
#include "checkpoint/include/manifest.h"
#include "convert/core/own_keys.h"
#include "convert/core/saved_values.h"
#include "convert/core/saved_weights.h"
#include "convert/formats/dcp/dcp.h"
#include "convert/formats/dcp/metadata.h"
#include "convert/pickle/torch_archive.h"
#include "layout/box.h"

namespace tessera::ckpt::convert {
namespace {

// A file of archives, one after the other, of what is small. Equal ones are written once.
class SmallArchives {
 public:
  explicit SmallArchives(std::string name) : file_{.name = std::move(name)} {}

  DcpBlob Add(pickle::Writer object, std::string_view storage = "") {
    std::string pickle = std::move(object).Finish();
    const auto [known, is_new] = blobs_.try_emplace({pickle, std::string(storage)});
    if (is_new) {
      const OutputFile archive = TorchObjectFile("", std::move(pickle), storage);
      known->second = {file_.name, {file_.header.size(), archive.header.size()}};
      file_.header += archive.header;
    }
    return known->second;
  }
  OutputFile Finish() && {
    file_.size_bytes = file_.header.size();
    return std::move(file_);
  }
  bool empty() const { return file_.header.empty(); }

 private:
  OutputFile file_;
  std::map<std::pair<std::string, std::string>, DcpBlob> blobs_;
};

}  // namespace

absl::StatusOr<std::vector<OutputFile>> PlanDcp(const Manifest& manifest,
                                                const PlanOptions& options) {
  TorchStateDict dict = PlanStateDict(manifest, options, OptimizerForm::kFlat);
  for (const std::string& name : RemoveNamesakes({}, dict.root)) {
    if (options.left_out != nullptr) options.left_out->push_back(name);
  }
  DcpDataFiles data(options.max_file_bytes);
  std::vector<DcpBlob> blobs;
  for (const TorchOutputTensor& tensor : dict.tensors.stored) {
    blobs.push_back(data.Add(GlobalShape(*tensor.logical), ToOutputTensor(tensor, 0)));
  }
  std::vector<OutputFile> files = std::move(data).Finish();
  DcpMetadata written;
  SmallArchives small("__1_0.distcp");
  const auto add_object = [&](const std::string& name, const Path& path, const SavedValue& value) {
    pickle::Writer object;
    WriteValue(value, object);
    written.objects.push_back({.name = name, .path = path, .blob = small.Add(std::move(object))});
  };
  for (const Leaf& leaf : LeavesOf(dict.root)) {
    const auto* const place = leaf.value->As<SavedValue::Tensor>();
    if (place == nullptr) {
      add_object(leaf.name, leaf.path, *leaf.value);
    } else if (place->name == kUpdatesTensor) {
      pickle::Writer step;
      WriteTorchTensor(DType::kF32, {}, 0, step);
      std::string updates;
      AppendLittleEndian(std::bit_cast<uint32_t>(static_cast<float>(UpdatesOf(manifest))), updates);
      written.tensors.push_back({.name = leaf.name,
                                 .path = leaf.path,
                                 .dtype = DType::kF32,
                                 .shape = {},
                                 .chunks = {{WholeBox({}), small.Add(std::move(step), updates)}}});
    } else {
      const TorchOutputTensor& tensor = dict.tensors.by_name.at(place->name);
      const Shape shape = GlobalShape(*tensor.logical);
      written.tensors.push_back({.name = leaf.name,
                                 .path = leaf.path,
                                 .dtype = tensor.dtype,
                                 .shape = shape,
                                 .chunks = {{WholeBox(shape), blobs[tensor.stored]}}});
    }
  }
  for (const auto& [key, value] : dict.own_keys) add_object(key, {}, value);
  // Keys that are integers, tuples that are branches, and what is empty become something else.
  const bool has_structure = dict.tensors.groups.empty() && options.state != nullptr &&
                             !options.weights_only && !IsEmpty(*options.state);
  if (has_structure) add_object(kStructureKey, {}, SavedValue{StructureToJson(dict.root)});
  if (!small.empty()) files.push_back(std::move(small).Finish());
  OutputFile metadata = PlainOutputFile(kDcpMetadataFile, DcpMetadataPickle(written));
  metadata.commits = true;
  files.push_back(std::move(metadata));
  return files;
}

}  // namespace tessera::ckpt::convert
