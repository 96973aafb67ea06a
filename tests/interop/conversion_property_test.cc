// Generated checkpoints, written in every format and read back: tensors by name and bytes, their
// partitions, values, optimizer and step are the same, or the conversion names what is not.

#include <bit>
#include <cstdint>
#include <iostream>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/testing.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "convert/core/models.h"
#include "convert/core/saved_values.h"
#include "convert/core/value.h"
#include "convert/write_foreign.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "layout/box.h"
#include "layout/partition.h"
#include "models/model_config.h"
#include "operations/named_checkpoint.h"
#include "operations/reshard.h"

namespace tessera::ckpt {
namespace {

using convert::SavedValue;

struct Tensor {
  TensorRole role = TensorRole::kWeight;
  DType dtype = DType::kF32;
  Shape shape;
  std::string alias_of;
  std::string bytes;                   // of an alias, those of its tensor
  std::optional<Partition> partition;  // of an alias, that of its tensor
};

// All of a checkpoint, as simple as it can be.
struct State {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, SavedValue> values;
  OptimizerState optimizer;
  int64_t step = 0;
};

// What is saved: the state, and what describes it.
struct Generated {
  State state;
  SavedValue tree;
  Manifest metadata;
  std::string text;  // for messages
};

class Generator {
 public:
  explicit Generator(uint64_t seed) : random_(seed) {}

  int64_t Between(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random_() % static_cast<uint64_t>(most - least + 1));
  }
  bool Coin() { return Between(0, 1) == 1; }
  template <typename T>
  const T& OneOf(const std::vector<T>& all) {
    return all[static_cast<size_t>(Between(0, static_cast<int64_t>(all.size()) - 1))];
  }

  Generated Make() {
    generated_ = {};
    generated_.state.step = OneOf<int64_t>({0, 1, 17, 1'000'000, (int64_t{1} << 40) + 3});
    SavedValue::Dict root;
    const bool is_model = Coin();
    if (is_model) {
      AddModel();
    } else {
      AddTensors(root);
    }
    if (!is_model || Coin()) AddValues(root);
    generated_.tree = {std::move(root)};
    for (const auto& [name, value] : convert::ValuesByName(generated_.tree)) {
      generated_.state.values[name] = *value;
    }
    for (auto& [name, tensor] : generated_.state.tensors) {
      if (!tensor.alias_of.empty()) tensor.bytes = generated_.state.tensors[tensor.alias_of].bytes;
      absl::StrAppend(&generated_.text, name, " ", DTypeProto_Name(ToProto(tensor.dtype)), " ",
                      ShapeToString(tensor.shape), tensor.alias_of.empty() ? "" : " = ",
                      tensor.alias_of, "\n");
    }
    TrainerState& trainer = *generated_.metadata.mutable_trainer();
    if (Coin()) {
      trainer.set_last_loss(1.25);
      trainer.mutable_data()->set_consumed_samples(Between(0, 1 << 30));
      trainer.mutable_schedule()->set_learning_rate(3e-4);
      (*trainer.mutable_extra())["a program's own"] = std::string("\0\xFF", 2);
    }
    return std::move(generated_);
  }

 private:
  void Add(const std::string& name, TensorRole role, DType dtype, const Shape& shape,
           const std::optional<Partition>& partition) {
    Tensor tensor = {.role = role, .dtype = dtype, .shape = shape, .partition = partition};
    tensor.bytes.resize(static_cast<size_t>(ElementCount(shape)) * ElementSize(dtype));
    for (char& byte : tensor.bytes) byte = static_cast<char>(random_());
    if (dtype == DType::kBool) {
      for (char& byte : tensor.bytes) byte = static_cast<char>(byte & 1);
    }
    generated_.state.tensors[name] = std::move(tensor);
  }

  // A model with its weights in one dtype or in several, and, perhaps, an optimizer.
  void AddModel() {
    const int64_t heads = OneOf<int64_t>({1, 2, 4});
    const bool llama = Coin();
    std::string text = absl::StrCat(
        "size: \"", llama ? "llama3-tiny" : "gpt2-tiny", "\" num_layers: ", Between(1, 3),
        " num_attention_heads: ", heads, " hidden_size: ", heads * 2 * Between(1, 9),
        " ffn_hidden_size: ", heads * Between(1, 20), " vocab_size: ", Between(1, 200),
        " max_position_embeddings: ", Between(1, 40));
    if (llama) {
      absl::StrAppend(&text, " num_query_groups: ", Coin() ? heads : 1,
                      " untie_embeddings_and_output_weights: ", Coin() ? "true" : "false");
    }
    generated_.text = text + "\n";
    ModelConfig config;
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &config));
    ASSERT_OK_AND_ASSIGN(config, ResolveModelConfig(config));
    const convert::ModelDescription model = convert::DescribeModel(config);
    *generated_.metadata.mutable_model() = model.config;
    const std::vector<DType> dtypes = {DType::kF32, DType::kBF16, DType::kF16};
    const DType dtype = OneOf(dtypes);
    const bool mixed = Coin(), has_moments = Coin(), has_masters = Coin();
    OptimizerState& optimizer = *generated_.metadata.mutable_optimizer();
    for (const double decay : {0.1, 0.0}) {
      auto& options = *optimizer.add_groups()->mutable_options();
      options["weight_decay"] = decay, options["beta1"] = 0.85;
    }
    optimizer.set_algorithm("adamw");
    for (const LogicalParameter& parameter : model.parameters) {
      Add(parameter.name, TensorRole::kWeight, mixed ? OneOf(dtypes) : dtype, parameter.shape,
          parameter.partition);
      if (!parameter.tied_name.empty()) {
        Tensor tied = generated_.state.tensors[parameter.name];
        tied.alias_of = parameter.name;
        generated_.state.tensors[parameter.tied_name] = std::move(tied);
      }
      OptimizerParameter entry;
      entry.set_parameter(parameter.name);
      entry.set_group(parameter.weight_decay ? 0 : 1);
      for (const std::string state : {"exp_avg", "exp_avg_sq", "master"}) {
        const bool is_master = state == "master";
        if (is_master ? !has_masters : !has_moments) continue;
        const std::string name = absl::StrCat(parameter.name, ".", state);
        Add(name, is_master ? TensorRole::kMasterWeight : TensorRole::kOptimizerState, DType::kF32,
            parameter.shape, parameter.partition);
        (*entry.mutable_states())[state] = name;
      }
      if (!entry.states().empty()) *optimizer.add_parameters() = std::move(entry);
    }
    if (optimizer.parameters().empty()) generated_.metadata.clear_optimizer();
    generated_.state.optimizer = generated_.metadata.optimizer();
  }

  // Tensors of any dtypes and shapes, in dicts and lists.
  void AddTensors(SavedValue::Dict& root) {
    const std::vector<DType> dtypes = {DType::kF64, DType::kF32,    DType::kF16,   DType::kBF16,
                                       DType::kI64, DType::kI32,    DType::kI16,   DType::kI8,
                                       DType::kU8,  DType::kBool,   DType::kU16,   DType::kU32,
                                       DType::kU64, DType::kF8E4M3, DType::kF8E5M2};
    SavedValue::Dict model;
    SavedValue::List list;
    std::string first;
    for (int64_t i = 0, count = Between(1, 8); i < count; ++i) {
      Shape shape(static_cast<size_t>(Between(0, 3)));
      for (int64_t& extent : shape) extent = OneOf<int64_t>({0, 1, 1, 2, 3, 7, 30});
      const bool in_list = Coin();
      const std::string key = absl::StrCat("layer.", i, ".weight");
      const std::string name =
          in_list ? absl::StrCat("more.", list.items.size()) : absl::StrCat("model.", key);
      const bool is_alias = !first.empty() && Between(0, 3) == 0;
      if (is_alias) {
        Tensor alias = generated_.state.tensors[first];
        alias.alias_of = first;
        generated_.state.tensors[name] = std::move(alias);
      } else {
        std::optional<Partition> partition;
        if (!shape.empty() && Coin()) partition = {.dim = 0, .place = InLayer(i)};
        Add(name, Coin() ? TensorRole::kWeight : TensorRole::kOptimizerState, OneOf(dtypes), shape,
            partition);
        if (first.empty() && ElementCount(shape) > 0) first = name;
      }
      SavedValue leaf = {SavedValue::Tensor{name}};
      if (in_list) {
        list.items.push_back(std::move(leaf));
      } else {
        model.Add({key}, std::move(leaf));
      }
    }
    root.Add({std::string("model")}, {std::move(model)});
    if (!list.items.empty()) root.Add({std::string("more")}, {std::move(list)});
  }

  void AddValues(SavedValue::Dict& root) {
    std::set<std::string> names = {"model", "more"};
    for (int64_t i = 0, count = Between(0, 6); i < count; ++i) {
      const std::string key = OneOf<std::string>(
          {"epoch", "scheduler", "a.b", "ключ", "0", "args", "optimizer", "x", "trainer_state"});
      if (names.insert(key).second) root.Add({key}, Any(3));
    }
  }

  SavedValue Any(int depth) {
    const double infinity = std::numeric_limits<double>::infinity();
    switch (Between(0, depth > 0 ? 9 : 6)) {
      case 0:
        return {SavedValue::None{}};
      case 1:
        return {Coin()};
      case 2:
        return {OneOf<int64_t>({0, -1, 255, 65536, -2147483649, INT64_MAX, INT64_MIN})};
      case 3:
        return {OneOf<double>({0.0, -0.0, 1.0, 1e-5, 0.1, 1e300, 5e-324, infinity, -infinity})};
      case 4:
        return {
            OneOf<std::string>({"", "text", "null", "\"\\\n\t", "данные", std::string(3, '\0')})};
      case 5: {
        SavedValue::Bytes bytes = {.is_bytearray = Coin()};
        for (int64_t i = 0, count = Between(0, 300); i < count; ++i) {
          bytes.bytes += static_cast<char>(random_());
        }
        return {std::move(bytes)};
      }
      case 6:
        return {
            std::bit_cast<double>((random_() & ~(uint64_t{0x7FF} << 52)) | (uint64_t{9} << 55))};
      case 7:
        return {SavedValue::List{Items(depth)}};
      case 8:
        return {SavedValue::List{Items(depth), true}};
      default: {
        SavedValue::Dict dict;
        std::set<std::string> names;
        for (int64_t i = 0, count = Between(0, 4); i < count; ++i) {
          const int64_t number = Between(-1, 3);
          const std::string text =
              OneOf<std::string>({"lr", "betas", "params", "7", "état", "n o"});
          const bool is_number = Coin();
          if (!names.insert(is_number ? absl::StrCat(number) : text).second) continue;
          dict.Add(is_number ? SavedValue{number} : SavedValue{text}, Any(depth - 1));
        }
        return {std::move(dict)};
      }
    }
  }

  std::vector<SavedValue> Items(int depth) {
    std::vector<SavedValue> items;
    for (int64_t i = 0, count = Between(0, 4); i < count; ++i) items.push_back(Any(depth - 1));
    return items;
  }

  std::mt19937_64 random_;
  Generated generated_;
};

void Save(const Generated& generated, const std::string& folder) {
  StateDict dict;
  Manifest described = generated.metadata;
  for (const auto& [name, tensor] : generated.state.tensors) {
    ShardedTensor saved = {.name = name,
                           .role = tensor.role,
                           .dtype = tensor.dtype,
                           .global_shape = tensor.shape,
                           .alias_of = tensor.alias_of};
    if (tensor.alias_of.empty()) {
      saved.partition = tensor.partition;
      saved.shards = {Shard::Untyped(const_cast<char*>(tensor.bytes.data()), tensor.dtype,
                                     WholeBox(tensor.shape))};
    }
    described.add_tensors()->set_name(name);
    dict.tensors.push_back(std::move(saved));
  }
  EXPECT_TRUE(convert::SetEntries(generated.tree, described).empty());
  described.clear_tensors();
  ASSERT_OK_AND_ASSIGN(const auto opened, CheckpointFolder::Open(folder, {.create_root = true}));
  ASSERT_OK(opened.Save(
      {.step = generated.state.step, .metadata = ToMetadata(std::move(described))}, dict));
}

State Load(const NamedCheckpoint& named) {
  State state;
  EXPECT_OK(named.opened);
  if (!named.opened.ok()) return state;
  state.step = named.opened->step();
  state.optimizer = named.opened->manifest().optimizer();
  for (const TensorInfo& info : named.opened->tensors()) {
    Tensor tensor = {.role = info.role, .dtype = info.dtype, .shape = info.global_shape};
    tensor.bytes.resize(static_cast<size_t>(ElementCount(tensor.shape)) * ElementSize(info.dtype));
    const absl::Status loaded = named.opened->LoadTensor(
        info.name, Shard::Untyped(tensor.bytes.data(), info.dtype, WholeBox(tensor.shape)));
    EXPECT_OK(loaded) << info.name;
    state.tensors[info.name] = std::move(tensor);
  }
  std::map<std::string, std::optional<Partition>> partitions;
  for (const LogicalTensor& tensor : named.opened->manifest().tensors()) {
    if (tensor.has_partition()) partitions[tensor.name()] = FromProto(tensor.partition());
  }
  for (const LogicalTensor& tensor : named.opened->manifest().tensors()) {
    const bool is_alias = !tensor.alias_of().empty();
    state.tensors[tensor.name()].partition =
        partitions[is_alias ? tensor.alias_of() : tensor.name()];
  }
  const SavedValue tree =
      named.format.empty() ? convert::StateOf(named.opened->manifest()).root : named.state;
  for (const auto& [name, value] : convert::ValuesByName(tree)) state.values[name] = *value;
  return state;
}

// What a conversion may change, because it has said so.
struct Named {
  bool has_metadata = false;  // a format has values of its own, which describe the model
  bool weights_only = false, has_dtype = false;  // as the options say
  std::set<std::string> tensors, dtypes, ties, values, trainer, optimizer;

  void Add(const convert::LeftOut& left_out) {
    tensors.insert(left_out.tensors.begin(), left_out.tensors.end());
    dtypes.insert(left_out.dtypes.begin(), left_out.dtypes.end());
    ties.insert(left_out.ties.begin(), left_out.ties.end());
    values.insert(left_out.values.begin(), left_out.values.end());
    trainer.insert(left_out.trainer.begin(), left_out.trainer.end());
    optimizer.insert(left_out.optimizer.begin(), left_out.optimizer.end());
  }
};

// What the manifest says of the optimizer: each parameter's options and states.
void ExpectSame(const OptimizerState& before, const OptimizerState& after, const Named& named) {
  std::map<std::string, const OptimizerParameter*> parameters;
  for (const OptimizerParameter& parameter : after.parameters()) {
    parameters[parameter.parameter()] = &parameter;
  }
  for (const OptimizerParameter& parameter : before.parameters()) {
    std::map<std::string, std::string> states(parameter.states().begin(), parameter.states().end());
    std::erase_if(states, [&](const auto& state) { return named.tensors.contains(state.second); });
    if (states.empty()) continue;
    const auto at = parameters.find(parameter.parameter());
    ASSERT_TRUE(at != parameters.end()) << "states of " << parameter.parameter() << " are unnamed";
    for (const auto& [state, tensor] : states) {
      const auto saved = at->second->states().find(state);
      EXPECT_TRUE(saved != at->second->states().end() && saved->second == tensor) << tensor;
    }
    const auto& options = after.groups(static_cast<int>(at->second->group())).options();
    for (const auto& [option, value] :
         before.groups(static_cast<int>(parameter.group())).options()) {
      if (named.optimizer.contains(option)) continue;
      EXPECT_TRUE(options.contains(option) && options.at(option) == value)
          << parameter.parameter() << ": option " << option;
    }
  }
}

void ExpectSame(const State& before, const State& after, const Named& named) {
  for (const auto& [name, tensor] : before.tensors) {
    const auto at = after.tensors.find(name);
    if (named.weights_only && BelongsToOptimizer(tensor.role)) continue;
    if (at == after.tensors.end()) {
      EXPECT_TRUE(named.tensors.contains(name)) << "tensor " << name << " is gone";
      continue;
    }
    EXPECT_FALSE(named.tensors.contains(name)) << "tensor " << name << " is there";
    EXPECT_EQ(at->second.shape, tensor.shape) << name;
    if (named.dtypes.contains(name)) continue;
    if (named.has_dtype && tensor.role == TensorRole::kWeight) continue;
    EXPECT_EQ(at->second.dtype, tensor.dtype) << name;
    EXPECT_TRUE(at->second.bytes == tensor.bytes) << "tensor " << name << " has other bytes";
    EXPECT_EQ(at->second.role, tensor.role) << name;
    const bool has_partition = tensor.partition.has_value() && !named.weights_only;
    if (has_partition) EXPECT_EQ(at->second.partition, tensor.partition) << name;
  }
  for (const auto& [name, tensor] : after.tensors) {
    // What is a tensor of its own has states of its own.
    if (named.ties.contains(name.substr(0, name.rfind('.')))) continue;
    EXPECT_TRUE(before.tensors.contains(name)) << "tensor " << name << " is new";
  }
  if (named.weights_only) return;
  ExpectSame(before.optimizer, after.optimizer, named);
  for (const auto& [name, value] : before.values) {
    const auto at = after.values.find(name);
    if (named.values.contains(name)) continue;
    EXPECT_TRUE(at != after.values.end() && at->second == value)
        << "value " << name << " was " << convert::ValueToPlainJson(value) << ", is "
        << (at == after.values.end() ? "gone" : convert::ValueToPlainJson(at->second).dump());
  }
  for (const auto& [name, value] : after.values) {
    if (named.has_metadata) break;
    EXPECT_TRUE(before.values.contains(name)) << "value " << name << " is new";
  }
  if (!named.trainer.contains("step")) EXPECT_EQ(after.step, before.step);
}

// Converts by way of formats of other frameworks, and back to this library's.
void Convert(Generator& choose, const std::vector<std::string>& formats, const TestFolder& folder,
             const State& state, std::map<std::string, int>& refused) {
  std::string source = folder.File("a");
  Named named;
  for (size_t i = 0; i < formats.size(); ++i) {
    const std::string target = folder.File(absl::StrCat(i, formats[i] == "gguf" ? ".gguf" : ""));
    ASSERT_OK_AND_ASSIGN(const NamedCheckpoint from, FindCheckpoint(source, {}));
    ASSERT_OK(from.opened);
    convert::WriteForeignOptions options = {.format = formats[i],
                                            .plan = {.state = from.foreign_state()}};
    convert::PlanOptions& plan = options.plan;
    if (choose.Coin()) plan.max_file_bytes = static_cast<uint64_t>(choose.Between(1, 4000));
    plan.weights_only = choose.Between(0, 7) == 0;
    if (choose.Between(0, 3) == 0) {
      plan.dtype = choose.OneOf<DType>({DType::kF32, DType::kBF16, DType::kF16});
    }
    named.weights_only |= plan.weights_only;
    named.has_dtype |= plan.dtype != DType::kUnspecified;
    const auto report = convert::WriteForeign(*from.opened, target, options);
    if (absl::IsInvalidArgument(report.status()) || absl::IsFailedPrecondition(report.status())) {
      ++refused[formats[i]];
      return;
    }
    ASSERT_OK(report);
    named.Add(report->left_out);
    if (formats[i] == "gguf") named.has_metadata = true;
    source = target;
  }
  const ReshardRequest request = {.source = source,
                                  .destination = folder.File("b"),
                                  .topology = choose.Coin() ? "single" : "tp2",
                                  .program = "test"};
  ASSERT_OK_AND_ASSIGN(const ReshardPlan plan, PlanReshard(request));
  ASSERT_OK(Reshard(plan, request));
  ASSERT_OK_AND_ASSIGN(const NamedCheckpoint after, FindCheckpoint(request.destination, {}));
  ExpectSame(state, Load(after), named);
}

TEST(ConversionPropertyTest, EverythingComesBackOrIsNamed) {
  const uint64_t seed = TestSeed();
  std::vector<std::string> formats = convert::WrittenFormatNames();
  std::map<std::string, int> converted, refused;
  for (int round = 0; round < TestRounds(25); ++round) {
    Generator generator(seed + static_cast<uint64_t>(round));
    const Generated generated = generator.Make();
    std::vector<std::vector<std::string>> ways = {{}, {"torch", "dcp"}, {"dcp", "torch"}};
    for (const std::string& format : formats) ways.push_back({format});
    for (const std::vector<std::string>& way : ways) {
      const TestFolder folder;
      const std::string name = absl::StrJoin(way, ", ");
      SCOPED_TRACE(absl::StrCat("TESSERA_TEST_SEED=", seed + static_cast<uint64_t>(round),
                                " TESSERA_TEST_ROUNDS=1, by way of ", name, "\n", generated.text));
      Save(generated, folder.File("a"));
      if (::testing::Test::HasFatalFailure()) return;
      Convert(generator, way, folder, generated.state, refused);
      ++converted[name];
      if (::testing::Test::HasFailure()) return;
    }
  }
  for (const auto& [name, count] : converted) {
    std::cout << "by way of " << (name.empty() ? "tessera alone" : name) << ": " << count
              << " conversions, refused: " << refused[name] << "\n";
  }
}

}  // namespace
}  // namespace tessera::ckpt
