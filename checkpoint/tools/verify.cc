#include <chrono>
#include <string>

#include "absl/strings/str_format.h"
#include "checkpoint/base/units.h"
#include "checkpoint/engine/checkpoint.h"
#include "checkpoint/tools/commands.h"
#include "checkpoint/tools/report.h"
#include "checkpoint/tools/target.h"
#include "nlohmann/json.hpp"

namespace tessera::ckpt {
namespace {

constexpr int kBarWidth = 40;

// One line that is drawn over and over, at most ten times a second.
class ProgressBar {
 public:
  explicit ProgressBar(std::ostream& stream) : stream_(stream), start_(Clock::now()) {}
  ~ProgressBar() {
    if (drawn_) stream_ << "\r\033[K" << std::flush;
  }

  void Update(uint64_t done, uint64_t total) {
    const Clock::time_point now = Clock::now();
    if (drawn_ && now - last_ < std::chrono::milliseconds(100)) return;
    drawn_ = true;
    last_ = now;
    const double seconds = std::chrono::duration<double>(now - start_).count();
    const double part = total == 0 ? 1 : static_cast<double>(done) / total;
    const int filled = static_cast<int>(part * kBarWidth);
    stream_ << absl::StreamFormat("\r[%s%s] %3.0f%%  %s  %s left \033[K", std::string(filled, '#'),
                                  std::string(kBarWidth - filled, ' '), part * 100,
                                  HumanRate(done, seconds),
                                  HumanSeconds(part > 0 ? seconds / part - seconds : -1))
            << std::flush;
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::ostream& stream_;
  const Clock::time_point start_;
  Clock::time_point last_;
  bool drawn_ = false;
};

void PrintText(const std::string& name, const VerifyReport& report, std::ostream& out) {
  for (const Damage& damage : report.damage) {
    out << damage.file << " at offset " << damage.offset_bytes << ": "
        << (damage.tensor.empty() ? "" : "tensor " + damage.tensor + ": ") << damage.message
        << "\n";
  }
  out << name << ": "
      << (report.damage.empty() ? std::string("good")
                                : "DAMAGED in " + std::to_string(report.damage.size()) + " places")
      << ", " << HumanBytes(report.bytes_read) << " read in " << HumanSeconds(report.seconds)
      << " (" << HumanRate(report.bytes_read, report.seconds) << ")\n";
}

nlohmann::ordered_json ToJson(const std::string& name, const VerifyReport& report) {
  nlohmann::ordered_json json = {{"checkpoint", name},
                                 {"good", report.damage.empty()},
                                 {"bytes_read", report.bytes_read},
                                 {"seconds", report.seconds},
                                 {"damage", nlohmann::ordered_json::array()}};
  for (const Damage& damage : report.damage) {
    json["damage"].push_back({{"file", damage.file},
                              {"offset", damage.offset_bytes},
                              {"tensor", damage.tensor},
                              {"message", damage.message}});
  }
  return json;
}

}  // namespace

int RunVerify(const CommandOptions& options, const CommandOutput& output) {
  const auto fail = [&](const absl::Status& status) {
    return Fail(output, options, "ckpt verify", status);
  };
  const auto target = OpenTarget(options.paths[0]);
  if (!target.ok()) return fail(target.status());
  absl::StatusOr<VerifyReport> report;
  if (output.progress != nullptr) {
    ProgressBar bar(*output.progress);
    report = Verify(*target->storage, target->directory, options.digests, options.threads,
                    [&](uint64_t done, uint64_t total) { bar.Update(done, total); });
  } else {
    report = Verify(*target->storage, target->directory, options.digests, options.threads, nullptr);
  }
  if (!report.ok()) return fail(report.status());
  if (options.json) {
    PrintJson(ToJson(target->Describe(), *report), output.out);
  } else {
    PrintText(target->Describe(), *report, output.out);
  }
  return report->damage.empty() ? kExitOk : kExitDifferent;
}

}  // namespace tessera::ckpt
