#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/include/manifest.h"
#include "convert/core/foreign_layout.h"
#include "convert/core/models.h"
#include "convert/core/rank_grid.h"
#include "convert/core/reading.h"
#include "convert/formats/llmc/llmc.h"
#include "layout/box.h"
#include "layout/dtype.h"
#include "models/layers/architecture.h"
#include "models/registry.h"

namespace tessera::ckpt::convert {
namespace {

static_assert(std::endian::native == std::endian::little, "the files are little-endian");

constexpr int32_t kVersionF32 = 3;
constexpr int32_t kVersionBF16 = 5;

LlmcDescription Describe(const ModelConfig& config, const LlmcFormat& format, DType dtype,
                         const LlmcHeader& header) {
  LlmcDescription description = {
      .model = DescribeModel(config), .dtype = dtype, .tensors = format.tensors(config, header)};
  std::map<std::string, std::string> tied;  // names of parameters
  for (const LogicalParameter& parameter : description.model.parameters) {
    if (!parameter.tied_name.empty()) tied[parameter.tied_name] = parameter.name;
  }
  for (ForeignParameter& tensor : description.tensors) {
    const auto found = tied.find(tensor.name);
    if (found == tied.end()) continue;
    for (ForeignBlock& block : tensor.blocks) block.name = found->second;
  }
  return description;
}

constexpr int kMaxRanks = 1 << 16;

// Returns N of "PREFIXnnnnnnnnSUFFIX", eight digits.
std::optional<int64_t> StepOf(std::string_view name, std::string_view prefix,
                              std::string_view suffix) {
  int64_t step = 0;
  const bool has_step = name.starts_with(prefix) &&
                        absl::SimpleAtoi(View(name.substr(prefix.size(), 8)), &step) && step >= 0 &&
                        name == absl::StrFormat("%s%08d%s", View(prefix), step, View(suffix));
  return has_step ? std::optional(step) : std::nullopt;
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

class LlmcReader {
 public:
  LlmcReader(Storage& storage, LlmcDescription description)
      : storage_(storage), description_(std::move(description)), set_(description_.model) {
    for (const ForeignParameter& tensor : description_.tensors) {
      elements_ += ElementCount(tensor.shape);
    }
  }

  absl::Status ReadModel(const std::string& file) {
    ForeignPlace place = {
        .file = file, .offset_bytes = kLlmcHeaderBytes, .dtype = description_.dtype};
    return AddTensors(kForeignWeight, 0, 1, place);
  }

  // Reads the optimizer's state from the files of all ranks; none if no rank has a file or, where
  // the model's file alone is asked for, if the first one has none.
  absl::Status ReadStates(int64_t step, bool of_folder, ForeignCheckpoint& checkpoint) {
    absl::StatusOr<LlmcFile> first = ReadHeader(storage_, StateFile(step, 0));
    TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, storage_.List(""));
    const RankPattern pattern(absl::StrFormat("state_%08d_{5}.bin", step));
    const bool has_others = std::ranges::any_of(names, [&](const std::string& name) {
      const auto rank = pattern.Parse(name);
      return rank && pattern.Name(*rank) == name;
    });
    if (absl::IsNotFound(first.status()) && !(of_folder && has_others)) {
      checkpoint.notes.push_back("There is no optimizer state: no " + StateFile(step, 0) + ".");
      return absl::OkStatus();
    }
    TESSERA_RETURN_IF_ERROR(first.status());
    const int32_t ranks = first->header[2];
    if (ranks < 1 || ranks > kMaxRanks) {
      return Damaged(storage_, StateFile(step, 0), "header field 2: ", ranks, " ranks");
    }
    for (int rank = 0; rank < ranks; ++rank) {
      const std::string file = StateFile(step, rank);
      TESSERA_ASSIGN_OR_RETURN(const LlmcFile opened, ReadHeader(storage_, file));
      TESSERA_RETURN_IF_ERROR(CheckState(file, opened.header, first->header, rank, step));
      TESSERA_RETURN_IF_ERROR(ReadState(file, opened));
    }
    checkpoint.description.mutable_topology()->set_data_parallel(static_cast<uint32_t>(ranks));
    return absl::OkStatus();
  }

  absl::Status MoveTo(ForeignCheckpoint& checkpoint) && {
    return std::move(set_).MoveTo(kLlmc, storage_.Describe(""), checkpoint);
  }

 private:
  static std::string StateFile(int64_t step, int rank) {
    return absl::StrFormat("state_%08d_%05d.bin", step, rank);
  }

  // Adds an equal part of every tensor, from `place` on, which then is their end.
  absl::Status AddTensors(const ForeignKind& kind, int64_t part, int64_t parts,
                          ForeignPlace& place) {
    for (const ForeignParameter& tensor : description_.tensors) {
      const int64_t count = ElementCount(tensor.shape), each = count / parts;
      if (count % parts != 0) {
        return Damaged(storage_, place.file, "tensor ", tensor.name, ": ", parts,
                       " ranks do not divide its ", count, " elements");
      }
      TESSERA_RETURN_IF_ERROR(
          set_.AddRange(tensor, {}, kind, part * each, (part + 1) * each, place));
      place = place.After(each);
    }
    return absl::OkStatus();
  }

  absl::Status CheckState(const std::string& file, const LlmcHeader& header,
                          const LlmcHeader& first, int rank, int64_t step) const {
    const std::pair<int, int64_t> expected[] = {
        {0, kStateMagic}, {1, kStateVersion}, {3, rank}, {10, step}, {2, first[2]}, {4, first[4]}};
    for (const auto& [field, value] : expected) {
      if (header[field] == value) continue;
      return Damaged(storage_, file, "header field ", field, ": expected ", value, ", found ",
                     header[field]);
    }
    return absl::OkStatus();
  }

  // m, v and, where there are any, master weights, each for the whole model in the model file's
  // order. With ZeRO, of each tensor an equal part by rank.
  absl::Status ReadState(const std::string& file, const LlmcFile& opened) {
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
      return Damaged(storage_, file, "expected ", kLlmcHeaderBytes + bytes_of(1), " bytes or, in ",
                     ranks, " parts, ", kLlmcHeaderBytes + bytes_of(ranks), ", found ",
                     opened.size_bytes);
    }
    const int part = parts == 1 ? 0 : rank;
    ForeignPlace place = {.file = file, .offset_bytes = kLlmcHeaderBytes, .dtype = DType::kF32};
    TESSERA_RETURN_IF_ERROR(AddTensors(kForeignExpAvg, part, parts, place));
    TESSERA_RETURN_IF_ERROR(AddTensors(kForeignExpAvgSq, part, parts, place));
    return has_master ? AddTensors(kForeignMaster, part, parts, place) : absl::OkStatus();
  }

  Storage& storage_;
  const LlmcDescription description_;
  ForeignTensorSet set_;
  int64_t elements_ = 0;
};

}  // namespace

absl::StatusOr<LlmcDescription> ReadLlmcHeader(LlmcFile& file, const ModelProto* model) {
  std::vector<std::string> known;
  for (const Architecture* const architecture : Architectures()) {
    const LlmcFormat* const format = architecture->llmc;
    if (format == nullptr) continue;
    known.push_back(absl::StrCat(format->magic, " (", std::string(format->model), ")"));
    if (format->magic != file.header[0]) continue;
    const int32_t version = file.header[1];
    if (version != kVersionF32 && version != kVersionBF16) {
      return file.Corrupt(absl::StrCat("unknown version: expected ", kVersionF32, " (fp32) or ",
                                       kVersionBF16, " (bf16), found ", version));
    }
    const DType dtype = version == kVersionF32 ? DType::kF32 : DType::kBF16;
    file.element_bytes = ElementSize(dtype);
    TESSERA_ASSIGN_OR_RETURN(ModelConfig config, format->read_config(file));
    if (model != nullptr) {
      const absl::StatusOr<ModelConfig> wanted = ConfigOf(*model);
      if (wanted.ok() && wanted->architecture() == config.architecture() &&
          wanted->has_untie_embeddings_and_output_weights()) {
        config.set_untie_embeddings_and_output_weights(
            wanted->untie_embeddings_and_output_weights());
      }
    }
    return Describe(config, *format, dtype, file.header);
  }
  return file.Corrupt(absl::StrCat("wrong magic number: expected ", absl::StrJoin(known, " or "),
                                   ", found ", file.header[0]));
}

absl::StatusOr<LlmcOutput> WriteLlmcHeader(const ModelProto& model, DType dtype) {
  if (dtype != DType::kF32 && dtype != DType::kBF16) {
    return InvalidArgument("an llm.c file has F32 or BF16, not ", ProtoName(dtype));
  }
  TESSERA_ASSIGN_OR_RETURN(const ModelConfig config, ConfigOf(model));
  const LlmcFormat* const format = FindArchitecture(config)->llmc;
  if (format == nullptr) {
    return InvalidArgument("an llm.c file has GPT-2 or Llama-3, not ", ArchitectureName(config));
  }
  TESSERA_ASSIGN_OR_RETURN(LlmcHeader header, format->make_header(config));
  header[0] = format->magic;
  header[1] = dtype == DType::kF32 ? kVersionF32 : kVersionBF16;
  const auto bytes = std::as_bytes(std::span(header));
  return LlmcOutput{{reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                    Describe(config, *format, dtype, header)};
}

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
                                           const ModelProto* model, bool of_folder) {
  TESSERA_ASSIGN_OR_RETURN(LlmcFile opened, ReadHeader(storage, model_file));
  TESSERA_ASSIGN_OR_RETURN(LlmcDescription description, ReadLlmcHeader(opened, model));
  ForeignCheckpoint checkpoint = CheckpointOf(kLlmc, "llm.c");
  LlmcReader reader(storage, std::move(description));
  TESSERA_RETURN_IF_ERROR(reader.ReadModel(model_file));
  if (const std::optional<int64_t> step = StepOfModel(model_file)) {
    SetProgress(*step, std::nullopt, checkpoint.description);
    TESSERA_RETURN_IF_ERROR(reader.ReadStates(*step, of_folder, checkpoint));
  }
  TESSERA_RETURN_IF_ERROR(std::move(reader).MoveTo(checkpoint));
  return checkpoint;
}

}  // namespace tessera::ckpt::convert
