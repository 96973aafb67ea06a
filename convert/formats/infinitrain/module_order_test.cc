#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "convert/formats/infinitrain/state_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::ckpt::convert {
namespace {

using ::testing::ElementsAre;
using ::testing::Optional;

// Hash tables give two of all orders of a file: one on a CPU, and one on a GPU, where the program
// has copied the tensors of each module.
TEST(ModuleOrderTest, OneOrderOfAFileIsThatOfAProgram) {
  std::vector<std::string> stored = {"transformer.ln_f.bias", "transformer.ln_f.weight",
                                     "transformer.wte.weight"};
  std::vector<std::vector<std::string>> orders;
  do {
    if (const auto order = OrderInfiniTrainParameters(stored)) orders.push_back(*order);
  } while (std::ranges::next_permutation(stored).found);
  ASSERT_EQ(orders.size(), 2);
  EXPECT_NE(orders[0], orders[1]);
  for (std::vector<std::string>& order : orders) {
    EXPECT_EQ(order.front(), "transformer.wte.weight");
    std::ranges::sort(order);
    EXPECT_EQ(order, stored);
  }
}

TEST(ModuleOrderTest, NamesOfOtherModels) {
  EXPECT_THAT(OrderInfiniTrainParameters({"wte.weight"}), Optional(ElementsAre("wte.weight")));
  std::string deep = "weight";
  for (int i = 0; i < 1000; ++i) deep = absl::StrCat("h.", deep);
  EXPECT_EQ(OrderInfiniTrainParameters({deep}), std::nullopt);
}

}  // namespace
}  // namespace tessera::ckpt::convert
