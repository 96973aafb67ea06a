#include "trainer/metrics/progress.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>

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

constexpr char kStep12[] =
    "step 12/100 | loss 3.2101 | lr 3.00e-04 | norm 0.91 | 12.3k tok/s | 78% peak | eta 1m05s";

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

TEST(FormatTest, ANanHasNoSign) {
  StepMetrics metrics = AtStep(12);
  metrics.loss = metrics.grad_norm = -std::nan("");
  EXPECT_EQ(FormatStep(metrics, 100),
            "step 12/100 | loss nan | lr 3.00e-04 | norm nan | 12.3k tok/s | 78% peak | eta 1m05s");
  EXPECT_EQ(FormatEval({.step = 2, .loss = -std::nan(""), .tokens = 3}),
            "eval at step 2 | loss nan | 3 tokens in 0s");
}

TEST(FormatTest, Step) {
  EXPECT_EQ(FormatStep(AtStep(12), 100), kStep12);
  StepMetrics metrics = AtStep(12);
  metrics.peak_share = 0;
  metrics.skipped = true;
  metrics.grad_norm = std::numeric_limits<double>::infinity();
  metrics.tokens_per_second = 2.5e6;
  EXPECT_EQ(FormatStep(metrics, 100),
            "step 12/100 | loss 3.2101 | lr 3.00e-04 | norm inf SKIPPED | 2.50M tok/s | eta 1m05s");
  metrics.tokens_per_second = 999;
  EXPECT_NE(FormatStep(metrics, 100).find("| 999 tok/s"), std::string::npos);
}

TEST(FormatTest, SeveralRanksSendAndWait) {
  StepMetrics metrics = AtStep(12);
  metrics.wire = {{"tp", "all-reduce", 1 << 20}, {"dp", "all-gather", 1 << 20}};
  EXPECT_EQ(
      FormatStep(metrics, 100),
      "step 12/100 | loss 3.2101 | lr 3.00e-04 | norm 0.91 | 12.3k tok/s | 78% peak | 2.00 MiB "
      "wire | eta 1m05s");
  metrics.pipeline_wait_share = 0.091;
  EXPECT_EQ(
      FormatStep(metrics, 100),
      "step 12/100 | loss 3.2101 | lr 3.00e-04 | norm 0.91 | 12.3k tok/s | 78% peak | 2.00 MiB "
      "wire | 9% bubble | eta 1m05s");
}

TEST(FormatTest, Eval) {
  EXPECT_EQ(FormatEval({.step = 20, .loss = 2.5, .tokens = 4096, .seconds = 3.2, .best = true}),
            "eval at step 20 | loss 2.5000 (best) | 4096 tokens in 3s");
}

TEST(FormatTest, Duration) {
  EXPECT_EQ(FormatDuration(0), "0s");
  EXPECT_EQ(FormatDuration(59.4), "59s");
  EXPECT_EQ(FormatDuration(59.6), "1m00s");
  EXPECT_EQ(FormatDuration(3599), "59m59s");
  EXPECT_EQ(FormatDuration(7620), "2h07m");
  EXPECT_EQ(FormatDuration(3 * 86400 + 4 * 3600), "3d04h");
  EXPECT_EQ(FormatDuration(-1), "?");
  EXPECT_EQ(FormatDuration(std::nan("")), "?");
  EXPECT_EQ(FormatDuration(1e300), "?");
}

TEST(ProgressLineTest, TerminalRedrawsOneLineCutToItsWidth) {
  Screen screen;
  {
    ProgressLine progress(OnTerminal(&screen, 30));
    progress.Step(AtStep(12));
    EXPECT_EQ(screen.text(), "\r\x1b[Kstep 12/100 | loss 3.2101 | l");
    progress.Step(AtStep(13));
  }
  EXPECT_EQ(screen.text(),
            "\r\x1b[Kstep 12/100 | loss 3.2101 | l\r\x1b[Kstep 13/100 | loss 3.2101 | l\n");
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
            std::string("before\n\r\x1b[K") + kStep12 + "\r\x1b[Ksaved\n" + kStep12 + "\nafter\n");
}

TEST(ProgressLineTest, ElsewherePlainLinesAtTheInterval) {
  Screen screen;
  ProgressLine::Options options = OnTerminal(&screen, 20);
  options.terminal = false;
  options.total_steps = 25;
  ProgressLine progress(options);
  for (int step = 3; step <= 25; ++step) progress.Step(AtStep(step));
  progress.Eval({.step = 25, .loss = 2.5, .tokens = 10, .seconds = 1});
  progress.Finish();
  const auto line = [](int step) { return FormatStep(AtStep(step), 25) + "\n"; };
  EXPECT_EQ(screen.text(), line(3) + line(10) + line(20) + line(25) +
                               "eval at step 25 | loss 2.5000 | 10 tokens in 1s\n");
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
  EXPECT_EQ(std::string(text), std::string(kStep12) + "\n");
  EXPECT_EQ(std::fgets(text, sizeof(text), file), nullptr);
  std::fclose(file);
}

}  // namespace
}  // namespace tessera
