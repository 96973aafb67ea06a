#include "convert/core/reading.h"

#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/errno_status.h"
#include "base/text.h"
#include "layout/elements/copy_elements.h"

namespace tessera::ckpt::convert {
namespace {

constexpr std::string_view kAnywhere[] = {"_orig_mod", "_fsdp_wrapped_module",
                                          "_checkpoint_wrapped_module"};
constexpr std::string_view kAtTheBegin[] = {"module.", "base_model.model."};

}  // namespace

absl::Status At(const Storage& storage, std::string_view path, const absl::Status& status) {
  return status.ok() ? status : In(storage.Describe(path), status);
}

absl::StatusOr<std::unique_ptr<ReadableFile>> OpenIfPresent(Storage& storage,
                                                            std::string_view path) {
  absl::StatusOr<std::unique_ptr<ReadableFile>> file = storage.Open(path);
  if (absl::IsNotFound(file.status())) return nullptr;
  return file;
}

absl::StatusOr<bool> Exists(Storage& storage, std::string_view path) {
  TESSERA_ASSIGN_OR_RETURN(const auto file, OpenIfPresent(storage, path));
  return file != nullptr;
}

absl::StatusOr<std::optional<double>> ReadNumber(const ReadableFile& file, uint64_t offset,
                                                 DType dtype) {
  const auto read = [&](auto integer) -> absl::StatusOr<std::optional<double>> {
    TESSERA_RETURN_IF_ERROR(file.ReadAt(offset, std::as_writable_bytes(std::span(&integer, 1))));
    return static_cast<double>(integer);
  };
  if (dtype == DType::kI64) return read(int64_t{0});
  if (dtype == DType::kI32) return read(int32_t{0});
  const CopyElements copy = FindCopy(dtype, DType::kF64);
  if (copy == nullptr) return std::nullopt;
  TESSERA_ASSIGN_OR_RETURN(const std::string bytes, ReadPart(file, offset, ElementSize(dtype)));
  double number = 0;
  copy(std::as_bytes(std::span(bytes)).data(), std::as_writable_bytes(std::span(&number, 1)).data(),
       1, 1);
  return number;
}

absl::StatusOr<SafetensorsHeader> ReadSafetensors(const ReadableFile& file, uint64_t offset,
                                                  uint64_t length) {
  TESSERA_ASSIGN_OR_RETURN(const std::string first,
                           ReadPart(file, offset, std::min<uint64_t>(length, sizeof(uint64_t))));
  TESSERA_ASSIGN_OR_RETURN(const uint64_t header_bytes, SafetensorsHeaderBytes(first, length));
  TESSERA_ASSIGN_OR_RETURN(const std::string bytes, ReadPart(file, offset, header_bytes));
  return ParseSafetensorsHeader(bytes, length);
}

void SetTopology(const ForeignTopology& topology, Manifest& manifest) {
  TopologyProto& proto = *manifest.mutable_topology();
  const auto ranks = [](int64_t number) {
    return static_cast<uint32_t>(number < 1 || number > INT32_MAX ? 1 : number);
  };
  proto.set_data_parallel(ranks(topology.data));
  proto.set_tensor_parallel(ranks(topology.tensor));
  proto.set_pipeline_parallel(ranks(topology.pipeline));
  proto.set_virtual_pipeline(ranks(topology.virtual_pipeline));
  proto.set_zero_stage(topology.zero_stage);
}

void SetProgress(int64_t step, std::optional<int64_t> samples, Manifest& manifest) {
  TrainerState& trainer = *manifest.mutable_trainer();
  trainer.set_step(step);
  trainer.set_best_loss(std::numeric_limits<double>::infinity());
  if (samples && *samples >= 0) trainer.mutable_data()->set_consumed_samples(*samples);
}

std::set<std::string> FilesOf(std::span<const ForeignTensor> tensors) {
  std::set<std::string> files;
  for (const ForeignTensor& tensor : tensors) {
    for (const StoredPiece& piece : tensor.pieces) files.insert(piece.file);
  }
  return files;
}

absl::StatusOr<uint64_t> FileBytes(Storage& storage, const std::set<std::string>& files) {
  uint64_t bytes = 0;
  for (const std::string& file : files) {
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> open, storage.Open(file));
    bytes += open->size_bytes();
  }
  return bytes;
}

LayerName SplitLayer(std::string_view name) {
  constexpr int64_t kMaxLayers = 1'000'000;  // that a number in a name can stand for
  size_t begin = 0;
  while (begin <= name.size()) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    int64_t layer = 0;
    if (!part.empty() && absl::ascii_isdigit(static_cast<unsigned char>(part[0])) &&
        absl::SimpleAtoi(View(part), &layer) && layer < kMaxLayers) {
      return {std::string(name.substr(0, begin)), layer, std::string(name.substr(end))};
    }
    begin = end + 1;
  }
  return {.before = std::string(name)};
}

void NoteLeftOut(const absl::AlphaNum& what, const std::vector<std::string>& names,
                 std::vector<std::string>& notes) {
  if (!names.empty()) {
    notes.push_back(absl::StrCat("Left out: ", what, ": ", JoinShown(names), "."));
  }
}

absl::Status WithNotes(const absl::Status& status, const std::vector<std::string>& notes) {
  const bool may_explain = absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status) ||
                           absl::IsNotFound(status) || absl::IsUnimplemented(status);
  if (!may_explain || notes.empty()) return status;
  const std::string message(status.message());
  return WithMessage(
      status, absl::StrCat(message, message.ends_with('.') ? " " : ". ", JoinFirst(notes, " ")));
}

std::string WithoutInnerWrappers(std::string_view name) {
  std::vector<std::string> parts = absl::StrSplit(std::string(name), '.');
  std::erase_if(parts,
                [](const std::string& part) { return std::ranges::count(kAnywhere, part) > 0; });
  return absl::StrJoin(parts, ".");
}

std::string WithoutWrappers(std::string_view name) {
  const std::string joined = WithoutInnerWrappers(name);
  std::string_view rest = joined;
  const auto unwrap = [&](std::string_view wrapper) {
    const bool wraps = rest.starts_with(wrapper);
    if (wraps) rest.remove_prefix(wrapper.size());
    return wraps;
  };
  while (std::ranges::any_of(kAtTheBegin, unwrap)) continue;
  return std::string(rest);
}

}  // namespace tessera::ckpt::convert
