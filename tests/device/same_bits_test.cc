// Training on simulated devices gives the same bits whatever the order in which streams, blocks and
// threads run.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "compute/comm/communicator.h"
#include "compute/comm/nccl/nccl_world.h"
#include "compute/comm/nccl/testing/fake_nccl.h"
#include "compute/comm/threads/thread_world.h"
#include "compute/device/testing/simulated_device.h"
#include "compute/kernels/backend.h"
#include "compute/kernels/cuda/simt_host.h"
#include "compute/tensor/device.h"
#include "compute/tensor/dtype.h"
#include "compute/tensor/fake_device_runtime.h"
#include "compute/tensor/tensor.h"

namespace tessera {
namespace {

// R rows of B sequences of T tokens; C channels of H heads, V vocabulary.
constexpr int kRanks = 2, kSteps = 3;
constexpr int64_t kB = 2, kT = 9, kR = kB * kT, kH = 2, kD = 8, kC = kH * kD, kV = 40;

// Values between -1 and 1 that look random.
std::vector<float> Noise(int64_t count, uint32_t seed) {
  std::vector<float> values(static_cast<size_t>(count));
  uint32_t state = seed * 2654435761u + 12345;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
  }
  return values;
}

// A rank that trains one layer of attention between an embedding and a tied classifier.
class Trainer {
 public:
  Trainer(SimulatedDevice& device, Communicator& comm)
      : device_(device), comm_(comm), backend_(*device.backend) {}

  // The weights after kSteps steps.
  absl::StatusOr<std::vector<float>> Run() {
    TESSERA_RETURN_IF_ERROR(Upload(Noise(kWeights, 1), master_));
    backend_.Copy({master_, weights_});
    for (int step = 1; step <= kSteps; ++step) TESSERA_RETURN_IF_ERROR(Step(step));
    std::vector<float> result(kWeights);
    TESSERA_RETURN_IF_ERROR(
        device_.copies->ToHost(master_.view().data(), master_.view().bytes(), result.data()));
    TESSERA_RETURN_IF_ERROR(backend_.Synchronize());
    return result;
  }

 private:
  static constexpr int64_t kTable = kV * kC, kQkv = kC * 3 * kC, kWeights = kTable + kQkv + kC;

  Tensor New(DType dtype, const Shape& shape) const { return Tensor(dtype, shape, device_.device); }
  absl::Status Upload(const std::vector<float>& values, const Tensor& to) {
    return device_.copies->ToDevice(values.data(), to.view().bytes(), to.view().data());
  }
  static TensorView Part(const Tensor& flat, int64_t begin, const Shape& shape) {
    return flat.view().Slice(0, begin, begin + ElementCount(shape)).Reshape(shape);
  }
  // Query, key or value in [R, 3C].
  static TensorView Heads(const Tensor& qkv, int64_t which) {
    return TensorView(qkv.view().as<BFloat16>() + which * kC, DType::kBF16, {kB, kT, kH, kD},
                      {kT * 3 * kC, 3 * kC, kD, 1});
  }

  absl::Status Step(int step) {
    std::vector<int32_t> tokens(kR);
    for (int64_t i = 0; i < kR; ++i) {
      tokens[static_cast<size_t>(i)] =
          static_cast<int32_t>((i * 7 + step * 11 + comm_.rank() * 5) % kV);
    }
    const Tensor ids = New(DType::kI32, {kR});
    TESSERA_RETURN_IF_ERROR(
        device_.copies->ToDevice(tokens.data(), ids.view().bytes(), ids.view().data()));
    ComputeGradients(ids);
    TESSERA_RETURN_IF_ERROR(comm_.AllReduce(
        Buffer(gradients_.view().data(), CommType::kF32, kWeights), ReduceOp::kSum));
    const double norm = backend_.SumOfSquares({gradients_});
    backend_.AdamW({{.learning_rate = 0.01, .step = step, .grad_scale = norm > 1 ? 0.5 : 1},
                    gradients_,
                    master_,
                    m_,
                    v_,
                    weights_});
    return absl::OkStatus();
  }

  void ComputeGradients(const Tensor& ids) {
    const DType bf16 = DType::kBF16, f32 = DType::kF32;
    const TensorView table = Part(weights_, 0, {kV, kC}), d_table = Part(gradients_, 0, {kV, kC});
    const TensorView qkv_weight = Part(weights_, kTable, {kC, 3 * kC});
    const TensorView d_qkv_weight = Part(gradients_, kTable, {kC, 3 * kC});
    const TensorView norm_weight = Part(weights_, kTable + kQkv, {kC});
    const TensorView d_norm_weight = Part(gradients_, kTable + kQkv, {kC});
    const Tensor x = New(bf16, {kR, kC}), normed = New(bf16, {kR, kC}), rstd = New(f32, {kR});
    const Tensor qkv = New(bf16, {kR, 3 * kC}), d_qkv = New(bf16, {kR, 3 * kC});
    const Tensor out = New(bf16, {kB, kT, kH, kD}), d_out = New(bf16, {kB, kT, kH, kD});
    const Tensor lse = New(f32, {kB, kH, kT}), logits = New(bf16, {kR, kV});
    const Tensor stats = New(f32, {1, kR, 3}), combined = New(f32, {kR, 3}),
                 losses = New(f32, {kR});
    const Tensor d_normed = New(bf16, {kR, kC}), d_x = New(bf16, {kR, kC});
    const AttentionOptions attention = {.scale = 0.35, .dropout_probability = 0.1};
    const TensorView out_rows = out.view().Reshape({kR, kC});
    const TensorView d_out_rows = d_out.view().Reshape({kR, kC});

    backend_.EmbeddingForward({table, ids, 0, x});
    backend_.RmsNormForward({x, norm_weight, 1e-5, normed, rstd});
    backend_.MatMul({normed, qkv_weight, qkv, false});
    backend_.AttentionForward({attention, Heads(qkv, 0), Heads(qkv, 1), Heads(qkv, 2), out, lse});
    backend_.MatMul({out_rows, table.Transpose(0, 1), logits, false});
    backend_.CrossEntropyStats({logits, kV, ids, 0, stats.view().Reshape({kR, 3})});
    backend_.CrossEntropyLoss({stats, ids, combined, losses});
    backend_.CrossEntropyBackward({combined, ids, kV, 0, 1.0 / kR, logits});
    backend_.MatMul({logits.view().Transpose(0, 1), out_rows, d_table, false});
    backend_.MatMul({logits, table, d_out_rows, false});
    backend_.AttentionBackward({attention, d_out, Heads(qkv, 0), Heads(qkv, 1), Heads(qkv, 2), out,
                                lse, Heads(d_qkv, 0), Heads(d_qkv, 1), Heads(d_qkv, 2)});
    backend_.MatMul({normed.view().Transpose(0, 1), d_qkv, d_qkv_weight, false});
    backend_.MatMul({d_qkv, qkv_weight.Transpose(0, 1), d_normed, false});
    backend_.RmsNormBackward({d_normed, x, norm_weight, rstd, d_x, false, d_norm_weight, false});
    backend_.EmbeddingBackward({d_x, ids, 0, d_table});
  }

  SimulatedDevice& device_;
  Communicator& comm_;
  Backend& backend_;
  const Tensor weights_ = New(DType::kBF16, {kWeights}), gradients_ = New(DType::kF32, {kWeights});
  const Tensor master_ = New(DType::kF32, {kWeights}), m_ = New(DType::kF32, {kWeights});
  const Tensor v_ = New(DType::kF32, {kWeights});
};

// Rank 0's weights.
std::vector<float> Train(uint64_t seed) {
  const auto fabric = std::make_shared<FakeFabric>();
  FakeNcclNet net(fabric);
  std::vector<std::unique_ptr<SimulatedDevice>> devices;
  for (int rank = 0; rank < kRanks; ++rank) {
    devices.push_back(OpenSimulatedDevice(
        rank,
        {.seed = seed == 0 ? 0 : seed * kRanks + static_cast<uint64_t>(rank), .fabric = fabric}));
  }
  std::vector<std::vector<float>> weights(kRanks);
  ThreadWorld world(kRanks);
  const absl::Status status = world.Run([&](Communicator& host) -> absl::Status {
    simt::SetSimulatorOptions({.seed = seed + 1});
    SimulatedDevice& device = *devices[static_cast<size_t>(host.rank())];
    FakeNccl nccl(net, *device.runtime, {.seed = seed});
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<NcclWorld> ranks,
                             NcclWorld::Create(host, nccl, *device.compute, *device.reducer));
    TESSERA_ASSIGN_OR_RETURN(weights[static_cast<size_t>(host.rank())],
                             Trainer(device, ranks->world()).Run());
    return absl::OkStatus();
  });
  EXPECT_EQ(status, absl::OkStatus());
  EXPECT_EQ(weights[0], weights[1]);
  return weights[0];
}

TEST(SameBitsTest, WhateverRunsFirst) {
  const std::vector<float> first = Train(0);
  EXPECT_NE(first, Noise(static_cast<int64_t>(first.size()), 1));
  for (uint64_t seed = 1; seed <= 4; ++seed) EXPECT_EQ(Train(seed), first) << seed;
}

}  // namespace
}  // namespace tessera
