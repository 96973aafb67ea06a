#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/include/manifest.h"
#include "convert/core/models.h"
#include "convert/core/name_state_dict.h"
#include "convert/core/rank_grid.h"
#include "convert/core/reading.h"
#include "convert/formats/infinitrain/infinitrain.h"
#include "convert/formats/infinitrain/state_file.h"
#include "layout/box.h"
#include "nlohmann/json.hpp"

namespace tessera::ckpt::convert {
namespace {

constexpr std::string_view kModelFile = "model.ckpt";
constexpr std::string_view kOptimizerFile = "optimizer.ckpt";
constexpr std::string_view kTrainerStateFile = "trainer_state.json";
constexpr char kMetadataFile[] = "metadata.json";
constexpr uint64_t kMaxTrainerStateBytes = uint64_t{1} << 20;

// Returns whether there is a metadata.json that tells how ranks cut tensors.
absl::StatusOr<bool> IsShardedInfiniTrain(Storage& storage) {
  TESSERA_ASSIGN_OR_RETURN(const auto file, OpenIfPresent(storage, kMetadataFile));
  if (file == nullptr) return false;
  TESSERA_ASSIGN_OR_RETURN(const std::string start,
                           ReadPart(*file, 0, std::min<uint64_t>(file->size_bytes(), 256)));
  return absl::StrContains(start, "infinitrain_sharded");
}

// Returns the places of a shard's elements in its file: a piece for each segment.
std::vector<StoredPiece> PiecesOf(const InfiniTrainShard& shard, const InfiniTrainTensor& stored) {
  const std::vector<int64_t> strides = ContiguousStrides(stored.shape);
  std::vector<StoredPiece> pieces;
  for (const InfiniTrainShard::Segment& segment : shard.segments) {
    StoredPiece& piece = pieces.emplace_back();
    piece.box = {shard.global_offset, shard.local_shape};
    piece.file = shard.file;
    piece.strides = strides;
    piece.offset_bytes = stored.offset_bytes;
    if (stored.shape.empty()) continue;
    piece.box.global_offset[shard.dim] = segment.global_offset;
    piece.box.shape[shard.dim] = segment.length;
    piece.offset_bytes += static_cast<uint64_t>(segment.local_offset * strides[shard.dim]) *
                          ElementSize(stored.dtype);
  }
  return pieces;
}

// Cuts off the rows of a box beyond those of a tensor. Whether any are left.
bool Crop(const Shape& shape, Box& box) {
  if (shape.empty()) return true;
  box.shape[0] = std::min(box.shape[0], shape[0] - box.global_offset[0]);
  return box.shape[0] > 0 && ElementCount(box.shape) > 0;
}

// Returns the folders of ranks: "" alone where the root has their files itself.
absl::StatusOr<std::vector<std::string>> FindRanks(Storage& storage) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, storage.List(""));
  const bool is_single = Has(names, kModelFile);
  const RankPattern pattern("rank_{6}");
  std::vector<std::string> present, missing, folders;
  int64_t count = 0;
  for (const std::string& name : names) {
    if (!name.ends_with('/')) continue;
    const std::string folder = name.substr(0, name.size() - 1);
    const std::optional<std::vector<int64_t>> rank = pattern.Parse(folder);
    if (!rank) continue;
    present.push_back(folder);
    count = std::max(count, rank->front() + 1);
  }
  if (is_single && present.empty()) return std::vector<std::string>{""};
  if (is_single) {
    return Damaged(storage, "", "both ", kModelFile, " and ", present.front(),
                   "/ are there, which are of different runs: keep one of them");
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<RankFile> grid,
                           CompleteGrid(pattern, {&count, 1}, present, missing));
  if (!missing.empty()) {
    return Damaged(storage, "", missing.front(), " is missing, ", present.back(),
                   " is there, and no ", kMetadataFile, " that tells which ranks have files");
  }
  for (const RankFile& file : grid) folders.push_back(file.name);
  return folders;
}

// The suffix of a moment's name, "NAME" of "adam.m.NAME", and torch's name of the state.
struct Moment {
  std::string parameter;
  const char* state = nullptr;
  std::optional<size_t> number = std::nullopt;  // instead of a name
};

std::optional<Moment> ParseMoment(const std::string& name) {
  for (const auto& [prefix, state] :
       {std::pair<std::string_view, const char*>("adam.m.", "exp_avg"),
        {"adam.v.", "exp_avg_sq"}}) {
    if (!name.starts_with(prefix)) continue;
    Moment moment = {.parameter = name.substr(prefix.size()), .state = state};
    size_t number = 0;
    if (absl::SimpleAtoi(moment.parameter, &number)) moment.number = number;
    return moment;
  }
  return std::nullopt;
}

// Reads the folder of a step: the shards that metadata.json describes or, without it, each rank's
// files, which must have the whole model. Call Read(), then CheckModel() for the sizes.
class Reader {
 public:
  Reader(Storage& storage, std::vector<std::string> ranks)
      : storage_(storage), ranks_(std::move(ranks)) {}

  absl::StatusOr<ForeignCheckpoint> Read(bool is_sharded) {
    for (const std::string& rank : ranks_) {
      TESSERA_ASSIGN_OR_RETURN(texts_.emplace_back(), ReadTrainerState(rank));
    }
    if (is_sharded) {
      TESSERA_ASSIGN_OR_RETURN(const std::string text,
                               ReadAll(storage_, kMetadataFile, kMaxInfiniTrainMetadataBytes));
      TESSERA_ASSIGN_OR_RETURN(const std::vector<InfiniTrainShard> shards,
                               At(storage_, kMetadataFile, ParseInfiniTrainMetadata(text)));
      for (const InfiniTrainShard& shard : shards) TESSERA_RETURN_IF_ERROR(AddShard(shard));
      TESSERA_RETURN_IF_ERROR(DescribeRun());
      SetTopology({.data = Number("ddp_size").value_or(1),
                   .tensor = Number("tp_size").value_or(1),
                   .pipeline = Number("pp_size").value_or(1),
                   .virtual_pipeline = Number("vpp_size").value_or(1)},
                  checkpoint_.description);
      return std::move(checkpoint_);
    }
    TESSERA_RETURN_IF_ERROR(CheckTopology());
    for (rank_ = 0; rank_ < ranks_.size(); ++rank_) {
      TESSERA_RETURN_IF_ERROR(AddFile(kModelFile).status());
      TESSERA_ASSIGN_OR_RETURN(const bool has_optimizer, AddFile(kOptimizerFile));
      if (!has_optimizer) checkpoint_.description.mutable_optimizer();  // an SGD without state
    }
    TESSERA_RETURN_IF_ERROR(DescribeRun());
    return std::move(checkpoint_);
  }

  // Compares the sizes in trainer_state.json with those of the model, which has the shapes of the
  // tensors. If a shape contradicts the file, adds a note that the file describes another model;
  // FailedPrecondition if only the numbers of heads differ, which no shape shows.
  absl::Status CheckModel(ForeignCheckpoint& checkpoint) const {
    TESSERA_ASSIGN_OR_RETURN(const std::string text,
                             WriteForeignConfig(kInfiniTrain, checkpoint.description.model()));
    const nlohmann::json sizes = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    std::vector<std::string> differences;
    bool shapes_differ = false;
    for (const auto& [key, size] : sizes.items()) {
      const std::optional<int64_t> found = Number(key);
      if (!found.has_value() || *found == size.get<int64_t>()) continue;
      differences.push_back(
          absl::StrCat(key, " is ", *found, ", but the model's is ", size.get<int64_t>()));
      shapes_differ = shapes_differ || key == "n_layer" || key == "n_embd";
    }
    if (differences.empty()) return absl::OkStatus();
    const std::string problem =
        absl::StrCat(storage_.Describe(JoinPath(ranks_.front(), kTrainerStateFile)), ": ",
                     JoinFirst(differences, ", "));
    if (!shapes_differ) return FailedPrecondition(problem);
    checkpoint.notes.push_back(absl::StrCat(
        "Left out: the sizes in ", problem,
        ": the shapes of the tensors decide. The program writes those of its default model if it "
        "began with a file."));
    return absl::OkStatus();
  }

 private:
  // Returns a number in the trainer's state of the first rank.
  std::optional<int64_t> Number(std::string_view key) const {
    return FindInfiniTrainNumber(texts_.front(), key);
  }

  // Returns the trainer's state, which is JSON but for separators that some releases forget. Empty,
  // with a note, if the rank's folder does not have the file.
  absl::StatusOr<std::string> ReadTrainerState(const std::string& rank) {
    const std::string path = JoinPath(rank, kTrainerStateFile);
    TESSERA_ASSIGN_OR_RETURN(const auto text,
                             IfPresent(ReadAll(storage_, path, kMaxTrainerStateBytes)));
    if (!text) {
      checkpoint_.notes.push_back(absl::StrCat(
          path, " is missing, which has the step, the consumed samples and the model's sizes."));
      return "";
    }
    if (absl::EndsWith(absl::StripAsciiWhitespace(*text), "}")) return *text;
    return Damaged(storage_, path, "the end of the JSON object is missing");
  }

  // Unimplemented unless every rank has the whole model.
  absl::Status CheckTopology() const {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      for (const char* const key : {"tp_size", "pp_size", "sp_size", "cp_size"}) {
        const std::optional<int64_t> size = FindInfiniTrainNumber(texts_[rank], key);
        const bool is_needed = ranks_.size() > 1 && (key[0] == 't' || key[0] == 'p');
        if (size.value_or(is_needed ? 0 : 1) == 1) continue;
        return Unimplemented(
            Folders(), ": ", key, " in ", kTrainerStateFile, " is ",
            size.has_value() ? absl::StrCat(*size) : "missing", ", but there is no ", kMetadataFile,
            " of InfiniTrain, which says how ranks cut "
            "tensors: without it, only files of runs with tp_size 1 and pp_size 1 are read");
      }
    }
    const auto count = static_cast<int64_t>(ranks_.size());
    const int64_t expected = Number("ddp_size").value_or(count);
    if (count == 1 || expected == count) return absl::OkStatus();
    return DataLoss(Folders(), ": expected ", expected, " folders of ranks, found ", count);
  }

  std::string Folders() const {
    const std::string first = storage_.Describe(ranks_.front());
    return ranks_.size() == 1 ? first : absl::StrCat(first, " to ", ranks_.back());
  }

  template <typename... Parts>
  absl::Status DamagedTensor(std::string_view file, const std::string& name,
                             const Parts&... problem) const {
    return Damaged(storage_, file, "tensor ", name, ": ", problem...);
  }

  // Adds a file of the rank, which has the whole of each tensor. Returns whether it is there.
  absl::StatusOr<bool> AddFile(std::string_view file) {
    const std::string path = JoinPath(ranks_[rank_], file);
    TESSERA_ASSIGN_OR_RETURN(const auto open, OpenIfPresent(storage_, path));
    std::vector<InfiniTrainTensor> tensors;
    if (open != nullptr) {
      TESSERA_ASSIGN_OR_RETURN(tensors, At(storage_, path, ReadInfiniTrainStateFile(*open)));
    }
    std::vector<std::string> names;
    for (const InfiniTrainTensor& tensor : tensors) names.push_back(tensor.name);
    TESSERA_RETURN_IF_ERROR(CheckSame(path, names));
    if (file == kModelFile) {
      weights_ = std::move(names);
    } else {
      numbered_ = ParametersByNumber(tensors);
    }
    for (const InfiniTrainTensor& tensor : tensors) {
      TESSERA_RETURN_IF_ERROR(Add(path, tensor, tensor.shape,
                                  {{.box = WholeBox(tensor.shape),
                                    .file = path,
                                    .offset_bytes = tensor.offset_bytes,
                                    .strides = ContiguousStrides(tensor.shape)}}));
    }
    return open != nullptr;
  }

  // Returns an error if the first rank's file of this name has other tensors.
  absl::Status CheckSame(const std::string& path, std::vector<std::string> names) {
    std::ranges::sort(names);
    const auto [at, is_new] = names_.emplace(path.substr(path.rfind('/') + 1), names);
    const std::vector<std::string>& first = at->second;
    if (is_new || first == names) return absl::OkStatus();
    const auto [expected, found] = std::ranges::mismatch(first, names);
    const bool is_new_name =
        expected == first.end() || (found != names.end() && *found < *expected);
    return DamagedTensor(path, is_new_name ? *found : *expected,
                         is_new_name ? "not in " : "missing, but in ", ranks_.front());
  }

  // Returns the parameters of the moments by number; empty if that is unknown.
  std::vector<std::string> ParametersByNumber(const std::vector<InfiniTrainTensor>& states) const {
    std::map<size_t, Shape> shapes;
    for (const InfiniTrainTensor& state : states) {
      const std::optional<Moment> moment = ParseMoment(state.name);
      if (!moment.has_value() || !moment->number.has_value()) continue;
      if (shapes.emplace(*moment->number, state.shape).first->second != state.shape) return {};
    }
    if (shapes.empty()) return {};
    std::vector<std::string> names =
        OrderInfiniTrainParameters(weights_).value_or(std::vector<std::string>());
    if (names.size() == shapes.size() + 1) {  // the head is the embedding
      std::erase_if(names,
                    [](const std::string& name) { return name.ends_with("lm_head.weight"); });
    }
    if (names.size() != shapes.size()) return {};
    for (const auto& [number, shape] : shapes) {
      if (number >= names.size()) return {};
      const auto weight = index_.find(names[number]);
      if (weight == index_.end() || checkpoint_.tensors[weight->second].shape != shape) return {};
    }
    return names;
  }

  // Adds pieces of a stored tensor, which has this shape in the file.
  absl::Status Add(const std::string& file, const InfiniTrainTensor& stored,
                   const Shape& padded_shape, std::vector<StoredPiece> pieces) {
    if (stored.name == "adam.t") return TakeUpdates(file, stored);
    std::optional<Moment> moment = ParseMoment(stored.name);
    if (moment.has_value() && moment->number.has_value()) {
      has_numbers_ = has_numbers_ || numbered_.empty();
      if (numbered_.empty()) return absl::OkStatus();
      moment->parameter = numbered_[*moment->number];
    }
    const std::string name = moment.has_value()
                                 ? absl::StrCat("state.", moment->parameter, ".", moment->state)
                                 : stored.name;
    const Shape shape = WithoutPadding(moment.has_value() ? moment->parameter : name, padded_shape);
    std::vector<ForeignTensor>& tensors = checkpoint_.tensors;
    const auto [index, is_new] = index_.emplace(name, tensors.size());
    if (is_new) {
      tensors.push_back(
          {.name = name,
           .role = file.ends_with(kModelFile) ? TensorRole::kWeight : TensorRole::kOptimizerState,
           .dtype = stored.dtype,
           .shape = shape});
    }
    ForeignTensor& tensor = tensors[index->second];
    if (tensor.dtype != stored.dtype || tensor.shape != shape) {
      return DamagedTensor(file, stored.name, ProtoName(stored.dtype), " ", ShapeToString(shape),
                           ", in another rank's file ", ProtoName(tensor.dtype), " ",
                           ShapeToString(tensor.shape));
    }
    for (StoredPiece& piece : pieces) {
      if (Crop(shape, piece.box)) tensor.pieces.push_back(std::move(piece));
    }
    return absl::OkStatus();
  }

  // Adam's number of updates.
  absl::Status TakeUpdates(const std::string& path, const InfiniTrainTensor& tensor) {
    if (tensor.dtype != DType::kI64 || ElementCount(tensor.shape) != 1) {
      return DamagedTensor(path, tensor.name, "expected one I64");
    }
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file, storage_.Open(path));
    int64_t updates = 0;
    TESSERA_RETURN_IF_ERROR(
        file->ReadAt(tensor.offset_bytes, std::as_writable_bytes(std::span(&updates, 1))));
    if (updates_.value_or(updates) != updates) {
      return DamagedTensor(path, tensor.name, updates, ", in other ranks' files ", *updates_);
    }
    updates_ = updates;
    return absl::OkStatus();
  }

  // Returns the tensors of a file by name; each file is read once.
  absl::StatusOr<const std::map<std::string, InfiniTrainTensor>*> TensorsOf(
      const std::string& path) {
    const auto [at, is_new] = files_.try_emplace(path);
    if (is_new) {
      TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> open, storage_.Open(path));
      TESSERA_ASSIGN_OR_RETURN(const std::vector<InfiniTrainTensor> tensors,
                               At(storage_, path, ReadInfiniTrainStateFile(*open)));
      for (const InfiniTrainTensor& tensor : tensors) at->second.emplace(tensor.name, tensor);
    }
    return &at->second;
  }

  absl::Status AddShard(const InfiniTrainShard& shard) {
    TESSERA_ASSIGN_OR_RETURN(const auto* const tensors, TensorsOf(shard.file));
    const auto at = tensors->find(shard.key);
    if (at == tensors->end()) {
      return DamagedTensor(shard.file, shard.key, "missing, but in ", kMetadataFile);
    }
    const InfiniTrainTensor& stored = at->second;
    if (stored.shape != shard.local_shape || stored.offset_bytes != shard.offset_bytes) {
      return DamagedTensor(shard.file, shard.key, ShapeToString(stored.shape), " at byte ",
                           stored.offset_bytes, ", in ", kMetadataFile, " ",
                           ShapeToString(shard.local_shape), " at byte ", shard.offset_bytes);
    }
    return Add(shard.file, stored, shard.global_shape, PiecesOf(shard, stored));
  }

  // Returns the vocabulary's rows without those that pad it for tensor-parallel ranks.
  Shape WithoutPadding(std::string_view parameter, Shape shape) const {
    const auto padded = Number("padded_vocab_size"), rows = Number("original_vocab_size");
    const bool has_vocabulary =
        parameter == "transformer.wte.weight" || parameter == "lm_head.weight";
    if (has_vocabulary && padded && rows && !shape.empty() && shape[0] == *padded && *rows > 0 &&
        *rows < *padded) {
      shape[0] = *rows;
    }
    return shape;
  }

  // Step, consumed samples and notes.
  absl::Status DescribeRun() {
    if (has_numbers_) {
      checkpoint_.notes.emplace_back(
          "Left out: moments by number (adam.m.3): which parameters these are depends on the hash "
          "tables of the program that wrote them, and the order of the tensors in model.ckpt is "
          "not that of known ones; later releases of InfiniTrain name the moments "
          "(adam.m.transformer.wte.weight).");
    }
    const auto step = Number("global_step"), samples = Number("consumed_train_samples");
    for (size_t rank = 1; rank < ranks_.size(); ++rank) {
      if (FindInfiniTrainNumber(texts_[rank], "global_step") == step) continue;
      return Damaged(storage_, JoinPath(ranks_[rank], kTrainerStateFile),
                     "global_step differs from that of ", ranks_.front());
    }
    if (step.has_value() && updates_.value_or(*step) != *step) {
      checkpoint_.notes.push_back(absl::StrCat("The step is unknown: global_step is ", *step,
                                               ", but Adam has counted ", *updates_, " updates."));
      return absl::OkStatus();
    }
    const int64_t known = step.value_or(updates_.value_or(-1));
    if (known < 0) return absl::OkStatus();
    SetProgress(known, samples, checkpoint_.description);
    checkpoint_.description.mutable_topology()->set_data_parallel(
        static_cast<uint32_t>(ranks_.size()));
    return absl::OkStatus();
  }

  Storage& storage_;
  const std::vector<std::string> ranks_;
  std::vector<std::string> texts_;  // of the ranks' trainer_state.json
  size_t rank_ = 0;                 // whose files are being read
  ForeignCheckpoint checkpoint_ = CheckpointOf(kInfiniTrain, "InfiniTrain");
  std::map<std::string, size_t> index_;                    // of tensors, by name
  std::map<std::string, std::vector<std::string>> names_;  // in the first rank's files, sorted
  std::map<std::string, std::map<std::string, InfiniTrainTensor>> files_;  // with metadata.json
  std::optional<int64_t> updates_;
  std::vector<std::string> weights_;   // of the rank's model.ckpt, in the file's order
  std::vector<std::string> numbered_;  // the parameter of each of its numbered moments
  bool has_numbers_ = false;           // that are left out
};

}  // namespace

absl::StatusOr<bool> IsInfiniTrain(Storage& storage) {
  for (const char* const rank : {"", "rank_000000"}) {
    TESSERA_ASSIGN_OR_RETURN(const auto file, OpenIfPresent(storage, JoinPath(rank, kModelFile)));
    if (file == nullptr) continue;
    TESSERA_ASSIGN_OR_RETURN(const bool found, IsInfiniTrainStateFile(*file));
    if (found) return true;
  }
  return false;
}

absl::StatusOr<ForeignCheckpoint> ReadInfiniTrain(Storage& storage, const ModelProto* model) {
  TESSERA_ASSIGN_OR_RETURN(const bool is_sharded, IsShardedInfiniTrain(storage));
  std::vector<std::string> ranks = {""};
  if (!is_sharded) {
    TESSERA_ASSIGN_OR_RETURN(ranks, FindRanks(storage));
  }
  Reader reader(storage, std::move(ranks));
  TESSERA_ASSIGN_OR_RETURN(ForeignCheckpoint checkpoint, reader.Read(is_sharded));
  TESSERA_RETURN_IF_ERROR(NameStateDict(storage, model, kInfiniTrain, checkpoint));
  if (checkpoint.description.has_model()) TESSERA_RETURN_IF_ERROR(reader.CheckModel(checkpoint));
  return checkpoint;
}

}  // namespace tessera::ckpt::convert
