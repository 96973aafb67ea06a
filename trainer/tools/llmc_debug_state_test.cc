// The debug state against PyTorch's, and against a naive GPT-2 in fp64 that knows only the file.

#include "trainer/tools/llmc_debug_state.h"

#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <span>
#include <utility>

#include "base/files.h"
#include "base/replace_file.h"
#include "base/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainer/data/token_file.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr char kModel[] = "tests/interop/pytorch/gpt2.model.bin";
constexpr int kHeaderBytes = 1024;

std::string Contents(const std::string& path) { return *ReadWholeFile(path); }

// What PyTorch has computed for the model: transformers' GPT-2, with one target that is ignored.
std::string TorchState() {
  return Contents("tests/interop/pytorch/gpt2.state.bin") +
         Contents("tests/interop/pytorch/gpt2.gradients.bin").substr(kHeaderBytes);
}

std::string WithInt(std::string file, int64_t index, int32_t value) {
  std::memcpy(file.data() + 4 * index, &value, sizeof(value));
  return file;
}

template <typename T>
std::vector<T> Values(const std::string& file, int64_t first, int64_t count) {
  std::vector<T> values(count);
  std::memcpy(values.data(), file.data() + 4 * first, 4 * count);
  return values;
}

// GPT-2 in fp64, element by element, over the parameters in the order of the model file.
class NaiveGpt2 {
 public:
  explicit NaiveGpt2(const std::string& file) {
    const auto header = Values<int32_t>(file, 0, 8);
    positions_ = header[2], vocabulary_ = header[3], layers_ = header[4], heads_ = header[5];
    channels_ = header[6], padded_ = header[7];
    const int64_t c = channels_, l = layers_;
    // wte, wpe; by layer: ln1, qkv, attention's projection, ln2, fc, its projection; the last norm.
    sizes_ = {padded_ * c,   positions_ * c, l * c, l * c, l * 3 * c * c, l * 3 * c,
              l * c * c,     l * c,          l * c, l * c, l * 4 * c * c, l * 4 * c,
              l * 4 * c * c, l * c,          c,     c};
    int64_t all = 0;
    for (const int64_t size : sizes_) begins_.push_back(std::exchange(all, all + size));
    for (const float value : Values<float>(file, 256, all)) parameters_.push_back(value);
  }

  int64_t vocabulary() const { return vocabulary_; }
  const std::vector<int64_t>& sizes() const { return sizes_; }
  const std::vector<int64_t>& begins() const { return begins_; }
  std::vector<double>& parameters() { return parameters_; }

  // Returns the mean loss of x and y [B,T], and sets the logits.
  double Loss(std::span<const int32_t> x, std::span<const int32_t> y, int64_t sequence,
              std::vector<double>* logits) const {
    double sum = 0;
    for (size_t begin = 0; begin < x.size(); begin += sequence) {
      std::vector<std::vector<double>> rows = Rows(x.subspan(begin, sequence));
      for (int64_t t = 0; t < sequence; ++t) {
        const std::vector<double> normed = Norm(rows[t], 14, 0);
        std::vector<double> row(vocabulary_);
        double total = 0;
        for (int64_t v = 0; v < vocabulary_; ++v) {
          row[v] = Dot(normed, begins_[0] + v * channels_);
          total += std::exp(row[v]);
        }
        sum += std::log(total) - row[y[begin + t]];
        if (logits != nullptr) logits->insert(logits->end(), row.begin(), row.end());
      }
    }
    return sum / static_cast<double>(x.size());
  }

 private:
  double At(int tensor, int64_t i) const { return parameters_[begins_[tensor] + i]; }
  double Dot(const std::vector<double>& a, int64_t first) const {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += a[i] * parameters_[first + i];
    return sum;
  }

  std::vector<double> Norm(const std::vector<double>& x, int weight, int64_t layer) const {
    double mean = 0, variance = 0;
    for (const double value : x) mean += value / x.size();
    for (const double value : x) variance += (value - mean) * (value - mean) / x.size();
    std::vector<double> y;
    for (size_t i = 0; i < x.size(); ++i) {
      const int64_t at = layer * channels_ + i;
      y.push_back((x[i] - mean) / std::sqrt(variance + 1e-5) * At(weight, at) + At(weight + 1, at));
    }
    return y;
  }

  std::vector<double> Linear(const std::vector<double>& x, int weight, int64_t layer,
                             int64_t out) const {
    std::vector<double> y;
    for (int64_t o = 0; o < out; ++o) {
      const int64_t row = layer * out + o;
      y.push_back(Dot(x, begins_[weight] + row * x.size()) + At(weight + 1, row));
    }
    return y;
  }

  // Attention of the last of `qkv`, each [3C], to all of them.
  std::vector<double> Attend(const std::vector<std::vector<double>>& qkv) const {
    const int64_t width = channels_ / heads_;
    std::vector<double> out(channels_);
    for (int64_t head = 0; head < heads_; ++head) {
      std::vector<double> weights;
      double total = 0;
      for (const std::vector<double>& other : qkv) {
        double score = 0;
        for (int64_t i = head * width; i < (head + 1) * width; ++i) {
          score += qkv.back()[i] * other[channels_ + i];
        }
        total += weights.emplace_back(std::exp(score / std::sqrt(width)));
      }
      for (size_t t = 0; t < qkv.size(); ++t) {
        for (int64_t i = head * width; i < (head + 1) * width; ++i) {
          out[i] += weights[t] / total * qkv[t][2 * channels_ + i];
        }
      }
    }
    return out;
  }

  // The last norm's input [T,C] for the tokens of one sequence.
  std::vector<std::vector<double>> Rows(std::span<const int32_t> tokens) const {
    std::vector<std::vector<double>> rows;
    for (size_t t = 0; t < tokens.size(); ++t) {
      std::vector<double>& row = rows.emplace_back();
      for (int64_t i = 0; i < channels_; ++i) {
        row.push_back(At(0, tokens[t] * channels_ + i) + At(1, t * channels_ + i));
      }
    }
    const auto add = [](std::vector<double>& to, const std::vector<double>& from) {
      for (size_t i = 0; i < to.size(); ++i) to[i] += from[i];
    };
    for (int64_t layer = 0; layer < layers_; ++layer) {
      std::vector<std::vector<double>> qkv;
      for (std::vector<double>& row : rows) {
        qkv.push_back(Linear(Norm(row, 2, layer), 4, layer, 3 * channels_));
        add(row, Linear(Attend(qkv), 6, layer, channels_));
        std::vector<double> hidden = Linear(Norm(row, 8, layer), 10, layer, 4 * channels_);
        for (double& h : hidden) {
          h *= 0.5 * (1 + std::tanh(std::sqrt(2 / M_PI) * (h + 0.044715 * h * h * h)));
        }
        add(row, Linear(hidden, 12, layer, channels_));
      }
    }
    return rows;
  }

  int64_t positions_ = 0, vocabulary_ = 0, layers_ = 0, heads_ = 0, channels_ = 0, padded_ = 0;
  std::vector<int64_t> sizes_, begins_;
  std::vector<double> parameters_;
};

class DebugStateTest : public ::testing::Test {
 protected:
  std::string Written(const std::string& contents) const {
    const std::string path = folder_.File("state.bin");
    EXPECT_OK(ReplaceFile(path, contents));
    return path;
  }
  // A token file of random tokens below 61, the vocabulary of the model.
  std::string Tokens(int count) const {
    std::mt19937 random(5);
    std::vector<int32_t> tokens(count);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 61);
    std::string path = folder_.File("tokens.bin");
    auto writer = OrFail(TokenFileWriter::Create(path, TokenFormat::kGpt2));
    EXPECT_OK(writer->Append(tokens));
    EXPECT_OK(writer->Close());
    return path;
  }
  // Runs the program, and returns its exit code and output.
  std::pair<int, std::string> Run(const std::string& arguments) const {
    const std::string out = folder_.File("out");
    const int status =
        std::system(("trainer/tools/debug_state " + arguments + " >" + out + " 2>&1").c_str());
    return {WEXITSTATUS(status), Contents(out)};
  }

  const TestFolder folder_;
};

TEST_F(DebugStateTest, AgreesWithPyTorch) {
  ASSERT_OK_AND_ASSIGN(const auto differences, CheckDebugState(kModel, Written(TorchState()), 2));
  // Logits, loss, two embeddings, twelve tensors of each of two layers, the last norm.
  ASSERT_EQ(differences.size(), 2 + 2 + 24 + 2);
  EXPECT_EQ(differences[0].name, "logits");
  EXPECT_EQ(differences[1].name, "loss");
  EXPECT_EQ(differences[2].name, "transformer.wte.weight");
  for (const DebugStateDifference& difference : differences) {
    EXPECT_GT(difference.scale, 0) << difference.name;
    EXPECT_TRUE(difference.IsWithin(1e-5)) << difference.name << " " << difference.largest;
  }
}

// Every kind of value is compared, and none beside the one that differs is blamed.
TEST_F(DebugStateTest, AChangedValueIsNamed) {
  const std::string state = TorchState();
  constexpr int64_t kTokens = 22, kLogits = 256 + 2 * kTokens, kLoss = kLogits + kTokens * 61;
  constexpr int64_t kGradients = kLoss + 1, kWpe = kGradients + 128 * 16;
  constexpr int64_t kSecondNorm = kWpe + 13 * 16 + 16;  // ln_1.weight of layer 1
  const std::pair<int64_t, std::string> cases[] = {
      {kLogits + 61, "logits"},
      {kLoss, "loss"},
      {kGradients + 60 * 16, "transformer.wte.weight"},
      {kWpe, "transformer.wpe.weight"},
      {kSecondNorm, "transformer.h.1.ln_1.weight"},
      {static_cast<int64_t>(state.size()) / 4 - 1, "transformer.ln_f.bias"}};
  for (const auto& [index, name] : cases) {
    for (const float value : {1e4f, NAN}) {
      int32_t bits;
      std::memcpy(&bits, &value, sizeof(bits));
      ASSERT_OK_AND_ASSIGN(const auto differences,
                           CheckDebugState(kModel, Written(WithInt(state, index, bits)), 1));
      for (const DebugStateDifference& difference : differences) {
        EXPECT_EQ(difference.IsWithin(0.5), difference.name != name) << name << " " << value;
      }
    }
  }
}

TEST_F(DebugStateTest, WhatIsWrittenIsTheNaiveModels) {
  const std::string state_file = folder_.File("written.bin");
  constexpr int64_t kBatch = 3, kSequence = 7, kTokens = kBatch * kSequence;
  ASSERT_OK(WriteDebugState(kModel, {.file = Tokens(100), .batch = kBatch, .sequence = kSequence},
                            state_file, 2));
  const std::string state = Contents(state_file);
  NaiveGpt2 naive(Contents(kModel));
  const int64_t logits_at = 256 + 2 * kTokens, loss_at = logits_at + kTokens * naive.vocabulary();
  ASSERT_EQ(state.size(), 4 * (loss_at + 1 + naive.parameters().size()));
  EXPECT_THAT(Values<int32_t>(state, 0, 5),
              ::testing::ElementsAre(20240327, 2, kBatch, kSequence, 0));
  const auto x = Values<int32_t>(state, 256, kTokens),
             y = Values<int32_t>(state, 256 + kTokens, kTokens);
  const auto tokens = Contents(folder_.File("tokens.bin"));
  for (int64_t i = 0; i <= kTokens; ++i) {
    uint16_t token;
    std::memcpy(&token, tokens.data() + kHeaderBytes + 2 * i, 2);
    if (i < kTokens) EXPECT_EQ(x[i], token);
    if (i > 0) EXPECT_EQ(y[i - 1], token);
  }
  std::vector<double> logits;
  const double loss = naive.Loss(x, y, kSequence, &logits);
  const auto written = Values<float>(state, logits_at, std::ssize(logits));
  for (size_t i = 0; i < logits.size(); ++i) EXPECT_NEAR(written[i], logits[i], 1e-4) << i;
  EXPECT_NEAR(Values<float>(state, loss_at, 1)[0], loss, 1e-5);

  // Gradients of some elements of each tensor, by central differences.
  std::mt19937 random(8);
  for (size_t tensor = 0; tensor < naive.sizes().size(); ++tensor) {
    const auto gradient =
        Values<float>(state, loss_at + 1 + naive.begins()[tensor], naive.sizes()[tensor]);
    double largest = 0;
    for (const float value : gradient) largest = std::max(largest, std::fabs(double{value}));
    EXPECT_GT(largest, 0);
    for (int i = 0; i < 12; ++i) {
      const auto element = static_cast<int64_t>(random() % gradient.size());
      double& value = naive.parameters()[naive.begins()[tensor] + element];
      constexpr double kStep = 1e-5;
      const double before = value;
      value = before + kStep;
      const double above = naive.Loss(x, y, kSequence, nullptr);
      value = before - kStep;
      const double below = naive.Loss(x, y, kSequence, nullptr);
      value = before;
      EXPECT_NEAR(gradient[element], (above - below) / (2 * kStep), 1e-5 * largest + 1e-9)
          << "tensor " << tensor << ", element " << element;
    }
  }
  EXPECT_FALSE(std::filesystem::exists(state_file + ".gradients"));
}

TEST_F(DebugStateTest, DamagedFilesSayWhatWasExpected) {
  const std::string state = TorchState(), model = Contents(kModel);
  const std::string length = std::to_string(state.size());
  const std::pair<std::string, std::string> cases[] = {
      {state.substr(0, 1023), "truncated: expected 1024 bytes of header, found 1023"},
      {state.substr(0, 1024), "truncated: expected " + length + " bytes, found 1024"},
      {state.substr(0, state.size() - 1), "truncated: expected " + length},
      {state + "x", "trailing bytes: expected " + length},
      {model, "wrong magic number: expected 20240327 (debug state of GPT-2), found 20240326"},
      {WithInt(state, 1, 1), "unknown version: expected 2, found 1"},
      {WithInt(state, 2, 0), "[0,11] tokens"},
      {WithInt(state, 2, -2), "[-2,11] tokens"},
      {WithInt(state, 2, INT32_MAX), "truncated: expected "},
      {WithInt(state, 3, 14), "[2,14] tokens: the model has 13 positions"},
      {WithInt(state, 3, -11), "[2,-11] tokens"},
      {WithInt(state, 256, 61), "token 0 is 61"},
      {WithInt(state, 256 + 5, -1), "token 5 is -1"},
      {WithInt(state, 256 + 22, 61), "with target 61: the vocabulary has 61"}};
  for (const auto& [file, message] : cases) {
    const std::string path = Written(file);
    const absl::Status status = CheckDebugState(kModel, path, 1).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
    EXPECT_THAT(std::string(status.message()), HasSubstr(path));
  }
  EXPECT_TRUE(absl::IsNotFound(CheckDebugState(kModel, folder_.File("none"), 1).status()));
  const absl::Status llama =
      CheckDebugState("tests/interop/pytorch/llama3_tied.model.bin", Written(state), 1).status();
  EXPECT_TRUE(absl::IsInvalidArgument(llama)) << llama;
}

TEST_F(DebugStateTest, WrongRequestsForAFileLeaveNone) {
  const std::string path = folder_.File("written.bin");
  const auto write = [&](const std::string& tokens, int64_t batch, int64_t sequence) {
    return WriteDebugState(kModel, {.file = tokens, .batch = batch, .sequence = sequence}, path, 1);
  };
  const std::string tokens = Tokens(12);
  EXPECT_TRUE(absl::IsOutOfRange(write(tokens, 3, 4)));  // needs 13
  EXPECT_TRUE(absl::IsInvalidArgument(write(tokens, 1, 14)));
  EXPECT_TRUE(absl::IsInvalidArgument(write(tokens, 0, 4)));
  EXPECT_TRUE(absl::IsDataLoss(write(kModel, 1, 4)));
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_OK(write(tokens, 1, 11));
  EXPECT_TRUE(std::filesystem::exists(path));
}

TEST_F(DebugStateTest, TheProgramsExitCodes) {
  const std::string model = std::string(kModel) + " ", path = folder_.File("own.bin");
  EXPECT_EQ(Run("write " + model + Tokens(100) + " " + path + " --batch=2 --sequence=9").first, 0);
  const auto [same, table] = Run("check " + model + path + " --tolerance=0");
  EXPECT_EQ(same, 0) << table;
  EXPECT_THAT(table, HasSubstr("0 of 30 differ by more than 0 of the largest value"));
  EXPECT_THAT(table, HasSubstr("transformer.h.1.mlp.c_fc.bias"));

  const std::string state = Contents(path);
  ASSERT_OK(ReplaceFile(path, WithInt(state, std::ssize(state) / 4 - 1, 0x3f800000)));
  const auto [changed, report] = Run("check " + model + path);
  EXPECT_EQ(changed, 1);
  EXPECT_THAT(report, HasSubstr("1 of 30 differ by more than 0.001 of the largest value"));

  for (const std::string& wrong :
       {"check " + model, "check " + model + folder_.File("none"), std::string("compare a b"),
        "check " + model + path + " --tolerance=x", "check " + model + path + " --batch=0",
        "check " + model + path + " --threads", "check " + model + path + " --more=1"}) {
    EXPECT_EQ(Run(wrong).first, 2) << wrong;
  }
  EXPECT_EQ(Run("--help").first, 0);
}

}  // namespace
}  // namespace tessera
