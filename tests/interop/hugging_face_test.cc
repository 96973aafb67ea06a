// Models that transformers has saved, against the same models in llm.c's format and against the
// logits that PyTorch computed.

#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint.h"
#include "compute/comm/threads/thread_world.h"
#include "compute/kernels/cpu/cpu_backend.h"
#include "compute/kernels/testing/compare.h"
#include "convert/open_foreign.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "models/factory.h"
#include "models/layers/model.h"
#include "trainer/state/communicator_group.h"
#include "trainer/state/state_dict.h"

namespace tessera {
namespace {

std::string Path(const std::string& name) { return "tests/fixtures/pytorch/" + name; }

absl::StatusOr<std::unique_ptr<ckpt::convert::ForeignStorage>> OpenForeign(
    const std::string& name) {
  return ckpt::convert::OpenForeign(Path(name), {});
}

absl::StatusOr<ckpt::Checkpoint> Open(const std::string& name,
                                      std::unique_ptr<ckpt::convert::ForeignStorage>& storage) {
  TESSERA_ASSIGN_OR_RETURN(storage, OpenForeign(name));
  return ckpt::Checkpoint::Open(*storage, "");
}

// llm.c's debug state, up to the loss.
struct Expected {
  Tensor ids, targets;  // [B,T]
  Tensor last_logits;   // [B,V]
  float loss = 0;       // mean over targets
};

Expected ReadExpected(const std::string& name, int64_t vocabulary) {
  std::ifstream in(Path(name), std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  std::vector<int32_t> header(256);
  std::memcpy(header.data(), bytes.data(), 1024);
  const int64_t batch = header[2], sequence = header[3];
  Expected expected;
  expected.ids = Tensor(DType::kI32, {batch, sequence});
  expected.targets = Tensor(DType::kI32, {batch, sequence});
  Tensor logits(DType::kF32, {batch, sequence, vocabulary});
  const char* next = bytes.data() + 1024;
  for (const TensorView& view : {expected.ids.view(), expected.targets.view(), logits.view()}) {
    std::memcpy(view.data(), next, view.bytes());
    next += view.bytes();
  }
  std::memcpy(&expected.loss, next, sizeof(expected.loss));
  expected.last_logits = Tensor(DType::kF32, {batch, vocabulary});
  for (int64_t b = 0; b < batch; ++b) {
    std::memcpy(expected.last_logits.view().as<float>() + b * vocabulary,
                logits.view().as<float>() + (b * sequence + sequence - 1) * vocabulary,
                vocabulary * sizeof(float));
  }
  return expected;
}

// Pipeline stages, computed one after the other, of a model whose shards are on the ranks of
// `comm`.
class LoadedModel {
 public:
  static absl::StatusOr<std::unique_ptr<LoadedModel>> Load(ckpt::Storage& storage,
                                                           const ModelConfig& config, int stages,
                                                           Communicator& comm) {
    std::unique_ptr<LoadedModel> model(new LoadedModel(config, comm));
    const std::unique_ptr<ckpt::ProcessGroup> group = MakeProcessGroup(&comm);
    for (int stage = 0; stage < stages; ++stage) {
      ModelOptions options;
      options.tensor_parallel = &model->tensor_parallel_;
      options.stage = {.first_layer = stage * config.num_layers() / stages,
                       .last_layer = (stage + 1) * config.num_layers() / stages,
                       .has_embedding = stage == 0,
                       .has_head = stage == stages - 1};
      TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Model> part,
                               MakeModel(config, options, *model->backend_));
      const StateChunk chunk = {.parameters = &part->parameters()};
      TESSERA_RETURN_IF_ERROR(ckpt::Load(storage, "", WeightState({&chunk, 1}),
                                         {.group = group.get(), .allow_unexpected = stages > 1})
                                  .status());
      model->stages_.push_back(std::move(part));
    }
    return model;
  }

  // The mean loss, and the logits of the last position where there are no targets.
  absl::StatusOr<double> Forward(const MicroBatch& batch, const TensorView& last_logits) {
    const int64_t rows = batch.ids.dim(0), sequence = batch.ids.dim(1);
    Tensor input;
    double loss = 0;
    for (size_t i = 0; i < stages_.size(); ++i) {
      Tensor output;
      if (i + 1 < stages_.size()) {
        output =
            Tensor(DType::kF32, {stages_[i]->BoundaryRows(rows, sequence), config_.hidden_size()});
      }
      const auto activations =
          stages_[i]->NewActivations(rows, sequence, ActivationUse::kForwardOnly);
      TESSERA_ASSIGN_OR_RETURN(loss, stages_[i]->Forward(batch, *activations, input, output));
      if (i + 1 == stages_.size() && batch.targets.empty()) {
        TESSERA_RETURN_IF_ERROR(stages_[i]->LastLogits(batch, *activations, last_logits));
      }
      input = std::move(output);
    }
    return loss;
  }

 private:
  LoadedModel(const ModelConfig& config, Communicator& comm)
      : config_(config), backend_(MakeCpuBackend(1)), tensor_parallel_(&comm, comm.size(), false) {}

  const ModelConfig config_;
  const std::unique_ptr<Backend> backend_;
  const TensorParallel tensor_parallel_;
  std::vector<std::unique_ptr<Model>> stages_;
};

class HuggingFaceTest : public ::testing::TestWithParam<const char*> {};

// Two readers that share no rule but the names, over files of two programs.
TEST_P(HuggingFaceTest, HoldsWhatTheModelFileOfLlmcHolds) {
  const std::string name = GetParam();
  std::unique_ptr<ckpt::convert::ForeignStorage> storage, other_storage;
  const auto model = Open(name + ".hf", storage);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(storage->format(), "hf");
  const auto other = Open(name + ".model.bin", other_storage);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(other_storage->format(), "llmc");
  int compared = 0;
  for (const ckpt::TensorInfo& tensor : model->tensors()) {
    const auto found = model->LoadTensor<float>(tensor.name);
    ASSERT_TRUE(found.ok()) << found.status();
    const auto expected = other->LoadTensor<float>(tensor.name);
    ASSERT_TRUE(expected.ok()) << expected.status();
    ASSERT_EQ(found->size(), expected->size());
    EXPECT_EQ(std::memcmp(found->data(), expected->data(), found->size() * sizeof(float)), 0)
        << tensor.name;
    ++compared;
  }
  EXPECT_GT(compared, 10);
}

TEST_P(HuggingFaceTest, ComputesTheLogitsOfPyTorchUnderEveryTopology) {
  const std::string name = GetParam();
  const auto storage = OpenForeign(name + ".hf");
  ASSERT_TRUE(storage.ok()) << storage.status();
  const auto checkpoint = ckpt::Checkpoint::Open(**storage, "");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  ModelConfig config;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(checkpoint->manifest().model().text(),
                                                            &config));
  const Expected expected = ReadExpected(name + ".state.bin", config.vocab_size());
  int64_t tokens = 0;
  for (int64_t i = 0; i < expected.targets.view().elements(); ++i) {
    tokens += expected.targets.view().as<int32_t>()[i] >= 0;
  }
  for (const auto& [ranks, stages] : {std::pair(1, 1), std::pair(2, 1), std::pair(1, 2)}) {
    ThreadWorld world(ranks);
    const absl::Status status =
        world.Run([&, ranks = ranks, stages = stages](Communicator& comm) -> absl::Status {
          TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model,
                                   LoadedModel::Load(**storage, config, stages, comm));
          MicroBatch batch = {.ids = expected.ids, .targets = expected.targets};
          TESSERA_ASSIGN_OR_RETURN(const double loss, model->Forward(batch, {}));
          EXPECT_NEAR(loss / static_cast<double>(tokens), expected.loss, 1e-5);
          batch.targets = {};
          const Tensor logits(DType::kF32, expected.last_logits.view().shape());
          TESSERA_RETURN_IF_ERROR(model->Forward(batch, logits).status());
          testing::ExpectClose(logits, expected.last_logits, {.of_maximum = 1e-5},
                               absl::StrCat("logits, tp", ranks, " pp", stages));
          return absl::OkStatus();
        });
    EXPECT_TRUE(status.ok()) << status;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, HuggingFaceTest,
                         ::testing::Values("gpt2", "llama3_tied", "llama3_untied"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tessera
