#include "trainer/tools/llmc_debug_state.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <span>
#include <system_error>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/replace_file.h"
#include "base/status_macros.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/internal/known_checkpoint.h"
#include "compute/kernels/backend.h"
#include "compute/kernels/cpu/cpu_backend.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/foreign_layout.h"
#include "convert/core/foreign_storage.h"
#include "convert/core/models.h"
#include "convert/formats/llmc/llmc.h"
#include "layout/box.h"
#include "layout/dtype.h"
#include "models/foreign/format.h"
#include "models/layers/model.h"
#include "models/registry.h"
#include "storage/open_storage.h"
#include "storage/storage.h"
#include "tensor/tensor.h"
#include "trainer/data/token_file.h"
#include "trainer/state/communicator_group.h"
#include "trainer/state/foreign_weights.h"
#include "trainer/state/load_tensors.h"
#include "trainer/state/saved_run.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr int32_t kMagic = 20240327, kVersion = 2;
constexpr uint64_t kCopyBytes = 1 << 20;

// The results and operands of a pass, up to the gradients.
struct DebugState {
  int64_t batch = 0, sequence = 0;
  std::vector<int32_t> x, y;  // [B,T]
  std::vector<float> logits;  // [B,T,V]
  float loss = 0;
};

// Forwards every operation to another backend, and keeps the logits of each loss.
class LogitsRecorder final : public Backend {
 public:
  explicit LogitsRecorder(Backend& backend) : backend_(backend) {}

  std::vector<float> Take() { return std::exchange(logits_, {}); }

  absl::Status Synchronize() override { return backend_.Synchronize(); }
  Device device() const override { return backend_.device(); }
  bool takes_any_operands() const override { return backend_.takes_any_operands(); }
  void Upload(const void* host, TensorView to) override { backend_.Upload(host, to); }
  void Download(TensorView from, void* host) override { backend_.Download(from, host); }

 protected:
  TESSERA_OPERATIONS(TESSERA_FORWARD_RUN)

 private:
  template <typename Op, typename Call>
  auto Forward(const Op& op, const char* /*name*/, const Call& call) -> decltype(call()) {
    if constexpr (std::is_same_v<Op, ops::CrossEntropyStats>) {
      for (int64_t row = 0; row < op.logits.dim(0); ++row) {
        const auto* const first = op.logits.Slice(0, row, row + 1).template as<float>();
        logits_.insert(logits_.end(), first, first + op.valid);
      }
    }
    return call();
  }

  Backend& backend_;
  std::vector<float> logits_;
};

// A file that begins with a header of llm.c.
struct OpenedFile {
  std::shared_ptr<Storage> folder;
  std::string name;
  std::unique_ptr<ReadableFile> file;
  LlmcFile description;
};

absl::StatusOr<OpenedFile> OpenFile(const std::string& path) {
  const fs::path parent = fs::path(path).parent_path();
  OpenedFile opened = {.name = fs::path(path).filename()};
  TESSERA_ASSIGN_OR_RETURN(opened.folder, OpenStorage(parent.empty() ? "." : parent.string()));
  TESSERA_ASSIGN_OR_RETURN(opened.file, opened.folder->Open(opened.name));
  opened.description = {.path = path,
                        .size_bytes = static_cast<int64_t>(opened.file->size_bytes())};
  if (opened.description.size_bytes < kLlmcHeaderBytes) {
    return opened.description.Corrupt(absl::StrCat("truncated: expected ", kLlmcHeaderBytes,
                                                   " bytes of header, found ",
                                                   opened.description.size_bytes));
  }
  TESSERA_RETURN_IF_ERROR(
      opened.file->ReadAt(0, std::as_writable_bytes(std::span(opened.description.header))));
  return opened;
}

// Loads the tensors of a model file, or others in its order, as a model's weights. They begin at
// `offset_bytes`.
absl::Status LoadWeights(const OpenedFile& file, uint64_t offset_bytes, DType dtype,
                         const ckpt::convert::LlmcDescription& description,
                         const ParameterSet& parameters) {
  namespace convert = ckpt::convert;
  convert::ForeignTensorSet set(description.model);
  convert::ForeignPlace place = {.file = file.name, .offset_bytes = offset_bytes, .dtype = dtype};
  for (const ForeignParameter& tensor : description.tensors) {
    TESSERA_RETURN_IF_ERROR(
        set.AddRange(tensor, {}, convert::kForeignWeight, 0, ElementCount(tensor.shape), place));
    place.offset_bytes += convert::ByteCount(tensor.shape, dtype);
  }
  convert::ForeignCheckpoint tensors = convert::CheckpointOf(convert::kLlmc, "llm.c");
  TESSERA_RETURN_IF_ERROR(std::move(set).MoveTo(convert::kLlmc, file.description.path, tensors));
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<convert::ForeignStorage> storage,
                           convert::ForeignStorage::Create(file.folder, std::move(tensors)));
  TESSERA_ASSIGN_OR_RETURN(ckpt::Manifest manifest, ckpt::ReadManifest(*storage, ""));
  const SavedRun run = {
      .checkpoint = ckpt::CheckpointOfManifest(std::move(storage), "", std::move(manifest))};
  const StateChunk chunk = {.parameters = &parameters};
  const std::unique_ptr<ckpt::ProcessGroup> ranks = MakeProcessGroup(nullptr);
  return LoadTensors(run, {&chunk, 1}, {.with_optimizer = false}, {.ranks = *ranks}).status();
}

// GPT-2 with the weights of a model file, in fp32.
class LoadedModel {
 public:
  static absl::StatusOr<std::unique_ptr<LoadedModel>> Load(const std::string& path, int threads) {
    TESSERA_ASSIGN_OR_RETURN(OpenedFile file, OpenFile(path));
    TESSERA_ASSIGN_OR_RETURN(ckpt::convert::LlmcDescription description,
                             ckpt::convert::ReadLlmcHeader(file.description, /*model=*/nullptr));
    TESSERA_ASSIGN_OR_RETURN(const ModelConfig config,
                             ckpt::convert::ConfigOf(description.model.config));
    if (config.architecture() != ModelConfig::GPT2) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": a debug state is of GPT-2"));
    }
    auto loaded =
        std::unique_ptr<LoadedModel>(new LoadedModel(config, std::move(description), threads));
    TESSERA_ASSIGN_OR_RETURN(loaded->model_, MakeModel(config, {}, loaded->recorder_));
    TESSERA_RETURN_IF_ERROR(LoadWeights(file, kLlmcHeaderBytes, loaded->description_.dtype,
                                        loaded->description_, loaded->parameters()));
    return loaded;
  }

  const ModelConfig& config() const { return config_; }
  ParameterSet& parameters() const { return model_->parameters(); }
  // The number of elements of the model file, padding included.
  int64_t elements() const {
    int64_t elements = 0;
    for (const ForeignParameter& tensor : description_.tensors) {
      elements += ElementCount(tensor.shape);
    }
    return elements;
  }

  // Replaces the weights by gradients that a file has from `offset_bytes` on.
  absl::Status LoadGradients(const OpenedFile& file, uint64_t offset_bytes) {
    return LoadWeights(file, offset_bytes, DType::kF32, description_, parameters());
  }

  // Computes the logits, the loss and the gradients of x and y. InvalidArgument, without a file's
  // name, for tokens that the model does not have.
  absl::Status Run(DebugState& state) {
    const int64_t vocabulary = config_.vocab_size();
    int64_t targets = 0;
    for (size_t i = 0; i < state.x.size(); ++i) {
      if (state.x[i] < 0 || state.x[i] >= vocabulary || state.y[i] >= vocabulary) {
        return absl::InvalidArgumentError(absl::StrCat("token ", i, " is ", state.x[i],
                                                       " with target ", state.y[i],
                                                       ": the vocabulary has ", vocabulary));
      }
      targets += state.y[i] >= 0 ? 1 : 0;
    }
    if (targets == 0) return absl::InvalidArgumentError("there is no target");
    const Shape shape = {state.batch, state.sequence};
    const MicroBatch batch = {.ids = TensorView(state.x.data(), DType::kI32, shape),
                              .targets = TensorView(state.y.data(), DType::kI32, shape)};
    const std::unique_ptr<Activations> activations =
        model_->NewActivations(state.batch, state.sequence, ActivationUse::kTraining);
    TESSERA_ASSIGN_OR_RETURN(const double sum, model_->Forward(batch, *activations, {}, {}));
    state.loss = static_cast<float>(sum / static_cast<double>(targets));
    state.logits = recorder_.Take();
    return model_->Backward(batch, *activations, 1.0 / static_cast<double>(targets),
                            /*accumulate=*/false, {}, {}, /*observer=*/nullptr);
  }

 private:
  LoadedModel(ModelConfig config, ckpt::convert::LlmcDescription description, int threads)
      : config_(std::move(config)),
        description_(std::move(description)),
        backend_(MakeCpuBackend(threads)),
        recorder_(*backend_) {}

  const ModelConfig config_;
  const ckpt::convert::LlmcDescription description_;
  const std::unique_ptr<Backend> backend_;
  LogitsRecorder recorder_;
  std::unique_ptr<Model> model_;
};

// Reads everything before the gradients, and sets where these begin.
absl::StatusOr<DebugState> ReadState(OpenedFile& opened, const LoadedModel& model,
                                     uint64_t& gradients_offset) {
  LlmcFile& file = opened.description;
  const LlmcHeader& header = file.header;
  for (const auto& [field, expected] : {std::pair(0, kMagic), std::pair(1, kVersion)}) {
    if (header[field] == expected) continue;
    return file.Corrupt(
        absl::StrCat(field == 0 ? "wrong magic number" : "unknown version", ": expected ", expected,
                     field == 0 ? " (debug state of GPT-2)" : "", ", found ", header[field]));
  }
  DebugState state = {.batch = header[2], .sequence = header[3]};
  const int64_t vocabulary = model.config().vocab_size();
  const int64_t positions = model.config().max_position_embeddings();
  if (state.batch < 1 || state.sequence < 1 || state.sequence > positions) {
    return file.Corrupt(absl::StrCat("[", state.batch, ",", state.sequence,
                                     "] tokens: the model has ", positions, " positions"));
  }
  file.element_bytes = sizeof(float);
  const int64_t tokens = state.batch * state.sequence;
  TESSERA_RETURN_IF_ERROR(
      file.CheckLength(__int128{tokens} * (2 + vocabulary) + 1 + model.elements()));
  state.x.resize(tokens);
  state.y.resize(tokens);
  state.logits.resize(tokens * vocabulary);
  gradients_offset = kLlmcHeaderBytes;
  const std::span<std::byte> parts[] = {std::as_writable_bytes(std::span(state.x)),
                                        std::as_writable_bytes(std::span(state.y)),
                                        std::as_writable_bytes(std::span(state.logits)),
                                        std::as_writable_bytes(std::span(&state.loss, 1))};
  for (const std::span<std::byte> part : parts) {
    TESSERA_RETURN_IF_ERROR(opened.file->ReadAt(gradients_offset, part));
    gradients_offset += part.size();
  }
  return state;
}

DebugStateDifference Compare(std::string name, std::span<const float> ours,
                             std::span<const float> theirs) {
  DebugStateDifference difference = {.name = std::move(name)};
  for (size_t i = 0; i < theirs.size(); ++i) {
    double distance = std::fabs(double{ours[i]} - theirs[i]);
    if (!std::isfinite(distance)) distance = std::numeric_limits<double>::infinity();
    difference.largest = std::max(difference.largest, distance);
    difference.scale = std::max(difference.scale, std::fabs(double{theirs[i]}));
  }
  return difference;
}

std::span<const float> Elements(const TensorView& tensor) {
  return {tensor.as<float>(), static_cast<size_t>(tensor.elements())};
}

// Appends the gradients of a model that has run. Its weights are overwritten.
absl::Status AppendGradients(const LoadedModel& model, const std::string& scratch,
                             FileReplacement& out) {
  const ParameterSet& parameters = model.parameters();
  std::memcpy(parameters.values().view().data(), parameters.grads().view().data(),
              static_cast<size_t>(parameters.values().view().bytes()));
  const StateChunk chunk = {.parameters = &parameters};
  const std::unique_ptr<ckpt::ProcessGroup> ranks = MakeProcessGroup(nullptr);
  // A model file whose weights are the gradients has their order.
  TESSERA_RETURN_IF_ERROR(
      WriteForeignWeights({.format = "llmc", .path = scratch, .dtype = DType::kF32}, model.config(),
                          {&chunk, 1}, {.ranks = *ranks}));
  TESSERA_ASSIGN_OR_RETURN(const OpenedFile opened, OpenFile(scratch));
  std::vector<std::byte> buffer(kCopyBytes);
  const uint64_t end = opened.file->size_bytes();
  for (uint64_t at = kLlmcHeaderBytes; at < end; at += kCopyBytes) {
    const auto part = std::span(buffer).first(std::min(kCopyBytes, end - at));
    TESSERA_RETURN_IF_ERROR(opened.file->ReadAt(at, part));
    TESSERA_RETURN_IF_ERROR(out.Append(part));
  }
  return absl::OkStatus();
}

absl::StatusOr<DebugState> ReadTokens(const DebugStateTokens& wanted, const ModelConfig& config) {
  const int64_t positions = config.max_position_embeddings();
  if (wanted.batch < 1 || wanted.batch > std::numeric_limits<int32_t>::max() ||
      wanted.sequence < 1 || wanted.sequence > positions) {
    return absl::InvalidArgumentError(absl::StrCat("batch ", wanted.batch, ", sequence ",
                                                   wanted.sequence, ": the model has ", positions,
                                                   " positions"));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<TokenFile> file, TokenFile::Open(wanted.file));
  const int64_t count = wanted.batch * wanted.sequence;
  if (count >= file->count()) {
    return absl::OutOfRangeError(
        absl::StrCat(wanted.file, ": ", file->count(), " tokens: a debug state needs ", count + 1));
  }
  std::vector<int32_t> tokens(count + 1);
  TESSERA_RETURN_IF_ERROR(file->Read(0, config.vocab_size(), tokens));
  return DebugState{.batch = wanted.batch,
                    .sequence = wanted.sequence,
                    .x = {tokens.begin(), tokens.end() - 1},
                    .y = {tokens.begin() + 1, tokens.end()}};
}

}  // namespace

absl::StatusOr<std::vector<DebugStateDifference>> CheckDebugState(const std::string& model_file,
                                                                  const std::string& state_file,
                                                                  int threads) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model,
                           LoadedModel::Load(model_file, threads));
  TESSERA_ASSIGN_OR_RETURN(OpenedFile file, OpenFile(state_file));
  uint64_t gradients_offset = 0;
  TESSERA_ASSIGN_OR_RETURN(const DebugState theirs, ReadState(file, *model, gradients_offset));
  DebugState ours = {
      .batch = theirs.batch, .sequence = theirs.sequence, .x = theirs.x, .y = theirs.y};
  if (const absl::Status run = model->Run(ours); !run.ok()) {
    return absl::IsInvalidArgument(run) ? file.description.Corrupt(std::string(run.message()))
                                        : run;
  }
  std::vector<DebugStateDifference> differences = {
      Compare("logits", ours.logits, theirs.logits),
      Compare("loss", {&ours.loss, 1}, {&theirs.loss, 1})};
  TESSERA_RETURN_IF_ERROR(model->LoadGradients(file, gradients_offset));
  for (const Parameter* const parameter : model->parameters().parameters()) {
    differences.push_back(
        Compare(parameter->pieces[0].name, Elements(parameter->grad), Elements(parameter->value)));
  }
  return differences;
}

absl::Status WriteDebugState(const std::string& model_file, const DebugStateTokens& tokens,
                             const std::string& state_file, int threads) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model,
                           LoadedModel::Load(model_file, threads));
  TESSERA_ASSIGN_OR_RETURN(DebugState state, ReadTokens(tokens, model->config()));
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<FileReplacement> out,
                           FileReplacement::Create(state_file));
  TESSERA_RETURN_IF_ERROR(model->Run(state));

  LlmcHeader header = {kMagic, kVersion, static_cast<int32_t>(state.batch),
                       static_cast<int32_t>(state.sequence)};
  const std::span<const std::byte> parts[] = {
      std::as_bytes(std::span(header)), std::as_bytes(std::span(state.x)),
      std::as_bytes(std::span(state.y)), std::as_bytes(std::span(state.logits)),
      std::as_bytes(std::span(&state.loss, 1))};
  for (const std::span<const std::byte> part : parts) TESSERA_RETURN_IF_ERROR(out->Append(part));
  const std::string gradients = state_file + ".gradients";
  const absl::Status appended = AppendGradients(*model, gradients, *out);
  std::error_code error;
  fs::remove(gradients, error);
  TESSERA_RETURN_IF_ERROR(appended);
  return out->Commit();
}

}  // namespace tessera
