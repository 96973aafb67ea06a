// The command as a user sees it: exit codes, table, JSON and plot.

#include <sys/wait.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "base/files.h"
#include "base/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "trainer/metrics/event_file.h"
#include "trainer/metrics/metrics.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string ReadFile(const fs::path& path) { return ReadWholeFile(path).value_or(""); }

struct Result {
  int exit_code = 0;
  std::string out, err;
};

class CompareRunsTest : public ::testing::Test {
 protected:
  void SetUp() override { WriteRun("a", 1, 30, 0); }

  // Steps [first, last]; the loss of step 17 is larger by `change`.
  void WriteRun(const std::string& name, int64_t first, int64_t last, double change) const {
    fs::create_directories(root_ / name);
    ASSERT_OK_AND_ASSIGN(
        auto writer, MetricsWriter::Open((root_ / name / "metrics.jsonl").string(), std::nullopt));
    for (int64_t step = first; step <= last; ++step) {
      ASSERT_OK(writer->Write(
          StepMetrics{.step = step,
                      .loss = 4.0 / static_cast<double>(step) + (step == 17 ? change : 0),
                      .lr = 1e-3,
                      .grad_norm = 0.5,
                      .tokens_per_second = 1000}));
    }
  }

  Result Compare(const std::string& arguments) const {
    const std::string command =
        Binary() + " " + arguments + " >" + Path("out") + " 2>" + Path("err");
    const int status = std::system(command.c_str());
    return {WEXITSTATUS(status), ReadFile(root_ / "out"), ReadFile(root_ / "err")};
  }
  Result MustCompare(const std::string& arguments, int exit_code) const {
    const Result result = Compare(arguments);
    EXPECT_EQ(result.exit_code, exit_code) << arguments << ": " << result.out << result.err;
    return result;
  }
  std::string Path(const std::string& name) const { return (root_ / name).string(); }

  const TestFolder folder_;
  const fs::path root_ = folder_.path();

 private:
  static std::string Binary() {
    return std::string(std::getenv("TEST_SRCDIR")) + "/tessera/tools/compare_runs/compare_runs";
  }
};

TEST_F(CompareRunsTest, EqualRunsExitWithZero) {
  WriteRun("b", 1, 30, 0);
  const Result result = MustCompare("--exact " + Path("a") + " " + Path("b/metrics.jsonl"), 0);
  EXPECT_THAT(result.out, HasSubstr("the runs are equal, bit for bit"));
  EXPECT_THAT(result.out, HasSubstr("30 steps (1 to 30)"));
}

TEST_F(CompareRunsTest, ReportsAreOfTheStepsThatAreCompared) {
  fs::create_directories(root_ / "b");
  {
    ASSERT_OK_AND_ASSIGN(auto writer, MetricsWriter::Open(Path("b/metrics.jsonl"), std::nullopt));
    for (int64_t step = 1; step <= 4; ++step) {
      ASSERT_OK(writer->Write(StepMetrics{.step = step,
                                          .loss = step < 3 ? 9 : 4.0 / static_cast<double>(step),
                                          .lr = 1e-3,
                                          .grad_norm = 0.5,
                                          .tokens_per_second = step < 4 ? 1000.0 * step : 1000}));
    }
  }
  const std::string compared = Path("a") + " " + Path("b") + " --first-step=3 --last-step=4 ";
  const Result text = MustCompare(compared + "--svg=" + Path("plot.svg"), 0);
  EXPECT_THAT(text.out, AllOf(HasSubstr("\n       3 "), HasSubstr("\n       4 "),
                              Not(HasSubstr("\n       2 ")), Not(HasSubstr("\n       5 "))));
  const auto json = nlohmann::json::parse(MustCompare(compared + "--json", 0).out);
  EXPECT_EQ(json["steps"].size(), 2);
  EXPECT_EQ(json["steps"][0]["step"], 3);
  // The median of two steps lies between them.
  EXPECT_THAT(MustCompare(compared + "--markdown", 0).out, HasSubstr("| 2.00 | equal"));
}

TEST_F(CompareRunsTest, ADifferenceExitsWithOneAndNamesItsStep) {
  WriteRun("b", 1, 30, 1e-3);
  const Result result = MustCompare(Path("a") + " " + Path("b") + " --rows=4", 1);
  EXPECT_THAT(result.out, HasSubstr("the runs differ first in loss at step 17: 0.235294"));
  // The step of the first difference is shown whatever the number of rows.
  EXPECT_THAT(result.out, HasSubstr("\n      17     0.235294     0.236294   4.2e-03 "));
  EXPECT_THAT(result.out, Not(HasSubstr("\n      16 ")));
  EXPECT_EQ(Compare(Path("a") + " " + Path("b") + " --tolerance=0.01").exit_code, 0);
}

TEST_F(CompareRunsTest, JsonHasEveryStep) {
  WriteRun("b", 1, 30, 1e-3);
  const Result result = MustCompare("--json " + Path("a") + " " + Path("b"), 1);
  const nlohmann::json json = nlohmann::json::parse(result.out, nullptr, false);
  ASSERT_TRUE(json.is_object()) << result.out;
  EXPECT_EQ(json["equal"], false);
  EXPECT_EQ(json["quantities"]["loss"]["first_difference"], 17);
  EXPECT_EQ(json["quantities"]["loss"]["equal_bits"], 29);
  ASSERT_EQ(json["steps"].size(), 30);
  EXPECT_EQ(json["steps"][16]["loss"][0], 4.0 / 17);
  EXPECT_EQ(json["steps"][16]["loss"][1], 4.0 / 17 + 1e-3);
}

TEST_F(CompareRunsTest, PlotsBothRunsAndTheirDifference) {
  WriteRun("b", 1, 30, 1e-3);
  const Result result = MustCompare(Path("a") + " " + Path("b") + " --svg=" + Path("plot.svg"), 1);
  const std::string svg = ReadFile(root_ / "plot.svg");
  EXPECT_THAT(svg, HasSubstr("<svg "));
  EXPECT_THAT(svg, HasSubstr("relative difference"));
  EXPECT_THAT(svg, HasSubstr("tokens/s"));
  size_t curves = 0;
  for (size_t at = 0; (at = svg.find("<polyline", at)) != svg.npos; ++at) ++curves;
  EXPECT_EQ(curves, 10);  // four pairs and two differences
}

TEST_F(CompareRunsTest, SeveralRunsAreComparedWithTheFirst) {
  WriteRun("b", 1, 30, 0);
  WriteRun("c", 1, 30, 1e-3);
  const std::string all = Path("a") + " " + Path("b") + " " + Path("c");
  const Result result = MustCompare("--exact " + all + " --svg=" + Path("plot.svg"), 1);
  EXPECT_THAT(result.out, HasSubstr("the runs are equal, bit for bit"));
  EXPECT_THAT(result.out, HasSubstr("the runs differ first in loss at step 17"));
  const std::string svg = ReadFile(root_ / "plot.svg");
  size_t curves = 0;
  for (size_t at = 0; (at = svg.find("<polyline", at)) != svg.npos; ++at) ++curves;
  EXPECT_EQ(curves, 5);  // three losses and two differences
  EXPECT_EQ(Compare("--exact " + Path("a") + " " + Path("b") + " " + Path("b")).exit_code, 0);
  const nlohmann::json json = nlohmann::json::parse(Compare("--json " + all).out, nullptr, false);
  ASSERT_EQ(json.size(), 2);
  EXPECT_EQ(json[1]["quantities"]["loss"]["first_difference"], 17);
}

TEST_F(CompareRunsTest, MarkdownHasARowPerRun) {
  WriteRun("b", 1, 30, 0);
  WriteRun("c|`d", 1, 30, 1e-3);
  const std::string others = Path("b") + " '" + Path("c|`d") + "'";
  const Result result = MustCompare("--markdown " + Path("a") + " " + others, 1);
  EXPECT_THAT(result.out,
              HasSubstr("/a/metrics.jsonl` | | | | 0.133333 (step 30) | - | | baseline"));
  EXPECT_THAT(result.out,
              HasSubstr("/b/metrics.jsonl` | 30 | - | 0 | 0.133333 (step 30) | - | 1.00 |"
                        " equal, within 1e-05 |\n"));
  EXPECT_THAT(result.out,
              HasSubstr("c&#124;&#96;d&#47;metrics&#46;jsonl</code> | 30 | 17 | 1.0e-03 "
                        "(step 17) | 0.133333 (step 30) | - | 1.00 | **differs** in "
                        "`loss`, not within 1e-05 |\n"));
  WriteRun("e", 1, 20, 0);
  EXPECT_THAT(Compare("--markdown " + Path("a") + " " + Path("e")).out,
              HasSubstr("**differs**, lacks steps 21 to 30 |\n"));
  WriteRun("f", 1, 30, 0);
  for (const char* run : {"a", "f"}) {
    std::ofstream file(root_ / run / "metrics.jsonl", std::ios::app);
    file << R"({"kind":"eval","step":10,"eval_loss":1})"
         << "\n";
    if (*run == 'a')
      file << R"({"kind":"eval","step":20,"eval_loss":1})"
           << "\n";
  }
  EXPECT_THAT(Compare("--markdown " + Path("a") + " " + Path("f")).out,
              HasSubstr("**differs**, lacks evaluations 20 |\n"));
  EXPECT_EQ(Compare("--markdown --json " + Path("a") + " " + Path("b")).exit_code, 2);
}

TEST_F(CompareRunsTest, LogsOfOtherTrainersAreComparedWithRuns) {
  std::ofstream(root_ / "log")
      << "step 10/30 | loss 0.400000 | norm 0.5000 | lr 1.00e-03 | 9 tok/s\n"
         "step 30/30 | loss 0.133333 | norm 0.5000 | lr 1.00e-03 | 9 tok/s\n";
  const std::string both = Path("a") + " " + Path("log");
  const Result result = MustCompare(both + " --tolerance=1e-7", 0);
  EXPECT_THAT(result.out, HasSubstr("2 steps (10 to 30), precision not known, a log of llm.c or"));
  EXPECT_THAT(result.out, HasSubstr("half a unit of the last digit printed: loss at 1 step\n"));
  EXPECT_EQ(Compare(both + " --step-offset=-1").exit_code, 1);
  std::ofstream(root_ / "one") << "step 10/30 | loss 0.400000 | norm 0.5000 | lr 1.00e-03\n";
  EXPECT_THAT(Compare(Path("a") + " " + Path("one")).out, HasSubstr("1 step (10), "));
  EXPECT_EQ(Compare(both + " --exact").exit_code, 1);
  EXPECT_EQ(Compare(both + " --judge=loss,lr --tolerance-fp32=1e-7 --absolute").exit_code, 0);
  for (const char* judge : {"eval_loss", "loss,eval_loss"}) {
    const Result lacking = MustCompare(both + " --judge=" + judge, 2);
    EXPECT_THAT(lacking.out, HasSubstr("they have no common record of a loss, or of what"))
        << judge;
  }
  std::ofstream(root_ / "log") << "step 10/30 | loss nan | lr 1.00e-03\n";
  EXPECT_EQ(Compare(both + " --last-step=10").exit_code, 1);
  EXPECT_EQ(Compare(Path("log") + " " + Path("log")).exit_code, 0);
}

TEST_F(CompareRunsTest, ARunIsEqualToItsEventFile) {
  ASSERT_OK(EventFile::Open(Path("a")));
  const Result result = MustCompare(Path("a") + " " + Path("a/") + kEventFileName, 0);
  for (const char* quantity : {"loss", "grad_norm", "lr", "tokens_per_second"}) {
    EXPECT_THAT(result.out, ::testing::ContainsRegex(std::string("\n") + quantity + " +30 "));
  }
}

TEST_F(CompareRunsTest, RunsWithoutACommonStepExitWithTwo) {
  WriteRun("later", 31, 40, 0);
  const Result result = MustCompare(Path("a") + " " + Path("later"), 2);
  EXPECT_THAT(result.out, HasSubstr("the runs cannot be compared: they have no step in common"));
  EXPECT_EQ(Compare(Path("a") + " " + Path("a") + " " + Path("later") + " --json").exit_code, 2);
}

TEST_F(CompareRunsTest, WrongUseExitsWithTwo) {
  for (const std::string& arguments :
       {Path("a"), Path("a") + " " + Path("nothing"), Path("a") + " " + Path("a") + " --what",
        Path("a") + " " + Path("a") + " --tolerance=much",
        Path("a") + " " + Path("a") + " --tolerance-bf16=-1",
        Path("a") + " " + Path("a") + " --judge=loss,speed",
        Path("a") + " " + Path("a") + " --step-offset=12345678901234567",
        Path("a") + " " + Path("a") + " --exact --tolerance=1",
        Path("a") + " " + Path("a") + " --json=yes", Path("a") + " " + Path("a") + " --svg"}) {
    const Result result = MustCompare(arguments, 2);
    EXPECT_THAT(result.err, HasSubstr("compare_runs: ")) << arguments;
  }
  EXPECT_EQ(Compare("--help").exit_code, 0);
}

}  // namespace
}  // namespace tessera
