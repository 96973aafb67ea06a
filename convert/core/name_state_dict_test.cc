// Names and layouts of state dicts that no fixture has; what other programs write is in
// tests/interop/state_dict_test.cc.

#include "convert/core/name_state_dict.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/testing.h"
#include "convert/core/models.h"
#include "convert/core/reading.h"
#include "convert/core/value.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/box.h"
#include "storage/testing/memory_storage.h"

namespace tessera::ckpt::convert {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int64_t kHidden = 4;

ModelProto Gpt2(const std::string& more = "") {
  ModelProto model;
  model.set_architecture("gpt2");
  model.set_text(
      "architecture: GPT2 num_layers: 2 hidden_size: 4 num_attention_heads: 2 vocab_size: 11 "
      "max_position_embeddings: 5 " +
      more);
  return model;
}

bool IsMatrixOfLayer(const LogicalParameter& parameter) {
  return parameter.shape.size() == 2 && parameter.name.find(".h.") != std::string::npos;
}

bool IsSquare(const LogicalParameter& parameter) {
  return parameter.shape == Shape({kHidden, kHidden});
}

std::vector<LogicalParameter> ParametersOf(const ModelProto& model) {
  const auto config = OrFail(ConfigOf(model));
  return DescribeModel(config).parameters;
}

// A file with all parameters of the model, of which those in `transposed` are [out, in].
ForeignCheckpoint StateDictOf(const ModelProto& model, const std::set<std::string>& transposed,
                              const std::string& wrapper = "") {
  ForeignCheckpoint checkpoint = {.format = "torch", .in_module_order = true};
  uint64_t offset = 0;
  for (const LogicalParameter& parameter : ParametersOf(model)) {
    Shape shape = parameter.shape;
    if (transposed.contains(parameter.name)) std::swap(shape[0], shape[1]);
    checkpoint.tensors.push_back({.name = wrapper + parameter.name,
                                  .dtype = DType::kF32,
                                  .shape = shape,
                                  .pieces = {{.box = WholeBox(shape),
                                              .file = "model.pt",
                                              .offset_bytes = offset,
                                              .strides = ContiguousStrides(shape)}}});
    offset += ElementCount(shape) * sizeof(float);
  }
  return checkpoint;
}

absl::Status Name(const ModelProto* model, ForeignCheckpoint& checkpoint,
                  const std::string& steps = "") {
  MemoryStorage storage;
  if (!steps.empty()) TESSERA_RETURN_IF_ERROR(WriteAll(storage, "steps", steps));
  return NameStateDict(storage, model, /*framework=*/"", checkpoint);
}

const ForeignTensor* Find(const ForeignCheckpoint& checkpoint, const std::string& name) {
  const auto found = std::ranges::find(checkpoint.tensors, name, &ForeignTensor::name);
  return found == checkpoint.tensors.end() ? nullptr : &*found;
}

// The square projections are read as their neighbours are, whose shapes prove it.
TEST(StateDictLayoutTest, SquareMatricesAreTransposedWithTheirNeighbours) {
  for (const std::string more : {"", "use_biases: false"}) {
    const ModelProto model = Gpt2(more);
    std::set<std::string> all, squares;
    for (const LogicalParameter& parameter : ParametersOf(model)) {
      if (!IsMatrixOfLayer(parameter)) continue;
      all.insert(parameter.name);
      if (IsSquare(parameter)) squares.insert(parameter.name);
    }
    ASSERT_THAT(all, SizeIs(8));
    ASSERT_THAT(squares, SizeIs(2));
    for (const bool transposed : {false, true}) {
      ForeignCheckpoint checkpoint = StateDictOf(model, transposed ? all : std::set<std::string>());
      ASSERT_OK(Name(&model, checkpoint));
      EXPECT_TRUE(checkpoint.description.has_model());
      for (const std::string& name : all) {
        const ForeignTensor* const tensor = Find(checkpoint, name);
        ASSERT_NE(tensor, nullptr) << name;
        ASSERT_THAT(tensor->pieces, SizeIs(1));
        const std::vector<int64_t> expected = transposed
                                                  ? std::vector<int64_t>{1, tensor->shape[0]}
                                                  : std::vector<int64_t>{tensor->shape[1], 1};
        EXPECT_EQ(tensor->pieces[0].strides, expected) << name;
      }
    }
    // One whose shape tells that it is not as the others are.
    for (const std::string& name : all) {
      if (squares.contains(name)) continue;
      std::set<std::string> others = all;
      others.erase(name);
      for (const std::set<std::string>& transposed : {std::set<std::string>{name}, others}) {
        ForeignCheckpoint checkpoint = StateDictOf(model, transposed);
        const absl::Status status = Name(&model, checkpoint);
        EXPECT_TRUE(absl::IsDataLoss(status)) << status;
        EXPECT_THAT(std::string(status.message()), HasSubstr("expected ["));
      }
    }
  }
}

TEST(StateDictLayoutTest, ModelArgumentsOfNanoGptAreTheModel) {
  const auto with_arguments = [](ForeignCheckpoint checkpoint, bool bias,
                                 const std::string& more = "") {
    SavedValue::Dict arguments;
    for (const auto& [name, value] : {std::pair("n_layer", 2),
                                      {"n_head", 2},
                                      {"n_embd", 4},
                                      {"block_size", 5},
                                      {"vocab_size", 11}}) {
      arguments.Add({std::string(name)}, {int64_t{value}});
    }
    arguments.Add({std::string("bias")}, {bias});
    arguments.Add({std::string("dropout")}, {0.125});
    if (!more.empty()) arguments.Add({more}, {true});
    SavedValue::Dict root;
    root.Add({std::string("model_args")}, {std::move(arguments)});
    checkpoint.state = {std::move(root)};
    return checkpoint;
  };
  for (const bool bias : {false, true}) {
    ForeignCheckpoint checkpoint =
        with_arguments(StateDictOf(Gpt2(bias ? "" : "use_biases: false"), {}, "_orig_mod."), bias);
    ASSERT_OK(Name(nullptr, checkpoint));
    ASSERT_OK_AND_ASSIGN(const auto config, ConfigOf(checkpoint.description.model()));
    EXPECT_EQ(config.has_use_biases(), !bias);
    EXPECT_EQ(config.max_position_embeddings(), 5);
    EXPECT_EQ(config.hidden_dropout(), 0.125);
    EXPECT_EQ(config.attention_dropout(), 0.125);
    EXPECT_THAT(checkpoint.notes, ElementsAre(HasSubstr("nanoGPT computes GELU")));
    EXPECT_EQ(Find(checkpoint, "transformer.ln_f.bias") != nullptr, bias);
  }
  // What the arguments deny is not there, and what they promise is.
  ForeignCheckpoint lacks = with_arguments(StateDictOf(Gpt2("use_biases: false"), {}), true);
  ASSERT_OK(Name(nullptr, lacks));
  EXPECT_THAT(lacks.mismatch, HasSubstr("ln_1.bias is missing"));
  ForeignCheckpoint exceeds = with_arguments(StateDictOf(Gpt2(), {}), false);
  EXPECT_TRUE(absl::IsDataLoss(Name(nullptr, exceeds)));
  // A setting of another program, with which it computes another model.
  ForeignCheckpoint other = with_arguments(StateDictOf(Gpt2(), {}), true, "use_rmsnorm");
  ASSERT_OK(Name(nullptr, other));
  EXPECT_FALSE(other.description.has_model());
  EXPECT_THAT(other.notes, ElementsAre(HasSubstr("use_rmsnorm is true, which is not "
                                                 "known here")));
}

// A model, and these states of each of its parameters. Steps are in the file "steps".
ForeignCheckpoint WithStates(const ModelProto& model, const std::vector<std::string>& states,
                             DType step = DType::kF32) {
  ForeignCheckpoint checkpoint = StateDictOf(model, {});
  for (const ForeignTensor& weight : StateDictOf(model, {}).tensors) {
    for (const std::string& state : states) {
      ForeignTensor tensor = weight;
      tensor.name = "optimizer.state." + weight.name + "." + state;
      tensor.role = TensorRole::kOptimizerState;
      if (state == "step") {
        tensor.dtype = step;
        tensor.shape = {};
        tensor.pieces = {{.box = WholeBox({}), .file = "steps"}};
      }
      checkpoint.tensors.push_back(std::move(tensor));
    }
  }
  return checkpoint;
}

const std::vector<std::string> kAdams = {"step", "exp_avg", "exp_avg_sq"};

template <typename Number>
std::string BytesOf(Number number) {
  return std::string(reinterpret_cast<const char*>(&number), sizeof(number));
}

TEST(OptimizerStatesTest, StepsHaveAnyDtypeOfNumbers) {
  const ModelProto model = Gpt2();
  for (const auto& [dtype, bytes] :
       {std::pair(DType::kF64, BytesOf(7.0)), std::pair(DType::kF32, BytesOf(7.0F)),
        std::pair(DType::kF16, BytesOf(uint16_t{0x4700})),
        std::pair(DType::kBF16, BytesOf(uint16_t{0x40E0})),
        std::pair(DType::kI64, BytesOf(int64_t{7})), std::pair(DType::kI32, BytesOf(7))}) {
    ForeignCheckpoint checkpoint = WithStates(model, kAdams, dtype);
    ASSERT_OK(Name(&model, checkpoint, bytes));
    EXPECT_EQ(checkpoint.description.trainer().step(), 7) << bytes.size();
    EXPECT_THAT(checkpoint.notes, ::testing::IsEmpty());
  }
  for (const auto& [dtype, bytes] :
       {std::pair(DType::kF32, BytesOf(7.5F)), std::pair(DType::kU8, std::string("7"))}) {
    ForeignCheckpoint checkpoint = WithStates(model, kAdams, dtype);
    ASSERT_OK(Name(&model, checkpoint, bytes));
    EXPECT_FALSE(checkpoint.description.has_trainer());
    EXPECT_THAT(checkpoint.notes, ElementsAre(HasSubstr("which is not a count")));
  }
  ForeignCheckpoint differ = WithStates(model, kAdams);
  for (ForeignTensor& tensor : differ.tensors) {
    if (tensor.name.ends_with("ln_f.bias.step")) tensor.pieces[0].offset_bytes = sizeof(float);
  }
  ASSERT_OK(Name(&model, differ, BytesOf(7.0F) + BytesOf(8.0F)));
  EXPECT_FALSE(differ.description.has_trainer());
  EXPECT_THAT(differ.notes, ElementsAre(HasSubstr("which differ between parameters")));
}

TEST(OptimizerStatesTest, AMomentAloneIsNotAdamWs) {
  const ModelProto model = Gpt2();
  ForeignCheckpoint lion = WithStates(model, {"exp_avg"});
  ASSERT_OK(Name(&model, lion));
  EXPECT_FALSE(lion.description.has_optimizer());
  EXPECT_NE(Find(lion, "optimizer.state.transformer.wpe.weight.exp_avg"), nullptr);
  EXPECT_THAT(lion.notes,
              ElementsAre(HasSubstr("not AdamW's keep their names: optimizer.state.transformer.")));
  // What Adam's parameters have besides goes along with them.
  ForeignCheckpoint most = WithStates(model, {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"});
  ASSERT_OK(Name(&model, most));
  EXPECT_NE(Find(most, "transformer.wpe.weight.max_exp_avg_sq"), nullptr);
  EXPECT_EQ(most.description.optimizer().parameters(0).states_size(), 3);
  EXPECT_THAT(most.notes, ::testing::IsEmpty());
}

TEST(OptimizerStatesTest, SettingsOfOtherAlgorithmsAreNoted) {
  const ModelProto model = Gpt2();
  for (const auto& [decay, setting, found] :
       {std::tuple(0.5, "decoupled_weight_decay", "its weight decay is not decoupled"),
        std::tuple(0.0, "decoupled_weight_decay", ""),
        std::tuple(0.0, "amsgrad", "amsgrad is true"),
        std::tuple(0.0, "maximize", "maximize is true")}) {
    ForeignCheckpoint checkpoint = WithStates(model, {"exp_avg", "exp_avg_sq"});
    for (const LogicalParameter& parameter : ParametersOf(model)) {
      SavedValue::Dict settings;
      settings.Add({std::string("weight_decay")}, {decay});
      settings.Add({std::string(setting)}, {std::string(setting) != "decoupled_weight_decay"});
      MergeInto(DictOf("optimizer",
                       DictOf("param_groups", DictOf(parameter.name, {std::move(settings)}))),
                checkpoint.state);
    }
    ASSERT_OK(Name(&model, checkpoint));
    const bool is_other = !std::string(found).empty();
    EXPECT_EQ(checkpoint.description.optimizer().algorithm(), is_other ? "adam" : "adamw");
    EXPECT_THAT(checkpoint.notes, SizeIs(is_other ? 1 : 0));
    if (is_other) EXPECT_THAT(checkpoint.notes[0], HasSubstr(found));
  }
}

// Names since queries, keys and values have a module of their own there.
TEST(StateDictLayoutTest, TorchtitansNamesOfLlama) {
  ModelProto model;
  model.set_architecture("llama3");
  model.set_text(
      "architecture: LLAMA3 num_layers: 1 hidden_size: 4 num_attention_heads: 2 vocab_size: 11 "
      "ffn_hidden_size: 6 max_position_embeddings: 5 untie_embeddings_and_output_weights: true");
  ForeignCheckpoint checkpoint = {.format = "torch", .in_module_order = true};
  for (const auto& [name, shape] : std::vector<std::pair<std::string, Shape>>{
           {"tok_embeddings.weight", {11, 4}},
           {"layers.0.attention.qkv_linear.wq.weight", {4, 4}},
           {"layers.0.attention.qkv_linear.wk.weight", {4, 4}},
           {"layers.0.attention.qkv_linear.wv.weight", {4, 4}},
           {"layers.0.attention.wo.weight", {4, 4}},
           {"layers.0.feed_forward.w1.weight", {6, 4}},
           {"layers.0.feed_forward.w2.weight", {4, 6}},
           {"layers.0.feed_forward.w3.weight", {6, 4}},
           {"layers.0.attention_norm.weight", {4}},
           {"layers.0.ffn_norm.weight", {4}},
           {"norm.weight", {4}},
           {"lm_head.weight", {11, 4}}}) {
    checkpoint.tensors.push_back(
        {.name = name,
         .dtype = DType::kF32,
         .shape = shape,
         .pieces = {
             {.box = WholeBox(shape), .file = "model.pt", .strides = ContiguousStrides(shape)}}});
  }
  ASSERT_OK(Name(&model, checkpoint));
  EXPECT_TRUE(checkpoint.description.has_model());
  EXPECT_NE(Find(checkpoint, "model.layers.0.self_attn.k_proj.weight"), nullptr);
  EXPECT_THAT(checkpoint.notes, ::testing::IsEmpty());
}

// Queries, keys and values by query group in one matrix, whose rows have Meta's order, and gate and
// up stacked: both, or one of the two.
TEST(StateDictLayoutTest, TorchtitansFusedMatricesOfLlama) {
  constexpr int64_t kWidth = 16, kSize = 4, kQueries = 2, kGroups = 2, kInner = 6;
  ModelProto model;
  model.set_architecture("llama3");
  model.set_text(
      "architecture: LLAMA3 num_layers: 1 hidden_size: 16 num_attention_heads: 4 num_query_groups: "
      "2 vocab_size: 11 ffn_hidden_size: 6 max_position_embeddings: 5 "
      "untie_embeddings_and_output_weights: true");
  for (const auto& [fuses_qkv, fuses_gate_up] :
       {std::pair(true, true), std::pair(true, false), std::pair(false, true)}) {
    SCOPED_TRACE(absl::StrCat(fuses_qkv, fuses_gate_up));
    ForeignCheckpoint checkpoint = {.format = "dcp"};
    std::vector<std::pair<std::string, Shape>> tensors = {
        {"tok_embeddings.weight", {11, kWidth}},
        {"layers.0.attention.wo.weight", {kWidth, kWidth}},
        {"layers.0.feed_forward.w2.weight", {kWidth, kInner}},
        {"layers.0.attention_norm.weight", {kWidth}},
        {"layers.0.ffn_norm.weight", {kWidth}},
        {"norm.weight", {kWidth}},
        {"lm_head.weight", {11, kWidth}}};
    const std::string prefix = "layers.0.attention.qkv_linear.";
    if (fuses_qkv) {
      tensors.emplace_back(prefix + "wqkv.weight", Shape{32, kWidth});
    } else {
      for (const auto& [name, rows] : {std::pair("wq", 16), std::pair("wk", 8), std::pair("wv", 8)})
        tensors.emplace_back(absl::StrCat(prefix, name, ".weight"), Shape{rows, kWidth});
    }
    if (fuses_gate_up) {
      tensors.emplace_back("layers.0.feed_forward.w13.weight", Shape{2, kInner, kWidth});
    } else {
      for (const std::string name : {"w1", "w3"}) {
        tensors.emplace_back("layers.0.feed_forward." + name + ".weight", Shape{kInner, kWidth});
      }
    }
    for (const auto& [name, shape] : tensors) {
      checkpoint.tensors.push_back(
          {.name = name,
           .dtype = DType::kF32,
           .shape = shape,
           .pieces = {
               {.box = WholeBox(shape), .file = name, .strides = ContiguousStrides(shape)}}});
    }
    ASSERT_OK(Name(&model, checkpoint));
    ASSERT_TRUE(checkpoint.description.has_model());
    // Returns the file's row of a row of a logical tensor.
    const auto row_of = [&](const std::string& tensor, int64_t row) -> int64_t {
      for (const StoredPiece& piece : Find(checkpoint, tensor)->pieces) {
        const int64_t begin = piece.box.global_offset[0];
        if (row < begin || row >= begin + piece.box.shape[0]) continue;
        return (static_cast<int64_t>(piece.offset_bytes) / 4 + (row - begin) * piece.strides[0]) /
               kWidth;
      }
      return -1;
    };
    const std::string layer = "model.layers.0.";
    for (int64_t row = 0; row < kInner; ++row) {
      EXPECT_EQ(row_of(layer + "mlp.gate_proj.weight", row), row);
      EXPECT_EQ(row_of(layer + "mlp.up_proj.weight", row), fuses_gate_up ? kInner + row : row);
    }
    if (!fuses_qkv) continue;
    for (int64_t group = 0; group < kGroups; ++group) {
      const int64_t first = group * (kQueries + 2) * kSize;
      for (int64_t i = 0; i < kSize; ++i) {
        const int64_t paired = 2 * (i % 2) + i / 2;  // the halves of a head alternate
        for (int64_t query = 0; query < kQueries; ++query) {
          EXPECT_EQ(
              row_of(layer + "self_attn.q_proj.weight", (group * kQueries + query) * kSize + i),
              first + query * kSize + paired);
        }
        const int64_t row = group * kSize + i;
        EXPECT_EQ(row_of(layer + "self_attn.k_proj.weight", row),
                  first + kQueries * kSize + paired);
        EXPECT_EQ(row_of(layer + "self_attn.v_proj.weight", row),
                  first + (kQueries + 1) * kSize + i);
      }
    }
  }
}

TEST(WrappedNamesTest, WrappersAreLeftOutWhereTheyAreAdded) {
  const std::string name = "transformer.h.0.attn.c_attn.weight";
  for (const std::string wrapper :
       {"", "_orig_mod.", "module.", "base_model.model.", "module._orig_mod.", "_orig_mod.module.",
        "_fsdp_wrapped_module.", "module.base_model.model.", "_fsdp_wrapped_module._orig_mod."}) {
    EXPECT_EQ(WithoutWrappers(wrapper + name), name) << wrapper;
    const ModelProto model = Gpt2();
    ForeignCheckpoint checkpoint = StateDictOf(model, {}, wrapper);
    checkpoint.tensors[0].name = "transformer.wte.weight";  // some names alone are wrapped
    ASSERT_OK(Name(&model, checkpoint)) << wrapper;
    EXPECT_NE(Find(checkpoint, name), nullptr) << wrapper;
  }
  EXPECT_EQ(
      WithoutWrappers("transformer.h.0._checkpoint_wrapped_module.attn._orig_mod.c_attn.bias"),
      "transformer.h.0.attn.c_attn.bias");
  EXPECT_EQ(WithoutWrappers("transformer.module.weight"), "transformer.module.weight");
  EXPECT_EQ(WithoutWrappers("my_module.weight"), "my_module.weight");
  EXPECT_EQ(WithoutWrappers(""), "");
}

// The models below these prefixes, one after the other in the file "steps".
ForeignCheckpoint ModelsOf(const ModelProto& model, const std::vector<std::string>& prefixes) {
  ForeignCheckpoint checkpoint = {.format = "torch", .in_module_order = true};
  uint64_t offset = 0;
  for (const std::string& prefix : prefixes) {
    for (ForeignTensor& tensor : StateDictOf(model, {}, prefix).tensors) {
      tensor.pieces[0].file = "steps";
      tensor.pieces[0].offset_bytes = offset;
      offset += ElementCount(tensor.shape) * sizeof(float);
      checkpoint.tensors.push_back(std::move(tensor));
    }
  }
  return checkpoint;
}

TEST(SeveralModelsTest, TheirPlacesTellWhichIsTheModel) {
  const ModelProto model = Gpt2();
  for (const auto& [places, place] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"ema.", "model."}, "model."},
           {{"state_dict_ema.", "state_dict."}, "state_dict."},
           {{"state_dict.ema.", "state_dict.model."}, "state_dict.model."},
           {{"model.ref.", "model."}, "model."},
           {{"ema.", ""}, ""},
           {{"callbacks.ema.model.", "state_dict.net.model.", "teacher."},
            "state_dict.net.model."}}) {
    SCOPED_TRACE(place);
    ForeignCheckpoint checkpoint = ModelsOf(model, places);
    const std::string name = "transformer.wpe.weight";
    const uint64_t offset = Find(checkpoint, place + name)->pieces[0].offset_bytes;
    ASSERT_OK(Name(&model, checkpoint));  // without the file, which is not read
    ASSERT_TRUE(checkpoint.description.has_model());
    EXPECT_EQ(Find(checkpoint, name)->pieces[0].offset_bytes, offset);
    EXPECT_EQ(checkpoint.unread.size(), (places.size() - 1) * ParametersOf(model).size());
    ASSERT_THAT(checkpoint.notes, SizeIs(places.size() - 1));
    EXPECT_EQ(checkpoint.notes[0],
              absl::StrCat("Left out: another whole model, ", ParametersOf(model).size(),
                           " tensors below \"", places[0], "\"; the model is the one below \"",
                           place, "\"."));
  }
}

TEST(SeveralModelsTest, ShapesTellBeforePlaces) {
  const ModelProto model = Gpt2();
  ForeignCheckpoint checkpoint = ModelsOf(model, {"model.", "student."});
  for (ForeignTensor& tensor : checkpoint.tensors) {
    if (tensor.name.starts_with("model.") && tensor.shape.size() == 2) tensor.shape[0] += 1;
  }
  ASSERT_OK(Name(&model, checkpoint));
  EXPECT_THAT(checkpoint.notes, ElementsAre(HasSubstr("the model is the one below \"student.\"")));
}

// Neither wrappers nor how deep a model is nested say what it is.
TEST(SeveralModelsTest, WhatNothingTellsApartHasToBeEqual) {
  const ModelProto model = Gpt2();
  for (const std::vector<std::string>& places : std::vector<std::vector<std::string>>{
           {"student.module.", "teacher."},
           {"state_dict.ema.", "state_dict.net.transformer_model."},
           {"current_model_state.net.", "state_dict.net."},
           {"", "model."}}) {
    SCOPED_TRACE(places[0]);
    std::string bytes(20000, 'x');
    ForeignCheckpoint equal = ModelsOf(model, places), differ = equal;
    ASSERT_OK(Name(&model, equal, bytes));
    EXPECT_TRUE(equal.description.has_model());
    EXPECT_TRUE(equal.unread.empty());
    bytes[differ.tensors.back().pieces[0].offset_bytes] = 'y';
    ASSERT_OK(Name(&model, differ, bytes));
    EXPECT_FALSE(differ.description.has_model());
    EXPECT_EQ(differ.mismatch, "");  // nothing is missing
    EXPECT_THAT(differ.notes, ElementsAre(HasSubstr("they differ, and neither place tells")));
  }
}

TEST(SeveralModelsTest, TwoTensorsForOneParameterHaveToBeEqual) {
  const ModelProto model = Gpt2();
  for (const bool is_equal : {true, false}) {
    ForeignCheckpoint checkpoint = StateDictOf(model, {}, "net.");
    ForeignTensor& first = checkpoint.tensors[0];
    ForeignTensor copy = first;
    copy.name = "net._orig_mod.transformer.wte.weight";
    first.pieces[0].file = copy.pieces[0].file = "steps";
    if (!is_equal) copy.pieces[0].offset_bytes = sizeof(float);
    checkpoint.tensors.push_back(std::move(copy));
    ASSERT_OK(Name(&model, checkpoint, std::string(4, 'x') + std::string(2000, 'y')));
    EXPECT_EQ(checkpoint.description.has_model(), is_equal);
    if (is_equal) continue;
    EXPECT_THAT(checkpoint.notes, ElementsAre(HasSubstr("have one name, and they differ")));
  }
  // A file of torch may have both under one name, of which the second is not read.
  ForeignCheckpoint checkpoint = StateDictOf(model, {});
  checkpoint.unread["transformer.wte.weight"] = "a tensor that has the name of another one";
  ASSERT_OK(Name(&model, checkpoint));
  EXPECT_THAT(checkpoint.notes, ElementsAre(HasSubstr("there are two tensors transformer.wte")));
}

}  // namespace
}  // namespace tessera::ckpt::convert
