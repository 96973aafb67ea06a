#include "compute/parallel/gradient_norm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "comm/threads/thread_world.h"
#include "compute/kernels/reference/reference_backend.h"
#include "compute/parallel/testing/fake_model.h"
#include "compute/parallel/tree_sum.h"

namespace tessera {
namespace {

constexpr int kLayers = 4;
constexpr int kShards = 4;

struct Mesh {
  int tensor = 1;
  int data = 1;
  int pipeline = 1;
  bool zero = false;  // data ranks own pieces, else everything

  int size() const { return tensor * data * pipeline; }
  std::string name() const {
    return absl::StrCat("tp", tensor, " dp", data, " pp", pipeline, zero ? " zero" : "");
  }
};

// The parameters of one rank: a norm, which every tensor rank has, and shards by layer; a table on
// the first and on the last stage.
std::vector<FakeParameter> ParametersOf(const Mesh& mesh, int tensor, int stage) {
  std::vector<FakeParameter> parameters;
  const int shards = kShards / mesh.tensor, layers = kLayers / mesh.pipeline;
  const auto add_sharded = [&](const std::string& name, int64_t elements, bool tied) {
    for (int v = tensor * shards; v < (tensor + 1) * shards; ++v) {
      parameters.push_back(
          {.key = absl::StrCat(name, "/v", v), .elements = elements, .tied = tied});
    }
  };
  if (stage == 0) add_sharded("table", 777, true);
  for (int layer = stage * layers; layer < (stage + 1) * layers; ++layer) {
    parameters.push_back({.key = absl::StrCat(layer, ".norm"), .elements = 33});
    add_sharded(absl::StrCat(layer, ".weight"), 1000 + 300 * layer, false);
    parameters.push_back({.key = absl::StrCat(layer, ".bias"), .elements = 257});
  }
  if (stage > 0 && stage == mesh.pipeline - 1) add_sharded("table", 777, true);
  return parameters;
}

absl::Status Stop(const std::string& message, bool) { return absl::DataLossError(message); }

struct Broken {
  std::string key;  // none
  int64_t element = 0;
  float value = 0;
  int rank = 0;
};

// The status of the norm on every rank.
absl::Status TryNorms(const Mesh& mesh, const Broken& broken, const OnDivergence& on_divergence,
                      std::vector<double>* norms_of_ranks) {
  std::vector<double>& norms = *norms_of_ranks;
  norms.resize(mesh.size());
  ThreadWorld world(mesh.size());
  const absl::Status status = world.Run([&](Communicator& all) -> absl::Status {
    const int tensor = all.rank() % mesh.tensor;
    const int data = all.rank() / mesh.tensor % mesh.data;
    const int stage = all.rank() / (mesh.tensor * mesh.data);
    TESSERA_ASSIGN_OR_RETURN(const auto dp, all.Split(tensor + mesh.tensor * stage, data, "data"));
    TESSERA_ASSIGN_OR_RETURN(const auto tp, all.Split(data + mesh.data * stage, tensor, "tensor"));
    TESSERA_ASSIGN_OR_RETURN(const auto pp,
                             all.Split(tensor + mesh.tensor * data, stage, "pipeline"));
    const std::vector<FakeParameter> parameters = ParametersOf(mesh, tensor, stage);
    const GradientLayout layout = FakeLayout(parameters);
    Tensor grads(DType::kF32, {layout.gradient_elements});
    for (const FlatParameter& parameter : layout.parameters) {
      for (int64_t e = 0; e < parameter.elements; ++e) {
        grads.view().as<float>()[parameter.begin + e] = FakeGradient(parameter.key, 0, e, 0);
      }
      if (parameter.key == broken.key && all.rank() == broken.rank) {
        grads.view().as<float>()[parameter.begin + broken.element] = broken.value;
      }
    }
    std::vector<OwnedGradient> owned;
    if (mesh.zero) {
      const std::vector<GradientBucket> buckets = CutBuckets(layout, 2000, mesh.data);
      // NOLINTNEXTLINE(modernize-loop-convert): clang 14 cannot compile std::ranges::reverse_view
      for (auto bucket = buckets.rbegin(); bucket != buckets.rend(); ++bucket) {
        const int64_t begin = bucket->PieceBegin(data), end = bucket->PieceEnd(data);
        if (begin < end) owned.push_back({begin, end, grads.view().Slice(0, begin, end)});
      }
    } else {
      owned.push_back({0, layout.value_elements, grads});
    }
    const std::unique_ptr<Backend> backend = MakeReferenceBackend();
    std::vector<GradientPart> parts;
    AppendGradientParts(layout, owned, &parts);
    const GradientNorm::Groups groups = {.data = mesh.data == 1 ? nullptr : dp.get(),
                                         .tensor = mesh.tensor == 1 ? nullptr : tp.get(),
                                         .pipeline = mesh.pipeline == 1 ? nullptr : pp.get()};
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<GradientNorm> norm,
                             GradientNorm::Create(*backend, std::move(parts), groups));
    TESSERA_ASSIGN_OR_RETURN(norms[all.rank()], norm->Compute(on_divergence));
    TESSERA_ASSIGN_OR_RETURN(const double again, norm->Compute(on_divergence));
    if (!std::isnan(again)) EXPECT_EQ(again, norms[all.rank()]);
    return absl::OkStatus();
  });
  return status;
}

std::vector<double> Norms(const Mesh& mesh, const Broken& broken = {}) {
  std::vector<double> norms;
  EXPECT_OK(TryNorms(mesh, broken, Stop, &norms));
  return norms;
}

double NaiveSumOfSquares() {
  double sum = 0;
  for (const FakeParameter& parameter : ParametersOf({}, 0, 0)) {
    for (int64_t e = 0; e < parameter.elements; ++e) {
      const double g = FakeGradient(parameter.key, 0, e, 0);
      sum += g * g;
    }
  }
  return sum;
}

std::vector<Mesh> Meshes() {
  std::vector<Mesh> meshes;
  for (const int tensor : {1, 2, 4}) {
    for (const int pipeline : {1, 2}) {
      for (const int data : {1, 2, 3, 5}) {
        if (tensor * pipeline * data > 12) continue;
        for (const bool zero : {false, true}) meshes.push_back({tensor, data, pipeline, zero});
      }
    }
  }
  return meshes;
}

TEST(GradientNormTest, HasTheSameBitsHoweverParametersAreSpread) {
  const double expected = Norms({})[0];
  EXPECT_NEAR(expected * expected, NaiveSumOfSquares(), 1e-12 * NaiveSumOfSquares());
  for (const Mesh& mesh : Meshes()) {
    for (const double norm : Norms(mesh)) ASSERT_EQ(norm, expected) << mesh.name();
  }
}

// One part against the definition.
TEST(GradientNormTest, AddsBlocksInTheTree) {
  const std::unique_ptr<Backend> backend = MakeReferenceBackend();
  Tensor grad(DType::kF32, {10 * kGradientBlock + 17});
  std::vector<double> blocks(11);
  for (int64_t e = 0; e < grad.view().elements(); ++e) {
    grad.view().as<float>()[e] = FakeGradient("p", 0, e, 0);
  }
  for (int64_t b = 0; b < 11; ++b) {
    const TensorView block = grad.view().Slice(
        0, b * kGradientBlock, std::min(grad.view().elements(), (b + 1) * kGradientBlock));
    backend->SumsOfSquares({{&block, 1}, kGradientBlock, {&blocks[b], 1}});
  }
  ASSERT_OK_AND_ASSIGN(
      const auto norm,
      GradientNorm::Create(
          *backend,
          {{.key = "p", .elements = grad.view().elements(), .begin = 0, .grad = grad.view()}}, {}));
  EXPECT_EQ(*norm->Compute(Stop), std::sqrt(TreeSum(blocks)));
}

TEST(GradientNormTest, WhatIsNotFiniteIsSeenEverywhere) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const Mesh& mesh : {Mesh{2, 2, 2, true}, Mesh{2, 1, 2, false}, Mesh{1, 3, 1, true},
                           Mesh{1, 3, 1, false}, Mesh{2, 2, 2, false}}) {
    int seen = 0;
    for (int rank = 0; rank < mesh.size(); ++rank) {
      for (const float value : {kInfinity, -kInfinity, kNan}) {
        // The rank may not own the element, or not have the parameter.
        const std::vector<double> norms =
            Norms(mesh, {.key = "2.bias", .element = 5, .value = value, .rank = rank});
        const bool finite = std::isfinite(norms[0]);
        for (const double norm : norms) EXPECT_EQ(std::isfinite(norm), finite) << mesh.name();
        if (!finite) ++seen;
      }
    }
    // Any copy is enough.
    EXPECT_EQ(seen, 3 * mesh.tensor * (mesh.zero ? 1 : mesh.data)) << mesh.name();
  }
}

// A rank's message about a gradient that differs from the other ranks'.
std::string Divergence(const Mesh& mesh, const Broken& broken) {
  std::vector<double> norms;
  return std::string(TryNorms(mesh, broken, Stop, &norms).message());
}

TEST(GradientNormTest, CopiesThatDifferAreNamed) {
  const Mesh all = {.tensor = 2, .data = 2, .pipeline = 2};
  // A norm, on both tensor ranks; with ZeRO no data rank has another copy.
  const Mesh zero = {.tensor = 2, .data = 2, .pipeline = 2, .zero = true};
  // Whichever rank owns the element, both groups of tensor ranks add the same parts.
  const std::string broken =
      Divergence(zero, {"3.norm", 32, 0.5, 5}) + Divergence(zero, {"3.norm", 32, 0.5, 7});
  EXPECT_NE(broken.find("gradient of '3.norm' is not the same on all ranks that hold it: rank "),
            std::string::npos)
      << broken;
  EXPECT_TRUE(broken.find("rank 4 against rank 5") != broken.npos ||
              broken.find("rank 6 against rank 7") != broken.npos)
      << broken;
  // A shard, on both data ranks.
  EXPECT_NE(Divergence(all, {"1.weight/v3", 7, 0.5, 1})
                .find("gradient of '1.weight/v3' is not the same on all ranks that hold it: rank 1 "
                      "against rank 3"),
            std::string::npos);
  // The table, on both ends of the pipeline.
  EXPECT_NE(Divergence({.pipeline = 4}, {"table/v0", 7, 0.5, 3})
                .find("gradient of 'table/v0' is not the same on all ranks that hold it: rank 0 "
                      "against rank 3"),
            std::string::npos);
  // The data ranks compare before the stages do.
  const std::string three = Divergence({.data = 3}, {"0.bias", 7, 0.5, 1});
  EXPECT_NE(three.find("'0.bias' is not the same on all ranks that hold it: ranks 0, 2 against "
                       "rank 1"),
            std::string::npos)
      << three;
}

TEST(GradientNormTest, GoesOnWhereDivergenceIsAllowed) {
  for (const Mesh& mesh : {Mesh{.tensor = 2}, Mesh{.data = 2}}) {
    std::atomic<int> calls = 0, reporters = 0;
    std::vector<double> norms;
    EXPECT_OK(TryNorms(
        mesh, {"3.norm", 32, 0.5, 1},
        [&](const std::string&, bool is_reporter) {
          ++calls;
          if (is_reporter) ++reporters;
          return absl::OkStatus();
        },
        &norms));
    EXPECT_EQ(norms[0], norms[1]) << mesh.name();
    // Two computations on two ranks.
    EXPECT_EQ(calls, 4);
    EXPECT_EQ(reporters, 2);
  }
}

TEST(GradientNormTest, OnlyNumbersTravel) {
  const Mesh mesh = {1, 4, 1, true};
  EXPECT_OK(ThreadWorld(4).Run([&](Communicator& group) -> absl::Status {
    const GradientLayout layout = FakeLayout({{.key = "p", .elements = 64 * kGradientBlock}});
    const int64_t begin = 16 * kGradientBlock * group.rank();
    Tensor grad(DType::kF32, {16 * kGradientBlock});
    std::vector<GradientPart> parts;
    AppendGradientParts(
        layout, std::vector<OwnedGradient>{{begin, begin + 16 * kGradientBlock, grad.view()}},
        &parts);
    const std::unique_ptr<Backend> backend = MakeReferenceBackend();
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<GradientNorm> norm,
                             GradientNorm::Create(*backend, std::move(parts), {.data = &group}));
    group.ResetCounters();
    TESSERA_RETURN_IF_ERROR(norm->Compute(Stop).status());
    // A quarter of a power of two is one subtree.
    EXPECT_EQ(group.counters().bytes_sent(), 3 * 8);
    return absl::OkStatus();
  })) << mesh.name();
}

absl::Status CreateOnTwoRanks(const std::vector<GradientPart>& first,
                              const std::vector<GradientPart>& second, bool data) {
  ThreadWorld world(2);
  return world.Run([&](Communicator& group) -> absl::Status {
    const std::unique_ptr<Backend> backend = MakeReferenceBackend();
    GradientNorm::Groups groups;
    (data ? groups.data : groups.tensor) = &group;
    return GradientNorm::Create(*backend, group.rank() == 0 ? first : second, groups).status();
  });
}

TEST(GradientNormTest, RefusesPartsThatDoNotFitTogether) {
  Tensor block(DType::kF32, {kGradientBlock});
  const GradientPart whole = {.key = "p", .elements = 256, .begin = 0, .grad = block.view()};
  const GradientPart none = {.key = "p", .elements = 256, .begin = 0, .grad = {}};
  const GradientPart longer = {.key = "p", .elements = 512, .begin = 0, .grad = block.view()};
  EXPECT_OK(CreateOnTwoRanks({whole}, {none}, true));
  EXPECT_OK(CreateOnTwoRanks({none}, {whole}, true));
  EXPECT_OK(CreateOnTwoRanks({whole}, {}, false));
  for (const absl::Status& status :
       {CreateOnTwoRanks({none}, {none}, true), CreateOnTwoRanks({longer}, {longer}, true),
        CreateOnTwoRanks({whole}, {longer}, true), CreateOnTwoRanks({whole}, {}, true),
        CreateOnTwoRanks({whole, whole}, {whole, whole}, true),
        CreateOnTwoRanks({{.key = "p", .elements = 300, .begin = 0, .grad = block.view()}},
                         {{.key = "p", .elements = 300, .begin = 100, .grad = {}}}, true)}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  }
}

}  // namespace
}  // namespace tessera
