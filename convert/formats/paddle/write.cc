#include "convert/pickle/write.h"

#include <algorithm>
#include <bit>
#include <map>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/byte_order.h"
#include "base/errors.h"
#include "base/status_macros.h"
#include "checkpoint/include/manifest.h"
#include "convert/core/foreign_layout.h"
#include "convert/core/models.h"
#include "convert/core/saved_weights.h"
#include "convert/formats/paddle/distributed_files.h"
#include "convert/formats/paddle/paddle.h"
#include "convert/formats/paddle/state_file.h"
#include "convert/pickle/numpy_array.h"
#include "layout/box.h"
#include "layout/dtype.h"
#include "nlohmann/json.hpp"

namespace tessera::ckpt::convert {
namespace {

using pickle::Writer;

// Returns the name that a tensor has in Paddle, and that the names of its optimizer state begin
// with: a counter for each class of layers, in the order in which PaddleNLP's models make them
// (release 3.0).
// Parameters that are placed on a mesh have ".dist" at the end, and its GPT places all but some
// biases.
std::string NextTensorName(const std::string& parameter, std::map<std::string, int>& counters) {
  const auto has = [&](const char* part) { return parameter.find(part) != parameter.npos; };
  const bool is_gpt = parameter.starts_with("gpt."), is_bias = parameter.ends_with(".bias");
  const std::string kind = has("norm")      ? (is_gpt ? "gpt_layer_norm" : "create_parameter")
                           : has("embed")   ? "embedding"
                           : has("lm_head") ? "llama_lm_head_auto"
                                            : "linear";
  // The bias comes after its weight, with the same number.
  const int number = is_bias ? counters[kind] - 1 : counters[kind]++;
  const bool is_placed = !is_bias || !(has(".q_proj") || has(".k_proj") || has(".v_proj"));
  return absl::StrCat(kind, "_", number, is_bias ? ".b_0" : ".w_0", is_placed ? ".dist" : "");
}

// Returns AdamW's two betas; those of Paddle by default.
absl::StatusOr<std::vector<double>> BetasOf(const Manifest& manifest) {
  std::vector<double> betas;
  for (const auto& [beta, absent] : {std::pair("beta1", 0.9), {"beta2", 0.999}}) {
    const double value = OptionOf(manifest, 0, beta, absent);
    if (!(value >= 0 && value < 1)) {
      return FailedPrecondition("the optimizer's ", beta, " is ", value,
                                ": AdamW needs 0 <= ", beta, " < 1");
    }
    betas.push_back(value);
  }
  return betas;
}

// Returns beta^(updates + 1) for a beta in [0, 1), as the optimizer does: by products in fp32.
float PowerOfBeta(float beta, double updates) {
  float power = beta;
  for (double i = 0; i < updates; ++i) {
    const float next = power * beta;
    if (next == power) break;  // 0, 1, or the least number
    power = next;
  }
  return power;
}

// Builds the files of shards. Each is a pickle of a dict of arrays. The elements of the arrays are
// written later, between the bytes of the pickle.
class PaddleShardFiles {
 public:
  explicit PaddleShardFiles(uint64_t max_file_bytes) : max_file_bytes_(max_file_bytes) {}

  // Adds an array under its key and, if there is one, under another. `tensor_name` is Paddle's.
  void Add(const std::string& key, const std::string& other_key, const std::string& tensor_name,
           const Shape& shape, OutputTensor tensor) {
    const uint64_t bytes = static_cast<uint64_t>(tensor.elements) * ElementSize(tensor.dtype);
    if (files_.empty() || files_.back().size_bytes + bytes > max_file_bytes_) Begin();
    BeginArray(key, shape, tensor.dtype);
    Place();
    tensor.offset_bytes = files_.back().size_bytes;
    files_.back().tensors.push_back(std::move(tensor));
    files_.back().size_bytes += bytes;
    EndArray(key, tensor_name);
    if (other_key.empty()) return;
    const auto number = static_cast<uint32_t>(shards_.size());
    writer_.Memoize(number);
    writer_.Text(other_key);
    writer_.Recall(number);
    shards_.push_back(shards_.back());
    shards_.back().key = other_key;
    names_.emplace_back(other_key, tensor_name);
  }

  // Adds an array of one element to the last file.
  void AddNumber(const std::string& key, float value) {
    BeginArray(key, {1}, DType::kF32);
    std::string bytes;
    AppendLittleEndian(std::bit_cast<uint32_t>(value), bytes);
    writer_.Raw(bytes);
    EndArray(key, key);
  }

  std::vector<OutputFile> Finish() && {
    End();
    return std::move(files_);
  }
  const std::vector<PaddleShard>& shards() const { return shards_; }

 private:
  void Begin() {
    End();
    files_.push_back({.name = absl::StrCat(files_.size(), "_0.distcp")});
    texts_.clear();
    names_.clear();
    writer_ = Writer();
    writer_.BeginDict();
  }

  // Ends the last file, if there is one, with the names of its tensors.
  void End() {
    if (files_.empty()) return;
    writer_.Text(kPaddleTensorNames).BeginDict();
    for (const auto& [key, name] : names_) writer_.Text(key).Text(name);
    writer_.EndDict();
    writer_.EndDict();
    writer_.End();
    Place();
    OutputFile& file = files_.back();
    file.header = std::move(texts_.front().bytes);
    const auto texts = std::make_shared<const std::vector<OutputBytes>>(std::move(texts_));
    file.records = [texts](size_t tensor, uint32_t /*crc32*/) {
      return std::vector<OutputBytes>{(*texts)[tensor + 1]};
    };
  }

  // Puts what was written at the end of the last file.
  void Place() {
    OutputFile& file = files_.back();
    texts_.push_back({file.size_bytes, writer_.Take()});
    file.size_bytes += texts_.back().bytes.size();
  }

  // Paddle has no numpy dtype for bfloat16, and stores its bits.
  void BeginArray(const std::string& key, const Shape& shape, DType dtype) {
    writer_.Text(key);
    pickle::BeginNumpyArray(dtype == DType::kBF16 ? DType::kU16 : dtype, shape, writer_);
    shards_.push_back({key, WholeBox(shape), dtype, files_.back().name});
  }
  void EndArray(const std::string& key, const std::string& tensor_name) {
    pickle::EndNumpyArray(writer_);
    names_.emplace_back(key, tensor_name);
  }

  const uint64_t max_file_bytes_;
  std::vector<OutputFile> files_;
  std::vector<PaddleShard> shards_;
  Writer writer_;                                           // of the last file
  std::vector<OutputBytes> texts_;                          // of the last file
  std::vector<std::pair<std::string, std::string>> names_;  // of its tensors, by key
};

// Plans the state dict {"model": ..., "optimizer": ...} of PaddleNLP's trainer.
class PaddlePlan {
 public:
  PaddlePlan(const Manifest& manifest, const ModelDescription& model,
             const std::vector<double>& betas, uint64_t max_file_bytes)
      : manifest_(manifest), model_(model), files_(max_file_bytes) {
    for (const double beta : betas) {
      powers_.push_back(PowerOfBeta(static_cast<float>(beta), UpdatesOf(manifest)));
    }
  }

  void Add(const std::vector<SavedKind>& kinds, const std::vector<ForeignParameter>& parameters) {
    std::map<std::string, int> counters;
    std::vector<std::string> names;
    for (const ForeignParameter& parameter : parameters) {
      names.push_back(NextTensorName(parameter.name, counters));
    }
    for (const SavedKind& saved : kinds) {
      for (size_t i = 0; i < parameters.size(); ++i) {
        // States of master weights are named after those.
        const std::string owner =
            names[i] + (HasKind(kinds, kForeignMaster) ? "_fp32_master_0" : "");
        AddTensor(saved, parameters[i], names[i], owner);
        if (saved.kind.state == kForeignExpAvg.state) AddPowers(owner);
      }
    }
  }

  std::vector<OutputFile> Finish(const std::string& config) && {
    std::string metadata = PaddleMetadataPickle(files_.shards());
    std::vector<OutputFile> files = std::move(files_).Finish();
    files.push_back(PlainOutputFile("config.json", config));
    if (TellsStep(manifest_)) {
      const nlohmann::json state = {{"global_step", manifest_.trainer().step()}};
      files.push_back(PlainOutputFile("trainer_state.json", state.dump()));
    }
    files.push_back(PlainOutputFile(kPaddleMetadataFile, std::move(metadata)));
    files.back().commits = true;
    return files;
  }

 private:
  void AddTensor(const SavedKind& saved, const ForeignParameter& parameter,
                 const std::string& tensor_name, const std::string& owner) {
    const LogicalParameter& logical = model_.Find(parameter.blocks.front().name);
    OutputTensor output = WholeParameter(parameter, logical, saved.kind, saved.dtype);
    const auto add = [&](const std::string& key, const std::string& other_key,
                         const std::string& paddles_name) {
      files_.Add(key, other_key, paddles_name, parameter.shape, std::move(output));
    };
    if (saved.kind.state.empty()) {
      // A tied head is another key of the embedding.
      const std::string head = "lm_head.weight";
      const bool is_tied = std::ranges::count(parameter.other_names, head) > 0;
      add(kPaddleModelPrefix + parameter.name, is_tied ? kPaddleModelPrefix + head : "",
          tensor_name);
    } else if (saved.kind.role == TensorRole::kMasterWeight) {
      add(absl::StrCat(kPaddleOptimizerPrefix, kPaddleMasterPrefix, tensor_name), "", owner);
    } else {
      const bool is_first = saved.kind.state == kForeignExpAvg.state;
      const std::string state = absl::StrCat(owner, is_first ? "_moment1_0" : "_moment2_0");
      add(kPaddleOptimizerPrefix + state, "", state);
    }
  }

  // Adds the powers of AdamW's betas, which Paddle counts for each parameter.
  void AddPowers(const std::string& owner) {
    for (size_t i = 0; i < powers_.size(); ++i) {
      files_.AddNumber(absl::StrCat(kPaddleOptimizerPrefix, owner, "_beta", i + 1, "_pow_acc_0"),
                       powers_[i]);
    }
  }

  const Manifest& manifest_;
  const ModelDescription& model_;
  std::vector<float> powers_;
  PaddleShardFiles files_;
};

}  // namespace

absl::StatusOr<std::vector<OutputFile>> PlanPaddle(const Manifest& manifest,
                                                   const PlanOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const std::string config, WriteForeignConfig(kPaddle, manifest.model()));
  TESSERA_ASSIGN_OR_RETURN(const ForeignModel model,
                           ForeignModel::Read(kPaddle, config, INT64_MAX, UINT64_MAX));
  std::vector<ForeignParameter> parameters = model.parameters();
  // Fused parameters, which models may have instead of those that they consist of.
  std::erase_if(parameters, [](const ForeignParameter& each) { return each.blocks.size() > 1; });
  TESSERA_ASSIGN_OR_RETURN(const std::vector<SavedKind> kinds,
                           FindKinds(manifest, model.description(), options));
  for (const SavedKind& saved : kinds) {
    if (IsPaddleDType(saved.dtype)) continue;
    return InvalidArgument(saved.kind.state.empty() ? "the weights" : saved.kind.state, ": ",
                           ProtoName(saved.dtype),
                           " is not written for Paddle; --dtype converts the weights to another");
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<double> betas, BetasOf(manifest));
  PaddlePlan plan(manifest, model.description(), betas, options.max_file_bytes);
  plan.Add(kinds, parameters);
  return std::move(plan).Finish(config);
}

}  // namespace tessera::ckpt::convert
