// Loss, logits and gradients against Hugging Face's models, through llm.c's model files.

#include <cstdint>
#include <cstring>
#include <ostream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "checkpoint/include/checkpoint.h"
#include "compute/kernels/cpu/cpu_backend.h"
#include "compute/kernels/reference/reference_backend.h"
#include "compute/kernels/testing/compare.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "models/layers/model.h"
#include "models/model_config.h"
#include "models/registry.h"
#include "tests/interop/foreign_run.h"
#include "tests/support/command.h"
#include "trainer/state/run_state.h"

namespace tessera {
namespace {

std::string PyTorchPath(const std::string& name) { return "tests/interop/pytorch/" + name; }

// llm.c's debug state, up to the loss.
struct State {
  Tensor ids, targets;  // [B,T]
  Tensor logits;        // [B,T,V]
  double loss = 0;      // mean over targets
  int64_t tokens = 0;   // with a target
};

State ReadState(const std::string& path, int64_t vocab_size) {
  const std::string bytes = ReadFile(path);
  std::vector<int32_t> header(256);
  std::memcpy(header.data(), bytes.data(), 1024);
  EXPECT_EQ(header[0], 20240327);
  const int64_t batch = header[2], sequence = header[3];
  State state;
  state.ids = Tensor(DType::kI32, {batch, sequence});
  state.targets = Tensor(DType::kI32, {batch, sequence});
  state.logits = Tensor(DType::kF32, {batch, sequence, vocab_size});
  const char* next = bytes.data() + 1024;
  for (const TensorView& view : {state.ids.view(), state.targets.view(), state.logits.view()}) {
    std::memcpy(view.data(), next, view.bytes());
    next += view.bytes();
  }
  float loss;
  std::memcpy(&loss, next, sizeof(loss));
  EXPECT_EQ(next + sizeof(loss), bytes.data() + bytes.size());
  state.loss = loss;
  for (int64_t i = 0; i < batch * sequence; ++i) {
    state.tokens += state.targets.view().as<int32_t>()[i] >= 0;
  }
  return state;
}

// The header's config, completed by what the header omits.
absl::StatusOr<ModelConfig> ReadConfig(const std::string& name) {
  TESSERA_ASSIGN_OR_RETURN(const SavedRun run,
                           testing::OpenForeignRun(PyTorchPath(name + ".model.bin")));
  ModelConfig config, rest;
  EXPECT_TRUE(
      google::protobuf::TextFormat::ParseFromString(run.manifest().model().text(), &config));
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
      ReadFile(PyTorchPath(name + ".config.textproto")), &rest));
  config.MergeFrom(rest);
  return ResolveModelConfig(config);
}

// Fills `flat`, which has the layout of the whole model's parameters.values(), with the tensors of
// a model file.
void Fill(const std::string& name, const ModelConfig& config, const ParameterSet& parameters,
          const TensorView& flat) {
  const ckpt::ModelProto model = ToProto(config);
  ASSERT_OK_AND_ASSIGN(const auto run, testing::OpenForeignRun(PyTorchPath(name), &model));
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, ckpt::Checkpoint::Open(run.checkpoint.storage(), ""));
  for (const Parameter* parameter : parameters.parameters()) {
    for (const ParameterPiece& piece : parameter->pieces) {
      ASSERT_OK_AND_ASSIGN(const auto values, checkpoint.LoadTensor<float>(piece.name));
      const bool is_vector = piece.shape.size() == 1;
      const int64_t rows = is_vector ? 1 : piece.shape[0], columns = piece.shape.back();
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t column = 0; column < columns; ++column) {
          const auto at = [&](const Shape& offset, const Shape& shape) {
            return ((is_vector ? 0 : offset[0]) + row) * shape.back() + offset.back() + column;
          };
          const float value = values[at(piece.global_offset, piece.global_shape)];
          const int64_t to = parameter->flat_offset + at(piece.local_offset, parameter->shape);
          if (flat.dtype() == DType::kF64) {
            flat.as<double>()[to] = value;
          } else {
            flat.as<float>()[to] = value;
          }
        }
      }
    }
  }
}

struct PyTorchCase {
  std::string name;
  bool reference;
};
void PrintTo(const PyTorchCase& c, std::ostream* out) { *out << c.name; }

class PyTorchTest : public ::testing::TestWithParam<PyTorchCase> {};

TEST_P(PyTorchTest, LossLogitsAndGradientsAgree) {
  const auto& [name, reference] = GetParam();
  const auto backend = reference ? MakeReferenceBackend() : MakeCpuBackend(2);
  ASSERT_OK_AND_ASSIGN(const ModelConfig resolved, ReadConfig(name));

  ModelOptions options;
  options.compute_dtype = reference ? DType::kF64 : DType::kF32;
  ASSERT_OK_AND_ASSIGN(auto model, MakeModel(resolved, options, *backend));
  ParameterSet& parameters = model->parameters();
  ASSERT_NO_FATAL_FAILURE(Fill(name + ".model.bin", resolved, parameters, parameters.values()));

  const State state = ReadState(PyTorchPath(name + ".state.bin"), resolved.vocab_size());
  MicroBatch batch;
  batch.ids = state.ids;
  batch.targets = state.targets;
  batch.training = true;
  const int64_t sequence = state.ids.view().dim(1);
  const auto activations =
      model->NewActivations(state.ids.view().dim(0), sequence, ActivationUse::kTraining);
  const double loss = model->Forward(batch, *activations, {}, {}).value();
  EXPECT_NEAR(loss / state.tokens, state.loss, 1e-5);

  Tensor last(DType::kF32, {batch.ids.dim(0), resolved.vocab_size()});
  ASSERT_OK(model->Backward(batch, *activations, 1.0 / state.tokens, /*accumulate=*/false, {}, {},
                            nullptr));
  const auto forward =
      model->NewActivations(batch.ids.dim(0), sequence, ActivationUse::kForwardOnly);
  MicroBatch no_targets = batch;
  no_targets.targets = {};
  ASSERT_OK(model->Forward(no_targets, *forward, {}, {}));
  ASSERT_OK(model->LastLogits(no_targets, *forward, last));
  const TensorView expected_last = state.logits.view().Slice(1, sequence - 1, sequence);
  testing::ExpectClose(last.view().Reshape(expected_last.shape()), expected_last,
                       {.of_maximum = 1e-5}, "logits");

  Tensor expected(DType::kF32, {parameters.flat_elements()});
  ASSERT_NO_FATAL_FAILURE(Fill(name + ".gradients.bin", resolved, parameters, expected));
  for (const Parameter* parameter : parameters.parameters()) {
    const int64_t begin = parameter->flat_offset;
    testing::ExpectClose(parameter->grad.Reshape({parameter->grad.elements()}),
                         expected.view().Slice(0, begin, begin + parameter->grad.elements()),
                         {.absolute = 1e-7, .of_maximum = 1e-5}, parameter->pieces[0].name);
  }
}

// A data file with these tensors opens in transformers.
TEST_P(PyTorchTest, NamesAndShapesAreTheStateDicts) {
  const std::string& name = GetParam().name;
  const auto backend = MakeReferenceBackend();
  ASSERT_OK_AND_ASSIGN(const ModelConfig config, ReadConfig(name));
  ASSERT_OK_AND_ASSIGN(const auto model, MakeModel(config, {.with_gradients = false}, *backend));
  std::set<std::string> lines;
  const auto add = [&](const std::string& tensor, const Shape& shape) {
    lines.insert(tensor + " " + ShapeToString(shape));
  };
  for (const Parameter* parameter : model->parameters().parameters()) {
    for (const ParameterPiece& piece : parameter->pieces) add(piece.name, piece.global_shape);
    if (!parameter->tied_name.empty()) add(parameter->tied_name, parameter->pieces[0].global_shape);
  }
  std::set<std::string> expected;
  std::istringstream in(ReadFile(PyTorchPath(name + ".tensors.txt")));
  for (std::string line; std::getline(in, line);) expected.insert(line);
  EXPECT_EQ(lines, expected);
}

INSTANTIATE_TEST_SUITE_P(
    Models, PyTorchTest,
    ::testing::Values(PyTorchCase{"gpt2", true}, PyTorchCase{"gpt2", false},
                      PyTorchCase{"llama3_tied", true}, PyTorchCase{"llama3_tied", false},
                      PyTorchCase{"llama3_untied", true}, PyTorchCase{"llama3_untied", false}),
    [](const auto& info) { return info.param.name + (info.param.reference ? "_F64" : "_F32"); });

}  // namespace
}  // namespace tessera
