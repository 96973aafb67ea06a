// Every config that is shipped parses, is free of contradictions and describes the model that its
// name says.

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>

#include "models/model_config.h"
#include "trainer/config/config.h"

namespace tessera {
namespace {

// Weights, by file.
const std::map<std::string, int64_t>& Expected() {
  static const auto* const expected = new std::map<std::string, int64_t>{
      {"demo.textproto", 2197632},       {"gpt2_124m.textproto", 124439808},
      {"gpt2_tiny.textproto", 120640},   {"llama3_1b.textproto", 1235814400},
      {"llama3_tiny.textproto", 115072},
  };
  return *expected;
}

TEST(ConfigsTest, EachResolvesToTheModelOfItsName) {
  for (const auto& [name, weights] : Expected()) {
    const absl::StatusOr<TrainConfig> config = LoadConfig("trainer/configs/" + name);
    ASSERT_TRUE(config.ok()) << config.status();
    const absl::StatusOr<TrainConfig> resolved = ResolveConfig(*config);
    ASSERT_TRUE(resolved.ok()) << name << ": " << resolved.status();
    EXPECT_EQ(ParameterCount(resolved->model()), weights) << name;
  }
}

TEST(ConfigsTest, NoneIsForgotten) {
  for (const auto& entry : std::filesystem::directory_iterator("trainer/configs")) {
    if (entry.path().extension() != ".textproto") continue;
    EXPECT_TRUE(Expected().contains(entry.path().filename())) << entry.path();
  }
}

}  // namespace
}  // namespace tessera
