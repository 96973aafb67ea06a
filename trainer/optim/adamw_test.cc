#include "trainer/optim/adamw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "compute/kernels/cpu/cpu_backend.h"
#include "compute/kernels/reference/reference_backend.h"
#include "tensor/bfloat16.h"

namespace tessera {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

OptimizerConfig AdamWConfig() {
  OptimizerConfig config;
  config.set_lr(0.1);
  config.set_weight_decay(0.1);
  config.set_adam_beta1(0.9);
  config.set_adam_beta2(0.99);
  config.set_adam_eps(1e-8);
  return config;
}

float Get(const TensorView& view, int64_t i) {
  return view.dtype() == DType::kBF16 ? static_cast<float>(view.as<BFloat16>()[i])
                                      : view.as<float>()[i];
}

void Set(const TensorView& view, int64_t i, float value) {
  if (view.dtype() == DType::kBF16) {
    view.as<BFloat16>()[i] = BFloat16(value);
  } else {
    view.as<float>()[i] = value;
  }
}

struct Setup {
  const char* name;
  bool cpu;  // else the reference
  DType dtype;
};

// Two parameters with a gap between them: [0, 5) with weight decay, [8, 11) without.
struct Fixture {
  explicit Fixture(const Setup& setup)
      : backend(setup.cpu ? MakeCpuBackend(2) : MakeReferenceBackend()),
        values(setup.dtype, {11}),
        grads(DType::kF32, {11}) {
    for (int i = 0; i < 11; ++i) Set(values, i, 0.25f * static_cast<float>(i) - 1.0f);
    SetGrads(0);
  }
  void SetGrads(int step) {
    for (int i = 0; i < 11; ++i) Set(grads, i, std::sin(static_cast<float>(3 * i + 7 * step + 1)));
  }
  std::unique_ptr<AdamW> Optimizer(int64_t begin, int64_t end) {
    return Optimizer({Range(begin, end)});
  }
  std::unique_ptr<AdamW> Optimizer(std::vector<OwnedRange> ranges) {
    const std::vector<FlatParameter> parameters = {
        {.begin = 0, .elements = 5}, {.begin = 8, .elements = 3, .weight_decay = false}};
    auto optimizer = std::make_unique<AdamW>(*backend, AdamWConfig(), parameters, std::move(ranges),
                                             values.view().dtype());
    optimizer->Reset();
    return optimizer;
  }
  OwnedRange Range(int64_t begin, int64_t end) const {
    return {begin, end, values.view().Slice(0, begin, end), grads.view().Slice(0, begin, end)};
  }
  std::unique_ptr<Backend> backend;
  Tensor values;
  Tensor grads;
};

struct Naive {
  double weight = 0, m = 0, v = 0;
  void Update(double lr, double grad, double decay, int step) {
    m = 0.9 * m + 0.1 * grad;
    v = 0.99 * v + 0.01 * grad * grad;
    const double m_hat = m / (1 - std::pow(0.9, step));
    const double v_hat = v / (1 - std::pow(0.99, step));
    weight -= lr * (m_hat / (std::sqrt(v_hat) + 1e-8) + decay * weight);
  }
};

class AdamWTest : public testing::TestWithParam<Setup> {};

TEST_P(AdamWTest, FollowsTheFormulasInDouble) {
  Fixture fixture(GetParam());
  const std::unique_ptr<AdamW> optimizer = fixture.Optimizer(0, 11);
  std::vector<Naive> naive(11);
  for (int i = 0; i < 11; ++i) naive[i].weight = Get(fixture.values, i);
  const float gap = Get(fixture.values, 6);
  for (int step = 1; step <= 20; ++step) {
    fixture.SetGrads(step);
    const double lr = 0.01 * step;
    ASSERT_TRUE(optimizer->Step(lr, 1.0, 0.5));
    for (int i = 0; i < 11; ++i) {
      naive[i].Update(lr, 0.5 * Get(fixture.grads, i), i < 5 ? 0.1 : 0.0, step);
    }
  }
  EXPECT_EQ(optimizer->updates(), 20);
  const bool bf16 = GetParam().dtype == DType::kBF16;
  for (int p = 0; p < 2; ++p) {
    const AdamW::ParameterState state = optimizer->State(p);
    EXPECT_EQ(state.begin, 0);
    EXPECT_EQ(state.master.empty(), !bf16);
    const int offset = p == 0 ? 0 : 8;
    for (int i = 0; i < (p == 0 ? 5 : 3); ++i) {
      const Naive& expected = naive[offset + i];
      EXPECT_NEAR(Get(bf16 ? state.master : state.value, i), expected.weight, 2e-6);
      EXPECT_NEAR(Get(state.exp_avg, i), expected.m, 1e-6);
      EXPECT_NEAR(Get(state.exp_avg_sq, i), expected.v, 1e-6);
      if (bf16) {
        // The parameter is its master weight, rounded: rounding errors do not accumulate.
        EXPECT_EQ(Get(state.value, i), static_cast<float>(BFloat16(Get(state.master, i))));
      }
    }
  }
  EXPECT_EQ(Get(fixture.values, 6), gap) << "the gap between parameters changed";
}

// A copy made in the callback holds the memory as it was before the update.
TEST_P(AdamWTest, AnnouncesAllMemoryBeforeOverwritingIt) {
  Fixture fixture(GetParam());
  const std::unique_ptr<AdamW> optimizer = fixture.Optimizer(0, 11);
  ASSERT_TRUE(optimizer->Step(0.1, 1.0, 1.0));
  std::vector<TensorView> memory;
  for (int p = 0; p < 2; ++p) {
    const AdamW::ParameterState state = optimizer->State(p);
    for (const TensorView& view : {state.value, state.master, state.exp_avg, state.exp_avg_sq}) {
      if (!view.empty()) memory.push_back(view);
    }
  }
  const auto contents = [](const TensorView& view) {
    return std::vector<char>(view.as<char>(), view.as<char>() + view.bytes());
  };
  std::vector<std::vector<char>> before;
  for (const TensorView& view : memory) before.push_back(contents(view));
  std::vector<bool> announced(memory.size());
  ASSERT_TRUE(optimizer->Step(0.1, 1.0, 1.0, [&](const TensorView& view) {
    for (size_t i = 0; i < memory.size(); ++i) {
      if (memory[i].data() != view.data() || memory[i].dtype() != view.dtype()) continue;
      announced[i] = memory[i].elements() == view.elements();
      EXPECT_EQ(contents(memory[i]), before[i]);
    }
  }));
  for (size_t i = 0; i < memory.size(); ++i) {
    EXPECT_TRUE(announced[i]) << i;
    EXPECT_NE(contents(memory[i]), before[i]) << i;
  }
}

// A ZeRO owner updates its part exactly as an update of the whole would.
TEST_P(AdamWTest, PartsOfTheFlatRangeEqualTheWhole) {
  for (int cut = 0; cut <= 11; ++cut) {
    Fixture whole(GetParam()), parts(GetParam());
    const std::unique_ptr<AdamW> all = whole.Optimizer(0, 11);
    const std::unique_ptr<AdamW> left = parts.Optimizer(0, cut);
    const std::unique_ptr<AdamW> right = parts.Optimizer(cut, 11);
    EXPECT_EQ(left->state_bytes() + right->state_bytes(), all->state_bytes());
    for (int step = 1; step <= 3; ++step) {
      whole.SetGrads(step);
      parts.SetGrads(step);
      all->Step(0.01, 1.0, 1.0);
      left->Step(0.01, 1.0, 1.0);
      right->Step(0.01, 1.0, 1.0);
    }
    for (int i = 0; i < 11; ++i) {
      EXPECT_EQ(Get(whole.values, i), Get(parts.values, i)) << "cut " << cut << " element " << i;
    }
  }
}

TEST_P(AdamWTest, StateOfAPartSaysWhereItBegins) {
  Fixture fixture(GetParam());
  const std::unique_ptr<AdamW> optimizer = fixture.Optimizer(3, 9);
  const AdamW::ParameterState first = optimizer->State(0);
  EXPECT_EQ(first.begin, 3);
  ASSERT_EQ(first.exp_avg.elements(), 2);
  EXPECT_EQ(Get(first.value, 0), -0.25f);
  const AdamW::ParameterState second = optimizer->State(1);
  EXPECT_EQ(second.begin, 0);
  ASSERT_EQ(second.exp_avg.elements(), 1);
  EXPECT_EQ(Get(second.value, 0), 1.0f);
  EXPECT_TRUE(fixture.Optimizer(0, 8)->State(1).exp_avg.empty());
}

// The ranges of several buckets that one rank owns.
TEST_P(AdamWTest, SeveralRangesEqualTheWhole) {
  Fixture whole(GetParam()), parts(GetParam());
  const std::unique_ptr<AdamW> all = whole.Optimizer(0, 11);
  const std::unique_ptr<AdamW> ends = parts.Optimizer({parts.Range(0, 2), parts.Range(9, 11)});
  const std::unique_ptr<AdamW> middle = parts.Optimizer(2, 9);
  const std::unique_ptr<AdamW> nothing = parts.Optimizer(std::vector<OwnedRange>());
  EXPECT_EQ(ends->state_bytes() + middle->state_bytes(), all->state_bytes());
  EXPECT_EQ(nothing->state_bytes(), 0);
  for (int step = 1; step <= 3; ++step) {
    whole.SetGrads(step);
    parts.SetGrads(step);
    for (AdamW* optimizer : {all.get(), ends.get(), middle.get(), nothing.get()}) {
      ASSERT_TRUE(optimizer->Step(0.01, 1.0, 1.0));
    }
  }
  for (int i = 0; i < 11; ++i) EXPECT_EQ(Get(whole.values, i), Get(parts.values, i)) << i;
  for (int p = 0; p < 2; ++p) {
    const AdamW::ParameterState expected = all->State(p);
    const AdamW::ParameterState states[] = {ends->State(p), middle->State(p)};
    EXPECT_EQ(states[0].exp_avg.elements() + states[1].exp_avg.elements(),
              expected.exp_avg.elements());
    for (const AdamW::ParameterState& state : states) {
      for (int64_t i = 0; i < state.exp_avg.elements(); ++i) {
        EXPECT_EQ(Get(state.exp_avg, i), Get(expected.exp_avg, state.begin + i));
        EXPECT_EQ(Get(state.exp_avg_sq, i), Get(expected.exp_avg_sq, state.begin + i));
        EXPECT_EQ(Get(state.value, i), Get(expected.value, state.begin + i));
      }
    }
    EXPECT_TRUE(nothing->State(p).exp_avg.empty());
  }
}

TEST_P(AdamWTest, NonFiniteGradientNormSkipsTheUpdate) {
  Fixture fixture(GetParam());
  const std::unique_ptr<AdamW> optimizer = fixture.Optimizer(0, 11);
  ASSERT_TRUE(optimizer->Step(0.1, 1.0, 1.0));
  std::vector<float> before;
  for (int i = 0; i < 11; ++i) before.push_back(Get(fixture.values, i));
  const float moment = Get(optimizer->State(0).exp_avg, 0);
  EXPECT_FALSE(optimizer->Step(0.1, std::nan(""), ClipCoefficient(std::nan(""), 1.0)));
  EXPECT_FALSE(optimizer->Step(0.1, kInfinity, ClipCoefficient(kInfinity, 1.0)));
  for (int i = 0; i < 11; ++i) EXPECT_EQ(Get(fixture.values, i), before[i]);
  EXPECT_EQ(Get(optimizer->State(0).exp_avg, 0), moment);
  EXPECT_EQ(optimizer->updates(), 1);
  EXPECT_EQ(optimizer->skipped_in_a_row(), 2);
  ASSERT_TRUE(optimizer->Step(0.1, 1.0, 1.0));
  EXPECT_EQ(optimizer->skipped_in_a_row(), 0);
}

// A resume copies the state into a fresh optimizer and continues.
TEST_P(AdamWTest, RestoredStateContinuesWithTheSameBits) {
  Fixture first(GetParam()), second(GetParam());
  const std::unique_ptr<AdamW> original = first.Optimizer(0, 11);
  for (int step = 1; step <= 5; ++step) {
    first.SetGrads(step);
    original->Step(0.01, 1.0, 1.0);
  }
  const std::unique_ptr<AdamW> restored = second.Optimizer(0, 11);
  for (int p = 0; p < 2; ++p) {
    const AdamW::ParameterState from = original->State(p), to = restored->State(p);
    for (int i = 0; i < from.value.elements(); ++i) {
      Set(to.value, i, Get(from.value, i));
      Set(to.exp_avg, i, Get(from.exp_avg, i));
      Set(to.exp_avg_sq, i, Get(from.exp_avg_sq, i));
      if (restored->has_master()) Set(to.master, i, Get(from.master, i));
    }
  }
  restored->set_updates(original->updates());
  for (int step = 6; step <= 10; ++step) {
    first.SetGrads(step);
    second.SetGrads(step);
    original->Step(0.01, 1.0, 1.0);
    restored->Step(0.01, 1.0, 1.0);
  }
  for (int i = 0; i < 11; ++i) EXPECT_EQ(Get(first.values, i), Get(second.values, i)) << i;
}

TEST_P(AdamWTest, ResetStartsAfresh) {
  Fixture fixture(GetParam()), fresh(GetParam());
  const std::unique_ptr<AdamW> used = fixture.Optimizer(0, 11);
  used->Step(0.1, 1.0, 1.0);
  used->Step(0.1, kInfinity, 1.0);
  for (int i = 0; i < 11; ++i) Set(fixture.values, i, Get(fresh.values, i));
  used->Reset();
  EXPECT_EQ(used->updates(), 0);
  EXPECT_EQ(used->skipped_in_a_row(), 0);
  const std::unique_ptr<AdamW> unused = fresh.Optimizer(0, 11);
  used->Step(0.1, 1.0, 1.0);
  unused->Step(0.1, 1.0, 1.0);
  for (int i = 0; i < 11; ++i) EXPECT_EQ(Get(fixture.values, i), Get(fresh.values, i)) << i;
}

INSTANTIATE_TEST_SUITE_P(Setups, AdamWTest,
                         testing::Values(Setup{"ReferenceF32", false, DType::kF32},
                                         Setup{"ReferenceBF16", false, DType::kBF16},
                                         Setup{"CpuF32", true, DType::kF32},
                                         Setup{"CpuBF16", true, DType::kBF16}),
                         [](const testing::TestParamInfo<Setup>& info) {
                           return std::string(info.param.name);
                         });

// One scalar, computed by hand: with zero moments the first update is lr * sign(grad), plus the
// decay.
TEST(AdamWScalarTest, FirstUpdateIsTheLearningRate) {
  const std::unique_ptr<Backend> backend = MakeReferenceBackend();
  Tensor value(DType::kF32, {1}), grad(DType::kF32, {1});
  Set(value, 0, 2.0f);
  Set(grad, 0, -0.5f);
  OptimizerConfig config;
  config.set_weight_decay(0.25);
  AdamW optimizer(*backend, config, std::vector<FlatParameter>{{.begin = 0, .elements = 1}},
                  std::vector<OwnedRange>{{0, 1, value, grad}}, DType::kF32);
  optimizer.Reset();
  ASSERT_TRUE(optimizer.Step(0.5, 0.5, 1.0));
  // 2 - 0.5 * (-1 + 0.25 * 2)
  EXPECT_NEAR(Get(value, 0), 2.25, 1e-6);
  EXPECT_FLOAT_EQ(Get(optimizer.State(0).exp_avg, 0), -0.05f);
  EXPECT_FLOAT_EQ(Get(optimizer.State(0).exp_avg_sq, 0), 0.00025f);
}

TEST(ClipCoefficientTest, ScalesDownAlone) {
  EXPECT_EQ(ClipCoefficient(0.5, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(ClipCoefficient(4.0, 1.0), 1.0 / 4.000001);
  EXPECT_EQ(ClipCoefficient(4.0, 0.0), 1.0) << "0 turns clipping off";
  EXPECT_EQ(ClipCoefficient(0.0, 1.0), 1.0);
}

}  // namespace
}  // namespace tessera
