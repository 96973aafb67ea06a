#include "trainer/metrics/progress.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

StepMetrics AtStep(int64_t step) {
  StepMetrics metrics;
  metrics.step = step;
  metrics.loss = 3.21009;
  metrics.lr = 3e-4;
  metrics.grad_norm = 0.912;
  metrics.tokens_per_second = 12345;
  metrics.peak_share = 0.78;
  metrics.eta_seconds = 65;
  return metrics;
}

// Collects what is printed.
class Screen {
 public:
  Screen() : file_(open_memstream(&text_, &size_)) {}
  ~Screen() {
    std::fclose(file_);
    std::free(text_);
  }
  std::FILE* file() { return file_; }
  std::string text() {
    std::fflush(file_);
    return std::string(text_, size_);
  }

 private:
  char* text_ = nullptr;
  size_t size_ = 0;
  std::FILE* file_;
};

ProgressLine::Options OnTerminal(Screen* screen, int width) {
  return {.total_steps = 100,
          .log_interval = 10,
          .out = screen->file(),
          .detect_terminal = false,
          .terminal = true,
          .width = width};
}

TEST(FormatTest, AStepHasAPartForEachMetricThatIsKnown) {
  StepMetrics usual = AtStep(12), bad = usual, parallel = usual, staged, fast = usual;
  bad.loss = -std::nan("");  // printed without its sign
  bad.grad_norm = std::numeric_limits<double>::infinity();
  bad.skipped = true;
  bad.peak_share = 0;
  parallel.wire = {{"tp", "all-reduce", 1 << 20}, {"dp", "all-gather", 1 << 20}};
  staged = parallel;
  staged.pipeline_wait_share = 0.091;
  fast.tokens_per_second = 2.5e6;
  using Parts = std::vector<std::string>;
  const struct {
    StepMetrics metrics;
    Parts has, lacks;
  } cases[] = {
      {usual,
       {"12/100", "loss 3.2101", "norm 0.91", "12.3k tok/s", "78% peak", "eta 1m05s"},
       {"SKIPPED", "wire", "bubble"}},
      {bad, {"loss nan", "norm inf", "SKIPPED"}, {"-nan", "peak"}},
      {parallel, {"2.00 MiB wire"}, {"bubble"}},
      {staged, {"2.00 MiB wire", "9% bubble"}, {}},
      {fast, {"2.50M tok/s"}, {}},
  };
  for (const auto& [metrics, has, lacks] : cases) {
    const std::string line = FormatStep(metrics, 100);
    for (const std::string& part : has) EXPECT_NE(line.find(part), line.npos) << line;
    for (const std::string& part : lacks) EXPECT_EQ(line.find(part), line.npos) << line;
  }
}

TEST(FormatTest, AnEvaluationNamesItsStepItsLossAndWhetherItIsTheBest) {
  const std::string best =
      FormatEval({.step = 20, .loss = 2.5, .tokens = 4096, .seconds = 3.2, .best = true});
  for (const char* part : {"20", "2.5000", "best", "4096 tokens", "3s"}) {
    EXPECT_NE(best.find(part), best.npos) << best;
  }
  const std::string nan = FormatEval({.step = 2, .loss = -std::nan(""), .tokens = 3});
  EXPECT_NE(nan.find("loss nan"), nan.npos) << nan;
  EXPECT_EQ(nan.find("best"), nan.npos) << nan;
}

TEST(FormatTest, Duration) {
  const std::pair<double, const char*> cases[] = {
      {0, "0s"},        {59.4, "59s"},   {59.6, "1m00s"},
      {3599, "59m59s"}, {7620, "2h07m"}, {3 * 86400 + 4 * 3600, "3d04h"},
      {-1, "?"},        {1e300, "?"},    {std::nan(""), "?"}};
  for (const auto& [seconds, expected] : cases) EXPECT_EQ(FormatDuration(seconds), expected);
}

constexpr char kErase[] = "\r\x1b[K";

std::string Line(int64_t step, int64_t total = 100) { return FormatStep(AtStep(step), total); }

TEST(ProgressLineTest, TerminalRedrawsOneLineCutToItsWidth) {
  Screen screen;
  // The last column stays empty.
  const auto drawn = [](int step) { return kErase + Line(step).substr(0, 29); };
  {
    ProgressLine progress(OnTerminal(&screen, 30));
    progress.Step(AtStep(12));
    EXPECT_EQ(screen.text(), drawn(12));
    progress.Step(AtStep(13));
  }
  EXPECT_EQ(screen.text(), drawn(12) + drawn(13) + "\n");
}

TEST(ProgressLineTest, MessagesStayAboveTheLiveLine) {
  Screen screen;
  ProgressLine progress(OnTerminal(&screen, 200));
  progress.Message("before");
  progress.Step(AtStep(12));
  progress.Message("saved");
  progress.Finish();
  progress.Message("after");
  progress.Finish();
  EXPECT_EQ(screen.text(),
            absl::StrCat("before\n", kErase, Line(12), kErase, "saved\n", Line(12), "\nafter\n"));
}

TEST(ProgressLineTest, ElsewherePlainLinesAtTheInterval) {
  Screen screen;
  ProgressLine::Options options = OnTerminal(&screen, 20);
  options.terminal = false;
  options.total_steps = 25;
  ProgressLine progress(options);
  for (int step = 3; step <= 25; ++step) progress.Step(AtStep(step));
  const EvalMetrics eval = {.step = 25, .loss = 2.5, .tokens = 10, .seconds = 1};
  progress.Eval(eval);
  progress.Finish();
  EXPECT_EQ(screen.text(), absl::StrJoin({Line(3, 25), Line(10, 25), Line(20, 25), Line(25, 25),
                                          FormatEval(eval), std::string()},
                                         "\n"));
}

TEST(ProgressLineTest, AFileIsNoTerminal) {
  std::FILE* file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  {
    ProgressLine progress({.total_steps = 100, .out = file});
    progress.Step(AtStep(12));
  }
  std::rewind(file);
  char text[256] = {};
  ASSERT_NE(std::fgets(text, sizeof(text), file), nullptr);
  EXPECT_EQ(std::string(text), Line(12) + "\n");
  EXPECT_EQ(std::fgets(text, sizeof(text), file), nullptr);
  std::fclose(file);
}

TEST(ProgressLineTest, AMessageNeverControlsTheTerminal) {
  Screen screen;
  ProgressLine progress(OnTerminal(&screen, 80));
  progress.Message(
      "a\x1b[2Jb\x9b"
      "c");
  EXPECT_EQ(screen.text(), "a\\u001b[2Jb\\x9bc\n");
}

}  // namespace
}  // namespace tessera
