#include "convert/pickle/write.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/include/manifest.h"
#include "convert/core/foreign_layout.h"
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

void WriteJson(const nlohmann::ordered_json& json, Writer& writer) {
  if (json.is_boolean()) {
    writer.Bool(json.get<bool>());
  } else if (json.is_number_integer()) {
    writer.Int(json.get<int64_t>());
  } else if (json.is_number()) {
    writer.Float(json.get<double>());
  } else if (json.is_string()) {
    writer.Text(json.get<std::string>());
  } else if (json.is_array()) {
    writer.BeginList();
    for (const nlohmann::ordered_json& element : json) WriteJson(element, writer);
    writer.EndList();
  } else if (json.is_object()) {
    writer.BeginDict();
    for (const auto& [key, value] : json.items()) {
      writer.Text(key);
      WriteJson(value, writer);
    }
    writer.EndDict();
  } else {
    writer.None();
  }
}

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

// Plans a torch_dist folder. ChooseStates() decides which states are written and as which dtype;
// Files() then lays out their chunks.
class MegatronPlan {
 public:
  MegatronPlan(const Manifest& manifest, ModelDescription model, nlohmann::ordered_json arguments,
               const PlanOptions& options)
      : manifest_(manifest),
        model_(std::move(model)),
        arguments_(std::move(arguments)),
        options_(options),
        data_(options.max_file_bytes) {
    for (const LogicalParameter& parameter : model_.parameters) {
      parameters_[parameter.name] = &parameter;
    }
  }

  absl::Status ChooseStates() {
    TESSERA_ASSIGN_OR_RETURN(kinds_, FindKinds(manifest_, model_, options_));
    for (const SavedKind& saved : kinds_) {
      has_master_ |= saved.kind.role == TensorRole::kMasterWeight;
    }
    return absl::OkStatus();
  }

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
      const std::string name =
          saved.kind.state.empty() ? block.name : absl::StrCat(block.name, ".", saved.kind.state);
      OutputTensor output = {.name = name,
                             .source_name = name,
                             .role = saved.kind.role,
                             .dtype = saved.dtype,
                             .shape = parameters_.at(block.name)->shape,
                             .elements = ElementCount(box.shape)};
      output.pieces = [block, box, dtype = saved.dtype](int64_t begin, int64_t end) {
        return BlockPieces(block, box, begin, end, dtype);
      };
      DcpBlob blob = data_.Add(box.shape, std::move(output));
      tensor.chunks.push_back({std::move(box), std::move(blob)});
    }
    return tensor;
  }

  // Writes a group of each kind as Megatron-LM makes them: with weight decay, and without.
  void WriteParameterGroups(Writer& writer) const {
    writer.Text("param_groups");
    writer.BeginList();
    for (int i = 0; i < 2; ++i) {
      std::map<std::string, double> saved;
      if (i < manifest_.optimizer().groups_size()) {
        const auto& options = manifest_.optimizer().groups(i).options();
        saved.insert(options.begin(), options.end());
      }
      const auto option = [&](const char* name, double absent) {
        const auto found = saved.find(name);
        return found == saved.end() ? absent : found->second;
      };
      writer.BeginDict();
      WriteEntry("is_expert_parallel", false, writer);
      WriteEntry("default_config", true, writer);
      WriteEntry("wd_mult", i == 0 ? 1.0 : 0.0, writer);
      WriteEntry("lr_mult", 1.0, writer);
      WriteEntry("is_decoupled_lr", false, writer);
      WriteEntry("lr", manifest_.trainer().schedule().learning_rate(), writer);
      writer.Text("betas");
      writer.BeginTuple();
      writer.Float(option("beta1", 0.9));
      writer.Float(option("beta2", 0.999));
      writer.EndTuple();
      WriteEntry("eps", option("epsilon", 1e-8), writer);
      WriteEntry("weight_decay", option("weight_decay", 0), writer);
      WriteEntry("step", manifest_.trainer().step(), writer);
      writer.EndDict();
    }
    writer.EndList();
  }

  static void WriteEntry(const char* key, const nlohmann::ordered_json& value, Writer& writer) {
    writer.Text(key);
    WriteJson(value, writer);
  }

  void WriteOptimizer(Writer& writer) const {
    writer.Text("optimizer");
    writer.BeginDict();
    if (has_master_) {
      writer.Text("optimizer");
      writer.BeginDict();
      WriteParameterGroups(writer);
      writer.EndDict();
      WriteEntry("param_state_sharding_type", "fully_reshardable", writer);
    } else {
      WriteEntry("state", {{"common_step", manifest_.trainer().step()}}, writer);
      WriteParameterGroups(writer);
    }
    writer.EndDict();
  }

  std::string CommonPickle() const {
    nlohmann::ordered_json arguments = arguments_;
    const int64_t samples = manifest_.trainer().data().consumed_samples();
    arguments["iteration"] = manifest_.trainer().step();
    arguments["consumed_train_samples"] = samples;
    arguments["consumed_valid_samples"] = 0;
    arguments["tensor_model_parallel_size"] = 1;
    arguments["pipeline_model_parallel_size"] = 1;
    arguments["data_parallel_size"] = 1;
    arguments["use_distributed_optimizer"] = has_master_;
    Writer writer;
    writer.BeginDict();
    writer.Text("args");
    writer.Global("argparse", "Namespace");
    writer.NewObject();
    WriteJson(arguments, writer);
    writer.SetState();
    WriteEntry("checkpoint_version", 3.0, writer);
    WriteEntry("iteration", manifest_.trainer().step(), writer);
    if (kinds_.size() > 1) WriteOptimizer(writer);
    WriteEntry("content_metadata",
               {{"distrib_optim_sharding_type", "fully_reshardable"},
                {"chained_optim_avoid_prefix", true}},
               writer);
    writer.EndDict();
    return std::move(writer).Finish();
  }

  const Manifest& manifest_;
  const ModelDescription model_;
  const nlohmann::ordered_json arguments_;
  const PlanOptions& options_;
  std::map<std::string, const LogicalParameter*> parameters_;
  std::vector<SavedKind> kinds_;
  bool has_master_ = false;
  DcpDataFiles data_;
};

}  // namespace

absl::StatusOr<std::vector<OutputFile>> PlanMegatron(const Manifest& manifest,
                                                     const PlanOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const std::string text, WriteForeignConfig(kMegatron, manifest.model()));
  TESSERA_ASSIGN_OR_RETURN(ModelDescription model, ReadForeignConfig(kMegatron, text, INT64_MAX));
  TESSERA_ASSIGN_OR_RETURN(std::vector<ForeignParameter> parameters,
                           ForeignParameters(kMegatron, manifest.model()));
  parameters = Stacked(std::move(parameters));
  nlohmann::ordered_json arguments = nlohmann::ordered_json::parse(text);
  const int64_t rows = arguments.at("padded_vocab_size").get<int64_t>();
  for (ForeignParameter& parameter : parameters) {
    if (parameter.padded) parameter.shape[0] = rows;
  }
  MegatronPlan plan(manifest, std::move(model), std::move(arguments), options);
  TESSERA_RETURN_IF_ERROR(plan.ChooseStates());
  return std::move(plan).Files(parameters);
}

}  // namespace tessera::ckpt::convert
