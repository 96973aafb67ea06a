// Statistics of elements against naive loops over the same values, alone and read from files.

#include "operations/survey.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <utility>

#include "base/testing.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::ckpt {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr DType kAllTypes[] = {DType::kF64, DType::kF32,    DType::kF16,   DType::kBF16,
                               DType::kI64, DType::kI32,    DType::kI16,   DType::kI8,
                               DType::kU8,  DType::kBool,   DType::kU16,   DType::kU32,
                               DType::kU64, DType::kF8E4M3, DType::kF8E5M2};

// Sign, exponent and mantissa, as the formats' definitions have them.
double DecodeFloat(uint64_t bits, int exponent_bits, int mantissa_bits, bool has_infinity) {
  const uint64_t mantissa = bits & ((uint64_t{1} << mantissa_bits) - 1);
  const int highest = (1 << exponent_bits) - 1, bias = highest / 2;
  const int exponent = static_cast<int>(bits >> mantissa_bits) & highest;
  const double sign = (bits >> (mantissa_bits + exponent_bits)) != 0 ? -1 : 1;
  const double fraction = std::ldexp(static_cast<double>(mantissa), -mantissa_bits);
  if (exponent == highest && has_infinity) return mantissa == 0 ? sign * HUGE_VAL : std::nan("");
  if (exponent == highest && mantissa == (uint64_t{1} << mantissa_bits) - 1) return std::nan("");
  return sign * (exponent == 0 ? std::ldexp(fraction, 1 - bias)
                               : std::ldexp(1 + fraction, exponent - bias));
}

double Decode(DType dtype, uint64_t bits) {
  switch (dtype) {
    case DType::kF64:
      return DecodeFloat(bits, 11, 52, true);
    case DType::kF32:
      return DecodeFloat(bits, 8, 23, true);
    case DType::kF16:
      return DecodeFloat(bits, 5, 10, true);
    case DType::kBF16:
      return DecodeFloat(bits, 8, 7, true);
    case DType::kF8E4M3:
      return DecodeFloat(bits, 4, 3, false);
    case DType::kF8E5M2:
      return DecodeFloat(bits, 5, 2, true);
    case DType::kI64:
      return static_cast<double>(static_cast<int64_t>(bits));
    case DType::kI32:
      return static_cast<int32_t>(bits);
    case DType::kI16:
      return static_cast<int16_t>(bits);
    case DType::kI8:
      return static_cast<int8_t>(bits);
    default:
      return static_cast<double>(bits);
  }
}

int NaiveBin(double value) {
  int exponent;
  const double mantissa = 2 * std::frexp(std::fabs(value), &exponent);  // in [1, 2)
  const int sign = value < 0 ? 1024 : 0;
  if (--exponent < -126) return sign;
  if (exponent > 127) return sign + 254 * 4 + 3;
  return sign + (exponent + 127) * 4 + static_cast<int>((mantissa - 1) * 4);
}

std::vector<double> Values(DType dtype, const std::string& bytes) {
  const size_t size = ElementSize(dtype);
  std::vector<double> values;
  for (size_t at = 0; at < bytes.size(); at += size) {
    uint64_t bits = 0;
    std::memcpy(&bits, bytes.data() + at, size);
    values.push_back(Decode(dtype, bits));
  }
  return values;
}

void ExpectStatistics(const ElementStatistics& found, const std::vector<double>& values) {
  int64_t zeros = 0, nans = 0, positive = 0, negative = 0, finite = 0;
  double min = std::numeric_limits<double>::infinity(), max = -min;
  long double sum = 0, squares = 0, magnitudes = 0;
  std::vector<int64_t> bins(ElementStatistics::kBins);
  for (const double value : values) {
    if (std::isnan(value)) {
      ++nans;
    } else if (std::isinf(value)) {
      ++(value > 0 ? positive : negative);
    } else {
      ++finite;
      min = std::min(min, value);
      max = std::max(max, value);
      sum += value;
      magnitudes += std::fabs(value);
      squares += static_cast<long double>(value) * value;
      if (value == 0) {
        ++zeros;
      } else {
        ++bins[NaiveBin(value)];
      }
    }
  }
  EXPECT_EQ(found.elements, values.size());
  EXPECT_EQ(found.zeros, zeros);
  EXPECT_EQ(found.nans, nans);
  EXPECT_EQ(found.positive_infinities, positive);
  EXPECT_EQ(found.negative_infinities, negative);
  EXPECT_EQ(found.finite(), finite);
  EXPECT_EQ(found.min, min);
  EXPECT_EQ(found.max, max);
  EXPECT_LE(std::fabs(found.sum - sum), 1e-13L * magnitudes);
  EXPECT_LE(std::fabs(found.squares - squares), 1e-13L * squares);
  EXPECT_EQ(found.bins, bins);
}

std::string RandomBytes(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

ElementStatistics StatisticsOf(DType dtype, const std::string& bytes) {
  ElementStatistics statistics;
  statistics.bins.resize(ElementStatistics::kBins);
  AddElements(dtype, reinterpret_cast<const std::byte*>(bytes.data()),
              static_cast<int64_t>(bytes.size()) / ElementSize(dtype), statistics);
  return statistics;
}

TEST(ElementStatistics, OfEveryTypeAndBitPattern) {
  for (const DType dtype : kAllTypes) {
    SCOPED_TRACE(DTypeName(dtype));
    const size_t size = ElementSize(dtype);
    for (const size_t count : {0, 1, 2, 3, 255, 2047, 2048, 2049, 70000}) {
      const std::string bytes = RandomBytes(count * size, count);
      ExpectStatistics(StatisticsOf(dtype, bytes), Values(dtype, bytes));
    }
    if (size > 2) continue;
    std::string all;
    for (uint32_t bits = 0; bits < 1u << (8 * size); ++bits) {
      all.append(reinterpret_cast<const char*>(&bits), size);
    }
    ExpectStatistics(StatisticsOf(dtype, all), Values(dtype, all));
  }
}

TEST(ElementStatistics, OfValuesAtTheEdges) {
  using Limits = std::numeric_limits<float>;
  const std::vector<float> floats = {0.0f,
                                     -0.0f,
                                     Limits::denorm_min(),
                                     -Limits::denorm_min(),
                                     0x1p-127f,
                                     Limits::min(),
                                     -Limits::min(),
                                     Limits::max(),
                                     Limits::lowest(),
                                     Limits::infinity(),
                                     -Limits::infinity(),
                                     Limits::quiet_NaN(),
                                     1.0f,
                                     1.25f,
                                     std::nextafter(1.25f, 0.0f)};
  const std::string bytes(reinterpret_cast<const char*>(floats.data()), 4 * floats.size());
  ExpectStatistics(StatisticsOf(DType::kF32, bytes), Values(DType::kF32, bytes));
  // Squares that a double cannot hold.
  const std::vector<double> doubles = {1e300, -1e300, 1e-300, 5e-324, -0.0};
  const std::string wide(reinterpret_cast<const char*>(doubles.data()), 8 * doubles.size());
  const ElementStatistics found = StatisticsOf(DType::kF64, wide);
  ExpectStatistics(found, doubles);
  EXPECT_NEAR(found.norm() / 1e300, std::sqrt(2.0), 1e-12);
  const ElementStatistics only_nan = StatisticsOf(DType::kBF16, "\xff\xff");
  EXPECT_EQ(only_nan.finite(), 0);
  EXPECT_GT(only_nan.min, only_nan.max);
}

// A checkpoint of one tensor of each type, in small chunks and several files, beside an empty one,
// a scalar and an alias.
class SurveyTest : public testing::Test {
 protected:
  static constexpr int64_t kRows = 123, kColumns = 37;

  SurveyTest() : root_(testing::TempDir() + "/survey_XXXXXX") {
    EXPECT_NE(mkdtemp(root_.data()), nullptr);
    StateDict state;
    const auto add = [&](const std::string& name, DType dtype, Shape shape, int pieces) {
      const size_t size = ElementSize(dtype);
      std::string& bytes = bytes_[name] = RandomBytes(ElementCount(shape) * size, bytes_.size());
      if (name == "ones") std::ranges::fill(bytes, 1);
      dtypes_[name] = dtype;
      ShardedTensor tensor;
      tensor.name = name;
      tensor.dtype = dtype;
      tensor.global_shape = shape;
      for (int p = 0; p < pieces; ++p) {
        Box box = WholeBox(shape);
        if (pieces > 1) {
          box.global_offset[0] = shape[0] * p / pieces;
          box.shape[0] = shape[0] * (p + 1) / pieces - box.global_offset[0];
        }
        const int64_t begin = pieces > 1 ? box.global_offset[0] * kColumns : 0;
        if (!box.empty()) tensor.shards.push_back({box, bytes.data() + begin * size, {}});
      }
      state.tensors.push_back(std::move(tensor));
    };
    for (const DType dtype : kAllTypes) {
      if (dtype == DType::kBool) continue;  // not every byte is a truth value
      add(std::string(DTypeName(dtype)), dtype, {kRows, kColumns}, 5);
    }
    add("ones", DType::kBool, {kRows, kColumns}, 2);
    add("empty", DType::kF32, {0, 4}, 1);
    add("scalar", DType::kF64, {}, 1);
    ShardedTensor alias;
    alias.name = "alias";
    alias.dtype = DType::kF64;
    alias.alias_of = "scalar";
    state.tensors.push_back(alias);
    const auto folder = CheckpointFolder::Open(root_);
    EXPECT_OK(folder->Save(7, state, {.checksum_chunk_bytes = 512, .max_file_bytes = 40000}));
  }
  ~SurveyTest() override { std::filesystem::remove_all(root_); }

  CheckpointSurvey MustSurvey(int threads, size_t max_histograms = 4096) {
    named_ = FindCheckpoint(root_, {});
    EXPECT_TRUE(named_.ok() && named_->opened.ok());
    return OrFail(Survey(*named_, {.io_threads = threads, .max_histograms = max_histograms}));
  }

  std::vector<std::string> Damaged(const CheckpointSurvey& survey) const {
    std::vector<std::string> names;
    for (size_t t = 0; t < survey.tensors.size(); ++t) {
      if (survey.tensors[t].damaged) names.push_back(Tensor(t).name());
    }
    return names;
  }

  const LogicalTensor& Tensor(size_t t) const {
    return named_->opened->manifest().tensors(static_cast<int>(t));
  }

  std::string root_;
  std::map<std::string, std::string> bytes_;
  std::map<std::string, DType> dtypes_;
  absl::StatusOr<NamedCheckpoint> named_;
};

TEST_F(SurveyTest, IsThatOfTheValuesWithAnyNumberOfThreads) {
  const CheckpointSurvey one = MustSurvey(1);
  EXPECT_TRUE(one.damage.empty());
  ASSERT_EQ(one.tensors.size(), bytes_.size() + 1);
  for (size_t t = 0; t < one.tensors.size(); ++t) {
    const std::string& name = Tensor(t).name();
    SCOPED_TRACE(name);
    if (name == "alias") {
      EXPECT_EQ(one.tensors[t].statistics.elements, 0);
      continue;
    }
    EXPECT_EQ(one.tensors[t].statistics.bins.empty(), name == "empty");
    ElementStatistics found = one.tensors[t].statistics;
    found.bins.resize(ElementStatistics::kBins);
    ExpectStatistics(found, Values(dtypes_.at(name), bytes_.at(name)));
  }
  for (const int threads : {2, 3, 8}) {
    const CheckpointSurvey other = MustSurvey(threads);
    for (size_t t = 0; t < one.tensors.size(); ++t) {
      EXPECT_EQ(one.tensors[t].statistics.sum, other.tensors[t].statistics.sum);
      EXPECT_EQ(one.tensors[t].statistics.squares, other.tensors[t].statistics.squares);
      EXPECT_EQ(one.tensors[t].statistics.bins, other.tensors[t].statistics.bins);
    }
  }
}

TEST_F(SurveyTest, KeepsTheHistogramsOfTheLargest) {
  const CheckpointSurvey survey = MustSurvey(2, /*max_histograms=*/3);
  EXPECT_EQ(std::ranges::count_if(
                survey.tensors,
                [](const TensorSurvey& tensor) { return !tensor.statistics.bins.empty(); }),
            3);
}

TEST_F(SurveyTest, NamesWhatIsDamaged) {
  MustSurvey(1);
  const Manifest manifest = named_->opened->manifest();
  const auto flip = [&](const std::string& name) {
    const auto tensor = std::ranges::find(manifest.tensors(), name, &LogicalTensor::name);
    const std::string path = root_ + "/" + named_->directory + "/" +
                             manifest.files(tensor->shards().file_index(1)).path();
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    const auto at = static_cast<int64_t>(tensor->shards().file_offset(1) + 5);
    file.seekg(at);
    const char byte = static_cast<char>(file.get() ^ 4);
    file.seekp(at);
    file.put(byte);
    return path;
  };
  const std::string path = flip("int32");
  CheckpointSurvey survey = MustSurvey(3);
  EXPECT_THAT(Damaged(survey), ElementsAre("int32"));
  ASSERT_EQ(survey.damage.size(), 1);
  EXPECT_EQ(survey.damage[0].tensor, "int32");
  EXPECT_THAT(survey.damage[0].message, HasSubstr("checksum"));
  // Without the file, its tensors lack elements; the others are as before.
  std::filesystem::remove(path);
  survey = MustSurvey(3);
  EXPECT_EQ(survey.damage.size(), 1);
  for (size_t t = 0; t < survey.tensors.size(); ++t) {
    const int64_t elements =
        Tensor(t).alias_of().empty()
            ? Values(dtypes_.at(Tensor(t).name()), bytes_.at(Tensor(t).name())).size()
            : 0;
    EXPECT_EQ(survey.tensors[t].damaged, survey.tensors[t].statistics.elements < elements);
  }
  EXPECT_THAT(Damaged(survey), testing::Contains("int32"));
  EXPECT_THAT(Damaged(survey), testing::Not(testing::Contains("scalar")));
}

TEST_F(SurveyTest, OfAFileWithMoreDamageThanIsReportedAllIsDamaged) {
  std::string bytes(60000, 'a');
  StateDict state;
  for (const std::string name : {"first", "last"}) {
    const Shape shape = {name == "first" ? 59000 : 1000};
    state.tensors.push_back({.name = name,
                             .dtype = DType::kU8,
                             .global_shape = shape,
                             .shards = {{WholeBox(shape), bytes.data(), {}}}});
  }
  ASSERT_OK_AND_ASSIGN(CheckpointFolder folder, CheckpointFolder::Open(root_));
  ASSERT_OK(folder.Save(8, state, {.checksum_chunk_bytes = 512}));
  MustSurvey(1);
  const std::string path =
      root_ + "/" + named_->directory + "/" + named_->opened->manifest().files(0).path();
  std::filesystem::resize_file(path, 4096);
  std::filesystem::resize_file(path, named_->opened->manifest().files(0).size_bytes());
  const CheckpointSurvey survey = MustSurvey(1);
  EXPECT_EQ(survey.damage.size(), 100);
  EXPECT_THAT(Damaged(survey), ElementsAre("first", "last"));
}

}  // namespace
}  // namespace tessera::ckpt
