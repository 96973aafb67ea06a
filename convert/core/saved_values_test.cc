#include "convert/core/saved_values.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "convert/core/foreign_checkpoint.h"
#include "convert/core/optimizer_groups.h"
#include "convert/core/own_keys.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::ckpt::convert {
namespace {

using ::testing::ElementsAre;

SavedValue Text(const char* text) { return {std::string(text)}; }

SavedValue DictOf(std::vector<std::pair<SavedValue, SavedValue>> entries) {
  SavedValue::Dict dict;
  for (auto& [key, value] : entries) dict.Add(std::move(key), std::move(value));
  return {std::move(dict)};
}

// A manifest with these entries, and tensors of these names.
Manifest ManifestOf(const std::string& values, const std::string& structure,
                    const std::vector<std::string>& tensors) {
  Manifest manifest;
  auto& extra = *manifest.mutable_trainer()->mutable_extra();
  extra[kValuesEntry] = values;
  if (!structure.empty()) extra[kStructureEntry] = structure;
  for (const std::string& name : tensors) {
    LogicalTensor& tensor = *manifest.add_tensors();
    tensor.set_name(name);
    tensor.set_role(name.starts_with("optimizer.") ? OPTIMIZER_STATE : WEIGHT);
  }
  return manifest;
}

std::vector<std::string> NamesOf(const SavedValue& root) {
  std::vector<std::string> names;
  for (const Leaf& leaf : LeavesOf(root)) names.push_back(leaf.name);
  return names;
}

TEST(SavedValuesTest, EntriesAreTheTreeAndItsInverse) {
  const double infinity = std::numeric_limits<double>::infinity();
  const SavedValue tree = DictOf(
      {{Text("model"), DictOf({{Text("a.weight"), {SavedValue::Tensor{"model.a.weight"}}}})},
       {Text("optimizer"),
        DictOf({{Text("state"), DictOf({{{int64_t{0}}, DictOf({{Text("step"), {3.0}}})}})},
                {Text("param_groups"),
                 {SavedValue::List{
                     {DictOf({{Text("lr"), {1e-3}},
                              {Text("betas"), {SavedValue::List{{{0.9}, {0.95}}, true}}}})}}}}})},
       {Text("raw"), {SavedValue::Bytes{std::string("\0\xFF", 2)}}},
       {Text("array"), {SavedValue::Bytes{"bytes", /*is_bytearray=*/true}}},
       {Text("far"), {SavedValue::List{{{-infinity}, {SavedValue::None{}}, {true}, Text("ü")}}}},
       {Text("empty"), DictOf({})},
       {Text("by key"), DictOf({{{1.5}, {int64_t{2}}}})}});
  Manifest manifest;
  manifest.add_tensors()->set_name("model.a.weight");
  manifest.mutable_trainer();
  EXPECT_THAT(SetEntries(tree, manifest), ElementsAre());
  EXPECT_TRUE(TellsStep(manifest));
  const SavedState state = StateOf(manifest);
  EXPECT_TRUE(state.root == tree) << StructureToJson(state.root);
  EXPECT_THAT(NamesOf(state.root),
              ElementsAre("model.a.weight", "optimizer.state.0.step", "optimizer.param_groups.0.lr",
                          "optimizer.param_groups.0.betas", "raw", "array", "far", "by key"));
  EXPECT_THAT(state.left_out, ElementsAre());
}

TEST(SavedValuesTest, AManifestWithoutAStepStaysOne) {
  Manifest manifest;
  SetEntries(DictOf({{Text("epoch"), {int64_t{3}}}}), manifest);
  EXPECT_TRUE(manifest.has_trainer());
  EXPECT_FALSE(TellsStep(manifest));
  Manifest empty;
  SetEntries(DictOf({}), empty);
  EXPECT_FALSE(empty.has_trainer());
}

TEST(SavedValuesTest, LeavesOfOneNameAreNamed) {
  Manifest manifest;
  manifest.add_tensors()->set_name("c");
  const SavedValue tree = DictOf({{Text("a"), DictOf({{Text("b"), {int64_t{1}}}})},
                                  {Text("a.b"), {int64_t{2}}},
                                  {Text("c"), {int64_t{3}}}});
  EXPECT_THAT(SetEntries(tree, manifest), ElementsAre("a.b", "c"));
  EXPECT_TRUE(StateOf(manifest).root == DictOf({{Text("a"), DictOf({{Text("b"), {int64_t{1}}}})}}));
  const auto with_item = [](SavedValue item) {
    const SavedValue dict = DictOf({{Text("x"), {true}}});
    return DictOf(
        {{Text("l.1"), {int64_t{7}}}, {Text("l"), {SavedValue::List{{dict, std::move(item)}}}}});
  };
  EXPECT_THAT(SetEntries(with_item({int64_t{5}}), manifest), ElementsAre("l.1"));
  EXPECT_TRUE(StateOf(manifest).root == with_item({SavedValue::None{}}));
  const auto with_dict = [](SavedValue dict) {
    return DictOf({{Text("l.0.x"), {int64_t{1}}},
                   {Text("l"), {SavedValue::List{{std::move(dict), {int64_t{5}}}}}}});
  };
  EXPECT_THAT(SetEntries(with_dict(DictOf({{Text("x"), {int64_t{2}}}})), manifest),
              ElementsAre("l.0.x"));
  EXPECT_TRUE(StateOf(manifest).root == with_dict(DictOf({})));
}

TEST(SavedValuesTest, KindsOfThePackage) {
  const Manifest manifest = ManifestOf(
      R"({"huge": 123456789012345678901, "hex": {"!": "int", "value": "0x1f"},
          "number": {"!": "numpy", "value": {"!": "float", "value": "nan"}, "dtype": "float32"},
          "named": {"!": "namedtuple", "value": [1, 2], "module": "m", "name": "N",
                    "fields": ["a", "b"]},
          "ordered": {"!": "OrderedDict", "value": [["k", 1]]},
          "complex": {"!": "complex", "value": [1.0, 2.0]}, "future": {"!": "new", "value": 1},
          "inside": [{"!": "new", "value": 1}], "tensor": {"!": "tensor"},
          "below": {"!": "dict", "value": [[1.5, {"!": "tensor"}]]}, "whole": 9223372036854775807,
          "exact": 1e22})",
      "", {});
  const SavedState state = StateOf(manifest);
  EXPECT_THAT(state.left_out,
              ElementsAre("huge", "hex", "complex", "future", "inside", "tensor", "below"));
  EXPECT_THAT(state.simplified, ElementsAre("number", "named", "ordered"));
  const auto values = ValuesByName(state.root);
  EXPECT_TRUE(std::isnan(*values.at("number")->As<double>()));
  const SavedValue pair = {SavedValue::List{{{int64_t{1}}, {int64_t{2}}}, true}};
  EXPECT_TRUE(*values.at("named") == pair);
  EXPECT_EQ(*values.at("whole")->As<int64_t>(), INT64_MAX);
  EXPECT_EQ(*values.at("exact")->As<double>(), 1e22);
  EXPECT_THAT(StateOf(ManifestOf("no JSON", "", {})).left_out,
              ElementsAre("all that the entry tessera_ckpt.values has"));
}

// Checkpoints of before the structure was recorded.
TEST(SavedValuesTest, WithoutAStructureDotsTellIt) {
  const std::string values =
      R"({"optimizer.param_groups.0.lr": 0.1, "optimizer.param_groups.1.lr": 0.2, "epoch": 3})";
  const SavedValue root =
      StateOf(ManifestOf(values, "", {"model.a.weight", "optimizer.state.0.exp_avg"})).root;
  const auto& dict = *root.As<SavedValue::Dict>();
  EXPECT_NE(dict.Find("model")->As<SavedValue::Dict>()->Find("a.weight"), nullptr);
  const auto& optimizer = *dict.Find("optimizer")->As<SavedValue::Dict>();
  EXPECT_EQ(optimizer.Find("param_groups")->As<SavedValue::List>()->items.size(), 2);
  EXPECT_NE(optimizer.Find("state")->As<SavedValue::Dict>()->Find("0"), nullptr);
  // What tessera_ckpt.dcp has written tells the paths.
  Manifest manifest = ManifestOf(values, "", {"model.a.weight"});
  (*manifest.mutable_trainer()->mutable_extra())[kPlacesEntry] =
      R"({"model.a.weight": ["model", "a", "weight"], "epoch": ["epoch"]})";
  const SavedValue placed = StateOf(manifest).root;
  EXPECT_NE(placed.As<SavedValue::Dict>()->Find("model")->As<SavedValue::Dict>()->Find("a"),
            nullptr);
}

TEST(SavedValuesTest, WhatIsNotInTheStructureIsAtTheTop) {
  const std::string structure =
      R"({"!": "dict", "value": [["a", {"!": "dict", "value": [["x", null],
      ["gone", null], ["t", {"!": "tensor"}], ["lost", {"!": "tensor"}]]}]]})";
  const SavedValue root = StateOf(ManifestOf(R"({"a.x": 1, "b.y": 2})", structure, {"a.t"})).root;
  EXPECT_THAT(NamesOf(root), ElementsAre("a.x", "a.t", "b.y"));
}

TEST(SavedValuesTest, TreesOfPaths) {
  TreeBuilder builder;
  const Path list = {PathPart::Text("l"), PathPart::Index(1)};
  EXPECT_TRUE(builder.Add(list, {int64_t{1}}));
  EXPECT_TRUE(builder.Add({PathPart::Text("l"), PathPart::Index(0)}, {int64_t{0}}));
  EXPECT_TRUE(builder.Add({PathPart::Text("far"), PathPart::Index(INT64_MAX)}, {true}));
  EXPECT_FALSE(builder.Add(list, {int64_t{2}}));
  EXPECT_FALSE(builder.Add({PathPart::Text("l")}, {int64_t{2}}));
  EXPECT_FALSE(builder.Add({PathPart::Text("l"), PathPart::Index(1), PathPart::Text("x")}, {true}));
  EXPECT_FALSE(builder.Add({}, {true}));
  EXPECT_TRUE(std::move(builder).Finish() ==
              DictOf({{Text("l"), {SavedValue::List{{{int64_t{0}}, {int64_t{1}}}}}},
                      {Text("far"), DictOf({{{INT64_MAX}, {true}}})}}));
}

TEST(SavedValuesTest, PrunedItemsOfListsKeepTheOthersPlaces) {
  SavedValue tree = DictOf(
      {{Text("l"), {SavedValue::List{{{SavedValue::Tensor{"l.0"}}, {SavedValue::Tensor{"l.1"}}}}}},
       {Text("d"), DictOf({{Text("x"), {int64_t{1}}}})}});
  Prune(tree, [](const std::string& name, const SavedValue&) { return name == "l.1"; });
  EXPECT_THAT(NamesOf(tree), ElementsAre("l.0", "l.1"));
  Prune(tree, [](const std::string&, const SavedValue&) { return false; });
  EXPECT_TRUE(IsEmpty(tree));
}

// A program that has changed the step in a file of this library is believed; an optimizer whose
// state it has removed is left out.
TEST(OwnKeysTest, WhatAProgramHasChanged) {
  Manifest manifest;
  manifest.mutable_trainer()->set_step(7);
  manifest.mutable_trainer()->set_last_loss(2.5);
  OptimizerParameter& parameter = *manifest.mutable_optimizer()->add_parameters();
  parameter.set_parameter("w");
  (*parameter.mutable_states())["exp_avg"] = "w.exp_avg";
  SavedValue trainer = TrainerValue(manifest, true, nullptr);
  *trainer.As<SavedValue::Dict>()->Find("step") = {int64_t{9}};
  ForeignCheckpoint checkpoint;
  checkpoint.state = DictOf({{Text(kTrainerKey), trainer}, {Text("epoch"), {int64_t{1}}}});
  checkpoint.tensors.push_back({.name = "w.exp_avg"});
  TakeOwnKeys(checkpoint);
  EXPECT_EQ(checkpoint.description.trainer().step(), 9);
  EXPECT_EQ(checkpoint.description.trainer().last_loss(), 2.5);
  EXPECT_EQ(checkpoint.description.optimizer().parameters_size(), 1);
  EXPECT_THAT(NamesOf(checkpoint.state), ElementsAre("epoch"));
  ForeignCheckpoint without;
  without.state = DictOf({{Text(kTrainerKey), trainer}});
  TakeOwnKeys(without);
  EXPECT_FALSE(without.description.has_optimizer());
  EXPECT_EQ(without.notes.size(), 1);
  EXPECT_EQ(without.description.trainer().step(), 9);
}

// In DCP an empty dict is gone, and with it what made a branch of the list around it.
TEST(OwnKeysTest, TheStructureFindsItemsOfAListThatHasLostItsDict) {
  const SavedValue tree = DictOf({{Text("l"), {SavedValue::List{{{true}, DictOf({})}}}}});
  ForeignCheckpoint checkpoint;
  checkpoint.state = DictOf(
      {{Text("l"), {SavedValue::List{{{true}}}}}, {Text(kStructureKey), {StructureToJson(tree)}}});
  TakeOwnKeys(checkpoint);
  EXPECT_TRUE(checkpoint.state == tree) << StructureToJson(checkpoint.state);
}

}  // namespace
}  // namespace tessera::ckpt::convert
