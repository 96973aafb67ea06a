#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/directory/directory.h"
#include "convert/core/foreign_layout.h"
#include "convert/core/models.h"
#include "convert/core/optimizer_groups.h"
#include "convert/core/rank_grid.h"
#include "convert/core/reading.h"
#include "convert/formats/megatron/rank_file.h"
#include "convert/formats/megatron/run.h"
#include "convert/formats/megatron/state_buffer.h"
#include "convert/pickle/torch_archive.h"
#include "layout/box.h"

namespace tessera::ckpt::convert {
namespace {

using pickle::Value;

constexpr char kDistributedFile[] = "distrib_optim.pt";
// The first version of Megatron-LM's dict that is read. Before it, queries, keys and values were
// fused in other orders.
constexpr double kCheckpointVersion = 3;

struct MegatronRank {
  std::string folder;  // "mp_rank_01_000"
  std::string path;
  TorchArchive archive;
  std::vector<RankChunk> chunks;
};

// Reads the folders mp_rank_XX of all ranks: the arguments and the model from all files first, then
// each rank's weights and optimizer states.
class LegacyReader {
 public:
  LegacyReader(Storage& storage, std::string folder)
      : storage_(storage), folder_(std::move(folder)) {}

  absl::StatusOr<ForeignCheckpoint> Read() {
    TESSERA_RETURN_IF_ERROR(ReadFiles());
    int64_t tensors = 0;
    for (const MegatronRank& file : files_) {
      for (const RankChunk& chunk : file.chunks) {
        tensors += static_cast<int64_t>(chunk.tensors.size());
      }
    }
    TESSERA_ASSIGN_OR_RETURN(
        model_, ReadMegatronModel(*run_, storage_.Describe(files_.front().path), tensors, bytes_));
    set_.emplace(model_->description());
    NumberLayers();
    for (size_t stage = 0; stage < stages(); ++stage) {
      for (size_t rank = 0; rank < tensor_ranks(); ++rank) {
        TESSERA_RETURN_IF_ERROR(AddRank(stage, rank));
      }
    }
    ForeignCheckpoint checkpoint = CheckpointOf(kMegatron, "Megatron-LM");
    run_->Describe(checkpoint);
    TESSERA_RETURN_IF_ERROR(
        std::move(*set_).MoveTo(kMegatron, storage_.Describe(folder_), checkpoint));
    TESSERA_RETURN_IF_ERROR(CheckMasterWeights(storage_, checkpoint.tensors));
    TakeFacts(facts_, checkpoint);
    NoteLeftOut("states of modules", left_out_, checkpoint.notes);
    return checkpoint;
  }

 private:
  absl::Status ReadFiles() {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> found,
                             FindMegatronRanks(storage_, folder_));
    if (found.empty()) return NotFound(storage_.Describe(folder_), ": no folder mp_rank_00");
    TESSERA_ASSIGN_OR_RETURN(MegatronRank first, ReadFile(found.front()));
    const Value root = first.archive.contents.root();
    const MegatronRun run(root);
    const Value version = root.Find("checkpoint_version");
    if (version.AsFloat().value_or(static_cast<double>(version.AsInt().value_or(0))) <
        kCheckpointVersion) {
      return Unimplemented(storage_.Describe(first.path),
                           ": checkpoint_version is below 3, when queries, keys and values were "
                           "fused in other orders: load and save it with a later Megatron-LM");
    }
    tensor_ranks_ = run.Integer("tensor_model_parallel_size").value_or(1);
    stages_ = run.Integer("pipeline_model_parallel_size").value_or(1);
    if (tensor_ranks_ < 1 || stages_ < 1) {
      return Damaged(storage_, first.path, "its arguments have a parallel size below 1");
    }
    TESSERA_RETURN_IF_ERROR(CheckGrid(found));
    for (int64_t stage = 0; stage < stages_; ++stage) {
      for (int64_t rank = 0; rank < tensor_ranks_; ++rank) {
        TESSERA_ASSIGN_OR_RETURN(MegatronRank file, ReadFile(FolderOf(rank, stage)));
        files_.push_back(std::move(file));
        TESSERA_RETURN_IF_ERROR(CheckFile(files_.back()));
      }
    }
    run_.emplace(files_.front().archive.contents.root());
    return CheckPlaces();
  }

  // Checks that there is a folder for each rank of the grid, and no other.
  absl::Status CheckGrid(const std::vector<std::string>& found) {
    const std::string grid =
        absl::StrCat(tensor_ranks_, " tensor-parallel and ", stages_, " pipeline-parallel ranks");
    const int64_t extents[] = {tensor_ranks_, stages_};
    std::vector<std::string> missing;
    TESSERA_ASSIGN_OR_RETURN(
        const std::vector<RankFile> wanted,
        CompleteGrid(Folders(), std::span(extents, stages_ > 1 ? 2 : 1), found, missing));
    std::set<std::string> others(found.begin(), found.end());
    for (const RankFile& file : wanted) others.erase(file.name);
    if (!missing.empty()) {
      return Damaged(storage_, folder_, "the run had ", grid, ", but there is no ",
                     JoinFirst(missing, ", "));
    }
    if (others.empty()) return absl::OkStatus();
    return Damaged(storage_, folder_, "the run had ", grid, ", but there is ",
                   JoinFirst({others.begin(), others.end()}, ", "), ", too");
  }

  // Checks that a rank's file belongs to the same save as the first one.
  absl::Status CheckFile(const MegatronRank& file) const {
    const MegatronRank& first = files_.front();
    const Value root = file.archive.contents.root(), first_root = first.archive.contents.root();
    const std::optional<int64_t> step = root.Find("iteration").AsInt();
    const std::optional<int64_t> first_step = first_root.Find("iteration").AsInt();
    const auto shown = [](const std::optional<int64_t>& number) {
      return number ? absl::StrCat(*number) : std::string("unknown");
    };
    if (step != first_step) {
      return Damaged(storage_, file.path, "its iteration is ", shown(step), ", that of ",
                     first.folder, " is ", shown(first_step));
    }
    const MegatronRun run(root);
    if (run.Integer("tensor_model_parallel_size").value_or(1) != tensor_ranks_ ||
        run.Integer("pipeline_model_parallel_size").value_or(1) != stages_) {
      return Damaged(storage_, file.path,
                     "its arguments have another parallel layout than "
                     "those of ",
                     first.folder);
    }
    if (file.chunks.size() != first.chunks.size()) {
      return Damaged(storage_, file.path, file.chunks.size(), " chunks of the model, ",
                     first.folder, " has ", first.chunks.size());
    }
    return absl::OkStatus();
  }

  // Checks that each file is in the folder of the rank that wrote it, as far as its arguments tell.
  absl::Status CheckPlaces() const {
    std::vector<int64_t> ranks;
    for (const MegatronRank& file : files_) {
      const auto rank = MegatronRun(file.archive.contents.root()).Integer("rank");
      if (!rank) return absl::OkStatus();
      ranks.push_back(*rank);
    }
    const auto found = FindMisplacedFile(
        ranks, {.tensor_ranks = tensor_ranks_,
                .context_ranks = run_->Integer("context_parallel_size").value_or(1),
                .data_ranks = run_->Integer("data_parallel_size").value_or(1)});
    if (!found) return absl::OkStatus();
    return Damaged(storage_, files_[found->file].path, "its arguments say that rank ",
                   ranks[found->file], " of the run wrote it, whose place is ",
                   files_[found->place].path);
  }

  // A virtual pipeline passes through the stages once for each chunk.
  void NumberLayers() {
    const size_t chunks = files_.front().chunks.size();
    first_layers_.assign(stages(), std::vector<int64_t>(chunks));
    int64_t next = 0;
    for (size_t chunk = 0; chunk < chunks; ++chunk) {
      for (size_t stage = 0; stage < stages(); ++stage) {
        first_layers_[stage][chunk] = next;
        next += files_[stage * tensor_ranks()].chunks[chunk].layers;
      }
    }
  }

  absl::Status AddRank(size_t stage, size_t tensor_rank) {
    const size_t index = stage * tensor_ranks() + tensor_rank;
    const MegatronRank& file = files_[index];
    std::vector<std::vector<RankParameter>> chunks;
    for (size_t i = 0; i < file.chunks.size(); ++i) {
      const int64_t layers = files_[stage * tensor_ranks()].chunks[i].layers;
      if (file.chunks[i].layers != layers) {
        return Damaged(storage_, file.path, file.chunks[i].layers, " layers, ",
                       FolderOf(0, static_cast<int64_t>(stage)), " has ", layers);
      }
      TESSERA_ASSIGN_OR_RETURN(chunks.emplace_back(),
                               AddChunk(file, file.chunks[i], first_layers_[stage][i],
                                        static_cast<int64_t>(tensor_rank)));
    }
    const Value optimizer = file.archive.contents.root().Find("optimizer");
    if (!optimizer.present()) return absl::OkStatus();
    if (optimizer.is(pickle::Kind::kList)) {
      return Unimplemented(storage_.Describe(file.path),
                           ": the states of several optimizers, expected one");
    }
    TESSERA_RETURN_IF_ERROR(AddOptimizerFacts(storage_, file.path, facts_));
    if (HasNumberedState(optimizer)) return AddNumbered(file, optimizer, chunks);
    return AddDistributed(file, stage, chunks);
  }

  absl::StatusOr<std::vector<RankParameter>> AddChunk(const MegatronRank& file,
                                                      const RankChunk& chunk, int64_t first_layer,
                                                      int64_t tensor_rank) {
    std::vector<RankParameter> added;
    for (const auto& [name, tensor] : chunk.tensors) {
      LayerName split = SplitLayer(name);
      if (split.layer >= 0) split.before += absl::StrCat(first_layer + split.layer) + split.after;
      const int64_t rows = tensor.shape.empty() ? 0 : tensor.shape[0];
      const ForeignParameter* const parameter =
          FindMegatronParameter(*model_, split.before, rows * tensor_ranks_);
      if (parameter == nullptr) {
        return InvalidArgument(storage_.Describe(file.path), ": tensor ", name, " (", split.before,
                               " of the whole model) belongs to no parameter of the model that ",
                               "its arguments describe");
      }
      const TensorParallelShare share = {tensor_rank, tensor_ranks_};
      TESSERA_RETURN_IF_ERROR(set_->AddWhole(*parameter, share, kForeignWeight, file.path, tensor));
      added.push_back({.parameter = parameter,
                       .share = share,
                       .elements = ElementCount(tensor.shape),
                       .has_own_bucket = stages_ > 1 && IsTiedEmbedding(*parameter)});
    }
    for (const std::string& name : chunk.left_out) left_out_.push_back(name);
    return added;
  }

  // Matrices have weight decay, vectors have none; inside a group, parameters are in the order of
  // the chunks and modules.
  absl::Status AddNumbered(const MegatronRank& file, const Value& optimizer,
                           const std::vector<std::vector<RankParameter>>& chunks) {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<MegatronGroup> groups,
                             At(storage_, file.path, ReadNumberedState(file.archive, optimizer)));
    std::set<bool> seen;
    for (const MegatronGroup& group : groups) {
      if (!seen.insert(group.has_weight_decay).second) {
        return Unimplemented(storage_.Describe(file.path),
                             ": several groups of the optimizer have the same weight decay, "
                             "so it cannot be told which parameters they have");
      }
      std::vector<const RankParameter*> parameters;
      for (const std::vector<RankParameter>& chunk : chunks) {
        for (const RankParameter& own : chunk) {
          if ((own.parameter->shape.size() > 1) == group.has_weight_decay)
            parameters.push_back(&own);
        }
      }
      TESSERA_RETURN_IF_ERROR(At(storage_, file.path, AddGroup(file, group, parameters)));
    }
    return absl::OkStatus();
  }

  absl::Status AddGroup(const MegatronRank& file, const MegatronGroup& group,
                        const std::vector<const RankParameter*>& parameters) {
    if (group.parameters.size() != parameters.size()) {
      return DataLoss("a group of the optimizer has ", group.parameters.size(),
                      " parameters, the model has ", parameters.size(),
                      group.has_weight_decay ? " matrices" : " vectors",
                      ", so they cannot be matched");
    }
    for (size_t i = 0; i < parameters.size(); ++i) {
      for (const auto& [kind, tensor] : group.parameters[i]) {
        TESSERA_RETURN_IF_ERROR(set_->AddWhole(*parameters[i]->parameter, parameters[i]->share,
                                               kind, file.path, tensor));
      }
    }
    return absl::OkStatus();
  }

  absl::Status AddDistributed(const MegatronRank& file, size_t stage,
                              const std::vector<std::vector<RankParameter>>& chunks) {
    const std::string path = PathOf(file.folder, kDistributedFile);
    TESSERA_ASSIGN_OR_RETURN(const auto archive, IfPresent(ReadArchive(path)));
    if (!archive) {
      return Damaged(storage_, path, "missing; it has the distributed optimizer's state");
    }
    TESSERA_ASSIGN_OR_RETURN(
        const std::vector<GatheredBuffer> buffers,
        At(storage_, path, ReadGatheredState(*archive, archive->contents.root())));
    if (buffers.size() != chunks.size()) {
      return Damaged(storage_, path, buffers.size(), " buffers for ", chunks.size(),
                     " chunks of the model");
    }
    for (size_t i = 0; i < chunks.size(); ++i) {
      const StateBuffer buffer = BufferOf(buffers[i], path, storage_.Describe(path));
      const bool is_first = i == 0 && stage == 0;
      const auto begins = PlaceInBuffer(chunks[i], buffer, is_first ? run_->BucketElements() : 0);
      if (!begins) {
        return Damaged(storage_, path, "buffer ", i, " has ", buffer.elements,
                       " elements, which is not what the parameters in ", file.path,
                       " take up, divided into buckets as its arguments tell");
      }
      TESSERA_RETURN_IF_ERROR(AddBuffer(chunks[i], *begins, buffer, *set_));
    }
    return absl::OkStatus();
  }

  size_t tensor_ranks() const { return static_cast<size_t>(tensor_ranks_); }
  size_t stages() const { return static_cast<size_t>(stages_); }
  // Returns the pattern of a folder's name, which has the stage if there are several.
  RankPattern Folders() const {
    return RankPattern(stages_ > 1 ? "mp_rank_{2}_{3}" : "mp_rank_{2}");
  }
  std::string FolderOf(int64_t tensor_rank, int64_t stage) const {
    const int64_t ranks[] = {tensor_rank, stage};
    return Folders().Name(std::span(ranks, stages_ > 1 ? 2 : 1));
  }
  std::string PathOf(const std::string& rank_folder, const char* file) const {
    return JoinPath(JoinPath(folder_, rank_folder), file);
  }

  absl::StatusOr<MegatronRank> ReadFile(const std::string& rank_folder) {
    const std::string path = PathOf(rank_folder, kMegatronRankFile);
    TESSERA_ASSIGN_OR_RETURN(TorchArchive archive, ReadArchive(path));
    TESSERA_ASSIGN_OR_RETURN(std::vector<RankChunk> chunks,
                             At(storage_, path, ReadRankChunks(archive)));
    return MegatronRank{rank_folder, path, std::move(archive), std::move(chunks)};
  }

  absl::StatusOr<TorchArchive> ReadArchive(const std::string& path) {
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file, storage_.Open(path));
    bytes_ += file->size_bytes();
    return At(storage_, path, ReadTorchArchive(*file, {0, file->size_bytes()}));
  }

  Storage& storage_;
  const std::string folder_;
  int64_t tensor_ranks_ = 1, stages_ = 1;
  std::vector<MegatronRank> files_;                 // by stage and tensor-parallel rank
  std::vector<std::vector<int64_t>> first_layers_;  // by stage and chunk
  std::optional<MegatronRun> run_;
  std::optional<ForeignModel> model_;
  std::optional<ForeignTensorSet> set_;
  std::vector<std::string> left_out_;
  OptimizerFacts facts_;
  uint64_t bytes_ = 0;  // of files_
};

}  // namespace

absl::StatusOr<ForeignCheckpoint> ReadMegatronLegacy(Storage& storage, const std::string& folder) {
  return LegacyReader(storage, folder).Read();
}

}  // namespace tessera::ckpt::convert
