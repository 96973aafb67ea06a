// A fuzz target. Any bytes are an error, or a file of a rank whose flat states lie inside the file.
// They are also the names of its tensors, and the names of the files in a folder.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_split.h"
#include "convert/formats/internevo/files.h"
#include "convert/formats/internevo/zero_state.h"
#include "convert/pickle/torch_archive.h"
#include "convert/pickle/value.h"
#include "convert/testing/fuzz_check.h"
#include "convert/testing/string_file.h"

namespace {

namespace ckpt = tessera::ckpt;
using ckpt::convert::InternEvoLayers;
using ckpt::convert::InternEvoLocalName;
using tessera::ckpt::convert::Check;

void ReadNames(std::string_view text) {
  const std::vector<std::string> names =
      absl::StrSplit(absl::string_view(text.data(), text.size()), '\n');
  const auto files = ckpt::convert::FindInternEvoRankFiles(names);
  if (!files.ok()) return;
  Check(static_cast<int64_t>(files->models.size()) == files->parts * files->stages);
  Check(files->models.size() <= names.size());
  Check(files->optimizers.size() <= names.size());
}

// A name in the whole model begins with all that stands before the layer's number in the file.
void ReadTensorNames(const ckpt::pickle::Value& dict) {
  InternEvoLayers layers;
  std::vector<InternEvoLocalName> names;
  for (size_t i = 0; i < dict.entry_count(); ++i) {
    const auto name = dict.entry(i).first.AsText();
    if (name) names.push_back(ckpt::convert::ParseInternEvoName(*name));
  }
  for (const InternEvoLocalName& name : names) layers.Add(/*stage=*/0, name);
  for (const InternEvoLocalName& name : names) {
    const auto global = layers.GlobalName(0, name);
    if (global.ok()) Check(global->size() >= name.before.size());
  }
}

void CheckState(const ckpt::convert::InternEvoZeroState& state, size_t file_bytes) {
  for (const ckpt::convert::InternEvoGroup& group : state.groups) {
    for (const auto& [kind, vector] : group.vectors) {
      Check(vector.shape.size() == 1);
      Check(vector.shape == group.vectors.front().second.shape);
      ckpt::convert::CheckInside(vector, file_bytes);
    }
  }
}

void CheckPlan(const ckpt::convert::InternEvoPlan& plan, size_t file_bytes) {
  size_t parameters = 0;
  for (const auto& group : plan) {
    for (const auto& rank : group) parameters += rank.size();
  }
  using ckpt::pickle::Budget;
  Check(parameters * sizeof(ckpt::convert::InternEvoPlannedParameter) <=
        Budget::kRatio * file_bytes + Budget::kAllowanceBytes);
}

}  // namespace

void FuzzOneInput(const std::string& input) {
  const ckpt::convert::StringFile file(input);
  ReadNames(input);
  const auto archive = ckpt::convert::ReadTorchArchive(file, {0, input.size()});
  if (!archive.ok()) return;
  const ckpt::pickle::Value root = archive->contents.root();
  ReadTensorNames(root);
  const auto plan = ckpt::convert::ParseInternEvoPlan(archive->contents, root);
  if (plan.ok()) CheckPlan(*plan, input.size());
  const auto state = ckpt::convert::ParseInternEvoZeroState(*archive);
  if (!state.ok()) return;
  CheckState(*state, input.size());
  if (state->plan) CheckPlan(*state->plan, input.size());
}
