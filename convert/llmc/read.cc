#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "convert/core/reading.h"
#include "convert/llmc/llmc.h"
#include "layout/dtype.h"
#include "models/layers/architecture.h"
#include "models/registry.h"

namespace tessera::ckpt::convert {
namespace {

constexpr int kMaxRanks = 1 << 16;

// N of "PREFIXnnnnnnnnSUFFIX", eight digits.
std::optional<int64_t> StepOf(std::string_view name, std::string_view prefix,
                              std::string_view suffix) {
  if (name.size() != prefix.size() + 8 + suffix.size() || !name.starts_with(prefix) ||
      !name.ends_with(suffix)) {
    return std::nullopt;
  }
  const std::string digits(name.substr(prefix.size(), 8));
  int64_t step = 0;
  if (!std::ranges::all_of(digits, [](char c) { return '0' <= c && c <= '9'; }) ||
      !absl::SimpleAtoi(digits, &step)) {
    return std::nullopt;
  }
  return step;
}

std::optional<int64_t> StepOfModel(std::string_view file) { return StepOf(file, "model_", ".bin"); }

absl::StatusOr<LlmcFile> ReadHeader(Storage& storage, const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file, storage.Open(path));
  LlmcFile opened = {.path = storage.Describe(path),
                     .size_bytes = static_cast<int64_t>(file->size_bytes())};
  if (opened.size_bytes < kLlmcHeaderBytes) {
    return opened.Corrupt(absl::StrCat("truncated: expected ", kLlmcHeaderBytes,
                                       " bytes of header, found ", opened.size_bytes));
  }
  TESSERA_RETURN_IF_ERROR(file->ReadAt(0, std::as_writable_bytes(std::span(opened.header))));
  return opened;
}

using ParametersByName = std::map<std::string, const LogicalParameter*>;

// A tensor of the model, or of the optimizer's state of that shape.
class LlmcReader {
 public:
  LlmcReader(Storage& storage, LlmcDescription description)
      : storage_(storage), description_(std::move(description)) {
    for (const LogicalParameter& parameter : description_.model.parameters) {
      parameters_[parameter.name] = &parameter;
      if (!parameter.tied_name.empty()) tied_[parameter.tied_name] = &parameter;
    }
    for (const LlmcTensor& tensor : description_.tensors) {
      elements_ += tensor.rows * tensor.columns;
    }
  }

  absl::StatusOr<std::vector<ForeignTensor>> ReadModel(const std::string& file) {
    std::vector<ForeignTensor> tensors;
    uint64_t offset = kLlmcHeaderBytes;
    const size_t size = ElementSize(description_.dtype);
    for (const LlmcTensor& tensor : description_.tensors) {
      const int64_t count = tensor.rows * tensor.columns;
      // Where the head is stored although it is tied, it is a copy of the embedding.
      TESSERA_ASSIGN_OR_RETURN(const LogicalParameter* const parameter, Find(tensor.name));
      ForeignTensor& target =
          Target(*parameter, TensorRole::kWeight, "", description_.dtype, tensors);
      AddLlmcPieces(tensor, {parameter->shape.size() == 1, size, file}, 0, count, offset,
                    target.pieces);
      offset += static_cast<uint64_t>(count) * size;
    }
    for (const auto& [name, parameter] : tied_) {
      tensors.push_back({.name = name,
                         .dtype = description_.dtype,
                         .shape = parameter->shape,
                         .alias_of = parameter->name});
    }
    return tensors;
  }

  // The optimizer's state in the files of all ranks; none where rank 0 has no file.
  absl::Status ReadStates(int64_t step, ForeignCheckpoint& checkpoint) {
    absl::StatusOr<LlmcFile> first = ReadHeader(storage_, StateFile(step, 0));
    if (absl::IsNotFound(first.status())) {
      checkpoint.notes.push_back("There is no optimizer state: no " + StateFile(step, 0) + ".");
      return absl::OkStatus();
    }
    TESSERA_RETURN_IF_ERROR(first.status());
    const int32_t ranks = first->header[2];
    if (ranks < 1 || ranks > kMaxRanks) {
      return Damaged(storage_, StateFile(step, 0),
                     absl::StrCat("header field 2: ", ranks, " ranks"));
    }
    std::vector<ForeignTensor> states;
    for (int rank = 0; rank < ranks; ++rank) {
      const std::string file = StateFile(step, rank);
      TESSERA_ASSIGN_OR_RETURN(const LlmcFile opened, ReadHeader(storage_, file));
      TESSERA_RETURN_IF_ERROR(CheckState(file, opened.header, first->header, rank, step));
      TESSERA_RETURN_IF_ERROR(ReadState(file, opened, states));
    }
    Describe(first->header, checkpoint);
    for (ForeignTensor& state : states) checkpoint.tensors.push_back(std::move(state));
    return absl::OkStatus();
  }

 private:
  static std::string StateFile(int64_t step, int rank) {
    return absl::StrFormat("state_%08d_%05d.bin", step, rank);
  }
  absl::StatusOr<const LogicalParameter*> Find(const std::string& name) const {
    const auto parameter = parameters_.find(name);
    if (parameter != parameters_.end()) return parameter->second;
    const auto tied = tied_.find(name);
    if (tied != tied_.end()) return tied->second;
    return absl::InternalError(absl::StrCat("llm.c: the model has no parameter ", name));
  }

  // The tensor of a parameter, or of its state, in a list; new ones are added.
  ForeignTensor& Target(const LogicalParameter& parameter, TensorRole role,
                        const std::string& state, DType dtype,
                        std::vector<ForeignTensor>& tensors) {
    const std::string name = state.empty() ? parameter.name : parameter.name + "." + state;
    const auto [at, is_new] = index_.emplace(name, tensors.size());
    if (is_new) {
      tensors.push_back({.name = name,
                         .role = role,
                         .dtype = dtype,
                         .shape = parameter.shape,
                         .partition = parameter.partition});
    }
    return tensors[at->second];
  }

  absl::Status CheckState(const std::string& file, const LlmcHeader& header,
                          const LlmcHeader& first, int rank, int64_t step) const {
    const std::array<std::pair<int, int64_t>, 4> expected = {
        {{0, kStateMagic}, {1, kStateVersion}, {3, rank}, {10, step}}};
    for (const auto& [field, value] : expected) {
      if (header[field] == value) continue;
      return Damaged(
          storage_, file,
          absl::StrCat("header field ", field, ": expected ", value, ", found ", header[field]));
    }
    for (const int field : {2, 4}) {
      if (header[field] == first[field]) continue;
      return Damaged(storage_, file,
                     absl::StrCat("header field ", field, ": ", header[field],
                                  ", in rank 0's file ", first[field]));
    }
    return absl::OkStatus();
  }

  // m, v and, where there are any, master weights, each for the whole model in the model file's
  // order. With ZeRO, of each tensor an equal part by rank.
  absl::Status ReadState(const std::string& file, const LlmcFile& opened,
                         std::vector<ForeignTensor>& states) {
    const int ranks = opened.header[2], rank = opened.header[3];
    const bool has_master = opened.header[4] != 0;
    const int64_t arrays = has_master ? 3 : 2;
    const auto body = static_cast<uint64_t>(opened.size_bytes - kLlmcHeaderBytes);
    const auto bytes_of = [&](int64_t parts) {
      return static_cast<uint64_t>(arrays * (elements_ / parts)) * sizeof(float);
    };
    // A shuffled data loader's state may follow.
    const bool shuffles = opened.header[5] != 0;
    const auto fits = [&](uint64_t bytes) { return shuffles ? body >= bytes : body == bytes; };
    const int parts = fits(bytes_of(1)) ? 1 : ranks;
    if (!fits(bytes_of(parts))) {
      return Damaged(storage_, file,
                     absl::StrCat("expected ", kLlmcHeaderBytes + bytes_of(1), " bytes or, in ",
                                  ranks, " parts, ", kLlmcHeaderBytes + bytes_of(ranks), ", found ",
                                  opened.size_bytes));
    }
    const int part = parts == 1 ? 0 : rank;
    uint64_t offset = kLlmcHeaderBytes;
    for (const char* name : {"exp_avg", "exp_avg_sq", "master"}) {
      const bool is_master = std::string_view(name) == "master";
      if (is_master && !has_master) break;
      for (const LlmcTensor& tensor : description_.tensors) {
        const int64_t count = tensor.rows * tensor.columns;
        if (count % parts != 0) {
          return Damaged(storage_, file,
                         absl::StrCat("tensor ", tensor.name, ": ", parts,
                                      " ranks do not divide its ", count, " elements"));
        }
        TESSERA_ASSIGN_OR_RETURN(const LogicalParameter* const parameter, Find(tensor.name));
        const TensorRole role = is_master ? TensorRole::kMasterWeight : TensorRole::kOptimizerState;
        ForeignTensor& target = Target(*parameter, role, name, DType::kF32, states);
        const int64_t each = count / parts;
        AddLlmcPieces(tensor, {parameter->shape.size() == 1, sizeof(float), file}, part * each,
                      (part + 1) * each, offset, target.pieces);
        offset += static_cast<uint64_t>(each) * sizeof(float);
      }
    }
    return absl::OkStatus();
  }

  // The step, which counts Adam's updates, and the names of the optimizer's state.
  void Describe(const LlmcHeader& header, ForeignCheckpoint& checkpoint) const {
    Manifest& manifest = checkpoint.description;
    manifest.mutable_topology()->set_data_parallel(static_cast<uint32_t>(header[2]));
    OptimizerState& optimizer = *manifest.mutable_optimizer();
    optimizer.set_algorithm("adamw");
    optimizer.add_groups();
    optimizer.add_groups();
    const bool has_master = header[4] != 0;
    for (const LogicalParameter& parameter : description_.model.parameters) {
      OptimizerParameter& entry = *optimizer.add_parameters();
      entry.set_parameter(parameter.name);
      entry.set_group(parameter.weight_decay ? 0 : 1);
      for (const char* state : {"exp_avg", "exp_avg_sq", "master"}) {
        if (std::string_view(state) == "master" && !has_master) continue;
        (*entry.mutable_states())[state] = absl::StrCat(parameter.name, ".", state);
      }
    }
  }

  Storage& storage_;
  const LlmcDescription description_;
  ParametersByName parameters_, tied_;
  std::map<std::string, size_t> index_;  // of tensors, by name, in the list that has them
  int64_t elements_ = 0;
};

}  // namespace

absl::StatusOr<std::string> FindLlmcModel(Storage& storage, std::string_view file) {
  std::string model(file);
  if (model.empty()) {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, storage.List(""));
    std::set<int64_t> models, done;
    for (const std::string& name : names) {
      if (const std::optional<int64_t> step = StepOfModel(name)) models.insert(*step);
      if (const std::optional<int64_t> step = StepOf(name, "DONE_", "")) done.insert(*step);
    }
    if (!done.empty()) std::erase_if(models, [&](int64_t step) { return !done.contains(step); });
    if (models.empty()) return std::string();
    model = absl::StrFormat("model_%08d.bin", *models.rbegin());
  }
  const absl::StatusOr<LlmcFile> opened = ReadHeader(storage, model);
  if (absl::IsDataLoss(opened.status())) return std::string();
  TESSERA_RETURN_IF_ERROR(opened.status());
  for (const Architecture* const architecture : Architectures()) {
    if (architecture->llmc != nullptr && architecture->llmc->magic == opened->header[0]) {
      return model;
    }
  }
  return std::string();
}

absl::StatusOr<ForeignCheckpoint> ReadLlmc(Storage& storage, const std::string& model_file,
                                           const ModelProto* model) {
  TESSERA_ASSIGN_OR_RETURN(LlmcFile opened, ReadHeader(storage, model_file));
  TESSERA_ASSIGN_OR_RETURN(LlmcDescription description, ReadLlmcHeader(opened, model));
  ForeignCheckpoint checkpoint = {.format = std::string(kLlmc)};
  checkpoint.description.mutable_producer()->set_program("llm.c");
  *checkpoint.description.mutable_model() = description.model.config;
  LlmcReader reader(storage, std::move(description));
  TESSERA_ASSIGN_OR_RETURN(checkpoint.tensors, reader.ReadModel(model_file));
  if (const std::optional<int64_t> step = StepOfModel(model_file)) {
    SetProgress(*step, std::nullopt, checkpoint.description);
    TESSERA_RETURN_IF_ERROR(reader.ReadStates(*step, checkpoint));
  }
  return checkpoint;
}

}  // namespace tessera::ckpt::convert
