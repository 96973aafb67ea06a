#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/byte_order.h"
#include "base/errors.h"
#include "base/status_macros.h"
#include "checkpoint/include/manifest.h"
#include "convert/core/foreign_layout.h"
#include "convert/core/saved_weights.h"
#include "convert/formats/llmc/llmc.h"

namespace tessera::ckpt::convert {
namespace {

constexpr int kHeaderFields = 256;

// Adds the model's tensors, or one state of each, after the file's present contents.
void AddTensors(const LlmcDescription& description, const ForeignKind& kind, DType dtype,
                OutputFile& file) {
  for (const ForeignParameter& tensor : description.tensors) {
    const LogicalParameter& logical = description.model.Find(tensor.blocks[0].name);
    OutputTensor& output = file.tensors.emplace_back(WholeParameter(tensor, logical, kind, dtype));
    output.name = kind.NameOf(tensor.name);
    output.offset_bytes = file.size_bytes;
    file.size_bytes += ByteCount(tensor.shape, dtype);
  }
}

std::string StateHeader(int64_t step, bool has_master) {
  std::array<int32_t, kHeaderFields> fields = {};
  fields[0] = kStateMagic;
  fields[1] = kStateVersion;
  fields[2] = 1;  // rank 0 of 1
  fields[4] = has_master ? 1 : 0;
  fields[10] = static_cast<int32_t>(step);
  std::string bytes;
  for (const int32_t field : fields) AppendLittleEndian(static_cast<uint32_t>(field), bytes);
  return bytes;
}

}  // namespace

absl::StatusOr<std::vector<OutputFile>> PlanLlmc(const Manifest& manifest,
                                                 const PlanOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(LlmcOutput output, WriteLlmcHeader(manifest.model(), DType::kF32));
  // A state is written only with moments: nothing else of the optimizer matters without them.
  PlanOptions wanted = options;
  if (std::ranges::none_of(manifest.tensors(), [](const LogicalTensor& tensor) {
        return tensor.name().ends_with("." + kForeignExpAvg.state);
      })) {
    wanted.weights_only = true;
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<SavedKind> kinds,
                           FindKinds(manifest, output.description.model, wanted));
  const DType dtype = kinds.front().dtype;
  TESSERA_ASSIGN_OR_RETURN(output, WriteLlmcHeader(manifest.model(), dtype));
  const int64_t step = manifest.trainer().step();
  constexpr int64_t kMaxStep = 99'999'999;  // of the eight digits in the names of files
  if (step > kMaxStep) {
    return InvalidArgument("the step is ", step, ", and llm.c's files have at most ", kMaxStep,
                           ": --ckpt-step=N states another");
  }

  std::vector<OutputFile> files(1);
  files[0].name = absl::StrFormat("model_%08d.bin", step);
  files[0].header = output.header;
  files[0].size_bytes = output.header.size();
  AddTensors(output.description, kForeignWeight, dtype, files[0]);
  if (HasKind(kinds, kForeignExpAvg)) {
    if (!HasKind(kinds, kForeignExpAvgSq))
      return InvalidArgument("there is exp_avg, but no exp_avg_sq");
    OutputFile state = {.name = absl::StrFormat("state_%08d_00000.bin", step),
                        .header = StateHeader(step, HasKind(kinds, kForeignMaster))};
    state.size_bytes = state.header.size();
    for (const auto& [kind, state_dtype] : std::span(kinds).subspan(1)) {
      if (state_dtype != DType::kF32) {
        return InvalidArgument(kind.state, " is ", ProtoName(state_dtype),
                               ": llm.c has fp32 optimizer state");
      }
      AddTensors(output.description, kind, state_dtype, state);
    }
    files.push_back(std::move(state));
  }
  files.push_back({.name = absl::StrFormat("DONE_%08d", step), .commits = true});
  return files;
}

}  // namespace tessera::ckpt::convert
