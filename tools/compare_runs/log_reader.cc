#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "tools/compare_runs/foreign_runs.h"

namespace tessera {
namespace {

constexpr char kLlmcLog[] = "llm.c's main.log";
constexpr char kLlmcOutput[] = "a log of llm.c or InfiniTrain";
constexpr char kMegatron[] = "a log of Megatron-LM";
constexpr char kTorchtitan[] = "a log of torchtitan";

// Removes the sequences that colour a terminal's text: ESC [ ... m.
std::string WithoutColours(std::string_view line) {
  std::string text;
  while (true) {
    const size_t escape = line.find("\x1b[");
    text += line.substr(0, escape);
    const size_t end = escape == line.npos ? line.npos : line.find('m', escape);
    if (end == line.npos) return text;
    line.remove_prefix(end + 1);
  }
}

// Returns the position of a word; npos if it is not there, or is the end of another one.
size_t FindWord(std::string_view line, std::string_view word) {
  const size_t at = line.find(word);
  const auto is_of_word = [](char c) { return absl::ascii_isalnum(c) || c == '_'; };
  return at != line.npos && at > 0 && is_of_word(line[at - 1]) ? line.npos : at;
}

std::string_view Trimmed(std::string_view text) {
  const size_t start = std::min(text.find_first_not_of(" \t("), text.size());
  text.remove_prefix(start);
  return text.substr(0, text.find_last_not_of(" \t)") + 1);
}

bool Take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

void SkipSpaces(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
}

// Takes an integer, which spaces may precede.
std::optional<int64_t> TakeInteger(std::string_view& text) {
  SkipSpaces(text);
  const std::string_view digits =
      text.substr(0, std::min(text.find_first_not_of("0123456789"), text.size()));
  int64_t value = 0;
  if (!absl::SimpleAtoi(View(digits), &value) || value > kMaxStep) return std::nullopt;
  text.remove_prefix(digits.size());
  return value;
}

// Returns the number at the beginning of `text`, after spaces.
PrintedNumber NumberAtStart(std::string_view text) {
  SkipSpaces(text);
  std::string word(text.substr(0, text.find_first_of(" \t|()%")));
  std::erase(word, ',');  // of thousands
  PrintedNumber number;
  if (word.empty() || !absl::SimpleAtod(word, &number.value)) return {};
  const size_t exponent = std::min(word.find_first_of("eE"), word.size());
  const size_t point = word.find('.');
  int places = point < exponent ? static_cast<int>(exponent - point - 1) : 0;
  int power = 0;
  if (exponent < word.size() && absl::SimpleAtoi(word.substr(exponent + 1), &power)) {
    places -= power;
  }
  number.rounding = std::isfinite(number.value) ? 0.5 * std::pow(10.0, -places) : 0;
  if (!std::isfinite(number.rounding)) number.rounding = 0;
  return number;
}

PrintedNumber NumberAfter(std::string_view line, std::string_view name) {
  const size_t at = line.find(name);
  return at == line.npos ? PrintedNumber{} : NumberAtStart(line.substr(at + name.size()));
}

// Returns the parts of a line that bars separate.
std::vector<std::string_view> Fields(std::string_view line) {
  std::vector<std::string_view> fields;
  while (!line.empty()) {
    const size_t bar = std::min(line.find('|'), line.size());
    fields.push_back(Trimmed(line.substr(0, bar)));
    line.remove_prefix(std::min(bar + 1, line.size()));
  }
  return fields;
}

// Sets the number whose name the field begins with.
void TakeNamed(std::string_view field,
               std::initializer_list<std::pair<std::string_view, PrintedNumber*>> numbers) {
  for (const auto& [name, number] : numbers) {
    if (field.starts_with(name)) *number = NumberAfter(field, name);
  }
}

// s:0 tel:10.9876
// s:0 trl:10.9890 lr:0.000001 norm:8.35
// The steps are counted from 0, so that an evaluation has the number of completed steps.
std::optional<LogLine> ParseLlmcLog(std::string_view line) {
  if (!Take(line, "s:")) return std::nullopt;
  LogLine result{.trainer = kLlmcLog, .step = TakeInteger(line)};
  if (!result.step.has_value()) return std::nullopt;
  if (Take(line, " trl:")) {
    result.step = *result.step + 1;
    result.loss = NumberAtStart(line);
    result.lr = NumberAfter(line, " lr:");
    result.grad_norm = NumberAfter(line, " norm:");
    return result;
  }
  result.is_evaluation = true;
  if (Take(line, " tel:")) {
    result.loss = NumberAtStart(line);
    return result;
  }
  // HellaSwag.
  return line.starts_with(" eval:") ? std::optional(result) : std::nullopt;
}

// step    1/19560 | loss 11.009 (+nanz)| norm 15.37 (+nanz)| lr 1.2e-06 | 2917.00 ms | 180 tok/s
// step    1/10 | train loss 5.356191 | lr 1.00e-04 | (231.71 ms | 1105 tok/s | peak used: ...
// step 0: train loss 5.356082 (took 7392.049000 ms)
// val loss 10.987
std::optional<LogLine> ParseLlmcOutput(std::string_view line) {
  LogLine result{.trainer = kLlmcOutput};
  if (Take(line, "val loss ")) {
    result.is_evaluation = true;
    result.loss = NumberAtStart(line);
    return result;
  }
  const size_t at = FindWord(line, "step ");
  if (at == line.npos) return std::nullopt;
  line.remove_prefix(at + 5);
  result.step = TakeInteger(line);
  if (!result.step.has_value()) return std::nullopt;
  if (Take(line, ": train loss ") && line.find(" (took ") != line.npos) {
    result.step = *result.step + 1;
    result.loss = NumberAtStart(line);
    return result;
  }
  if (!Take(line, "/") || !TakeInteger(line).has_value()) return std::nullopt;
  SkipSpaces(line);
  if (!line.starts_with("|")) return std::nullopt;
  for (const std::string_view field : Fields(line)) {
    if (field.ends_with(" tok/s")) result.tokens_per_second = NumberAtStart(field);
    TakeNamed(field, {{"loss ", &result.loss},
                      {"train loss ", &result.loss},
                      {"norm ", &result.grad_norm},
                      {"lr ", &result.lr}});
  }
  return result;
}

//  [2025-08-01 07:19:37] iteration        1/    5000 | ... | learning rate: 6.976744E-08 | ... |
// lm loss: 1.043863E+01 | loss scale: 1.0 | grad norm: 26.203 | number of nan iterations:   0 |
//  validation loss at iteration 2400 | lm loss value: 9.009587E+00 | lm loss PPL: 8.181144E+03 |
std::optional<LogLine> ParseMegatron(std::string_view line) {
  const size_t at = FindWord(line, "iteration ");
  if (at == line.npos) return std::nullopt;
  LogLine result{.trainer = kMegatron};
  result.is_evaluation = line.substr(0, at).ends_with("validation loss at ");
  line.remove_prefix(at + 10);
  result.step = TakeInteger(line);
  if (!result.step.has_value()) return std::nullopt;
  if (result.is_evaluation) {
    result.is_final = Take(line, " on validation set");
  } else if (!Take(line, "/") || !TakeInteger(line).has_value()) {
    return std::nullopt;
  }
  SkipSpaces(line);
  if (!line.starts_with("|")) return std::nullopt;
  PrintedNumber nans;
  for (const std::string_view field : Fields(line)) {
    TakeNamed(field, {{result.is_evaluation ? "lm loss value:" : "lm loss:", &result.loss},
                      {"grad norm:", &result.grad_norm},
                      {"learning rate:", &result.lr},
                      {"number of nan iterations:", &nans}});
  }
  // It prints no loss that is not a number.
  if (nans.value > 0 && result.loss.rounding == kNotRecorded) result.loss.rounding = 0;
  return result;
}

// step:  1  loss:  8.0277  grad_norm:  1.4604  memory:  1.21GiB(0.86%)  tps: 5,756  tflops: 0.41
// validate step: 10  loss:  7.5482  memory:  1.21GiB(0.86%)  tps: 5,756
std::optional<LogLine> ParseTorchtitan(std::string_view line) {
  const size_t at = FindWord(line, "step:");
  if (at == line.npos) return std::nullopt;
  LogLine result{.trainer = kTorchtitan};
  result.is_evaluation = line.substr(0, at).ends_with("validate ");
  line.remove_prefix(at + 5);
  result.step = TakeInteger(line);
  SkipSpaces(line);
  if (!result.step.has_value() || !Take(line, "loss:")) return std::nullopt;
  result.loss = NumberAtStart(line);
  // What a rank without the last stage of a pipeline prints.
  if (result.loss.value == -1) result.loss = {};
  result.grad_norm = NumberAfter(line, " grad_norm:");
  result.tokens_per_second = NumberAfter(line, " tps:");
  return result;
}

constexpr std::optional<LogLine> (*kParsers[])(std::string_view) = {ParseLlmcLog, ParseLlmcOutput,
                                                                    ParseMegatron, ParseTorchtitan};

// Returns whether the run computes in bf16, if the line tells it: llm.c's table, Megatron's list of
// settings, or the command that started InfiniTrain.
std::optional<bool> ParsePrecision(std::string_view line) {
  if (Take(line, "| precision ")) {
    SkipSpaces(line);
    return Take(line, "|") ? std::optional(Trimmed(line).starts_with("BF16")) : std::nullopt;
  }
  if (line.find("  bf16 ..") != line.npos) return line.ends_with(" True");
  const bool is_bf16 =
      line.find("--dtype bfloat16") != line.npos || line.find("--dtype=bfloat16") != line.npos;
  return is_bf16 ? std::optional(true) : std::nullopt;
}

}  // namespace

bool LogReader::Add(std::string_view text) {
  while (text.ends_with('\r')) text.remove_suffix(1);
  // A progress bar that was overwritten.
  text.remove_prefix(text.rfind('\r') + 1);
  std::string plain;
  if (text.find('\x1b') != text.npos) text = plain = WithoutColours(text);
  for (const auto& parse : kParsers) {
    const std::optional<LogLine> line = parse(text);
    if (!line.has_value()) continue;
    // Many a program prints a validation loss; only the steps tell whose.
    if (trainer_ == nullptr && !line->step.has_value()) {
      evaluation_before_ = line->loss;
      return false;
    }
    if (trainer_ == nullptr) trainer_ = line->trainer;
    if (line->trainer != trainer_) {
      ++others_;
    } else if (line->is_evaluation) {
      return AddEvaluation(*line);
    } else {
      AddStep(*line);
    }
    return true;
  }
  if (trainer_ == nullptr && !run_.bf16.has_value()) run_.bf16 = ParsePrecision(text);
  return false;
}

bool LogReader::AddEvaluation(const LogLine& line) {
  const std::optional<int64_t> step = line.step.has_value() ? line.step : last_step_;
  if (!step.has_value() || line.loss.rounding == kNotRecorded) return true;
  if (line.is_final && run_.evaluation_losses.contains(*step)) return true;
  run_.evaluation_losses[*step] = line.loss.value;
  run_.evaluation_roundings[*step] = line.loss.rounding;
  return true;
}

void LogReader::AddStep(const LogLine& line) {
  if (line.loss.rounding == kNotRecorded) return;
  const StepRecord record{line.loss.value, line.grad_norm.value, line.lr.value,
                          line.tokens_per_second.value};
  const auto [at, is_new] = run_.steps.insert({*line.step, record});
  const bool differs =
      at->second.loss != record.loss && !(std::isnan(at->second.loss) && std::isnan(record.loss));
  if (!is_new && differs && repeated_++ == 0) first_repeated_ = *line.step;
  at->second = record;
  run_.roundings[*line.step] = {line.loss.rounding, line.grad_norm.rounding, line.lr.rounding,
                                line.tokens_per_second.rounding};
  if (!last_step_.has_value() && evaluation_before_.has_value() &&
      evaluation_before_->rounding != kNotRecorded && trainer_ == kLlmcOutput) {
    run_.evaluation_losses[*line.step - 1] = evaluation_before_->value;
    run_.evaluation_roundings[*line.step - 1] = evaluation_before_->rounding;
  }
  last_step_ = *line.step;
}

void LogReader::Finish() {
  if (trainer_ == nullptr) return;
  run_.foreign = trainer_;
  if (repeated_ > 0) {
    run_.Note(absl::StrCat("step ", first_repeated_,
                           repeated_ > 1 ? absl::StrCat(" and ", repeated_ - 1, " more") : "",
                           " recorded again with another loss: the last record is used"));
  }
  if (others_ > 0) {
    run_.Note(absl::StrCat(others_, others_ == 1 ? " line is" : " lines are",
                           " another trainer's and left out: the first one made this ", trainer_));
  }
  if (trainer_ == kMegatron && run_.steps.size() > 1 &&
      run_.steps.rbegin()->first - std::next(run_.steps.rbegin())->first > 1) {
    run_.Note("each loss is the mean of the steps since the line before");
  }
}

}  // namespace tessera
