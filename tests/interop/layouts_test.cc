// Loads every layout of every format that there is a checkpoint of, real or imitated, under every
// topology. The state, to the last bit, and the losses of the next two steps must equal a run's
// that starts from what the writer, a program or a script, has consolidated. The same must hold for
// checkpoints that are written here. docs/convert.md says which layouts are real.

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "checkpoint/include/manifest.h"
#include "gtest/gtest.h"
#include "tests/interop/foreign_run.h"
#include "tests/support/logical_state.h"
#include "tests/support/training.h"
#include "tools/ckpt/commands.h"
#include "trainer/config/config.pb.h"
#include "trainer/state/saved_run.h"

namespace tessera {
namespace {

using testing::ContinuedRun;
using testing::LogicalState;

// The sizes of the parallel axes that a manifest states; 0 is not compared.
struct Parallel {
  int tensor = 0, pipeline = 0, chunks = 0, data = 0;
};

struct Layout {
  const char* test;
  const char* path;          // below tests/
  const char* consolidated;  // in safetensors, or a checkpoint of one file, below tests/
  int step = 0;              // 0: weights alone
  int64_t consumed = 0;      // samples; 0: the files do not tell them
  bool bf16 = false;         // the writer's run, which had master weights
  const char* model = "";    // a checkpoint that describes the model, below tests/
  Parallel parallel = {};
};

std::ostream& operator<<(std::ostream& out, const Layout& layout) { return out << layout.path; }

#define MEGATRON(name, consolidated) #name, "interop/megatron/" #name, consolidated, 7, 56
#define DEEPSPEED(name, ranks)                                                              \
#name, "interop/deepspeed/" #name, "interop/deepspeed/" #name "/expected.safetensors", 3, \
      3 * ranks
#define STATE_DICT(name) #name, "interop/state_dict/" #name
#define NUMBERED(name, consolidated) \
  STATE_DICT(name), "interop/state_dict/" consolidated ".logical.safetensors"
#define PADDLE(name, bf16)                                                                        \
  "paddle_" #name, "interop/paddle/testdata/" #name, "interop/paddle/testdata/state.safetensors", \
      3, 0, bf16, ""
#define PADDLE_DEGREE(degree, name, bf16)            \
  "paddle_" #name, "interop/paddle/testdata/" #name, \
      "interop/paddle/testdata/degree" #degree ".safetensors", 3, 0, bf16, ""
#define PADDLE_GPT(name, bf16)                                                                     \
  "paddle_" #name, "interop/paddle/testdata/" #name, "interop/paddle/testdata/gpt.safetensors", 3, \
      0, bf16, ""
#define INTERNEVO(name, model, ranks, bf16)                                                     \
  "internevo_" #name, "interop/internevo/" #name, "interop/internevo/" model ".safetensors", 3, \
      12 * ranks, bf16, ""

constexpr char kGpt2[] = "interop/megatron/gpt2.safetensors";
constexpr char kTied[] = "interop/megatron/llama3_tied.safetensors";
constexpr char kUntied[] = "interop/megatron/llama3_untied.safetensors";
constexpr char kBf16[] = "interop/megatron/llama3_bf16.safetensors";
constexpr char kHfGpt2[] = "interop/pytorch/gpt2.hf";
constexpr char kHfLlama[] = "interop/pytorch/llama3_untied.hf";

constexpr Layout kLayouts[] = {
    {MEGATRON(gpt2_single, kGpt2)},
    {MEGATRON(gpt2_tp2_pp2, kGpt2)},
    {MEGATRON(llama3_tied_pp2, kTied)},
    {MEGATRON(llama3_untied_single, kUntied)},
    {MEGATRON(llama3_untied_dp2_tp2_pp2, kUntied)},
    {MEGATRON(llama3_bf16_pp2_vpp2, kBf16), true},
    {MEGATRON(buckets_llama3_untied_dp2_tp2_pp2, kUntied)},
    {MEGATRON(buckets_llama3_bf16_dp2_pp2_vpp2, kBf16), true},
    {MEGATRON(gathered_llama3_bf16_dp2_tp2_pp2, kBf16), true},
    {MEGATRON(flat_gpt2_dp2_tp2, kGpt2)},
    {MEGATRON(flat_buckets_gpt2_dp2, kGpt2)},
    {MEGATRON(legacy_gpt2_tp2_pp2, kGpt2)},
    {MEGATRON(legacy_llama3_tied_pp2_vpp2, kBf16), true},
    {MEGATRON(legacy_llama3_untied_dp2_tp2, kUntied)},
    {MEGATRON(legacy_llama3_bf16_dp2_pp2_vpp2, kBf16), true},
    {DEEPSPEED(zero1, 2)},
    {DEEPSPEED(bf16_optimizer, 2), true},
    {DEEPSPEED(zero2_bf16, 3), true},
    {DEEPSPEED(zero3, 2)},
    {DEEPSPEED(zero3_bf16_gqa, 3), true},
    {DEEPSPEED(universal, 3), true},
    {DEEPSPEED(universal_zero1, 2)},
    {DEEPSPEED(universal_zero3, 3), true},
    {NUMBERED(trainer, "trainer"), 3},
    {NUMBERED(accelerate, "accelerate"), 2},
    {NUMBERED(numbered_dcp, "numbered_dcp"), 2, 0, false, kHfGpt2},
    {NUMBERED(titan, "titan"), 3, 0, false, kHfLlama},
    {NUMBERED(titan_sharded, "titan"), 3, 0, false, kHfLlama},
    {STATE_DICT(gpt2), kHfGpt2},
    {"gpt2_wrapped", "interop/state_dict/gpt2_wrapped.pt", kHfGpt2, 0, 0, false, kHfGpt2},
    {"nanogpt", "interop/state_dict/nanogpt", "interop/state_dict/nanogpt.logical.safetensors", 3},
    {"nanogpt_biases", "interop/state_dict/nanogpt_biases",
     "interop/state_dict/nanogpt_biases.logical.safetensors", 3},
    {STATE_DICT(llama_meta), kHfLlama},
    {STATE_DICT(llama_ranks), "interop/state_dict/llama_whole", 0, 0, false, "", {.tensor = 2}},
    {STATE_DICT(llama2_ranks), "interop/state_dict/llama_whole", 0, 0, false, "", {.tensor = 2}},
    {"infinitrain_llama3", "interop/infinitrain/llama3/checkpoint_step_000003",
     "interop/state_dict/titan.logical.safetensors", 3, 24, false, kHfLlama},
    {"infinitrain_gpt2_dp2", "interop/infinitrain/gpt2_dp2/checkpoint_step_000002",
     "interop/state_dict/numbered_dcp.logical.safetensors", 2, 16, false, kHfGpt2},
    {"infinitrain_llama3_dp2_tp2_pp2",
     "interop/infinitrain/llama3_dp2_tp2_pp2/iter_0000003",
     "interop/state_dict/titan.logical.safetensors",
     3,
     24,
     false,
     kHfLlama,
     {2, 2, 1, 2}},
    {"infinitrain_gpt2_dp2_tp2_pp2",
     "interop/infinitrain/gpt2_dp2_tp2_pp2/iter_0000002",
     "interop/state_dict/numbered_dcp.logical.safetensors",
     2,
     16,
     false,
     kHfGpt2,
     {2, 2, 1, 2}},
    {PADDLE(dp, false), {1, 1, 1, 1}},
    {PADDLE(mp2, false), {2, 1, 1, 1}},
    {PADDLE(mp2_fused, false), {2, 1, 1, 1}},
    {PADDLE(pp2, true), {1, 2, 1, 1}},
    {PADDLE(mp2_pp2, true), {2, 2, 1, 1}},
    {PADDLE(mp2_pp2_vpp2, false), {2, 2, 2, 1}},
    {PADDLE(sharding2_v1, true), {1, 1, 1, 2}},
    {PADDLE(sharding2_v1_meta, false), {1, 1, 1, 2}},
    {PADDLE(mp2_sharding2_v1, false), {2, 1, 1, 2}},
    {PADDLE(mp2_pp2_sharding2_v1_meta, true), {2, 2, 1, 2}},
    {PADDLE(sharding2_v2_meta, true), {1, 1, 1, 2}},
    {PADDLE(mp2_pp2_sharding2_v2_meta, false), {2, 2, 1, 2}},
    {PADDLE(sharding2_v2, true), {1, 1, 1, 2}},
    {PADDLE(mp2_pp2_sharding2_v2, false), {2, 2, 1, 2}},
    {PADDLE(mp2_pp2_sharding2_v2_master, true), {2, 2, 1, 2}},
    {PADDLE(sharding2_stage3, true), {1, 1, 1, 2}},
    {PADDLE(sharding3_stage2, false), {1, 1, 1, 3}},
    {PADDLE(sharding4_stage2, false), {1, 1, 1, 4}},
    {PADDLE(auto_llama_1, false)},
    {PADDLE(auto_llama_4, false)},
    {PADDLE(sharded_llama_3, true)},
    {PADDLE_DEGREE(3, mp3, false), {3, 1, 1, 1}},
    {PADDLE_DEGREE(3, pp3, true), {1, 3, 1, 1}},
    {PADDLE_DEGREE(3, sharding3_v1_meta, false), {1, 1, 1, 3}},
    {PADDLE_DEGREE(3, sharding3_v2, true), {1, 1, 1, 3}},
    {PADDLE_DEGREE(3, mp3_pp3_sharding2_v2_meta, false), {3, 3, 1, 2}},
    {PADDLE_DEGREE(4, mp4, false), {4, 1, 1, 1}},
    {PADDLE_DEGREE(4, pp4, true), {1, 4, 1, 1}},
    {PADDLE_DEGREE(4, sharding4_v1_meta, false), {1, 1, 1, 4}},
    {PADDLE_DEGREE(4, sharding4_v2, true), {1, 1, 1, 4}},
    {PADDLE_DEGREE(4, mp4_pp4_sharding2_v2_meta, false), {4, 4, 1, 2}},
    {PADDLE_GPT(auto_gpt_2, false)},
    {PADDLE_GPT(gpt_dp, false), {1, 1, 1, 1}},
    {PADDLE_GPT(gpt_mp2_pp2, false), {2, 2, 1, 1}},
    {PADDLE_GPT(gpt_fused_mp2_pp2, true), {2, 2, 1, 1}},
    {PADDLE_GPT(gpt_fused_sharding2_v2_meta, false), {1, 1, 1, 2}},
    {INTERNEVO(tp1, "state", 1, true), {1, 1, 1, 1}},
    {INTERNEVO(zo2, "state", 2, true), {1, 1, 1, 2}},
    {INTERNEVO(tp2, "state", 2, true), {2, 1, 1, 1}},
    {INTERNEVO(wp2, "state", 1, true), {2, 1, 1, 1}},
    {INTERNEVO(pp2, "state", 1, true), {1, 2, 1, 1}},
    {INTERNEVO(tp2_pp2_zo2, "state", 2, true), {2, 2, 1, 2}},
    {INTERNEVO(pp2_vpp2, "state", 1, true), {1, 2, 2, 1}},
    {INTERNEVO(llama_fp32, "llama", 1, false), {1, 1, 1, 1}},
    {INTERNEVO(llama_tp2_zo2, "llama", 2, true), {2, 1, 1, 2}},
    {INTERNEVO(llama_universal, "llama", 2, true)},
    {"hf_gpt2", kHfGpt2, kHfGpt2},
    {"hf_llama3_tied", "interop/pytorch/llama3_tied.hf", "interop/pytorch/llama3_tied.hf"},
    {"hf_llama3_untied", kHfLlama, kHfLlama},
    {"gguf_gpt2", "../convert/formats/gguf/testdata/gpt2", kHfGpt2},
    {"gguf_llama3_tied", "../convert/formats/gguf/testdata/llama3_tied",
     "interop/pytorch/llama3_tied.hf"},
    {"gguf_llama3_untied", "../convert/formats/gguf/testdata/llama3_untied/model.gguf", kHfLlama},
    {"llmc_gpt2", "interop/pytorch/gpt2.model.bin", kHfGpt2},
    {"llmc_llama3_untied", "interop/pytorch/llama3_untied.model.bin", kHfLlama},
};

void ExpectParallel(const Parallel& expected, const ckpt::TopologyProto& found) {
  if (expected.tensor > 0) EXPECT_EQ(found.tensor_parallel(), expected.tensor);
  if (expected.pipeline > 0) EXPECT_EQ(found.pipeline_parallel(), expected.pipeline);
  if (expected.chunks > 0) EXPECT_EQ(found.virtual_pipeline(), expected.chunks);
  if (expected.data > 0) EXPECT_EQ(found.data_parallel(), expected.data);
}

std::string Path(const char* name) { return std::string("tests/") + name; }

absl::StatusOr<SavedRun> Open(const Layout& layout) {
  if (layout.model[0] == '\0') return testing::OpenForeignRun(Path(layout.path));
  TESSERA_ASSIGN_OR_RETURN(const SavedRun described, testing::OpenForeignRun(Path(layout.model)));
  return testing::OpenForeignRun(Path(layout.path), &described.manifest().model());
}

class LayoutsTest : public testing::ForeignTest, public ::testing::WithParamInterface<Layout> {
 protected:
  absl::StatusOr<LogicalState> Consolidated(const Layout& layout) const {
    const std::string path = Path(layout.consolidated);
    if (path.ends_with(".safetensors") || path.ends_with(".hf")) {
      return testing::ReadFp32State(path);
    }
    TESSERA_ASSIGN_OR_RETURN(ContinuedRun whole, Load(path, "single", /*bf16=*/false));
    return std::move(whole.state);
  }

  // The run of a model from the consolidated state, one for all layouts that hold it. Formats state
  // different settings of a model, such as the scaling of rotary embeddings.
  absl::StatusOr<ContinuedRun> Reference(const Layout& layout, const std::string& model,
                                         bool bf16) const {
    static auto& runs = *new std::map<std::tuple<std::string, std::string, bool>, ContinuedRun>();
    const std::tuple key(layout.consolidated, model, bf16);
    const auto known = runs.find(key);
    if (known != runs.end()) return known->second;
    TESSERA_ASSIGN_OR_RETURN(const LogicalState state, Consolidated(layout));
    TESSERA_ASSIGN_OR_RETURN(const TrainConfig config, Config(Settings(model, "single", bf16)));
    TESSERA_ASSIGN_OR_RETURN(
        ContinuedRun run,
        testing::ContinueRun(bf16 ? testing::AsBf16Run(state) : state, layout.step, config));
    return runs.emplace(key, std::move(run)).first->second;
  }
};

TEST_P(LayoutsTest, ARunGoesOnFromItUnderEveryTopology) {
  const Layout layout = GetParam();
  ASSERT_OK_AND_ASSIGN(const auto saved, Open(layout));
  ASSERT_EQ(saved.manifest().trainer().step(), layout.step);
  EXPECT_EQ(saved.manifest().has_optimizer(), layout.step > 0);
  EXPECT_EQ(saved.manifest().trainer().data().consumed_samples(), layout.consumed);
  ExpectParallel(layout.parallel, saved.manifest().topology());
  for (const ckpt::OptimizerParameter& parameter : saved.manifest().optimizer().parameters()) {
    EXPECT_FALSE(parameter.foreign_names().empty()) << parameter.parameter();
  }
  for (const bool bf16 : {layout.bf16, false}) {
    ASSERT_OK_AND_ASSIGN(const auto expected,
                         Reference(layout, saved.manifest().model().text(), bf16));
    for (const std::string topology : testing::kTopologies) {
      // A run in the other precision reads the same files.
      if (bf16 != layout.bf16 && topology != "dp2_zero2_tp2_pp2") continue;
      SCOPED_TRACE(topology);
      ASSERT_OK_AND_ASSIGN(const auto continued, Load(saved, topology, bf16));
      EXPECT_EQ(FirstStateDifference(continued.state, expected.state), "");
      EXPECT_EQ(continued.losses, expected.losses);
      EXPECT_EQ(continued.losses.size(), 2);
    }
    if (!layout.bf16) break;
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, LayoutsTest, ::testing::ValuesIn(kLayouts),
                         [](const auto& info) { return std::string(info.param.test); });

// A checkpoint of Megatron-Core in each format that is written with optimizer state.
class WrittenTest : public testing::ForeignTest,
                    public ::testing::WithParamInterface<const char*> {};

TEST_P(WrittenTest, ARunGoesOnFromItUnderEveryTopology) {
  const std::string source = "tests/interop/megatron/gpt2_tp2_pp2", written = In(GetParam());
  ASSERT_EQ(Run({"convert", source, written, std::string("--to=") + GetParam()}), ckpt::kExitOk)
      << err_;
  ASSERT_OK_AND_ASSIGN(const auto original, testing::OpenForeignRun(source));
  ASSERT_OK_AND_ASSIGN(const auto expected, Load(original, "single", /*bf16=*/false));
  // State dicts do not tell the model: flags of a run do.
  ASSERT_OK_AND_ASSIGN(const auto saved,
                       testing::OpenForeignRun(written, &original.manifest().model()));
  EXPECT_EQ(saved.manifest().trainer().step(), 7);
  for (const std::string topology : testing::kTopologies) {
    SCOPED_TRACE(topology);
    ASSERT_OK_AND_ASSIGN(const auto continued, Load(saved, topology, /*bf16=*/false));
    EXPECT_EQ(FirstStateDifference(continued.state, expected.state), "");
    EXPECT_EQ(continued.losses, expected.losses);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, WrittenTest,
                         ::testing::Values("llmc", "torch", "dcp", "megatron"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tessera
