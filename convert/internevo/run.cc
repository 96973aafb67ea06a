#include "convert/internevo/run.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/directory/directory.h"
#include "convert/pickle/value.h"
#include "convert/torch/archive.h"
#include "convert/torch/torch_file.h"

namespace tessera::ckpt::convert {
namespace {

constexpr std::string_view kContext = "context.pt";

}  // namespace

absl::Status DescribeInternEvoRun(Storage& storage, std::string_view folder,
                                  ForeignCheckpoint& checkpoint) {
  checkpoint.description.mutable_producer()->set_program("InternEvo");
  const std::string path = JoinPath(folder, kContext);
  const absl::StatusOr<TorchArchive> archive = ReadTorchFile(storage, path);
  if (absl::IsNotFound(archive.status())) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(archive.status());
  const pickle::Value context = archive->contents.root();
  std::optional<int64_t> step = context.Find("step_count").AsInt();
  // Early releases count batches alone, the first of which is 0.
  const std::optional<int64_t> batches = context.Find("batch_count").AsInt();
  if (!step && batches && *batches < INT64_MAX) step = *batches + 1;
  if (!step || *step < 0) {
    return absl::DataLossError(
        absl::StrCat(storage.Describe(path), ": no number of steps (\"step_count\")"));
  }
  TrainerState& trainer = *checkpoint.description.mutable_trainer();
  trainer.set_step(*step);
  trainer.set_best_loss(std::numeric_limits<double>::infinity());
  const std::optional<int64_t> tokens = context.Find("num_consumed_tokens").AsInt();
  if (tokens && *tokens >= 0) {
    checkpoint.notes.push_back(absl::StrCat(
        "The run has consumed ", *tokens,
        " tokens; its position in the data is that of its own loader, which packs samples."));
  }
  return absl::OkStatus();
}

}  // namespace tessera::ckpt::convert
