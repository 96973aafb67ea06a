#include <algorithm>
#include <bit>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/byte_order.h"
#include "base/text.h"
#include "tools/compare_runs/foreign_runs.h"

namespace tessera {
namespace {

using tensorboard::Event;

// A larger record is skipped: it holds a graph or a video.
constexpr uint64_t kMaxRecordBytes = uint64_t{1} << 26;
constexpr size_t kMaxTags = 1000;

enum Quantity { kNone, kLoss, kGradNorm, kLr, kTokensPerSecond, kEvaluation };

// Tags of known writers: Tessera, torchtitan, Megatron-DeepSpeed, Megatron-LM, Hugging Face and
// Lightning. An earlier one wins over a later one, and over all other tags.
constexpr std::pair<Quantity, std::string_view> kKnownTags[] = {
    {kLoss, "train/loss"},
    {kLoss, "loss_metrics/global_avg_loss"},
    {kLoss, "lm-loss-training/lm loss"},
    {kLoss, "lm loss"},
    {kLoss, "train_loss"},
    {kLoss, "loss/train"},
    {kLoss, "loss"},
    {kGradNorm, "train/grad_norm"},
    {kGradNorm, "grad_norm"},
    {kGradNorm, "grad-norm/grad-norm"},
    {kGradNorm, "grad-norm"},
    {kLr, "train/lr"},
    {kLr, "train/learning_rate"},
    {kLr, "learning-rate/learning-rate"},
    {kLr, "learning-rate"},
    {kLr, "lr"},
    {kTokensPerSecond, "train/tokens_per_second"},
    {kTokensPerSecond, "throughput(tps)"},
    {kEvaluation, "validation/loss"},
    {kEvaluation, "validation_metrics/loss"},
    {kEvaluation, "lm-loss-validation/lm loss validation"},
    {kEvaluation, "lm loss validation"},
    {kEvaluation, "eval/loss"},
    {kEvaluation, "val_loss"},
    {kEvaluation, "loss/val"},
};
constexpr int kUnknownRank = std::size(kKnownTags);

// Returns the words of a tag: "lm", "loss", "training" of "lm-loss-training/lm loss".
std::set<std::string> WordsOf(std::string_view tag) {
  std::set<std::string> words;
  std::string word;
  for (const char c : tag) {
    if (absl::ascii_isalnum(c)) {
      word += absl::ascii_tolower(c);
    } else if (!word.empty()) {
      words.insert(std::exchange(word, ""));
    }
  }
  if (!word.empty()) words.insert(word);
  return words;
}

bool HasAny(const std::set<std::string>& words, std::initializer_list<const char*> some) {
  return std::any_of(some.begin(), some.end(), [&](const char* word) { return words.count(word); });
}

// Returns the quantity that a tag names, and the quality of the match: 0 is best.
std::pair<Quantity, int> QuantityOf(std::string_view tag) {
  const std::string lower = absl::AsciiStrToLower(View(tag));
  for (int rank = 0; rank < kUnknownRank; ++rank) {
    if (kKnownTags[rank].second == lower) return {kKnownTags[rank].first, rank};
  }
  const std::set<std::string> words = WordsOf(tag);
  // Megatron draws each number over the samples, too.
  if (HasAny(words, {"vs"})) return {kNone, kUnknownRank};
  const bool is_evaluation =
      HasAny(words, {"eval", "evaluation", "val", "valid", "validation", "test"});
  Quantity quantity = kNone;
  if (words.count("loss") && !HasAny(words, {"scale", "max", "min", "std", "ppl", "perplexity",
                                             "aux", "z", "kl", "mtp", "balancing", "epoch"})) {
    quantity = is_evaluation ? kEvaluation : kLoss;
  } else if (is_evaluation) {
    quantity = kNone;
  } else if (words.count("norm") && HasAny(words, {"grad", "gradient", "gradients"})) {
    quantity = kGradNorm;
  } else if (words.count("lr") || (words.count("learning") && words.count("rate"))) {
    quantity = kLr;
  } else if (words.count("tps") || (words.count("tokens") && HasAny(words, {"sec", "second"}))) {
    quantity = kTokensPerSecond;
  }
  return {quantity, kUnknownRank};
}

// Returns the value of a scalar in either of the forms that TensorBoard reads.
std::optional<double> ScalarOf(const tensorboard::Summary::Value& value) {
  if (value.has_simple_value()) return value.simple_value();
  if (!value.has_tensor()) return std::nullopt;
  const tensorboard::Tensor& tensor = value.tensor();
  for (const auto& dim : tensor.tensor_shape().dim()) {
    if (dim.size() != 1) return std::nullopt;
  }
  const std::string& content = tensor.tensor_content();
  if (tensor.dtype() == 1) {
    if (tensor.float_val_size() == 1) return tensor.float_val(0);
    if (content.size() == sizeof(float))
      return std::bit_cast<float>(LoadLittleEndian<uint32_t>(content.data()));
  } else if (tensor.dtype() == 2) {
    if (tensor.double_val_size() == 1) return tensor.double_val(0);
    if (content.size() == sizeof(double))
      return std::bit_cast<double>(LoadLittleEndian<uint64_t>(content.data()));
  }
  return std::nullopt;
}

}  // namespace

bool EventReader::IsEventFile(InputStream& file) {
  return EventRecordBytes(file.Peek(kEventHeaderBytes)).has_value();
}

void EventReader::Read(InputStream& file, const std::string& name) {
  uint64_t at = 0, large = 0;
  std::string record;
  while (!file.Peek(1).empty()) {
    const std::string_view header = file.Peek(kEventHeaderBytes);
    const bool is_whole = header.size() == kEventHeaderBytes;
    const std::optional<uint64_t> bytes = EventRecordBytes(header);
    record.clear();
    if (is_whole && !bytes.has_value()) {
      run_.Note(absl::StrCat(name, " is damaged at byte ", at, ": what follows is not read"));
      return;
    }
    const bool is_large = is_whole && *bytes > kMaxRecordBytes;
    if (!is_whole || !(is_large ? file.Skip(*bytes) : file.Read(*bytes, record))) {
      run_.Note(absl::StrCat("the last record of ", name, " is incomplete and left out"));
      return;
    }
    const std::optional<Event> event = is_large ? std::nullopt : ParseEventRecord(record);
    if (event.has_value()) Add(*event);
    if (is_large && large++ == 0) {
      run_.Note(absl::StrCat("records of more than ", kMaxRecordBytes >> 20, " MiB in ", name,
                             " are not read"));
    } else if (!is_large && !event.has_value()) {
      run_.Note(absl::StrCat("the record at byte ", at, " of ", name,
                             " is damaged (its checksum is wrong) and left out"));
    }
    at += *bytes;
  }
}

void EventReader::Add(const Event& event) {
  if (event.session_log().status() == 1) {
    for (auto& [quantity, tags] : series_) {
      for (auto& [tag, series] : tags) {
        series.values.erase(series.values.lower_bound(event.step()), series.values.end());
      }
    }
  }
  for (const tensorboard::Summary::Value& value : event.summary().value()) {
    const std::optional<double> scalar = ScalarOf(value);
    if (!scalar.has_value() || event.step() > kMaxStep || event.step() < -kMaxStep) continue;
    const auto [quantity, rank] = QuantityOf(value.tag());
    if (tags_.size() < kMaxTags) tags_[value.tag()] = quantity;
    if (quantity == kNone) continue;
    Series& series = series_[quantity][value.tag()];
    series.rank = rank;
    series.values[event.step()] = *scalar;
  }
}

const EventReader::Series* EventReader::Choose(int quantity, const char* what) {
  const Series* best = nullptr;
  std::vector<std::string> names;
  for (const auto& [tag, series] : series_[quantity]) {
    if (series.values.empty() || (best != nullptr && series.rank > best->rank)) continue;
    if (best == nullptr || series.rank < best->rank) names.clear();
    best = &series;
    names.push_back(absl::StrCat("\"", tag, "\""));
  }
  if (names.size() > 1) {
    run_.Note(absl::StrCat("several tags may be its ", what,
                           ", and none is taken: ", JoinFirst(names, ", ")));
    return nullptr;
  }
  if (best != nullptr && best->rank == kUnknownRank) {
    run_.Note(absl::StrCat("its ", what, " is taken to be ", names[0]));
  }
  return best;
}

absl::Status EventReader::Finish() {
  run_.foreign = "event files of TensorBoard";
  const Series* loss = Choose(kLoss, "training loss");
  const Series* evaluation = Choose(kEvaluation, "evaluation loss");
  if (loss == nullptr && evaluation == nullptr) {
    std::vector<std::string> names;
    for (const auto& [tag, quantity] : tags_) names.push_back(absl::StrCat("\"", tag, "\""));
    return absl::InvalidArgumentError(absl::StrCat(
        run_.path,
        " holds no record of a step: looked for a scalar like \"train/loss\", \"lm loss\", ",
        "\"loss_metrics/global_avg_loss\" or \"loss\", found ",
        names.empty() ? "no scalars" : JoinFirst(names, ", ")));
  }
  const auto add = [this](const Series* series, double StepRecord::*number) {
    if (series == nullptr) return;
    constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
    for (const auto& [step, value] : series->values) {
      run_.steps.try_emplace(step, StepRecord{kNan, kNan, kNan, kNan}).first->second.*number =
          value;
      run_.roundings
              .try_emplace(step, StepRecord{kNotRecorded, kNotRecorded, kNotRecorded, kNotRecorded})
              .first->second.*
          number = 0;
    }
  };
  add(loss, &StepRecord::loss);
  add(Choose(kGradNorm, "gradient norm"), &StepRecord::grad_norm);
  add(Choose(kLr, "learning rate"), &StepRecord::lr);
  add(Choose(kTokensPerSecond, "tokens/s"), &StepRecord::tokens_per_second);
  if (evaluation != nullptr) {
    run_.evaluation_losses = evaluation->values;
    for (const auto& [step, value] : evaluation->values) run_.evaluation_roundings[step] = 0;
  }
  return absl::OkStatus();
}

}  // namespace tessera
