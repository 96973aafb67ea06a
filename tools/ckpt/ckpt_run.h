#ifndef TESSERA_TOOLS_CKPT_CKPT_RUN_H_
#define TESSERA_TOOLS_CKPT_CKPT_RUN_H_

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/testing.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tools/ckpt/commands.h"

namespace tessera::ckpt {

// Runs of the ckpt command in this process, on small checkpoints in a folder of the test's own.
class CkptTest : public testing::Test {
 protected:
  CkptTest() { storage_ = *OpenStorage(root_); }

  // Saves a checkpoint with "w" split into `shards` shards. The values of `w` can be changed
  // before.
  void MustSave(const std::string& folder, int64_t step, int shards) {
    ShardedTensor w;
    w.name = "w";
    w.role = TensorRole::kWeight;
    w.dtype = DType::kF32;
    w.global_shape = {4, 3};
    for (int s = 0; s < shards; ++s) {
      const int64_t begin = 4 * s / shards, rows = 4 * (s + 1) / shards - begin;
      w.shards.push_back({{{begin, 0}, {rows, 3}}, w_ + begin * 3, {}});
    }
    ShardedTensor n;
    n.name = "steps";
    n.role = TensorRole::kBuffer;
    n.dtype = DType::kI64;
    n.shards = {{WholeBox({}), &n_, {}}};
    ShardedTensor tied;
    tied.name = "head";
    tied.role = TensorRole::kWeight;
    tied.dtype = DType::kF32;
    tied.global_shape = {4, 3};
    tied.alias_of = "w";
    Manifest metadata;
    metadata.mutable_trainer()->set_best_loss(std::numeric_limits<double>::infinity());
    metadata.mutable_trainer()->set_last_loss(3.25);
    if (!is_finite_) metadata.mutable_trainer()->mutable_health()->set_loss_is_sane(true);
    metadata.mutable_model()->set_text(config_);
    metadata.mutable_topology()->set_data_parallel(shards);
    metadata.mutable_optimizer()->set_algorithm("adamw");
    (*metadata.mutable_optimizer()->add_groups()->mutable_options())["weight_decay"] = 0.1;
    OptimizerParameter& parameter = *metadata.mutable_optimizer()->add_parameters();
    parameter.set_parameter("w");
    for (const auto& [name, bytes] : extra_) {
      (*metadata.mutable_trainer()->mutable_extra())[name] = bytes;
    }
    ASSERT_OK_AND_ASSIGN(const auto opened,
                         CheckpointFolder::Open(root_ + "/" + folder, {.create_root = true}));
    ASSERT_OK(opened.Save({.step = step, .metadata = ToMetadata(metadata)}, {{w, n, tied}}));
  }

  int Run(const std::vector<std::string>& arguments, bool watched = false) {
    std::ostringstream out, err, progress;
    const int code = RunCkpt(arguments, {out, err, watched ? &progress : nullptr});
    out_ = out.str();
    err_ = err.str();
    progress_ = progress.str();
    return code;
  }

  nlohmann::json Json() { return nlohmann::json::parse(out_, nullptr, false); }

  // Returns the only file whose path begins with `start`.
  std::string PathOf(const std::string& start) {
    const std::filesystem::path path = root_ + "/" + start;
    for (const auto& entry : std::filesystem::directory_iterator(path.parent_path())) {
      if (entry.path().string().starts_with(path.string())) return entry.path();
    }
    ADD_FAILURE() << "no file " << start;
    return path;
  }

  void FlipByte(const std::string& start, int64_t offset) {
    std::fstream file(PathOf(start), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(offset);
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(offset);
    file.put(byte);
  }

  // Returns the names and bytes of all files in a folder.
  static std::string Contents(const std::string& folder) {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      files[entry.path()] = ReadWholeFile(entry.path()).value_or("");
    }
    std::string all;
    for (const auto& [path, bytes] : files)
      all.append(path).append("\n").append(bytes).append("\n");
    return all;
  }

  // Removes the digests of a checkpoint, as if a converter that computes none had written it.
  void RemoveDigests(const std::string& directory) {
    EditManifest(directory, [](LogicalTensor& tensor) { tensor.clear_digest(); });
  }

  void TakeDigests(const std::string& from, const std::string& directory) {
    ASSERT_OK_AND_ASSIGN(const auto manifest, ReadManifest(*storage_, from));
    int t = 0;
    EditManifest(directory, [&](LogicalTensor& tensor) {
      const LogicalTensor& other = manifest.tensors(t++);
      if (other.has_digest()) *tensor.mutable_digest() = other.digest();
    });
  }

  template <typename Edit>
  void EditManifest(const std::string& directory, const Edit& edit) {
    ASSERT_OK_AND_ASSIGN(auto manifest, ReadManifest(*storage_, directory));
    for (LogicalTensor& tensor : *manifest.mutable_tensors()) edit(tensor);
    ASSERT_OK_AND_ASSIGN(const auto encoded, EncodeManifest(manifest));
    ASSERT_OK(WriteAll(*storage_, directory + "/manifest.pb", encoded));
  }

  const TestFolder folder_;
  const std::string root_ = folder_.path();
  std::unique_ptr<Storage> storage_;
  float w_[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  int64_t n_ = 17;
  bool is_finite_ = true;  // what saved checkpoints say of their state
  std::string config_;
  std::map<std::string, std::string> extra_;
  std::string out_, err_, progress_;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_TOOLS_CKPT_CKPT_RUN_H_
