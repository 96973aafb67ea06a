// ckpt reshard writes the same logical state for the ranks of a run at the other topology. They
// read about as few and as long ranges of it, of as few files, as of a checkpoint that they wrote
// themselves.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <ostream>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "comm/threads/thread_world.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "layout/topology.h"
#include "tests/support/training.h"
#include "tools/ckpt/commands.h"
#include "trainer/config/config.h"
#include "trainer/config/config.pb.h"
#include "trainer/state/run_state.h"
#include "trainer/state/state_chunks.h"

namespace tessera {
namespace {

struct Kind {
  std::string_view name;
  const char* model;  // text format
  bool bf16;
};

// Five layers split unevenly over two and four stages. The vocabulary's size is a prime number.
constexpr Kind kKinds[] = {
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

// Fills a shard with bits that follow from the tensor's name and the element's index in it.
void Fill(const ckpt::ShardedTensor& tensor, const ckpt::Shard& shard) {
  const size_t size = ElementSize(tensor.dtype);
  const std::vector<int64_t> global = ContiguousStrides(tensor.global_shape);
  const std::vector<int64_t> local =
      shard.strides.empty() ? ContiguousStrides(shard.box.shape) : shard.strides;
  const uint64_t key = std::hash<std::string>()(tensor.name);
  const int64_t count = ElementCount(shard.box.shape);
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

// What each rank of a run holds.
struct HeldBox {
  std::string tensor;
  Box box;
};
using HeldBoxes = std::vector<std::vector<HeldBox>>;

// How a load of one rank goes through the files. Shared reading and whole checksum chunks, which
// make a load of these small files look better, are left out.
struct Reads {
  int64_t files = 0;
  int64_t ranges = 0;  // runs of bytes
  int64_t bytes = 0;

  Reads& operator+=(const Reads& other) {
    files += other.files;
    ranges += other.ranges;
    bytes += other.bytes;
    return *this;
  }
};

Reads CountReads(const ckpt::Manifest& manifest, const std::vector<HeldBox>& wanted) {
  std::map<std::pair<uint32_t, uint64_t>, uint64_t> runs;  // (file, begin) -> end
  for (const ckpt::LogicalTensor& tensor : manifest.tensors()) {
    const auto element_bytes = ElementSize(ckpt::FromProto(tensor.dtype()));
    for (const HeldBox& held : wanted) {
      if (held.tensor != tensor.name()) continue;
      for (int64_t s = 0; s < ckpt::ShardCount(tensor); ++s) {
        const Box saved = ckpt::ShardBox(tensor, s);
        const std::optional<Box> common = Intersect(saved, held.box);
        if (!common || common->empty()) continue;
        const std::vector<int64_t> strides = ContiguousStrides(saved.shape);
        const size_t dims = common->shape.size();
        const int64_t row = dims == 0 ? 1 : common->shape.back();
        for (int64_t i = 0; i < ElementCount(common->shape) / row; ++i) {
          int64_t rest = i, at = 0;
          for (size_t d = dims; d-- > 0;) {
            const int64_t extent = d + 1 == dims ? 1 : common->shape[d];
            at += (common->global_offset[d] - saved.global_offset[d] + rest % extent) * strides[d];
            rest /= extent;
          }
          const int index = static_cast<int>(s);
          const uint64_t begin = tensor.shards().file_offset(index) + at * element_bytes;
          runs[{tensor.shards().file_index(index), begin}] = begin + row * element_bytes;
        }
      }
    }
  }
  Reads reads;
  std::pair<uint32_t, uint64_t> end = {~0u, 0};
  for (const auto& [run, run_end] : runs) {
    reads.files += run.first != end.first;
    reads.ranges += run != end;
    reads.bytes += static_cast<int64_t>(run_end - run.second);
    end = {run.first, run_end};
  }
  return reads;
}

absl::Status SaveRank(const TrainConfig& config, Communicator& world, std::vector<HeldBox>& held) {
  TESSERA_ASSIGN_OR_RETURN(const auto rank,
                           testing::TrainingRank::Create(config, 1, &world, /*log=*/nullptr));
  const std::vector<StateChunk> chunks = rank->state();
  for (const ckpt::StateDict& state : {WeightState(chunks), OptimizerTensors(chunks)}) {
    for (const ckpt::ShardedTensor& tensor : state.tensors) {
      for (const ckpt::Shard& shard : tensor.shards) {
        Fill(tensor, shard);
        held.push_back({tensor.name, shard.box});
      }
    }
  }
  Progress progress;
  progress.step = 7;
  rank->set_progress(progress);
  return rank->Save();
}

class ReshardToolTest : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override { ASSERT_OK(testing::WriteTokens(tokens_, /*vocabulary=*/211, 1000)); }

  // What a run at this topology saves. Returns the folder.
  std::string Saved(const std::string& topology, int virtual_shards = 0) {
    const std::string folder = absl::StrCat(root_, "/", topology, ".", virtual_shards);
    if (std::filesystem::exists(folder)) return folder;
    TrainConfig config = OrFail(testing::MakeConfig({.model = GetParam().model,
                                                     .tokens = tokens_,
                                                     .topology = topology,
                                                     .exact_shards = virtual_shards,
                                                     .bf16 = GetParam().bf16,
                                                     .global_batch_size = 48}));
    config.mutable_checkpoint()->set_save(folder);
    const int ranks = ConfigTopology(config).world_size();
    HeldBoxes& held = held_[folder];
    held.resize(ranks);
    EXPECT_OK(ThreadWorld(ranks).Run([&](Communicator& rank) {
      return SaveRank(config, rank, held[rank.rank()]);
    })) << topology;
    return folder;
  }

  ckpt::Manifest ManifestOf(const std::string& folder) {
    const auto storage = OrFail(OpenStorage(folder));
    return OrFail(ckpt::ReadManifest(*storage, "step-00000007"));
  }

  // All that does not follow from how the state is cut, tensors by name.
  static ckpt::Manifest Uncut(ckpt::Manifest manifest) {
    manifest.clear_producer();
    manifest.clear_files();
    (*manifest.mutable_trainer()->mutable_extra())["numerics"] = "";
    for (ckpt::LogicalTensor& tensor : *manifest.mutable_tensors()) {
      tensor.clear_shards();
      tensor.clear_padded_shape();  // of each topology's own padding
    }
    std::ranges::sort(*manifest.mutable_tensors(), {},
                      [](const ckpt::LogicalTensor& tensor) { return tensor.name(); });
    return manifest;
  }

  // Writes the manifest as if no partition had been known.
  void ForgetPartitions(const std::string& folder) {
    ckpt::Manifest manifest = ManifestOf(folder);
    for (ckpt::LogicalTensor& tensor : *manifest.mutable_tensors()) tensor.clear_partition();
    ASSERT_OK_AND_ASSIGN(const std::string bytes, ckpt::EncodeManifest(manifest));
    std::ofstream(folder + "/step-00000007/manifest.pb", std::ios::binary) << bytes;
  }

  int Run(const std::vector<std::string>& arguments) {
    std::ostringstream out, err;
    const int code = ckpt::RunCkpt(arguments, {out, err, nullptr});
    output_ = out.str() + err.str();
    return code;
  }

  void ExpectSameState(const std::string& from, const std::string& to, int virtual_shards = 0) {
    SCOPED_TRACE(absl::StrCat(from, " -> ", to, ", virtual shards ", virtual_shards));
    const std::string source = Saved(from, virtual_shards), expected = Saved(to, virtual_shards);
    const std::string made = absl::StrCat(root_, "/made.", count_++);
    std::vector<std::string> arguments = {"reshard", source, made, "--topology=" + to};
    if (virtual_shards > 0) arguments.push_back(absl::StrCat("--virtual-shards=", virtual_shards));
    ASSERT_EQ(Run(arguments), ckpt::kExitOk) << output_;
    EXPECT_EQ(output_.find("do not say"), std::string::npos) << output_;
    google::protobuf::util::MessageDifferencer differencer;
    std::string difference;
    differencer.ReportDifferencesToString(&difference);
    const ckpt::Manifest own = ManifestOf(expected), other = ManifestOf(made);
    EXPECT_TRUE(differencer.Compare(Uncut(own), Uncut(other))) << difference.substr(0, 2000);
    EXPECT_EQ(Run({"verify", made, "--digests"}), ckpt::kExitOk) << output_;
    EXPECT_EQ(Run({"diff", source, made}), ckpt::kExitOk) << output_;
    EXPECT_EQ(Run({"diff", source, made, "--data"}), ckpt::kExitOk) << output_;
    ExpectFewReads(ManifestOf(source), own, other, held_[expected]);
  }

  void ExpectFewReads(const ckpt::Manifest& source, const ckpt::Manifest& own,
                      const ckpt::Manifest& made, const HeldBoxes& held) {
    Reads from_source, from_own, from_made;
    for (const std::vector<HeldBox>& rank : held) {
      from_source += CountReads(source, rank);
      from_own += CountReads(own, rank);
      from_made += CountReads(made, rank);
    }
    EXPECT_EQ(from_made.bytes, from_own.bytes);
    // With ZeRO, a rank's runs of bytes are the runs of its buckets, which are tiny here.
    if (made.topology().zero_stage() == 0) {
      EXPECT_LE(from_made.files, from_own.files);
      EXPECT_LE(from_made.ranges, from_own.ranges);
    }
    const auto ranks = static_cast<double>(held.size());
    std::printf(
        "reads per rank: %s -> %s: not resharded %.1f files %.1f ranges, resharded %.1f "
        "files %.1f ranges, its own %.1f files %.1f ranges\n",
        ToString(ckpt::FromProto(source.topology())).c_str(),
        ToString(ckpt::FromProto(made.topology())).c_str(), from_source.files / ranks,
        from_source.ranges / ranks, from_made.files / ranks, from_made.ranges / ranks,
        from_own.files / ranks, from_own.ranges / ranks);
  }

  const TestFolder folder_;
  const std::string root_ = folder_.path();
  const std::string tokens_ = root_ + "/tokens.bin";
  std::string output_;
  std::map<std::string, HeldBoxes> held_;  // by folder
  int count_ = 0;
};

// Replicas, ZeRO, tensor ranks and stages together with each kind of model. The other pairs have
// one kind in turn, so that each kind has one with virtual stages.
TEST_P(ReshardToolTest, AnyTopologyBecomesAnyOther) {
  constexpr std::pair<const char*, const char*> kPairs[] = {
      {"single", "tp4"},
      {"single", "pp4"},
      {"single", "dp3_zero1"},
      {"single", "dp2_tp4"},
      {"single", "pp2_vpp2"},
      {"single", "tp2"},
      {"single", "dp2_zero2"},
      {"single", "pp2"},
      {"single", "dp2_zero2_tp2_pp2_vpp2"},
      {"dp4_zero2_tp2_pp2", "dp3_zero2"},
      {"dp4_zero2_tp2_pp2", "tp4"},
      {"dp4_zero2_tp2_pp2", "dp3"},
      {"dp2_zero2_tp2_pp2_vpp2", "pp4"},
      {"pp4", "dp4_zero2_tp2_pp2"},
  };
  ExpectSameState("single", "dp4_zero2_tp2_pp2");
  ExpectSameState("dp4_zero2_tp2_pp2", "single");
  int turn = 0;
  for (const auto& [from, to] : kPairs) {
    if (GetParam().name == kKinds[turn++ % std::size(kKinds)].name) ExpectSameState(from, to);
  }
}

TEST_P(ReshardToolTest, VirtualShards) {
  ExpectSameState("single", "dp2_zero2_tp2_pp2", 4);
  ExpectSameState("dp2_zero2_tp2_pp2", "tp4", 4);
  ExpectSameState("tp4", "single", 4);
}

// Checkpoints of older versions say nothing of partitions: rules from the command line do.
TEST_P(ReshardToolTest, WithoutPartitions) {
  const std::string old = Saved("dp2_zero1");
  ForgetPartitions(old);
  const auto made = [&] { return absl::StrCat(root_, "/made.", count_++); };
  const std::string guessed = made(), cut = made();
  EXPECT_EQ(Run({"reshard", old, made(), "--topology=pp2"}), ckpt::kExitUsage);
  EXPECT_NE(output_.find("--split=PATTERN=layer"), std::string::npos) << output_;
  ASSERT_EQ(Run({"reshard", old, guessed, "--topology=dp2_tp2_zero2"}), ckpt::kExitOk) << output_;
  EXPECT_NE(output_.find("do not say how they may be cut"), std::string::npos) << output_;
  EXPECT_EQ(Run({"diff", old, guessed, "--data"}), ckpt::kExitOk) << output_;
  ASSERT_EQ(Run({"reshard", old, cut, "--topology=dp2_tp2_pp2", "--split=*.#.*=layer",
                 "--split=*.c_attn.weight=1/3"}),
            ckpt::kExitOk)
      << output_;
  EXPECT_EQ(Run({"diff", old, cut, "--data"}), ckpt::kExitOk) << output_;
}

INSTANTIATE_TEST_SUITE_P(Kinds, ReshardToolTest, ::testing::ValuesIn(kKinds),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tessera
