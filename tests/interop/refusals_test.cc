// Checkpoints of other frameworks that are damaged, incomplete or do not fit together: each is
// refused with a message that names the cause.

#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "base/testing.h"
#include "convert/open_foreign.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/interop/changed_copies.h"
#include "tests/interop/foreign_run.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using testing::All;
using testing::Change;
using testing::CopyFrom;
using testing::CopyWithin;
using testing::Edit;
using testing::EditJson;
using testing::Exchange;
using testing::Fixture;
using testing::FlipTensor;
using ::testing::HasSubstr;
using testing::Refusal;
using testing::Remove;
using testing::Replace;
using testing::SetBucketSize;
using testing::SetNumber;
using testing::Write;

std::vector<Refusal> DeepSpeedRefusals() {
  const std::string step = "global_step3/", zero2 = "deepspeed/zero2_bf16",
                    zero1 = "deepspeed/zero1", model = step + "mp_rank_00_model_states.pt";
  const auto rank = [&](int number) {
    return step + "bf16_zero_pp_rank_" + std::to_string(number) + "_mp_rank_00_optim_states.pt";
  };
  return {
      {"MissingRank", zero2, Remove({rank(1)}), {"data-parallel ranks are missing: 1"}},
      {"MissingLastRank", zero2, Remove({rank(2)}), {"cut among 3 ranks, but 2 have files"}},
      {"TwoFilesOfOneRank",
       zero2,
       CopyWithin(rank(0), step + "zero_pp_rank_0_mp_rank_00_optim_states.pt"),
       {"are both files of one rank"}},
      {"ModelParallelRank",
       zero1,
       CopyWithin(model, step + "mp_rank_01_model_states.pt"),
       {"mp_rank_01_model_states.pt", "ds_to_universal"}},
      {"MissingModel", zero1, Remove({model}), {"the model's file beside it is missing"}},
      {"MissingLatest", zero1, Remove({"global_step3"}), {"latest", "global_step3"}},
      {"FileOfAnotherRun",
       zero1,
       CopyFrom(zero2 + "/" + rank(1), step + "zero_pp_rank_1_mp_rank_00_optim_states.pt"),
       {"zero_pp_rank_1_mp_rank_00_optim_states.pt", "cut among 3 ranks"}},
      {"AnotherModel",
       zero1,
       CopyFrom("deepspeed/zero3_bf16/config.json", "config.json"),
       {"parameter model.embed_tokens.weight is missing"}},
      {"UniversalParameterWithoutWeights",
       "deepspeed/universal",
       Remove({step + "zero/transformer.ln_f.weight/fp32.pt"}),
       {"zero/transformer.ln_f.weight/fp32.pt is missing"}},
      {"UniversalParameterWithoutFolder",
       "deepspeed/universal",
       Remove({step + "zero/transformer.ln_f.weight"}),
       {"zero/transformer.ln_f.weight/fp32.pt is missing"}},
  };
}

std::vector<Refusal> MegatronRefusals() {
  const std::string gpt2 = "megatron/gpt2_tp2_pp2",
                    buckets = "megatron/buckets_llama3_untied_dp2_tp2_pp2",
                    flat = "megatron/flat_buckets_gpt2_dp2",
                    legacy = "megatron/legacy_gpt2_tp2_pp2",
                    llama = "megatron/legacy_llama3_untied_dp2_tp2", step = "iter_0000007/",
                    file = "/model_optim_rng.pt", states = "/distrib_optim.pt";
  return {
      {"MissingCommon", gpt2, Remove({"common.pt"}), {"common.pt"}},
      {"MissingPart", gpt2, Remove({"__2_0.distcp"}), {"__2_0.distcp"}},
      {"OtherModel",
       gpt2,
       CopyFrom("megatron/llama3_untied_single/common.pt", "common.pt"),
       {"belongs to no parameter of the model that common.pt describes"}},
      {"MoreTensorRanks",
       buckets,
       SetNumber("common.pt", "tensor_model_parallel_size", 2, 4),
       {"state has 4 buffers, but the run had 4 tensor-parallel and 2 pipeline-parallel ranks"}},
      {"FewerTensorRanks",
       buckets,
       SetNumber("common.pt", "tensor_model_parallel_size", 2, 1),
       {"are not what whole layers of the model take up in buckets"}},
      {"LargeBucket",
       flat,
       SetBucketSize(1153),
       {"bucket 0 has 1152 elements, 1153 without padding"}},
      {"SmallBucket",
       flat,
       SetBucketSize(1024),
       {"are not what whole layers of the model take up"}},
      {"LegacyMissingFolder",
       legacy,
       Remove({step + "mp_rank_01_001"}),
       {"there is no mp_rank_01_001"}},
      {"LegacyMissingFile",
       legacy,
       Remove({step + "mp_rank_01_000" + file}),
       {"mp_rank_01_000/model_optim_rng.pt"}},
      {"LegacyFolderTooMany",
       legacy,
       CopyWithin(step + "mp_rank_00_000", step + "mp_rank_02_000"),
       {"but there is mp_rank_02_000, too"}},
      {"LegacyFileOfAnotherGrid",
       legacy,
       CopyFrom(llama + "/" + step + "mp_rank_01" + file, step + "mp_rank_01_001" + file),
       {"mp_rank_01_001/model_optim_rng.pt", "another parallel layout", "mp_rank_00_000"}},
      {"LegacyCopiesThatDiffer",
       legacy,
       FlipTensor(step + "mp_rank_01_000" + file, "megatron/gpt2.safetensors",
                  "transformer.h.0.ln_2.bias"),
       {"transformer.h.0.ln_2.bias", "mp_rank_01_000/model_optim_rng.pt"}},
      // Shapes and sizes fit, and there are no fp32 weights that would differ.
      {"LegacyFilesInOtherPlaces",
       legacy,
       Exchange(step + "mp_rank_00_001" + file, step + "mp_rank_01_001" + file),
       {"mp_rank_00_001/model_optim_rng.pt", "rank 3 of the run wrote it"}},
      {"LegacyFileTwice",
       legacy,
       CopyWithin(step + "mp_rank_00_000" + file, step + "mp_rank_01_000" + file),
       {"mp_rank_01_000/model_optim_rng.pt", "rank 0 of the run wrote it"}},
      {"LegacyStatesOfAnotherStage",
       "megatron/legacy_llama3_bf16_dp2_pp2_vpp2",
       Exchange(step + "mp_rank_00_000" + states, step + "mp_rank_00_001" + states),
       {"buffer 0 has 840 elements"}},
      // The sizes fit, the values do not.
      {"LegacyStatesOfAnotherTensorRank",
       llama,
       Exchange(step + "mp_rank_00" + states, step + "mp_rank_01" + states),
       {"do not round to its weights in"}},
      {"LegacyMissingStates",
       llama,
       Remove({step + "mp_rank_01" + states}),
       {"mp_rank_01/distrib_optim.pt: missing"}},
  };
}

std::vector<Refusal> PaddleRefusals() {
  const std::string folder = "paddle/testdata/", grid = folder + "mp2_pp2_sharding2_v2_meta",
                    v2 = folder + "sharding2_v2_meta", v1 = folder + "sharding2_v1_meta",
                    autos = folder + "auto_llama_4", shards = folder + "sharded_llama_3";
  return {
      {"MissingFiles",
       grid,
       Remove({"optimizer.tp01_pp00_shard01.pdopt", "model_state.tp00_pp01_shard00.pdparams"}),
       {"optimizer.tp01_pp00_shard01.pdopt", "model_state.tp00_pp01_shard00.pdparams"}},
      {"MissingRank",
       v2,
       Remove({"optimizer.shard01.pdopt", "model_state.shard01.pdparams"}),
       {"sharding 2, the names of the files say tp 1, pp 1, sharding 1"}},
      {"NothingNamesTheParameters",
       v2,
       Remove({"optimizer.shard01.pdopt", "model_state.shard01.pdparams", "model_meta.json",
               "model_state.shard00.pdparams"}),
       {"nothing says which parameter"}},
      {"NamesWouldSettleIt", v2, Remove({"model_meta.json"}), {"would settle it"}},
      {"MissingStates",
       folder + "sharding2_v1",
       Remove({"optimizer.shard01.pdopt"}),
       {"the optimizer's files have no exp_avg of "}},
      {"FilesOfTwoCheckpoints",
       folder + "mp2",
       CopyFrom(folder + "dp/model_state.pdparams", "model_state.pdparams"),
       {"are files of different checkpoints"}},
      // A norm, which both ranks have.
      {"CopiesThatDiffer",
       folder + "mp2",
       FlipTensor("model_state.tp01.pdparams", folder + "state.safetensors", "model.norm.weight"),
       {"model.norm.weight", "model_state.tp01.pdparams"}},
      {"OwnersThatDiffer",
       v1,
       EditJson("model_meta.json",
                [](nlohmann::json& json) {
                  auto& owner = json["sharding_metas"]["tp00_pp00"]["param2rank"]["linear_0.w_0"];
                  owner = 1 - owner.get<int>();
                }),
       {"linear_0.w_0_moment1_0", "model_meta.json says"}},
      {"StrategiesThatDiffer",
       v1,
       EditJson("model_meta.json",
                [](nlohmann::json& json) {
                  json["sharding_metas"]["tp00_pp00"]["sharding_strategy"] = "ShardingV2";
                }),
       {"is whole, but model_meta.json's sharding_strategy is ShardingV2"}},
      {"StepsThatDiffer",
       folder + "dp",
       Write("trainer_state.json", R"({"global_step": 4})"),
       {"step 4, scheduler.pdparams says 3"}},
      {"MissingConfig", v1, Remove({"config.json"}), {"no config.json, which describes the model"}},
      {"ShardsWithoutMetadata",
       autos,
       Remove({"dist_ckpt/0.metadata"}),
       {"dist_ckpt: there are files of shards, but no 0.metadata"}},
      {"MissingShards", autos, Remove({"dist_ckpt/1_0.distcp"}), {"dist_ckpt/1_0.distcp"}},
      {"ShardsOfAnotherModel",
       autos,
       CopyFrom(folder + "auto_gpt_2/dist_ckpt/0_0.distcp", "dist_ckpt/1_0.distcp"),
       {"dist_ckpt/1_0.distcp: no tensor ", ", which dist_ckpt/0.metadata says is there"}},
      {"ShardsOfAnotherShape",
       autos,
       CopyFrom(folder + "auto_llama_1/dist_ckpt/0.metadata", "dist_ckpt/0.metadata"),
       {"dist_ckpt/0_0.distcp: model.", "F32 [8,4], dist_ckpt/0.metadata says F32 [8,8]"}},
      {"ShardsBeyondTheParameter",
       autos,
       EditJson("config.json", [](nlohmann::json& json) { json["vocab_size"] = 16; }),
       {"embed_tokens.weight"}},
      {"UnknownDType",
       shards,
       Replace("0.metadata", "bfloat16", "float164"),
       {"0.metadata: llama.", "the dtype float164"}},
      {"FilesOutsideTheFolder",
       shards,
       Replace("0.metadata", "1_0.distcp", "../.distcp"),
       {"0.metadata", "is not a file name"}},
      {"MetadataOfAnotherProgram",
       shards,
       Write("0.metadata", "\x80\x02}."),
       {"0.metadata: not written by Paddle"}},
  };
}

std::vector<Refusal> InfiniTrainRefusals() {
  const std::string llama = "infinitrain/llama3/checkpoint_step_000003",
                    ranks = "infinitrain/gpt2_dp2/checkpoint_step_000002",
                    sharded = "infinitrain/llama3_dp2_tp2_pp2/iter_0000003",
                    state = "rank_000001/trainer_state.json", metadata = "metadata.json";
  const Change llama_config = CopyFrom("pytorch/llama3_untied.hf/config.json", "config.json");
  const Change gpt2_config = CopyFrom("pytorch/gpt2.hf/config.json", "config.json");
  // The last byte of a file belongs to some tensor.
  const auto flip_last = [&](const std::string& name) {
    return All({gpt2_config, Edit(name, [](std::string& contents) { contents.back() ^= 1; })});
  };
  // The first byte of the head, after its dtype, rank, dims and size.
  const auto flip_head = [](const std::string& name) {
    return Edit(name, [](std::string& contents) {
      const std::string head = "module.lm_head.weight";
      contents.at(contents.find(head) + head.size() + 1 + 4 + 2 * 8 + 8) ^= 1;
    });
  };
  std::vector<Refusal> refusals = {
      {"ModelOfTheSameShapes",
       llama,
       All({llama_config,
            Replace("config.json", "\"num_attention_heads\": 4", "\"num_attention_heads\": 2"),
            Replace("config.json", "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 1"),
            Replace("config.json", "\"head_dim\": 4", "\"head_dim\": 8")}),
       {"trainer_state.json: n_head is 4, but the model's is 2"}},
      {"ModelOfOtherShapes",
       llama,
       All({llama_config,
            Replace("config.json", "\"intermediate_size\": 56", "\"intermediate_size\": 48")}),
       {"expected [48,16], found [56,16]"}},
      {"UnknownSizes",
       ranks,
       All({gpt2_config, Remove({state})}),
       {"tp_size in trainer_state.json is missing"}},
      {"NamesThatDiffer",
       ranks,
       All({gpt2_config, Replace("rank_000001/model.ckpt", "module.transformer.wpe.weight",
                                 "module.transformer.wpe.weighs")}),
       {"rank_000001/model.ckpt", "module.transformer.wpe.weighs: not in rank_000000"}},
      {"OneOptimizer",
       ranks,
       All({gpt2_config, Remove({"rank_000001/optimizer.ckpt"})}),
       {"missing, but in rank_000000"}},
      {"StepsThatDiffer",
       ranks,
       All({gpt2_config, Replace(state, "\"global_step\": 2", "\"global_step\": 3")}),
       {"global_step differs from that of rank_000000"}},
      {"MissingRank",
       ranks,
       All({gpt2_config, CopyWithin("rank_000001", "rank_000002"), Remove({"rank_000001"})}),
       {"rank_000001 is missing, rank_000002 is there"}},
      {"RankTooMany",
       ranks,
       All({gpt2_config, CopyWithin("rank_000001", "rank_000002")}),
       {"expected 2 folders of ranks, found 3"}},
      {"RanksAndAWholeModel",
       ranks,
       All({gpt2_config, CopyWithin("rank_000001/model.ckpt", "model.ckpt")}),
       {"both model.ckpt and rank_000000/ are there"}},
      {"WeightsThatDiffer", ranks, flip_last("rank_000001/model.ckpt"), {"rank_000001/model.ckpt"}},
      {"StatesThatDiffer",
       ranks,
       flip_last("rank_000000/optimizer.ckpt"),
       {"rank_000000/optimizer.ckpt"}},
      // A head that was trained apart from the embedding does not fit this GPT-2.
      {"AHeadThatIsNotTheEmbedding",
       ranks,
       All({gpt2_config, flip_head("rank_000000/model.ckpt"), flip_head("rank_000001/model.ckpt")}),
       {"tensor transformer.wte.weight: the copies of", "rank_000000/model.ckpt"}},
  };
  // Changes the first shard in metadata.json.
  const auto shard = [&](const std::string& key, const nlohmann::json& value) {
    return All({llama_config, EditJson(metadata, [=](nlohmann::json& json) {
                  json["tensors"][0][key] = value;
                })});
  };
  for (const Refusal& refusal : std::vector<Refusal>{
           {"Version",
            sharded,
            All({llama_config, EditJson(metadata, [](auto& json) { json["version"] = 4; })}),
            {"metadata.json", "version 4, expected 3"}},
           {"NoShards",
            sharded,
            All({llama_config, EditJson(metadata, [](auto& json) { json["tensors"] = 7; })}),
            {"metadata.json", "expected an object with a list of tensors"}},
           {"MissingFile",
            sharded,
            All({llama_config, Remove({"rank_000001/model.ckpt"})}),
            {"rank_000001/model.ckpt"}},
           {"MissingShard",
            sharded,
            All({llama_config, EditJson(metadata, [](auto& json) { json["tensors"].erase(0); })}),
            {"self_attn.q_proj.weight"}},
           {"OtherPlace", sharded, shard("offset", 4), {"in metadata.json [16,16] at byte 4"}},
           {"OtherKey", sharded, shard("key", "w"), {"tensor w: missing, but in metadata.json"}},
           {"TwoCuts", sharded, shard("axis_fragmentations", {2, 2}), {"cut in several dims"}},
           {"LongSegment",
            sharded,
            shard("segment_lengths", {8, 4, 40}),
            {"a segment lies outside the tensor"}},
           {"NoSegments",
            sharded,
            shard("segment_lengths", {8, 4}),
            {"its shapes, segments and offset are not lists of numbers"}},
           {"OverlappingSegments",
            sharded,
            shard("segment_global_offsets", {0, 16, 16}),
            {"self_attn"}},
           {"Dims", sharded, shard("local_shape", {16}), {"different numbers of dims"}}}) {
    refusals.push_back(refusal);
    refusals.back().name = "Sharded" + refusal.name;
  }
  for (const std::string key : {"tp_size", "pp_size", "sp_size"}) {
    refusals.push_back(
        {key,
         ranks,
         All({gpt2_config, Replace(state, "\"" + key + "\": 1", "\"" + key + "\": 2")}),
         {key + " in trainer_state.json is 2"}});
  }
  return refusals;
}

std::vector<Refusal> InternEvoRefusals() {
  const std::string folder = "internevo/", optimizer = "optimizer_tp0_pp0_zo0.pt";
  const auto without_plan = [](const std::string& name) {
    return Replace(name, "zero_devide_optim_plan", "zero_divide_optim_plan");
  };
  // A number of one byte that follows a key of a dict.
  const auto set_number = [](const std::string& name, const std::string& key, char value) {
    return Edit(name, [=](std::string& contents) {
      const size_t at = contents.find('K', contents.find(key) + key.size());
      contents.at(at + 1) = value;
    });
  };
  std::vector<Refusal> refusals = {
      {"PositionBeyondTheBatches",
       folder + "tp1",
       set_number("sampler.pt", "num_consumed_samples_in_epoch", 13),
       {"sampler.pt: num_consumed_samples_in_epoch is 13, but 3 batches have 12 samples"}},
      {"StepsThatDiffer",
       folder + "tp1",
       set_number("schedulder.pt", "last_epoch", 4),
       {"schedulder.pt: step 4 (\"last_epoch\"), context.pt says 3"}},
      {"MissingFiles",
       folder + "tp2_pp2_zo2",
       Remove({"optimizer_tp1_pp0_zo1.pt", "model_tp0_pp1.pt"}),
       {"missing: model_tp0_pp1.pt, optimizer_tp1_pp0_zo1.pt"}},
      {"MissingZeroRank",
       folder + "zo2",
       Remove({"optimizer_tp0_pp0_zo1.pt"}),
       {optimizer, "was dealt out to 2 ranks, but 1 have files"}},
      {"MissingTensorRank",
       folder + "tp2",
       Remove({"optimizer_tp1_pp0_zo0.pt", "model_tp1_pp0.pt"}),
       {"model_tp0_pp0.pt: tensor tok_embeddings.weight: shape [20,8], expected [20,16]"}},
      {"MissingStage",
       folder + "pp2",
       Remove({"optimizer_tp0_pp1_zo0.pt", "model_tp0_pp1.pt"}),
       {"no file has model.layers.2.input_layernorm.weight, "}},
      // Each file has the norm's ones, with noise, as F32.
      {"CopiesThatDiffer",
       folder + "llama_tp2_zo2",
       FlipTensor("model_tp1_pp0.pt", folder + "llama.safetensors", "model.norm.weight"),
       {"model.norm.weight", "model_tp0_pp0.pt", "model_tp1_pp0.pt"}},
      // The fp32 weights of an fp32 run are copies of those in the model's file.
      {"OptimizerOfAnotherStep",
       folder + "llama_fp32",
       FlipTensor(optimizer, folder + "llama.safetensors", "model.norm.weight"),
       {"model.norm.weight", optimizer}},
      {"PlansThatDiffer",
       folder + "zo2",
       CopyFrom(folder + "llama_tp2_zo2/optimizer_tp0_pp0_zo1.pt", "optimizer_tp0_pp0_zo1.pt"),
       {"optimizer_tp0_pp0_zo1.pt: parameters are dealt out to ranks in another way than in " +
        optimizer}},
      {"PlanOfAnotherModel",
       folder + "tp1",
       CopyFrom(folder + "pp2/" + optimizer, optimizer),
       {optimizer + ": group default: parameter "}},
      {"NoPlan",
       folder + "zo2",
       All({without_plan(optimizer), without_plan("optimizer_tp0_pp0_zo1.pt"),
            Remove({"gpus-2_wp-0_tp-0_dp-0_pp-0_zo-0.pt", "gpus-2_wp-0_tp-0_dp-1_pp-0_zo-1.pt"})}),
       {"no zero_devide_optim_plan"}},
      {"MissingConfig",
       folder + "tp1",
       Remove({"model_config.pt"}),
       {"model_config.pt is missing: it describes the model"}},
  };
  for (const auto& [name, file, what] :
       {std::tuple("Experts", "model_moe_layer0_expert0_tp0.pt", "experts"),
        std::tuple("Fsdp", "model_tp0_pp0_dp1.pt", "FSDP"),
        std::tuple("TensorAndWeightParallel", "model_tp0_wp0_pp0.pt",
                   "a rank that is both tensor-parallel and weight-parallel")}) {
    refusals.push_back(
        {name, folder + "tp1", Write(file, ""), {std::string(file) + " is a file of " + what}});
  }
  return refusals;
}

std::vector<Refusal> GgufRefusals() {
  const std::string gpt2 = "../../convert/formats/gguf/testdata/gpt2", file = "model.gguf";
  // Behind the name: the number of dims, two extents, the type.
  const auto set_type = [&](char type) {
    return Edit(file, [=](std::string& contents) {
      const std::string name = "blk.1.ffn_up.weight";
      contents.at(contents.find(name) + name.size() + 4 + 2 * 8) = type;
    });
  };
  return {
      {"SeveralFiles",
       gpt2,
       CopyWithin(file, "other.gguf"),
       {"2 GGUF files: give one of model.gguf, other.gguf"}},
      {"Quantised",
       gpt2,
       set_type(8),
       {file + ": tensor blk.1.ffn_up.weight is Q8_0", "no quantised tensors"}},
      {"OtherTensor",
       gpt2,
       Replace(file, "blk.1.ffn_up.weight", "blk.1.ffn_gate.bias"),
       {file + ": tensor blk.1.ffn_gate.bias belongs to no parameter"}},
      {"TensorOfALayerTooMany",
       gpt2,
       Replace(file, "blk.1.ffn_up.weight", "blk.2.ffn_up.weight"),
       {file + ": tensor blk.2.ffn_up.weight belongs to no parameter"}},
      {"OtherArchitecture",
       gpt2,
       Replace(file, "gpt2.", "bert."),
       {file + ": general.architecture gpt2: gguf's configuration: gpt2.block_count is missing"}},
  };
}

class RefusalTest : public testing::ForeignTest, public ::testing::WithParamInterface<Refusal> {};

TEST_P(RefusalTest, NamesTheCause) {
  const Refusal& refusal = GetParam();
  const std::string copy = CopyOf(Fixture(refusal.checkpoint));
  ASSERT_NO_FATAL_FAILURE(refusal.change(copy));
  const absl::Status status = ckpt::convert::OpenForeign(copy, {}).status();
  EXPECT_FALSE(status.ok());
  for (const std::string& part : refusal.said) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
}

const auto kName = [](const auto& info) { return info.param.name; };

INSTANTIATE_TEST_SUITE_P(DeepSpeed, RefusalTest, ::testing::ValuesIn(DeepSpeedRefusals()), kName);
INSTANTIATE_TEST_SUITE_P(Megatron, RefusalTest, ::testing::ValuesIn(MegatronRefusals()), kName);
INSTANTIATE_TEST_SUITE_P(Gguf, RefusalTest, ::testing::ValuesIn(GgufRefusals()), kName);
INSTANTIATE_TEST_SUITE_P(Paddle, RefusalTest, ::testing::ValuesIn(PaddleRefusals()), kName);
INSTANTIATE_TEST_SUITE_P(InfiniTrain, RefusalTest, ::testing::ValuesIn(InfiniTrainRefusals()),
                         kName);
INSTANTIATE_TEST_SUITE_P(InternEvo, RefusalTest, ::testing::ValuesIn(InternEvoRefusals()), kName);

}  // namespace
}  // namespace tessera
