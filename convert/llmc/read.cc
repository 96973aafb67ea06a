#include "convert/llmc/read.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
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
#include "base/byte_order.h"
#include "base/status_macros.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/format/dtype.h"
#include "convert/llmc/pieces.h"

namespace tessera::ckpt::convert {
namespace {

constexpr uint64_t kHeaderBytes = 1024;  // 256 int32, little-endian
using Header = std::array<std::byte, kHeaderBytes>;

constexpr int32_t kModelMagics[] = {20240326, 20240803};  // GPT-2, Llama-3
constexpr int32_t kStateMagic = 20240527;
constexpr int32_t kStateVersion = 1;
constexpr int kMaxRanks = 1 << 16;

int32_t Field(const Header& header, int index) {
  return static_cast<int32_t>(LoadLittleEndian<uint32_t>(header.data() + 4 * index));
}

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

struct OpenedFile {
  Header header;
  uint64_t size_bytes = 0;
};

absl::StatusOr<OpenedFile> ReadHeader(Storage& storage, const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file, storage.Open(path));
  OpenedFile opened{.size_bytes = file->size_bytes()};
  if (opened.size_bytes < kHeaderBytes) {
    return absl::DataLossError(absl::StrCat(storage.Describe(path), ": truncated: expected ",
                                            kHeaderBytes, " bytes of header, found ",
                                            opened.size_bytes));
  }
  TESSERA_RETURN_IF_ERROR(file->ReadAt(0, opened.header));
  return opened;
}

using ParametersByName = std::map<std::string, const ModelParameter*>;

// A tensor of the model, or of the optimizer's state of that shape.
class LlmcReader {
 public:
  LlmcReader(Storage& storage, std::string_view folder, LlmcDescription description)
      : storage_(storage), folder_(folder), description_(std::move(description)) {
    for (const ModelParameter& parameter : description_.model.parameters) {
      parameters_[parameter.name] = &parameter;
      if (!parameter.tied_name.empty()) tied_[parameter.tied_name] = &parameter;
    }
    for (const LlmcTensorDescription& tensor : description_.tensors) {
      elements_ += tensor.rows * tensor.columns;
    }
  }

  absl::StatusOr<std::vector<ForeignTensor>> ReadModel(const std::string& file) {
    std::vector<ForeignTensor> tensors;
    uint64_t offset = kHeaderBytes;
    const size_t size = DTypeSize(description_.dtype);
    for (const LlmcTensorDescription& tensor : description_.tensors) {
      const int64_t count = tensor.rows * tensor.columns;
      // Where the head is stored although it is tied, it is a copy of the embedding.
      TESSERA_ASSIGN_OR_RETURN(const ModelParameter* const parameter, Find(tensor.name));
      ForeignTensor& target = Target(*parameter, WEIGHT, "", description_.dtype, tensors);
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
    absl::StatusOr<OpenedFile> first = ReadHeader(storage_, PathOf(StateFile(step, 0)));
    if (absl::IsNotFound(first.status())) {
      checkpoint.notes.push_back("There is no optimizer state: no " + StateFile(step, 0) + ".");
      return absl::OkStatus();
    }
    TESSERA_RETURN_IF_ERROR(first.status());
    const int32_t ranks = Field(first->header, 2);
    if (ranks < 1 || ranks > kMaxRanks) {
      return Damaged(StateFile(step, 0), absl::StrCat("header field 2: ", ranks, " ranks"));
    }
    std::vector<ForeignTensor> states;
    for (int rank = 0; rank < ranks; ++rank) {
      const std::string file = StateFile(step, rank);
      TESSERA_ASSIGN_OR_RETURN(const OpenedFile opened, ReadHeader(storage_, PathOf(file)));
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
  std::string PathOf(const std::string& file) const { return JoinPath(folder_, file); }
  absl::Status Damaged(const std::string& file, const absl::AlphaNum& problem) const {
    return absl::DataLossError(absl::StrCat(storage_.Describe(PathOf(file)), ": ", problem));
  }

  absl::StatusOr<const ModelParameter*> Find(const std::string& name) const {
    const auto parameter = parameters_.find(name);
    if (parameter != parameters_.end()) return parameter->second;
    const auto tied = tied_.find(name);
    if (tied != tied_.end()) return tied->second;
    return absl::InternalError(absl::StrCat("llm.c: the model has no parameter ", name));
  }

  // The tensor of a parameter, or of its state, in a list; new ones are added.
  ForeignTensor& Target(const ModelParameter& parameter, Role role, const std::string& state,
                        DType dtype, std::vector<ForeignTensor>& tensors) {
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

  absl::Status CheckState(const std::string& file, const Header& header, const Header& first,
                          int rank, int64_t step) const {
    const std::array<std::pair<int, int64_t>, 4> expected = {
        {{0, kStateMagic}, {1, kStateVersion}, {3, rank}, {10, step}}};
    for (const auto& [field, value] : expected) {
      if (Field(header, field) == value) continue;
      return Damaged(file, absl::StrCat("header field ", field, ": expected ", value, ", found ",
                                        Field(header, field)));
    }
    for (const int field : {2, 4}) {
      if (Field(header, field) == Field(first, field)) continue;
      return Damaged(file, absl::StrCat("header field ", field, ": ", Field(header, field),
                                        ", in rank 0's file ", Field(first, field)));
    }
    return absl::OkStatus();
  }

  // m, v and, where there are any, master weights, each for the whole model in the model file's
  // order. With ZeRO, of each tensor an equal part by rank.
  absl::Status ReadState(const std::string& file, const OpenedFile& opened,
                         std::vector<ForeignTensor>& states) {
    const int ranks = Field(opened.header, 2), rank = Field(opened.header, 3);
    const bool has_master = Field(opened.header, 4) != 0;
    const int64_t arrays = has_master ? 3 : 2;
    const uint64_t body = opened.size_bytes - kHeaderBytes;
    const auto bytes_of = [&](int64_t parts) {
      return static_cast<uint64_t>(arrays * (elements_ / parts)) * sizeof(float);
    };
    // A shuffled data loader's state may follow.
    const bool shuffles = Field(opened.header, 5) != 0;
    const auto fits = [&](uint64_t bytes) { return shuffles ? body >= bytes : body == bytes; };
    const int parts = fits(bytes_of(1)) ? 1 : ranks;
    if (!fits(bytes_of(parts))) {
      return Damaged(file, absl::StrCat("expected ", kHeaderBytes + bytes_of(1), " bytes or, in ",
                                        ranks, " parts, ", kHeaderBytes + bytes_of(ranks),
                                        ", found ", opened.size_bytes));
    }
    const int part = parts == 1 ? 0 : rank;
    uint64_t offset = kHeaderBytes;
    for (const char* name : {"exp_avg", "exp_avg_sq", "master"}) {
      const bool is_master = std::string_view(name) == "master";
      if (is_master && !has_master) break;
      for (const LlmcTensorDescription& tensor : description_.tensors) {
        const int64_t count = tensor.rows * tensor.columns;
        if (count % parts != 0) {
          return Damaged(file, absl::StrCat("tensor ", tensor.name, ": ", parts,
                                            " ranks do not divide its ", count, " elements"));
        }
        TESSERA_ASSIGN_OR_RETURN(const ModelParameter* const parameter, Find(tensor.name));
        const Role role = is_master ? MASTER_WEIGHT : OPTIMIZER_STATE;
        ForeignTensor& target = Target(*parameter, role, name, F32, states);
        const int64_t each = count / parts;
        AddLlmcPieces(tensor, {parameter->shape.size() == 1, sizeof(float), file}, part * each,
                      (part + 1) * each, offset, target.pieces);
        offset += static_cast<uint64_t>(each) * sizeof(float);
      }
    }
    return absl::OkStatus();
  }

  // The step, which counts Adam's updates, and the names of the optimizer's state.
  void Describe(const Header& header, ForeignCheckpoint& checkpoint) const {
    Manifest& manifest = checkpoint.description;
    manifest.mutable_topology()->set_data_parallel(static_cast<uint32_t>(Field(header, 2)));
    OptimizerState& optimizer = *manifest.mutable_optimizer();
    optimizer.set_algorithm("adamw");
    optimizer.add_groups();
    optimizer.add_groups();
    const bool has_master = Field(header, 4) != 0;
    for (const ModelParameter& parameter : description_.model.parameters) {
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
  const std::string folder_;
  const LlmcDescription description_;
  ParametersByName parameters_, tied_;
  std::map<std::string, size_t> index_;  // of tensors, by name, in the list that has them
  int64_t elements_ = 0;
};

}  // namespace

absl::StatusOr<std::string> FindLlmcModel(Storage& storage, std::string_view folder,
                                          std::string_view file) {
  std::string model(file);
  if (model.empty()) {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, storage.List(folder));
    std::set<int64_t> models, done;
    for (const std::string& name : names) {
      if (const std::optional<int64_t> step = StepOfModel(name)) models.insert(*step);
      if (const std::optional<int64_t> step = StepOf(name, "DONE_", "")) done.insert(*step);
    }
    if (!done.empty()) std::erase_if(models, [&](int64_t step) { return !done.contains(step); });
    if (models.empty()) return std::string();
    model = absl::StrFormat("model_%08d.bin", *models.rbegin());
  }
  const absl::StatusOr<OpenedFile> opened = ReadHeader(storage, JoinPath(folder, model));
  if (absl::IsDataLoss(opened.status())) return std::string();
  TESSERA_RETURN_IF_ERROR(opened.status());
  const int32_t magic = Field(opened->header, 0);
  return std::ranges::find(kModelMagics, magic) == std::end(kModelMagics) ? std::string() : model;
}

absl::StatusOr<ForeignCheckpoint> ReadLlmc(Storage& storage, std::string_view folder,
                                           const std::string& model_file, const ModelRules& rules) {
  const std::string path = JoinPath(folder, model_file);
  TESSERA_ASSIGN_OR_RETURN(const OpenedFile opened, ReadHeader(storage, path));
  TESSERA_ASSIGN_OR_RETURN(
      LlmcDescription description,
      rules.ReadLlmcHeader(storage.Describe(path), opened.header, opened.size_bytes));
  ForeignCheckpoint checkpoint = {.format = std::string(kLlmc)};
  checkpoint.description.mutable_producer()->set_program("llm.c");
  *checkpoint.description.mutable_model() = description.model.config;
  LlmcReader reader(storage, folder, std::move(description));
  TESSERA_ASSIGN_OR_RETURN(checkpoint.tensors, reader.ReadModel(model_file));
  if (const std::optional<int64_t> step = StepOfModel(model_file)) {
    TrainerState& trainer = *checkpoint.description.mutable_trainer();
    trainer.set_step(*step);
    trainer.set_best_loss(std::numeric_limits<double>::infinity());
    TESSERA_RETURN_IF_ERROR(reader.ReadStates(*step, checkpoint));
  }
  return checkpoint;
}

}  // namespace tessera::ckpt::convert
