// ckpt reshard writes what a run at the other topology would have written: the same tensors,
// shards, files and checksums.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "checkpoint/collective/process_group.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/format/dtype.h"
#include "checkpoint/format/manifest.pb.h"
#include "checkpoint/layout/box.h"
#include "checkpoint/plan/state_dict.h"
#include "checkpoint/save/save.h"
#include "checkpoint/storage/posix_storage.h"
#include "checkpoint/tools/commands.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "trainer/comm/threads/thread_world.h"
#include "trainer/config/config.h"
#include "trainer/config/config.pb.h"
#include "trainer/kernels/cpu/cpu_backend.h"
#include "trainer/parallel/mesh.h"
#include "trainer/parallel/topology.h"
#include "trainer/state/communicator_group.h"
#include "trainer/state/run_state.h"
#include "trainer/state/state_dict.h"
#include "trainer/step/trainer.h"

namespace tessera {
namespace {

constexpr int64_t kBucketElements = 5000;

struct Kind {
  const char* name;
  const char* model;  // text format
  bool bf16;
};

// Five layers: uneven over two and four stages. A vocabulary that is no multiple of anything.
constexpr Kind kKinds[] = {
    {"Gpt2", R"pb(size: "gpt2-tiny" num_layers: 5 vocab_size: 211)pb", false},
    {"Gpt2Bf16", R"pb(size: "gpt2-tiny" num_layers: 5 vocab_size: 211)pb", true},
    {"Llama", R"pb(size: "llama3-tiny"
                   num_layers: 5
                   num_attention_heads: 8
                   num_query_groups: 4
                   vocab_size: 211
                   untie_embeddings_and_output_weights: true)pb",
     false},
    {"TiedLlama", R"pb(size: "llama3-tiny" num_layers: 5 num_query_groups: 4 vocab_size: 211)pb",
     false}};

std::ostream& operator<<(std::ostream& out, const Kind& kind) { return out << kind.name; }

TrainConfig Config(const Kind& kind, const std::string& topology_text, int virtual_shards) {
  const absl::StatusOr<TrainConfig> parsed = ParseConfig(
      absl::StrCat("model {", kind.model,
                   "} training { micro_batch_size: 2 seq_length: 24 threads: 1 train_iters: 20 } ",
                   "parallel { ddp_bucket_size: ", kBucketElements, "}"),
      "the test's");
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  const absl::StatusOr<Topology> topology = ParseTopology(topology_text);
  EXPECT_TRUE(topology.ok()) << topology.status();
  TrainConfig config = *parsed;
  config.mutable_data()->set_train_data_path("unread");
  config.mutable_training()->set_bf16(kind.bf16);
  config.mutable_training()->set_global_batch_size(48);
  ParallelConfig& parallel = *config.mutable_parallel();
  parallel.set_data_parallel_size(topology->data);
  parallel.set_tensor_model_parallel_size(topology->tensor);
  parallel.set_pipeline_model_parallel_size(topology->pipeline);
  parallel.set_num_virtual_stages_per_pipeline_rank(topology->virtual_pipeline);
  parallel.set_zero_stage(topology->zero_stage);
  parallel.set_numerics(virtual_shards > 0 ? Numerics::EXACT : Numerics::FAST);
  if (virtual_shards > 0) parallel.set_exact_tp_shards(virtual_shards);
  const absl::StatusOr<TrainConfig> resolved = ResolveConfig(config);
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  return *resolved;
}

// Fills a shard with bits that follow from the tensor's name and the element's index in it.
void Fill(const ckpt::ShardedTensor& tensor, const ckpt::LocalShard& shard) {
  const size_t size = ckpt::DTypeSize(tensor.dtype);
  const std::vector<int64_t> global = ckpt::ContiguousStrides(tensor.global_shape);
  const std::vector<int64_t> local =
      shard.strides.empty() ? ckpt::ContiguousStrides(shard.box.shape) : shard.strides;
  const uint64_t key = std::hash<std::string>()(tensor.name);
  const int64_t count = ckpt::ElementCount(shard.box.shape);
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i, from = 0, to = 0;
    for (size_t d = shard.box.shape.size(); d-- > 0;) {
      const int64_t at = rest % shard.box.shape[d];
      rest /= shard.box.shape[d];
      from += (shard.box.global_offset[d] + at) * global[d];
      to += at * local[d];
    }
    const uint64_t bits = (key + static_cast<uint64_t>(from) + 1) * 0x9E3779B97F4A7C15 >> 17;
    std::memcpy(static_cast<char*>(shard.data) + to * size, &bits, size);
  }
}

absl::Status SaveRank(const TrainConfig& config, const std::string& folder, Communicator& world) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Mesh> mesh,
                           Mesh::Create(ConfigTopology(config), &world));
  const std::unique_ptr<Backend> backend = MakeCpuBackend(1);
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                           Trainer::Create(config, {.seed = 1}, *mesh, *backend));
  std::vector<StateChunk> chunks;
  for (const TrainedChunk& chunk : trainer->chunks()) {
    chunks.push_back({chunk.parameters, chunk.optimizer});
  }
  ckpt::StateDict state = WeightState(chunks);
  for (ckpt::ShardedTensor& tensor : OptimizerTensors(chunks).tensors) {
    state.tensors.push_back(std::move(tensor));
  }
  for (const ckpt::ShardedTensor& tensor : state.tensors) {
    for (const ckpt::LocalShard& shard : tensor.shards) Fill(tensor, shard);
  }
  CommunicatorGroup group(world);
  Progress progress;
  progress.step = 7;
  ckpt::Metadata metadata = DescribeRun(config, config.model(), progress, DataIdentity(), {});
  TESSERA_ASSIGN_OR_RETURN(*metadata.mutable_optimizer(),
                           OptimizerNames(chunks, config.optimizer(), group, absl::Minutes(1)));
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ckpt::Storage> storage,
                           ckpt::OpenPosixStorage(folder, {.create_root = true}));
  return ckpt::Save(*storage, "", metadata, state, group, {}).status();
}

class ReshardToolTest : public ::testing::TestWithParam<Kind> {
 protected:
  ReshardToolTest() : root_(::testing::TempDir() + "/reshard_XXXXXX") {
    EXPECT_NE(mkdtemp(root_.data()), nullptr);
  }
  ~ReshardToolTest() override { std::filesystem::remove_all(root_); }

  // What a run at this topology saves. Returns the folder.
  std::string Saved(const std::string& topology, int virtual_shards = 0) {
    const std::string folder = absl::StrCat(root_, "/", topology, ".", virtual_shards);
    if (std::filesystem::exists(folder)) return folder;
    const TrainConfig config = Config(GetParam(), topology, virtual_shards);
    ThreadWorld world(ConfigTopology(config).world_size());
    const absl::Status saved =
        world.Run([&](Communicator& rank) { return SaveRank(config, folder, rank); });
    EXPECT_TRUE(saved.ok()) << topology << ": " << saved;
    return folder;
  }

  ckpt::Manifest ManifestOf(const std::string& folder) {
    const auto storage = ckpt::OpenPosixStorage(folder);
    EXPECT_TRUE(storage.ok()) << storage.status();
    absl::StatusOr<ckpt::Manifest> manifest = ckpt::ReadManifest(**storage, "step-00000007");
    EXPECT_TRUE(manifest.ok()) << manifest.status();
    if (!manifest.ok()) return {};
    manifest->clear_producer();
    (*manifest->mutable_trainer()->mutable_extra())["numerics"] = "";
    return *manifest;
  }

  int Run(const std::vector<std::string>& arguments) {
    std::ostringstream out, err;
    const int code = ckpt::RunCkpt(arguments, {out, err, nullptr});
    output_ = out.str() + err.str();
    return code;
  }

  void ExpectAsSaved(const std::string& from, const std::string& to, int virtual_shards = 0) {
    SCOPED_TRACE(absl::StrCat(from, " -> ", to, ", virtual shards ", virtual_shards));
    const std::string source = Saved(from, virtual_shards), expected = Saved(to, virtual_shards);
    const std::string made = absl::StrCat(root_, "/made.", count_++);
    std::vector<std::string> arguments = {"reshard", source, made, "--topology=" + to,
                                          absl::StrCat("--bucket-elements=", kBucketElements)};
    if (virtual_shards > 0) arguments.push_back(absl::StrCat("--virtual-shards=", virtual_shards));
    ASSERT_EQ(Run(arguments), ckpt::kExitOk) << output_;
    google::protobuf::util::MessageDifferencer differencer;
    std::string difference;
    differencer.ReportDifferencesToString(&difference);
    EXPECT_TRUE(differencer.Compare(ManifestOf(expected), ManifestOf(made)))
        << difference.substr(0, 2000);
    EXPECT_EQ(Run({"verify", made, "--digests"}), ckpt::kExitOk) << output_;
    EXPECT_EQ(Run({"diff", source, made}), ckpt::kExitOk) << output_;
    EXPECT_EQ(Run({"diff", source, made, "--data"}), ckpt::kExitOk) << output_;
  }

  std::string root_;
  std::string output_;
  int count_ = 0;
};

TEST_P(ReshardToolTest, FilesAreThoseOfARunAtThatTopology) {
  for (const char* to : {"dp4_zero2_tp2_pp2", "dp3", "dp3_zero1", "dp2_zero2", "tp2", "tp4", "pp2",
                         "pp4", "dp2_tp4", "pp2_vpp2", "dp2_zero2_tp2_pp2_vpp2"}) {
    ExpectAsSaved("single", to);
  }
}

TEST_P(ReshardToolTest, FromTopologyToTopology) {
  ExpectAsSaved("dp4_zero2_tp2_pp2", "single");
  ExpectAsSaved("dp4_zero2_tp2_pp2", "dp3_zero2");
  ExpectAsSaved("dp4_zero2_tp2_pp2", "tp4");
  ExpectAsSaved("dp2_zero2_tp2_pp2_vpp2", "pp4");
  ExpectAsSaved("pp4", "dp4_zero2_tp2_pp2");
}

TEST_P(ReshardToolTest, VirtualShards) {
  ExpectAsSaved("single", "dp2_zero2_tp2_pp2", 4);
  ExpectAsSaved("dp2_zero2_tp2_pp2", "tp4", 4);
  ExpectAsSaved("tp4", "single", 4);
}

INSTANTIATE_TEST_SUITE_P(Kinds, ReshardToolTest, ::testing::ValuesIn(kKinds),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tessera
