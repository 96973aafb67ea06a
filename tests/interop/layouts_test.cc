// Loads every layout of Megatron-Core, DeepSpeed, Hugging Face, torch, llm.c and InfiniTrain that
// there is a checkpoint of, under every topology. The state, to the last bit, and the losses of the
// next two steps must equal a run's that starts from what the writer itself has consolidated. The
// same must hold for checkpoints that are written here. Paddle and InternEvo have their own tests.

#include <map>
#include <ostream>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "gtest/gtest.h"
#include "tests/interop/foreign_fixture.h"
#include "tests/interop/foreign_run.h"
#include "tests/support/logical_state.h"
#include "tests/support/training.h"
#include "tools/ckpt/commands.h"
#include "trainer/config/config.pb.h"
#include "trainer/state/checkpoints.h"

namespace tessera {
namespace {

using testing::ContinuedRun;
using testing::LogicalState;

struct Layout {
  const char* test;
  const char* path;          // below tests/
  const char* consolidated;  // in safetensors, or a checkpoint of one file, below tests/
  int step = 0;              // 0: weights alone
  bool bf16 = false;         // the writer's run, which had master weights
  const char* model = "";    // a checkpoint that describes the model, below tests/
};

std::ostream& operator<<(std::ostream& out, const Layout& layout) { return out << layout.path; }

#define MEGATRON(name) #name, "interop/megatron/" #name
#define DEEPSPEED(name) \
#name, "interop/deepspeed/" #name, "interop/deepspeed/" #name "/expected.safetensors"
#define STATE_DICT(name) #name, "interop/state_dict/" #name
#define NUMBERED(name) STATE_DICT(name), "interop/state_dict/" #name ".logical.safetensors"

constexpr char kGpt2[] = "interop/megatron/gpt2.safetensors";
constexpr char kTied[] = "interop/megatron/llama3_tied.safetensors";
constexpr char kUntied[] = "interop/megatron/llama3_untied.safetensors";
constexpr char kBf16[] = "interop/megatron/llama3_bf16.safetensors";
constexpr char kHfGpt2[] = "fixtures/pytorch/gpt2.hf";
constexpr char kHfLlama[] = "fixtures/pytorch/llama3_untied.hf";

constexpr Layout kLayouts[] = {
    {MEGATRON(gpt2_single), kGpt2, 7},
    {MEGATRON(gpt2_tp2_pp2), kGpt2, 7},
    {MEGATRON(llama3_tied_pp2), kTied, 7},
    {MEGATRON(llama3_untied_single), kUntied, 7},
    {MEGATRON(llama3_untied_dp2_tp2_pp2), kUntied, 7},
    {MEGATRON(llama3_bf16_pp2_vpp2), kBf16, 7, true},
    {MEGATRON(buckets_llama3_untied_dp2_tp2_pp2), kUntied, 7},
    {MEGATRON(buckets_llama3_bf16_dp2_pp2_vpp2), kBf16, 7, true},
    {MEGATRON(gathered_llama3_bf16_dp2_tp2_pp2), kBf16, 7, true},
    {MEGATRON(flat_gpt2_dp2_tp2), kGpt2, 7},
    {MEGATRON(flat_buckets_gpt2_dp2), kGpt2, 7},
    {MEGATRON(legacy_gpt2_tp2_pp2), kGpt2, 7},
    {MEGATRON(legacy_llama3_tied_pp2_vpp2), kBf16, 7, true},
    {MEGATRON(legacy_llama3_untied_dp2_tp2), kUntied, 7},
    {MEGATRON(legacy_llama3_bf16_dp2_pp2_vpp2), kBf16, 7, true},
    {DEEPSPEED(zero1), 3},
    {DEEPSPEED(bf16_optimizer), 3, true},
    {DEEPSPEED(zero2_bf16), 3, true},
    {DEEPSPEED(zero3), 3},
    {DEEPSPEED(zero3_bf16_gqa), 3, true},
    {DEEPSPEED(universal), 3, true},
    {DEEPSPEED(universal_zero1), 3},
    {DEEPSPEED(universal_zero3), 3, true},
    {NUMBERED(trainer), 3},
    {NUMBERED(accelerate), 2},
    {NUMBERED(numbered_dcp), 2, false, kHfGpt2},
    {NUMBERED(titan), 3, false, kHfLlama},
    {STATE_DICT(titan_sharded), "interop/state_dict/titan.logical.safetensors", 3, false, kHfLlama},
    {STATE_DICT(gpt2), kHfGpt2},
    {"gpt2_wrapped", "interop/state_dict/gpt2_wrapped.pt", kHfGpt2, 0, false, kHfGpt2},
    {STATE_DICT(llama_meta), kHfLlama},
    {STATE_DICT(llama_ranks), "interop/state_dict/llama_whole"},
    {STATE_DICT(llama2_ranks), "interop/state_dict/llama_whole"},
    {"infinitrain_llama3", "interop/infinitrain/llama3/checkpoint_step_000003",
     "interop/state_dict/titan.logical.safetensors", 3, false, kHfLlama},
    {"infinitrain_gpt2_dp2", "interop/infinitrain/gpt2_dp2/checkpoint_step_000002",
     "interop/state_dict/numbered_dcp.logical.safetensors", 2, false, kHfGpt2},
    {"hf_gpt2", kHfGpt2, kHfGpt2},
    {"hf_llama3_tied", "fixtures/pytorch/llama3_tied.hf", "fixtures/pytorch/llama3_tied.hf"},
    {"hf_llama3_untied", kHfLlama, kHfLlama},
    {"llmc_gpt2", "fixtures/pytorch/gpt2.model.bin", kHfGpt2},
    {"llmc_llama3_untied", "fixtures/pytorch/llama3_untied.model.bin", kHfLlama},
};

std::string Path(const char* name) { return std::string("tests/") + name; }

absl::StatusOr<SavedRun> Open(const Layout& layout) {
  if (layout.model[0] == '\0') return testing::OpenForeignRun(Path(layout.path));
  TESSERA_ASSIGN_OR_RETURN(const SavedRun described, testing::OpenForeignRun(Path(layout.model)));
  return testing::OpenForeignRun(Path(layout.path), &described.manifest.model());
}

class LayoutsTest : public testing::ForeignFixture, public ::testing::WithParamInterface<Layout> {
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
  const auto saved = Open(layout);
  ASSERT_TRUE(saved.ok()) << saved.status();
  ASSERT_EQ(saved->manifest.trainer().step(), layout.step);
  EXPECT_EQ(saved->manifest.has_optimizer(), layout.step > 0);
  for (const bool bf16 : {layout.bf16, false}) {
    const auto expected = Reference(layout, saved->manifest.model().text(), bf16);
    ASSERT_TRUE(expected.ok()) << expected.status();
    for (const std::string topology : testing::kTopologies) {
      // A run in the other precision reads the same files.
      if (bf16 != layout.bf16 && topology != "dp2_zero2_tp2_pp2") continue;
      SCOPED_TRACE(topology);
      const auto continued = Load(*saved, topology, bf16);
      ASSERT_TRUE(continued.ok()) << continued.status();
      EXPECT_EQ(FirstStateDifference(continued->state, expected->state), "");
      EXPECT_EQ(continued->losses, expected->losses);
      EXPECT_EQ(continued->losses.size(), 2);
    }
    if (!layout.bf16) break;
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, LayoutsTest, ::testing::ValuesIn(kLayouts),
                         [](const auto& info) { return std::string(info.param.test); });

// A checkpoint of Megatron-Core in each format that is written with optimizer state.
class WrittenTest : public testing::ForeignFixture,
                    public ::testing::WithParamInterface<const char*> {};

TEST_P(WrittenTest, ARunGoesOnFromItUnderEveryTopology) {
  const std::string source = "tests/interop/megatron/gpt2_tp2_pp2", written = In(GetParam());
  std::ostringstream out, err;
  ASSERT_EQ(ckpt::RunCkpt({"convert", source, written, std::string("--to=") + GetParam()},
                          {out, err, nullptr}),
            ckpt::kExitOk)
      << err.str();
  const auto original = testing::OpenForeignRun(source);
  ASSERT_TRUE(original.ok()) << original.status();
  const auto expected = Load(*original, "single", /*bf16=*/false);
  ASSERT_TRUE(expected.ok()) << expected.status();
  // State dicts do not tell the model: flags of a run do.
  const auto saved = testing::OpenForeignRun(written, &original->manifest.model());
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(saved->manifest.trainer().step(), 7);
  for (const std::string topology : testing::kTopologies) {
    SCOPED_TRACE(topology);
    const auto continued = Load(*saved, topology, /*bf16=*/false);
    ASSERT_TRUE(continued.ok()) << continued.status();
    EXPECT_EQ(FirstStateDifference(continued->state, expected->state), "");
    EXPECT_EQ(continued->losses, expected->losses);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, WrittenTest,
                         ::testing::Values("llmc", "torch", "dcp", "megatron"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tessera
