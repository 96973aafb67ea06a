#include <algorithm>
#include <charconv>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/tools/commands.h"
#include "checkpoint/tools/report.h"

namespace tessera::ckpt {
namespace {

constexpr char kHelp[] = R"(ckpt looks at checkpoints.

  ckpt ls ROOT                 the committed checkpoints in a folder
  ckpt inspect PATH            what a checkpoint holds: state, tensors, files
  ckpt verify PATH             reads every byte and checks checksums, headers and coverage
    --digests                  and the layout-independent digest of every tensor
  ckpt diff PATH PATH          compares two checkpoints, however they are sharded
    --data                     by their values instead of by their digests

PATH is a checkpoint's directory, or a folder of checkpoints: the newest is meant.

  --json                       for machines
  --threads=N                  that read (4)
  --help

Exit codes: 0 all is well; 1 damage or a difference was found; 2 wrong usage, no such
checkpoint, or it cannot be read.
)";

struct Command {
  std::string_view name;
  size_t paths;
  int (*run)(const CommandOptions&, const CommandOutput&);
};

constexpr Command kCommands[] = {
    {"ls", 1, RunLs}, {"inspect", 1, RunInspect}, {"verify", 1, RunVerify}, {"diff", 2, RunDiff}};

// Empty if the flag is known and goes with the command.
std::string ParseFlag(std::string_view command, const std::string& flag, CommandOptions& options) {
  constexpr std::string_view kThreads = "--threads=";
  if (flag == "--json") {
    options.json = true;
  } else if (flag == "--digests" && command == "verify") {
    options.digests = true;
  } else if (flag == "--data" && command == "diff") {
    options.data = true;
  } else if (flag.starts_with(kThreads)) {
    const std::string_view number = std::string_view(flag).substr(kThreads.size());
    const auto [end, error] =
        std::from_chars(number.data(), number.data() + number.size(), options.threads);
    if (error != std::errc() || end != number.data() + number.size() || options.threads < 1 ||
        options.threads > 1024) {
      return flag + ": expected a number from 1 to 1024";
    }
  } else {
    return std::string(command) + " has no flag " + flag;
  }
  return "";
}

}  // namespace

int RunCkpt(const std::vector<std::string>& arguments, const CommandOutput& output) {
  for (const std::string& argument : arguments) {
    if (argument == "--help" || argument == "-h" || argument == "help") {
      output.out << kHelp;
      return kExitOk;
    }
  }
  const auto usage = [&](const std::string& problem) {
    const bool json = std::ranges::find(arguments, "--json") != arguments.end();
    return Fail(output, json, "ckpt", problem + "; see ckpt --help", kExitUsage);
  };
  if (arguments.empty() || arguments[0].starts_with("-")) {
    return usage("a command is missing: ls, inspect, verify or diff comes first");
  }
  const auto command = std::ranges::find(kCommands, arguments[0], &Command::name);
  if (command == std::end(kCommands)) return usage("unknown command \"" + arguments[0] + "\"");
  CommandOptions options;
  for (size_t i = 1; i < arguments.size(); ++i) {
    if (!arguments[i].starts_with("-")) {
      options.paths.push_back(arguments[i]);
      continue;
    }
    const std::string problem = ParseFlag(command->name, arguments[i], options);
    if (!problem.empty()) return usage(problem);
  }
  if (options.paths.size() != command->paths) {
    return usage(arguments[0] + " takes " + (command->paths == 1 ? "one path" : "two paths"));
  }
  return command->run(options, output);
}

}  // namespace tessera::ckpt
