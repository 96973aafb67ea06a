#include "trainer/config/load_content.h"

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

std::string Text(const LoadContent& content) {
  std::string text;
  if (content.model) text += "m";
  if (content.optimizer) text += "o";
  if (content.scheduler) text += "s";
  if (content.sampler) text += "d";
  if (content.rng) text += "r";
  return text;
}

TEST(LoadContentTest, AnyParts) {
  EXPECT_EQ(Text(*ParseLoadContent("all")), "mosdr");
  EXPECT_EQ(Text(*ParseLoadContent("model")), "m");
  EXPECT_EQ(Text(*ParseLoadContent("rng, scheduler,model")), "msr");
  EXPECT_EQ(Text(*ParseLoadContent("model,optimizer,scheduler,rng")), "mosr");
  EXPECT_EQ(Text(*ParseLoadContent("optimizer")), "o");
  EXPECT_EQ(Text(*ParseLoadContent("sampler,scheduler")), "sd");
}

TEST(LoadContentTest, OtherWordsAreRefused) {
  for (const char* text : {"weights", "", "model,", "model;optimizer"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseLoadContent(text).status())) << text;
  }
}

TEST(LoadContentTest, MegatronsFlagsLeavePartsOut) {
  CheckpointConfig config;
  EXPECT_EQ(Text(LoadContentOf(config)), "mosdr");
  config.set_no_load_optim(true);
  EXPECT_EQ(Text(LoadContentOf(config)), "msdr");
  config.set_no_load_rng(true);
  EXPECT_EQ(Text(LoadContentOf(config)), "msd");
  config.set_load_content("model,optimizer,scheduler");
  EXPECT_EQ(Text(LoadContentOf(config)), "ms");
  config.clear_load_content();
  config.set_finetune(true);
  EXPECT_EQ(Text(LoadContentOf(config)), "m");
}

}  // namespace
}  // namespace tessera
