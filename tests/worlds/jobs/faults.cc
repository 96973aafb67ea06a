#include "tests/worlds/jobs/faults.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "tests/worlds/jobs/scheduler.h"

namespace tessera::simulation {
namespace {

constexpr std::array<std::string_view, kFaultKinds> kNames = {
    "",     "slow",   "stalls", "fails",      "reply lost", "twice",
    "late", "denied", "dies",   "dies after", "power goes"};

}  // namespace

std::string_view NameOf(FaultKind kind) { return kNames[static_cast<int>(kind)]; }

Faults& Faults::Get() {
  static auto* const faults = new Faults;
  return *faults;
}

void Faults::Begin(uint64_t seed, const Rates& rates, std::optional<std::set<uint64_t>> only) {
  on_ = true;
  seed_ = seed;
  rates_ = rates;
  only_ = std::move(only);
}

void Faults::Die() {
  Scheduler& scheduler = Scheduler::Get();
  die(scheduler.current().process, Hash(seed_, number_, 2) % 2 == 0);
  scheduler.Yield();  // for ever
}

FaultKind Faults::Next(std::string_view what, FaultSet possible) {
  Scheduler& scheduler = Scheduler::Get();
  const Thread& thread = scheduler.current();
  if (thread.uninterrupted > 0 || thread.process == kWorld) return FaultKind::kNone;
  scheduler.Yield();
  ++calls_;
  const uint64_t number = uint64_t{1'000'000} * thread.process + calls_of_[thread.process]++;
  possible |= Only(FaultKind::kSlow) | Only(FaultKind::kStall) | Only(FaultKind::kDie) |
              Only(FaultKind::kDieAfter) | Only(FaultKind::kPowerLoss);
  int drawn = static_cast<int>(Hash(seed_, number) % 100'000);
  auto kind = FaultKind::kNone;
  for (int i = 1; i < kFaultKinds; ++i) {
    drawn -= rates_[i];
    if (drawn >= 0) continue;
    kind = static_cast<FaultKind>(i);
    break;
  }
  const bool happens =
      on_ && (possible & Only(kind)) != 0 && (!only_.has_value() || only_->contains(number));
  if (!happens || kind == FaultKind::kNone) {
    Journal::Get().Note(what);
    return FaultKind::kNone;
  }
  happened_.insert(number);
  number_ = number;
  Journal::Get().Note(
      absl::StrCat("#", number, " ", std::string(NameOf(kind)), ": ", std::string(what)));
  switch (kind) {
    case FaultKind::kSlow:
      scheduler.Sleep(static_cast<int64_t>(Hash(seed_, number, 1) % 5000) * kMillisecond);
      return FaultKind::kNone;
    case FaultKind::kStall:
      scheduler.Pause(thread.process, static_cast<int64_t>(Hash(seed_, number, 1) % 30) * kMinute);
      scheduler.Yield();
      return FaultKind::kNone;
    case FaultKind::kDie:
      Die();
      break;
    case FaultKind::kPowerLoss:
      lose_power();
      scheduler.Yield();
      break;
    default:
      break;
  }
  return kind;
}

void Faults::After(FaultKind kind) {
  if (kind == FaultKind::kDieAfter) Die();
}

Journal& Journal::Get() {
  static auto* const journal = new Journal;
  return *journal;
}

void Journal::Note(std::string_view text) {
  const Scheduler& scheduler = Scheduler::Get();
  std::string line = absl::StrFormat("%10.3f %s/%d  %s", 1e-9 * scheduler.now_ns(),
                                     scheduler.NameOf(Scheduler::Get().current().process),
                                     Scheduler::Get().current().id, std::string(text));
  for (const std::string& hidden : hidden_) absl::StrReplaceAll({{hidden, ""}}, &line);
  for (const char c : line) hash_ = (hash_ ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  lines_.push_back(std::move(line));
}

void Journal::Finding(std::string_view kind, std::string_view text) {
  std::string finding = absl::StrCat(std::string(kind), ": ", std::string(text));
  Note(absl::StrCat("FINDING ", finding));
  findings_.push_back(std::move(finding));
}

}  // namespace tessera::simulation
