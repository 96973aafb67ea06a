#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/parse_json.h"
#include "base/status_macros.h"
#include "checkpoint/directory/directory.h"
#include "convert/core/foreign_layout.h"
#include "convert/core/known_model.h"
#include "convert/core/models.h"
#include "convert/core/optimizer_groups.h"
#include "convert/core/reading.h"
#include "convert/formats/dcp/dcp.h"
#include "convert/formats/megatron/megatron.h"
#include "convert/formats/megatron/run.h"
#include "convert/formats/megatron/state_buffer.h"
#include "convert/pickle/torch_archive.h"
#include "layout/box.h"
#include "nlohmann/json.hpp"

namespace tessera::ckpt::convert {
namespace {

using pickle::Value;

constexpr char kTracker[] = "latest_checkpointed_iteration.txt";
constexpr std::string_view kRankPrefix = "mp_rank_";
constexpr uint64_t kMaxMetadataBytes = uint64_t{1} << 20;
constexpr uint64_t kMaxTrackerBytes = 64;

// The contents of a small file; nullopt if there is no such file, or a larger one.
absl::StatusOr<std::optional<std::string>> ReadSmall(Storage& storage, const std::string& path,
                                                     uint64_t max_bytes) {
  TESSERA_ASSIGN_OR_RETURN(const auto file, OpenIfPresent(storage, path));
  if (file == nullptr || file->size_bytes() > max_bytes) return std::nullopt;
  return ReadPart(*file, 0, file->size_bytes());
}

// Returns the folder of the iteration that a run's folder names; empty if it names none.
absl::StatusOr<std::string> LatestIteration(Storage& storage) {
  TESSERA_ASSIGN_OR_RETURN(const std::optional<std::string> text,
                           ReadSmall(storage, kTracker, kMaxTrackerBytes));
  if (!text) return "";
  const std::string name(absl::StripAsciiWhitespace(*text));
  if (name == "release") return name;
  int64_t iteration = 0;
  if (!absl::SimpleAtoi(name, &iteration) || iteration < 0) return "";
  return absl::StrFormat("iter_%07d", iteration);
}

// "mp_rank_01" and "mp_rank_01_000", with more parts where there are experts.
bool IsRankFolder(std::string_view name) {
  if (!name.starts_with(kRankPrefix)) return false;
  const std::string_view ranks = name.substr(kRankPrefix.size());
  return !ranks.empty() && ranks.find_first_not_of("0123456789_") == ranks.npos;
}

struct MegatronFolder {
  std::string path;        // of the checkpoint, inside the storage
  bool is_legacy = false;  // of the format `torch`; otherwise torch_dist
};

// Returns nullopt; DataLoss if the folder is one of torch_dist but for metadata.json. Other folders
// of torch.distributed.checkpoint have no common.pt.
absl::StatusOr<std::optional<MegatronFolder>> CheckNoFormatFileIsLost(Storage& storage,
                                                                      const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(const bool is_dcp, IsDcp(storage, path));
  TESSERA_ASSIGN_OR_RETURN(const bool has_common,
                           Exists(storage, JoinPath(path, kMegatronCommonFile)));
  if (!is_dcp || !has_common) return std::nullopt;
  return Damaged(storage, JoinPath(path, kMegatronFormatFile), "missing or damaged, but there is ",
                 kMegatronCommonFile,
                 " of Megatron-LM; only the format dcp reads the folder without it");
}

// Finds the checkpoint of Megatron-LM; nullopt without one. It has metadata.json of the backend
// torch_dist, or a folder for each rank (mp_rank_00, mp_rank_00_000). In a run's folder it is the
// iteration that latest_checkpointed_iteration.txt names. Errors: Unimplemented for backend zarr.
absl::StatusOr<std::optional<MegatronFolder>> FindMegatronFolder(Storage& storage) {
  TESSERA_ASSIGN_OR_RETURN(const std::string path, LatestIteration(storage));
  TESSERA_ASSIGN_OR_RETURN(
      const std::optional<std::string> text,
      ReadSmall(storage, JoinPath(path, kMegatronFormatFile), kMaxMetadataBytes));
  if (!text) {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> ranks,
                             FindMegatronRanks(storage, path));
    if (ranks.empty()) return CheckNoFormatFileIsLost(storage, path);
    TESSERA_ASSIGN_OR_RETURN(
        const bool has_first,
        Exists(storage, JoinPath(JoinPath(path, ranks.front()), kMegatronRankFile)));
    if (!has_first) return std::nullopt;
    return MegatronFolder{.path = path, .is_legacy = true};
  }
  const nlohmann::json json = ParseJson(*text);
  if (!json.is_object()) return CheckNoFormatFileIsLost(storage, path);
  const auto backend = json.find("sharded_backend");
  if (backend == json.end()) return std::nullopt;
  if (*backend == "torch_dist") return MegatronFolder{.path = path};
  if (*backend != "zarr") return std::nullopt;
  return Unimplemented(storage.Describe(JoinPath(path, kMegatronFormatFile)),
                       ": zarr is not supported; megatron-core converts it to torch_dist");
}

// A tensor's name: which of a parameter's tensors it is.
struct Key {
  ForeignKind kind;
  std::string_view parameter;
};

// Removes "chained_0.", which begins the names of each of several optimizers.
std::string_view WithoutChain(std::string_view name) {
  constexpr std::string_view kChained = "chained_";
  if (!name.starts_with(kChained)) return name;
  const size_t end = name.find_first_not_of("0123456789", kChained.size());
  return end != name.npos && end > kChained.size() && name[end] == '.' ? name.substr(end + 1)
                                                                       : name;
}

// nullopt for a state of the optimizer that AdamW does not have, or in another format.
std::optional<Key> ParseKey(std::string_view name) {
  constexpr std::string_view kOptimizer = "optimizer.", kState = "optimizer.state.";
  const std::string_view unchained = WithoutChain(name);
  if (!unchained.starts_with(kOptimizer)) return Key{kForeignWeight, name};
  if (!unchained.starts_with(kState)) return std::nullopt;
  const std::string_view state = unchained.substr(kState.size());
  const std::pair<std::string_view, const ForeignKind&> kinds[] = {
      {"fp32_param.", kForeignMaster},  // in all formats but fully_reshardable
      {"param.", kForeignMaster},
      {"exp_avg.", kForeignExpAvg},
      {"exp_avg_sq.", kForeignExpAvgSq}};
  for (const auto& [prefix, kind] : kinds) {
    if (state.starts_with(prefix)) return Key{kind, state.substr(prefix.size())};
  }
  return std::nullopt;
}

class TorchDistReader {
 public:
  TorchDistReader(std::string where, std::string folder, ForeignModel model)
      : where_(std::move(where)),
        folder_(std::move(folder)),
        model_(std::move(model)),
        set_(model_.description()),
        buckets_(folder_) {}

  absl::Status Add(const ForeignTensor& tensor) {
    if (IsBucketState(tensor.name)) return In(where_, buckets_.AddTensor(tensor));
    const std::optional<Key> key = ParseKey(tensor.name);
    if (!key) {
      return Unimplemented(where_, ": tensor ", tensor.name,
                           ": a state of the optimizer that AdamW does not have");
    }
    const int64_t rows = tensor.shape.empty() ? 0 : tensor.shape[0];
    const ForeignParameter* const parameter = FindMegatronParameter(model_, key->parameter, rows);
    if (parameter == nullptr) {
      return InvalidArgument(where_, ": tensor ", tensor.name,
                             " belongs to no parameter of the model that ", kMegatronCommonFile,
                             " describes");
    }
    if (tensor.shape.size() == parameter->shape.size() + 1 &&
        key->kind.role != TensorRole::kWeight) {
      return AddFlattened(tensor, *parameter, key->kind);
    }
    if (tensor.shape != parameter->shape) {
      return DataLoss(where_, ": tensor ", tensor.name, ": shape ", ShapeToString(tensor.shape),
                      ", expected ", ShapeToString(parameter->shape));
    }
    return set_.AddPieces(*parameter, key->kind, tensor);
  }

  // Adds what is stored by buffer, and sets model, optimizer and tensors.
  absl::Status Finish(Storage& storage, const MegatronRun& run, OptimizerFacts& facts,
                      ForeignCheckpoint& checkpoint) {
    TESSERA_RETURN_IF_ERROR(buckets_.AddObjects(storage, facts));
    if (!buckets_.empty()) return FinishBuckets(storage, run, checkpoint);
    TESSERA_RETURN_IF_ERROR(std::move(set_).MoveTo(kMegatron, where_, checkpoint));
    const absl::Status masters = CheckMasterWeights(storage, checkpoint.tensors);
    if (absl::IsUnimplemented(masters)) LeaveOutMasters(checkpoint);
    // States have names here, and weights that were stored in fp8 are other than rounded.
    return absl::IsUnimplemented(masters) || absl::IsDataLoss(masters) ? absl::OkStatus() : masters;
  }

 private:
  static void LeaveOutMasters(ForeignCheckpoint& checkpoint) {
    std::erase_if(checkpoint.tensors, [](const ForeignTensor& tensor) {
      return tensor.role == TensorRole::kMasterWeight;
    });
    for (auto& parameter : *checkpoint.description.mutable_optimizer()->mutable_parameters()) {
      parameter.mutable_states()->erase(kForeignMaster.state);
    }
    checkpoint.notes.emplace_back(
        "Left out: the master weights: the files have only 16-bit remainders of them "
        "(use_precision_aware_optimizer), and the rounded weights are used.");
  }

  // Adds a tensor of releases up to 0.14. It has an index for each dim of the parameter, which says
  // in which of its equal parts the elements are, and one for their place in that part, flattened.
  absl::Status AddFlattened(const ForeignTensor& tensor, const ForeignParameter& parameter,
                            const ForeignKind& kind) {
    const size_t rank = parameter.shape.size();
    Shape part = parameter.shape;
    int64_t elements = 1;
    for (size_t d = 0; d < rank; ++d) {
      const int64_t parts = tensor.shape[d];
      if (parts < 1 || part[d] % parts != 0) return MalformedFlat(tensor, parameter);
      part[d] /= parts;
      elements *= part[d];
    }
    if (tensor.shape[rank] != elements) return MalformedFlat(tensor, parameter);
    for (const StoredPiece& piece : tensor.pieces) {
      Box own = {std::vector<int64_t>(rank), part};
      for (size_t d = 0; d < rank; ++d) {
        const int64_t index = piece.box.global_offset[d];
        if (piece.box.shape[d] != 1 || index < 0 || index >= tensor.shape[d]) {
          return MalformedFlat(tensor, parameter);
        }
        own.global_offset[d] = index * part[d];
      }
      const int64_t begin = piece.box.global_offset[rank], count = piece.box.shape[rank];
      if (begin < 0 || count < 0 || count > elements || begin > elements - count ||
          (count > 1 && piece.strides[rank] != 1)) {
        return MalformedFlat(tensor, parameter);
      }
      ForeignPlace place = {piece.file, piece.offset_bytes, tensor.dtype};
      for (const Box& box : FlatRangeToBoxes(own, begin, begin + count)) {
        TESSERA_RETURN_IF_ERROR(
            set_.AddBox(parameter, {}, kind, box, place, ContiguousStrides(part)));
        place = place.After(ElementCount(box.shape));
      }
    }
    return absl::OkStatus();
  }

  absl::Status MalformedFlat(const ForeignTensor& tensor, const ForeignParameter& parameter) const {
    return DataLoss(where_, ": tensor ", tensor.name, ": its shape ", ShapeToString(tensor.shape),
                    ", or one of its chunks, does not fit flattened parts of ",
                    ShapeToString(parameter.shape));
  }

  // The order of the parameters is not stored: the one that the arguments suggest, or the other,
  // must fit the sizes of all buffers and have the weights as its fp32 weights.
  absl::Status FinishBuckets(Storage& storage, const MegatronRun& run,
                             ForeignCheckpoint& checkpoint) {
    const bool has_fused_norms = run.Text("transformer_impl").value_or("") != "local";
    absl::Status first;
    for (const bool fused : {has_fused_norms, !has_fused_norms}) {
      ForeignTensorSet set = set_;
      absl::Status status = In(where_, buckets_.AddTo(run, ModuleOrder(model_, fused), set));
      if (status.ok()) status = std::move(set).MoveTo(kMegatron, where_, checkpoint);
      if (status.ok()) status = CheckMasterWeights(storage, checkpoint.tensors);
      if (status.ok()) return status;
      checkpoint.description.clear_optimizer();
      if (first.ok()) first = status;
    }
    return first;
  }

  const std::string where_, folder_;
  ForeignModel model_;
  ForeignTensorSet set_;
  BucketStates buckets_;
};

// Reads a checkpoint of megatron-core's distributed checkpointing, backend torch_dist: a folder of
// torch.distributed.checkpoint whose tensors are whole parameters, possibly stacked over layers,
// with common.pt. The arguments of the run describe the model. States of the optimizer are read in
// all formats: by parameter, those of the distributed optimizer also flattened as in releases up to
// 0.14, and by buffer (state_buffer.h). The parameters of a buffer follow from the order of the
// modules and are checked by its size and its fp32 weights.
absl::StatusOr<ForeignCheckpoint> ReadTorchDist(Storage& storage, const std::string& folder) {
  ForeignCheckpoint checkpoint = CheckpointOf(kMegatron, "Megatron-LM");
  TESSERA_ASSIGN_OR_RETURN(const std::vector<ForeignTensor> stored,
                           ReadDcpTensors(storage, folder, &checkpoint.notes));
  const std::string common = JoinPath(folder, kMegatronCommonFile);
  TESSERA_ASSIGN_OR_RETURN(const TorchArchive archive, ReadTorchFile(storage, common));
  const MegatronRun run(archive.contents.root());
  TESSERA_ASSIGN_OR_RETURN(const uint64_t file_bytes, FileBytes(storage, FilesOf(stored)));
  size_t pieces = 0;  // each layer has at least one, stacked or not
  for (const ForeignTensor& tensor : stored) pieces += tensor.pieces.size();
  TESSERA_ASSIGN_OR_RETURN(
      ForeignModel model,
      ReadMegatronModel(run, storage.Describe(common), static_cast<int64_t>(pieces), file_bytes));
  TorchDistReader reader(storage.Describe(folder), folder, std::move(model));
  for (const ForeignTensor& tensor : stored) TESSERA_RETURN_IF_ERROR(reader.Add(tensor));
  run.Describe(checkpoint);
  OptimizerFacts facts;
  TESSERA_RETURN_IF_ERROR(AddOptimizerFacts(storage, common, facts));
  TESSERA_RETURN_IF_ERROR(reader.Finish(storage, run, facts, checkpoint));
  TakeFacts(facts, checkpoint);
  return checkpoint;
}

}  // namespace

MegatronRun::MegatronRun(const Value& state) : state_(state) {
  const Value args = state.Find("args");
  if (args.IsObjectOf("argparse.Namespace") || args.IsObjectOf("types.SimpleNamespace")) {
    arguments_ = args.state();
  }
}

std::string MegatronRun::ArgumentsAsJson() const { return pickle::DictToJson(arguments_).dump(); }

std::optional<int64_t> MegatronRun::Integer(std::string_view name) const {
  return arguments_.Find(name).AsInt();
}

std::optional<std::string> MegatronRun::Text(std::string_view name) const {
  const auto text = arguments_.Find(name).AsText();
  return text ? std::optional<std::string>(*text) : std::nullopt;
}

bool MegatronRun::IsTrue(std::string_view name) const {
  return arguments_.Find(name).AsBool().value_or(false);
}

int64_t MegatronRun::BucketElements() const {
  constexpr int64_t kDefault = 40'000'000, kPerRank = 1'000'000;
  if (!IsTrue("overlap_grad_reduce")) return 0;
  const std::optional<int64_t> stated = Integer("ddp_bucket_size");
  if (stated && *stated > 0) return *stated;
  const int64_t ranks = Integer("data_parallel_size").value_or(1);
  return std::max(kDefault, kPerRank * std::clamp<int64_t>(ranks, 1, INT32_MAX));
}

void MegatronRun::Describe(ForeignCheckpoint& checkpoint) const {
  Manifest& manifest = checkpoint.description;
  const auto size = [&](std::string_view name) { return Integer(name).value_or(1); };
  SetTopology({.data = size("data_parallel_size"),
               .tensor = size("tensor_model_parallel_size"),
               .pipeline = size("pipeline_model_parallel_size"),
               .virtual_pipeline = size("virtual_pipeline_model_parallel_size"),
               .zero_stage = IsTrue("use_distributed_optimizer") ? 1u : 0},
              manifest);
  // The fused form is that with tanh, which some forks have by openai_gelu, too.
  if (arguments_.Find("bias_gelu_fusion").AsBool() == false && !IsTrue("swiglu") &&
      !IsTrue("openai_gelu")) {
    checkpoint.notes.push_back(absl::StrCat("Megatron-LM without bias_gelu_fusion", kExactGelu));
  }
  const std::optional<int64_t> step = state_.Find("iteration").AsInt();
  if (!step || *step < 0) return;
  SetProgress(*step, Integer("consumed_train_samples"), manifest);
}

absl::StatusOr<ForeignModel> ReadMegatronModel(const MegatronRun& run, const std::string& where,
                                               int64_t tensor_count, uint64_t file_bytes) {
  if (!run.has_arguments()) {
    return InvalidArgument(where, ": no arguments of the run (\"args\"), which describe the model");
  }
  return In(where, ForeignModel::Read(kMegatron, run.ArgumentsAsJson(), tensor_count, file_bytes));
}

const ForeignParameter* FindMegatronParameter(ForeignModel& model, std::string_view name,
                                              int64_t rows) {
  ForeignParameter* const parameter = model.Find(name);
  if (parameter == nullptr) return nullptr;
  if (parameter->padded && rows > parameter->shape[0]) parameter->shape[0] = rows;
  return parameter;
}

absl::StatusOr<std::vector<std::string>> FindMegatronRanks(Storage& storage,
                                                           std::string_view folder) {
  TESSERA_ASSIGN_OR_RETURN(const auto names, IfPresent(storage.List(folder)));
  std::vector<std::string> ranks;
  for (const std::string& name : names.value_or(std::vector<std::string>())) {
    if (name.ends_with('/') && IsRankFolder(std::string_view(name).substr(0, name.size() - 1))) {
      ranks.push_back(name.substr(0, name.size() - 1));
    }
  }
  return ranks;
}

absl::StatusOr<bool> IsMegatron(Storage& storage) {
  TESSERA_ASSIGN_OR_RETURN(const auto found, FindMegatronFolder(storage));
  return found.has_value();
}

absl::StatusOr<ForeignCheckpoint> ReadMegatron(Storage& storage) {
  TESSERA_ASSIGN_OR_RETURN(const auto found, FindMegatronFolder(storage));
  if (!found) return NotFound(storage.Describe(""), ": no checkpoint of Megatron-LM");
  return found->is_legacy ? ReadMegatronLegacy(storage, found->path)
                          : ReadTorchDist(storage, found->path);
}

}  // namespace tessera::ckpt::convert
