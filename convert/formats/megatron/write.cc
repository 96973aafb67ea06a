#include "convert/formats/torch/write.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "convert/core/foreign_layout.h"
#include "convert/core/saved_values.h"
#include "convert/core/saved_weights.h"
#include "convert/formats/dcp/metadata.h"
#include "convert/formats/megatron/megatron.h"
#include "convert/formats/megatron/run.h"
#include "layout/box.h"
#include "nlohmann/json.hpp"

namespace tessera::ckpt::convert {
namespace {

using pickle::Writer;

constexpr char kFormatFile[] = R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1, )"
                               R"("common_backend": "torch", "common_backend_version": 1})";

// Returns the parameters to write: of those that hold the same tensors, the one with more dims,
// which is the stack of all layers.
std::vector<ForeignParameter> Stacked(std::vector<ForeignParameter> parameters) {
  std::map<std::string, size_t> dims;
  for (const ForeignParameter& parameter : parameters) {
    for (const ForeignBlock& block : parameter.blocks) {
      size_t& most = dims[block.name];
      most = std::max(most, parameter.shape.size());
    }
  }
  std::erase_if(parameters, [&](const ForeignParameter& parameter) {
    return parameter.shape.size() < dims[parameter.blocks.front().name];
  });
  return parameters;
}

// Returns how the names of tensors of this kind begin.
std::string PrefixOf(const ForeignKind& kind) {
  if (kind.state.empty()) return "";
  const bool is_master = kind.role == TensorRole::kMasterWeight;
  return absl::StrCat("optimizer.state.", is_master ? "param" : kind.state, ".");
}

// Plans a torch_dist folder with these kinds of tensors.
class MegatronPlan {
 public:
  MegatronPlan(const Manifest& manifest, const ModelDescription& model,
               nlohmann::ordered_json arguments, std::vector<SavedKind> kinds,
               uint64_t max_file_bytes)
      : manifest_(manifest),
        model_(model),
        arguments_(std::move(arguments)),
        kinds_(std::move(kinds)),
        has_master_(HasKind(kinds_, kForeignMaster)),
        data_(max_file_bytes) {}

  std::vector<OutputFile> Files(const std::vector<ForeignParameter>& parameters) && {
    DcpMetadata metadata;
    for (const SavedKind& saved : kinds_) {
      for (const ForeignParameter& parameter : parameters) {
        metadata.tensors.push_back(AddTensor(saved, parameter));
      }
    }
    std::vector<OutputFile> files = std::move(data_).Finish();
    files.push_back(TorchObjectFile(kMegatronCommonFile, CommonPickle()));
    files.push_back(PlainOutputFile(kMegatronFormatFile, kFormatFile));
    files.push_back(PlainOutputFile(kDcpMetadataFile, DcpMetadataPickle(metadata)));
    files.back().commits = true;
    return files;
  }

 private:
  // Describes a tensor whose chunks are the blocks; padding belongs to the last chunk before it.
  DcpTensor AddTensor(const SavedKind& saved, const ForeignParameter& parameter) {
    DcpTensor tensor = {.name = PrefixOf(saved.kind) + parameter.name,
                        .dtype = saved.dtype,
                        .shape = parameter.shape};
    for (const ForeignBlock& block : parameter.blocks) {
      Box box = ForeignBox(parameter, block);
      if (parameter.padded) box.shape[0] = parameter.shape[0];
      const std::string name = saved.kind.NameOf(block.name);
      OutputTensor output = {.name = name,
                             .source_name = name,
                             .role = saved.kind.role,
                             .dtype = saved.dtype,
                             .shape = model_.Find(block.name).shape,
                             .elements = ElementCount(box.shape)};
      output.pieces = [block, box, dtype = saved.dtype](int64_t begin, int64_t end) {
        return BlockPieces(block, box, begin, end, dtype);
      };
      DcpBlob blob = data_.Add(box.shape, std::move(output));
      tensor.chunks.push_back({std::move(box), std::move(blob)});
    }
    return tensor;
  }

  int64_t Updates() const { return static_cast<int64_t>(UpdatesOf(manifest_)); }

  // Writes a group of each kind as Megatron-LM makes them: with weight decay, and without.
  void WriteParameterGroups(Writer& writer) const {
    writer.Text("param_groups").BeginList();
    for (const size_t i : {0, 1}) {
      const auto option = [&](const char* name, double absent) {
        return OptionOf(manifest_, i, name, absent);
      };
      writer.BeginDict();
      writer.Text("is_expert_parallel").Bool(false);
      writer.Text("default_config").Bool(true);
      writer.Text("wd_mult").Float(i == 0 ? 1.0 : 0.0);
      writer.Text("lr_mult").Float(1.0);
      writer.Text("is_decoupled_lr").Bool(false);
      writer.Text("lr").Float(manifest_.trainer().schedule().learning_rate());
      writer.Text("betas").BeginTuple();
      writer.Float(option("beta1", 0.9));
      writer.Float(option("beta2", 0.999));
      writer.EndTuple();
      writer.Text("eps").Float(option("epsilon", 1e-8));
      writer.Text("weight_decay").Float(option("weight_decay", 0));
      writer.Text("step").Int(Updates());
      writer.EndDict();
    }
    writer.EndList();
  }

  void WriteOptimizer(Writer& writer) const {
    writer.Text("optimizer").BeginDict();
    if (has_master_) {
      writer.Text("optimizer").BeginDict();
      WriteParameterGroups(writer);
      writer.EndDict();
      writer.Text("param_state_sharding_type").Text("fully_reshardable");
    } else {
      writer.Text("state").BeginDict();
      writer.Text("common_step").Int(Updates());
      writer.EndDict();
      WriteParameterGroups(writer);
    }
    writer.EndDict();
  }

  std::string CommonPickle() const {
    nlohmann::ordered_json arguments = arguments_;
    arguments["iteration"] = manifest_.trainer().step();
    if (manifest_.trainer().has_data()) {
      arguments["consumed_train_samples"] = manifest_.trainer().data().consumed_samples();
    }
    arguments["consumed_valid_samples"] = 0;
    arguments["tensor_model_parallel_size"] = 1;
    arguments["pipeline_model_parallel_size"] = 1;
    arguments["data_parallel_size"] = 1;
    arguments["use_distributed_optimizer"] = has_master_;
    Writer writer;
    writer.BeginDict();
    writer.Text("args").Global("argparse", "Namespace");
    writer.NewObject();
    WriteValue(*ValueOfJson(arguments.dump()), writer);
    writer.SetState();
    writer.Text("checkpoint_version").Float(3.0);
    writer.Text("iteration").Int(manifest_.trainer().step());
    if (kinds_.size() > 1) WriteOptimizer(writer);
    writer.Text("content_metadata").BeginDict();
    writer.Text("distrib_optim_sharding_type").Text("fully_reshardable");
    writer.Text("chained_optim_avoid_prefix").Bool(true);
    writer.EndDict();
    writer.EndDict();
    return std::move(writer).Finish();
  }

  const Manifest& manifest_;
  const ModelDescription& model_;
  const nlohmann::ordered_json arguments_;
  const std::vector<SavedKind> kinds_;
  const bool has_master_;
  DcpDataFiles data_;
};

}  // namespace

absl::StatusOr<std::vector<OutputFile>> PlanMegatron(const Manifest& manifest,
                                                     const PlanOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const std::string text, WriteForeignConfig(kMegatron, manifest.model()));
  TESSERA_ASSIGN_OR_RETURN(const ForeignModel model,
                           ForeignModel::Read(kMegatron, text, INT64_MAX, UINT64_MAX));
  std::vector<ForeignParameter> parameters = Stacked(model.parameters());
  nlohmann::ordered_json arguments = nlohmann::ordered_json::parse(text);
  const int64_t rows = arguments.at("padded_vocab_size").get<int64_t>();
  for (ForeignParameter& parameter : parameters) {
    if (parameter.padded) parameter.shape[0] = rows;
  }
  TESSERA_ASSIGN_OR_RETURN(std::vector<SavedKind> kinds,
                           FindKinds(manifest, model.description(), options));
  return MegatronPlan(manifest, model.description(), std::move(arguments), std::move(kinds),
                      options.max_file_bytes)
      .Files(parameters);
}

}  // namespace tessera::ckpt::convert
