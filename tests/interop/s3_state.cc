// Saves a state of 40 MB in a storage by its name, or loads it from there and compares it.
//   s3_state save|load NAME [ENDPOINT]

#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "checkpoint/include/checkpoint.h"

namespace ckpt = tessera::ckpt;

namespace {

constexpr int64_t kRows = 10'000, kColumns = 1'000;
constexpr int64_t kStep = 7;

std::vector<float> Expected() {
  std::vector<float> elements(kRows * kColumns);
  for (size_t i = 0; i < elements.size(); ++i) elements[i] = static_cast<float>(i % 65'521);
  return elements;
}

absl::Status SaveOrLoad(const ckpt::CheckpointFolder& folder, bool save) {
  std::vector<float> elements = save ? Expected() : std::vector<float>(kRows * kColumns);
  ckpt::ShardedTensor weight = {.name = "weight", .global_shape = {kRows, kColumns}};
  weight.shards = {
      ckpt::Shard::Of(elements, {.global_offset = {0, 0}, .shape = {kRows, kColumns}})};
  if (save) return folder.Save(kStep, {{weight}}).status();
  const auto latest = folder.Latest();
  if (!latest.ok()) return latest.status();
  const auto loaded = latest->Load({{weight}}, {.verify_digests = true});
  if (!loaded.ok()) return loaded.status();
  return elements == Expected() ? absl::OkStatus() : absl::DataLossError("other elements");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const bool save = std::string(argv[1]) == "save";
  const auto folder = ckpt::CheckpointFolder::Open(
      argv[2], {.create_root = save, .s3_endpoint = argc > 3 ? argv[3] : ""});
  const absl::Status status = folder.ok() ? SaveOrLoad(*folder, save) : folder.status();
  if (!status.ok()) std::cerr << "s3_state: " << status << "\n";
  return status.ok() ? 0 : 1;
}
