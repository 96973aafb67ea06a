#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/testing.h"
#include "convert/core/optimizer_groups.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::ckpt::convert {
namespace {

using ::testing::HasSubstr;
using Assignment = std::map<int64_t, size_t>;

const Shape kMatrix = {4, 4};
const Shape kVector = {4};

std::vector<OrderedParameter> Model() {
  return {{"embedding", kMatrix}, {"norm", kVector}, {"up", kMatrix}, {"bias", kVector}};
}

TEST(AssignNumbersTest, OneGroupOfAllParameters) {
  const std::vector<NumberedGroup> groups = {{{0, kMatrix}, {1, kVector}, {2, kMatrix}, {3, {}}}};
  ASSERT_OK_AND_ASSIGN(const auto assigned, AssignNumbers(Model(), groups));
  EXPECT_EQ(assigned, (Assignment{{0, 0}, {1, 1}, {2, 2}}));
}

TEST(AssignNumbersTest, GroupsBetweenEachOther) {
  const std::vector<NumberedGroup> groups = {{{0, kVector}, {1, kVector}},
                                             {{2, kMatrix}, {3, kMatrix}}};
  ASSERT_OK_AND_ASSIGN(const auto assigned, AssignNumbers(Model(), groups));
  EXPECT_EQ(assigned, (Assignment{{0, 1}, {1, 3}, {2, 0}, {3, 2}}));
}

TEST(AssignNumbersTest, RefusalsNameParameters) {
  const auto refusal = [](const std::vector<NumberedGroup>& groups) {
    const absl::Status status = AssignNumbers(Model(), groups).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(refusal({{{7, kVector}}}), "parameter 7 of the optimizer may be norm or bias");
  EXPECT_EQ(refusal({{{0, kVector}, {1, kVector}, {2, kMatrix}, {3, kMatrix}}}),
            "the states of parameter 0 of the optimizer have shape [4], and in the order of the "
            "model embedding, of shape [4,4], is next");
  EXPECT_EQ(refusal({NumberedGroup(5, {0, kVector})}),
            "the optimizer has 5 parameters, the model has 4");
  EXPECT_THAT(refusal({{{0, kVector}, {0, kVector}}}), HasSubstr("parameter 0"));
}

TEST(AssignNumbersTest, AsymmetricGroupsBeyondTheLimitAreRefused) {
  const std::vector<OrderedParameter> parameters(4000, {"p", kVector});
  const std::vector<NumberedGroup> groups(2, NumberedGroup(2000, {0, kVector}));
  const absl::Status status = AssignNumbers(parameters, groups).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("in too many ways"));
}

// All assignments, one by one.
std::set<Assignment> Enumerate(const std::vector<OrderedParameter>& parameters,
                               const std::vector<NumberedGroup>& groups) {
  std::set<Assignment> found;
  std::vector<size_t> next(groups.size(), 0);
  Assignment assigned;
  const std::function<void(size_t)> deal = [&](size_t i) {
    if (i == parameters.size()) {
      for (size_t g = 0; g < groups.size(); ++g) {
        if (next[g] < groups[g].size()) return;
      }
      found.insert(assigned);
      return;
    }
    deal(i + 1);
    for (size_t g = 0; g < groups.size(); ++g) {
      if (next[g] == groups[g].size()) continue;
      const NumberedParameter& number = groups[g][next[g]];
      if (number.shape.has_value() && *number.shape != parameters[i].shape) continue;
      ++next[g];
      if (number.shape.has_value()) assigned[number.number] = i;
      deal(i + 1);
      assigned.erase(number.number);
      --next[g];
    }
  };
  deal(0);
  return found;
}

TEST(AssignNumbersTest, AgreesWithEnumeration) {
  std::mt19937 random(3);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  const std::vector<Shape> shapes = {{1}, {2}, {3}};
  int settled = 0, ambiguous = 0, none = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<OrderedParameter> parameters(1 + below(7));
    std::vector<NumberedGroup> groups(1 + below(3));
    int64_t number = 0;
    for (OrderedParameter& parameter : parameters) {
      parameter = {"p", shapes[below(shapes.size())]};
      if (below(5) == 0) continue;
      NumberedGroup& group = groups[below(groups.size())];
      group.push_back({.number = number++});
      if (below(6) > 0) group.back().shape = parameter.shape;
      if (below(20) == 0) group.back().shape = shapes[below(shapes.size())];
    }
    const std::set<Assignment> all = Enumerate(parameters, groups);
    const auto assigned = AssignNumbers(parameters, groups);
    ASSERT_EQ(assigned.ok(), all.size() == 1) << "round " << round << ": " << assigned.status();
    if (assigned.ok()) EXPECT_EQ(*assigned, *all.begin());
    (all.empty() ? none : all.size() == 1 ? settled : ambiguous)++;
  }
  EXPECT_GT(settled, 300);
  EXPECT_GT(ambiguous, 300);
  EXPECT_GT(none, 100);
}

}  // namespace
}  // namespace tessera::ckpt::convert
