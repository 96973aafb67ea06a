#ifndef TESSERA_TESTS_WORLDS_JOBS_FAULTS_H_
#define TESSERA_TESTS_WORLDS_JOBS_FAULTS_H_

// Faults drawn from a seed, and the record of everything that happens.

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::simulation {

// The fault of one call of a process.
enum class FaultKind {
  kNone,
  kSlow,       // it takes seconds
  kStall,      // the process stands still for minutes before it
  kError,      // it fails without effect
  kLostReply,  // it has its effect and fails
  kTwice,      // it is done twice, and answered as the second time
  kLate,       // a request: it is given up, or its process dies, and has its effect minutes later
  kDenied,     // a request: it is refused once
  kDie,        // the process dies before it
  kDieAfter,   // the process dies after it
  kPowerLoss,  // the machine loses power before it
};
inline constexpr int kFaultKinds = 11;
std::string_view NameOf(FaultKind kind);

using FaultSet = uint32_t;
constexpr FaultSet Only(FaultKind kind) { return 1u << static_cast<int>(kind); }

class Faults {
 public:
  static Faults& Get();

  // Faults in 100,000 calls of a process, by kind.
  using Rates = std::array<int, kFaultKinds>;
  // Begins to draw faults. `only`, if set, has the numbers of the faults that happen; the others
  // that the seed draws do not.
  void Begin(uint64_t seed, const Rates& rates, std::optional<std::set<uint64_t>> only);
  void SetOff() { on_ = false; }

  // Draws a fault from the kinds that a call can meet. Called before each call to a storage; other
  // threads may run meanwhile. Delays and deaths have happened on return; the caller makes the
  // other kinds happen. Never a fault for the world and for Uninterrupted threads.
  FaultKind Next(std::string_view what, FaultSet possible);
  // Ends the fault; called after the effect of the call.
  void After(FaultKind kind);

  // Ends the calling process, or its job; does not return.
  void Die();

  // Ends the process and, if `all`, its job; and ends all processes of the machine.
  std::function<void(int process, bool all)> die;
  std::function<void()> lose_power;

  int64_t calls() const { return calls_; }
  const std::set<uint64_t>& happened() const { return happened_; }

 private:
  bool on_ = false;
  uint64_t seed_ = 0;
  Rates rates_ = {};
  std::optional<std::set<uint64_t>> only_;
  std::map<int, uint64_t> calls_of_;  // by process
  int64_t calls_ = 0;
  uint64_t number_ = 0;  // of the last call
  std::set<uint64_t> happened_;
};

// A record of everything that happens, with the time and the process; equal for equal seeds.
class Journal {
 public:
  static Journal& Get();
  // Hides a text that differs from run to run, such as a folder's name.
  void Hide(std::string text) { hidden_.push_back(std::move(text)); }
  void Note(std::string_view text);
  // Records a broken promise. `kind` names it in one word.
  void Finding(std::string_view kind, std::string_view text);

  uint64_t hash() const { return hash_; }
  const std::vector<std::string>& lines() const { return lines_; }
  const std::vector<std::string>& findings() const { return findings_; }

 private:
  std::vector<std::string> hidden_;
  uint64_t hash_ = 0;
  std::vector<std::string> lines_;
  std::vector<std::string> findings_;
};

}  // namespace tessera::simulation

#endif  // TESSERA_TESTS_WORLDS_JOBS_FAULTS_H_
