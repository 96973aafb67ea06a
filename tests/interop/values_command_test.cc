// `ckpt convert` keeps what a checkpoint has beside tensors, or names what it leaves out.

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/testing.h"
#include "convert/core/value.h"
#include "convert/formats/dcp/metadata.h"
#include "convert/formats/torch/write.h"
#include "convert/pickle/torch_archive.h"
#include "convert/pickle/value.h"
#include "convert/pickle/write.h"
#include "convert/testing/string_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/interop/foreign_run.h"
#include "tests/support/command.h"
#include "tools/ckpt/commands.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

namespace convert = ckpt::convert;

class ValuesCommandTest : public testing::ForeignTest {
 protected:
  // Converts, and returns the notes, a line each.
  std::string Convert(const std::string& from, const std::string& to, const std::string& format,
                      const std::vector<std::string>& flags = {}) {
    std::vector<std::string> arguments = {"convert", from, to, "--to=" + format, "--json"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    EXPECT_EQ(Run(arguments), ckpt::kExitOk) << out_ << err_;
    std::string notes;
    const auto json = nlohmann::json::parse(out_, nullptr, false);
    if (!json.is_object()) return notes;
    for (const auto& note : json["notes"]) notes += note.get<std::string>() + "\n";
    return notes;
  }

  // The step of what is in a folder.
  int64_t StepOf(const std::string& path) {
    EXPECT_EQ(Run({"inspect", path, "--json"}), ckpt::kExitOk) << err_;
    return nlohmann::json::parse(out_, nullptr, false).value("step", int64_t{-1});
  }

  // The pickle of a file of torch, whose root `check` gets.
  template <typename Check>
  void WithPickle(const std::string& path, const Check& check) {
    const convert::StringFile file(ReadFile(path));
    ASSERT_OK_AND_ASSIGN(const auto archive,
                         convert::ReadTorchArchive(file, {0, file.size_bytes()}));
    check(archive.contents.root());
  }

  // A file of torch with a tensor, and a value under a key, whose own tensors have one element.
  std::string MakeFile(const std::string& key, const convert::SavedValue& value) {
    ckpt::pickle::Writer writer;
    writer.BeginDict();
    writer.Text("w");
    convert::WriteTorchTensor(DType::kF32, {1}, 0, writer);
    writer.Text(key);
    convert::WriteValue(value, writer, [&](const std::string&) {
      convert::WriteTorchTensor(DType::kF32, {}, 0, writer);
    });
    writer.EndDict();
    const std::string path = In(key + ".pt");
    WriteFile(
        path,
        convert::TorchObjectFile("", std::move(writer).Finish(), std::string(4, '\1')).header);
    return path;
  }
};

// A script's state dict: by way of this library and DCP back to torch, in the same places.
TEST_F(ValuesCommandTest, AStateDictKeepsItsPlaces) {
  const std::string script = "convert/formats/torch/testdata/training.pt";
  const std::string notes = Convert(script, In("own"), "tessera");
  EXPECT_THAT(notes, AllOf(HasSubstr("objects of argparse.Namespace: args"),
                           HasSubstr("torch.bfloat16: dtype"), Not(HasSubstr("losses"))));
  EXPECT_EQ(StepOf(In("own/step-00000002")), 2);
  EXPECT_EQ(Convert(In("own"), In("dcp"), "dcp"), "");
  EXPECT_EQ(Convert(In("dcp"), In("torch"), "torch"), "");
  WithPickle(In("torch/checkpoint.pt"), [](const ckpt::pickle::Value& root) {
    EXPECT_EQ(root.Find("step").AsInt(), 2);
    EXPECT_EQ(root.Find("losses")[1].AsFloat(), 0.25);
    const auto optimizer = root.Find("optimizer");
    EXPECT_EQ(optimizer.Find("param_groups")[0].Find("lr").AsFloat(), 1e-3);
    EXPECT_TRUE(optimizer.Find("param_groups")[0].Find("betas").is(ckpt::pickle::Kind::kTuple));
    EXPECT_TRUE(convert::FindNumber(optimizer.Find("state"), 0).Find("exp_avg").present());
    EXPECT_TRUE(convert::IsTorchTensor(root.Find("model").Find("0.weight")));
  });
  EXPECT_EQ(StepOf(In("torch")), 2);
}

// The optimizer of a model keeps its groups with all their settings, its trainer what it has.
TEST_F(ValuesCommandTest, AModelsOptimizerKeepsItsGroups) {
  const std::string trainer = "tests/interop/state_dict/trainer";
  EXPECT_EQ(Convert(trainer, In("own"), "tessera"), "");
  for (const auto& [from, to] : {std::pair(In("own"), In("a")), std::pair(trainer, In("b"))}) {
    EXPECT_EQ(Convert(from, to, "torch"), "");
    WithPickle(to + "/checkpoint.pt", [](const ckpt::pickle::Value& root) {
      const auto groups = root.Find("optimizer").Find("param_groups");
      ASSERT_EQ(groups.size(), 2);
      EXPECT_EQ(groups[0].Find("weight_decay").AsFloat(), 0.1);
      EXPECT_EQ(groups[1].Find("params").size(), 5);
      EXPECT_EQ(root.Find("scheduler").Find("last_epoch").AsInt(), 3);
      EXPECT_EQ(root.Find("trainer_state").Find("global_step").AsInt(), 3);
    });
    EXPECT_EQ(Convert(to, to + ".back", "tessera"), "");
    EXPECT_EQ(Run({"diff", In("own"), to + ".back"}), ckpt::kExitOk) << out_ << err_;
  }
  EXPECT_THAT(Convert(In("own"), In("hf"), "hf"),
              AllOf(HasSubstr("has no place for these tensors: "), HasSubstr(".exp_avg"),
                    HasSubstr("has no place for these values: "),
                    HasSubstr("has no place for this state of the trainer: step")));
}

// A learning rate may be a tensor.
TEST_F(ValuesCommandTest, TensorsOfAnOptimizersGroupsAreNoWeights) {
  convert::SavedValue::List groups;
  groups.items.push_back(convert::DictOf("lr", {convert::SavedValue::Tensor{}}));
  convert::SavedValue optimizer = convert::DictOf("param_groups", {groups});
  convert::MergeInto(convert::DictOf("state", {convert::SavedValue::Dict{}}), optimizer);
  const std::string file = MakeFile("optimizer", optimizer);
  for (const std::string format : {"torch", "dcp"}) {
    EXPECT_EQ(Convert(file, In(format), format), "");
    EXPECT_EQ(Convert(In(format), In(format + "/weights"), "torch", {"--weights-only"}), "");
    EXPECT_EQ(Run({"inspect", In(format + "/weights"), "--json"}), ckpt::kExitOk) << err_;
    EXPECT_THAT(out_, AllOf(HasSubstr("\"w\""), Not(HasSubstr("lr"))));
  }
}

// In DCP, a number and a text are the same key. The first value stays.
TEST_F(ValuesCommandTest, ValuesThatDcpCannotTellApartAreNamed) {
  convert::SavedValue::Dict dict;
  dict.Add({int64_t{1}}, {int64_t{5}});
  dict.Add({std::string("1")}, {int64_t{6}});
  dict.Add({std::string("2")}, {int64_t{7}});
  EXPECT_THAT(Convert(MakeFile("d", {dict}), In("dcp"), "dcp"),
              HasSubstr("Left out, as the format dcp has no place for these values: d.1."));
  EXPECT_EQ(Convert(In("dcp"), In("torch"), "torch"), "");
  WithPickle(In("torch/checkpoint.pt"), [](const ckpt::pickle::Value& root) {
    EXPECT_EQ(root.Find("d").entry_count(), 2);
    EXPECT_EQ(convert::FindNumber(root.Find("d"), 1).AsInt(), 5);
    EXPECT_EQ(root.Find("d").Find("2").AsInt(), 7);
  });
}

// Two values of one name, kinds of containers, and bits of numbers.
TEST_F(ValuesCommandTest, EveryValueOfAFileIsCompared) {
  using Value = convert::SavedValue;
  const auto diff = [&](const Value& a, const Value& b) {
    std::filesystem::rename(MakeFile("d", a), In("first.pt"));
    return Run({"diff", In("first.pt"), MakeFile("d", b)});
  };
  // Their keys decide their order, texts first, and no other key has the name shown for them.
  const auto twice = [](int64_t second, int64_t third, bool is_reversed = false) {
    Value::Dict dict;
    dict.Add({std::string("1 (2)")}, {third});
    if (is_reversed) dict.Add({std::string("1")}, {int64_t{4}});
    dict.Add({int64_t{1}}, {second});
    if (!is_reversed) dict.Add({std::string("1")}, {int64_t{4}});
    return Value{dict};
  };
  const auto list = [](bool is_tuple) {
    return Value{Value::List{{{Value::Tensor{}}, {int64_t{1}}}, is_tuple}};
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(diff(twice(6, 9), twice(6, 9)), ckpt::kExitOk) << out_;
  EXPECT_EQ(diff(twice(6, 9), twice(6, 9, /*is_reversed=*/true)), ckpt::kExitOk) << out_;
  EXPECT_EQ(diff(twice(6, 9), twice(6, 8)), ckpt::kExitDifferent);
  EXPECT_THAT(out_, HasSubstr("value d.1 (2): 9 -> 8"));
  EXPECT_EQ(diff(twice(6, 9), twice(7, 9)), ckpt::kExitDifferent);
  EXPECT_THAT(out_, HasSubstr("value d.1 (3): 6 -> 7"));
  EXPECT_EQ(diff(list(false), list(true)), ckpt::kExitDifferent);
  EXPECT_THAT(out_, HasSubstr("container d: list -> tuple"));
  EXPECT_EQ(diff({nan}, {-nan}), ckpt::kExitOk) << out_;
  EXPECT_EQ(diff({0.0}, {-0.0}), ckpt::kExitDifferent);
  EXPECT_THAT(out_, HasSubstr("value d: 0.0 -> -0.0"));
}

// Lightning keeps what is not sharded in a file beside those of DCP.
TEST_F(ValuesCommandTest, TheFileBesideShardsIsReadWithThem) {
  Convert(MakeFile("x", {int64_t{1}}), In("dcp"), "dcp");
  ckpt::pickle::Writer writer;
  convert::WriteValue(convert::DictOf("global_step", {int64_t{40}}), writer);
  WriteFile(In("dcp/meta.pt"), convert::TorchObjectFile("", std::move(writer).Finish(), "").header);
  EXPECT_EQ(StepOf(In("dcp")), 40);
  EXPECT_EQ(Convert(In("dcp"), In("torch"), "torch"), "");
  WithPickle(In("torch/checkpoint.pt"), [](const ckpt::pickle::Value& root) {
    EXPECT_EQ(root.Find("global_step").AsInt(), 40);
    EXPECT_EQ(root.Find("x").AsInt(), 1);
    EXPECT_TRUE(root.Find("w").present());
  });
}

TEST_F(ValuesCommandTest, AStepHasAnyOfItsUsualNames) {
  const auto count = [](int64_t n) { return convert::SavedValue{n}; };
  for (const char* const name : {"global_step", "step", "iteration", "iter_num"}) {
    const std::string file = MakeFile(name, count(1000));
    Convert(file, In(name), "tessera");
    EXPECT_EQ(StepOf(In(name) + "/step-00001000"), 1000) << name;
  }
  Convert(MakeFile("epoch", count(5)), In("epoch"), "tessera");
  EXPECT_EQ(StepOf(In("epoch") + "/step-00000000"), 0);
  // What the flag says wins.
  Convert(In("step.pt"), In("stated"), "tessera", {"--ckpt-step=7"});
  EXPECT_EQ(StepOf(In("stated/step-00000007")), 7);
  Convert(In("epoch.pt"), In("stated"), "tessera", {"--ckpt-step=8"});
  EXPECT_EQ(Convert(In("stated"), In("of_7"), "torch", {"--ckpt-step=7"}), "");
  EXPECT_EQ(StepOf(In("of_7")), 7);
  EXPECT_EQ(Run({"convert", In("stated"), In("none"), "--to=torch", "--ckpt-step=9"}),
            ckpt::kExitUsage);
  EXPECT_THAT(err_, HasSubstr("no checkpoint of step 9; the newest one is that of step 8"));
}

}  // namespace
}  // namespace tessera
