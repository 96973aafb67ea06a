#include <algorithm>
#include <charconv>
#include <cstdint>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/errors.h"
#include "base/text.h"
#include "base/version.h"
#include "checkpoint/format/manifest_codec.h"
#include "convert/write_foreign.h"
#include "operations/partition_rules.h"
#include "tools/ckpt/commands.h"
#include "tools/ckpt/report.h"

namespace tessera::ckpt {
namespace {

constexpr char kHelp[] =
    R"(ckpt shows, verifies, compares, signs, reshards and converts checkpoints.

  ckpt ls FOLDER               the committed checkpoints in a folder, or a single one
  ckpt inspect PATH            what a checkpoint holds: state, tensors, files; --html=FILE: a page
  ckpt verify PATH             reads every byte and checks checksums, headers and coverage
  ckpt diff PATH PATH          compares two checkpoints, however they are sharded
  ckpt seal PATH               writes checksums of another framework's checkpoint beside it
  ckpt sign PATH               signs a manifest, or a seal, with a key; ckpt verify --key checks it
  ckpt reshard PATH FOLDER     writes FOLDER/step-N, the same state cut for another topology
  ckpt convert PATH FOLDER     writes the checkpoint in another framework's format, or from one
  ckpt help COMMAND            the flags of a command, as does ckpt COMMAND --help
  ckpt --version

PATH is a checkpoint's directory, or a folder of checkpoints: the newest of a run that had not
diverged is meant. It may be another framework's: a folder in Hugging Face's format (hf), a model
file of llm.c or a folder with them (llmc), a checkpoint of Megatron-Core (megatron), DeepSpeed
(deepspeed), PaddleNLP (paddle), InternEvo (internevo) or InfiniTrain (infinitrain), a file of
torch.save (torch), a folder of torch.distributed.checkpoint (dcp), a file of llama.cpp (gguf), or
other files of safetensors, such as those of diffusers and of adapters (safetensors). A folder may
be in an object store: s3://bucket/prefix or boto3:s3://bucket.endpoint/prefix, with the credentials
of the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_PROFILE, ...).

  --from=FORMAT                the format of PATH, where looking at it does not tell (any command)
  --parameter-to-structured-name=FILE
                               PATH is PaddleNLP's and does not tell which parameter a state of the
                               optimizer belongs to: JSON, {"linear_0.w_0": "llama.layers...", ...},
                               or by ranks, {"tp00_pp01": {...}, ...} (any command)
  --s3-endpoint=URL            of an S3-compatible store, http://host:9000 for example (any command)

Exit codes: 0 all is well; 1 damage, a difference, or no signature that holds was found; 2 wrong
usage, no such checkpoint, or it cannot be read or written.
)";

// Ends the help of each command.
constexpr char kFlagsOfAll[] = R"(
Flags of any command, --from, --parameter-to-structured-name and --s3-endpoint: see ckpt --help
)";

constexpr char kLsHelp[] = R"(ckpt ls FOLDER

Lists the committed checkpoints in a folder, with what their manifests say, or the one checkpoint
that FOLDER itself is. Exit code 1 where a manifest is damaged or cannot be read, 2 for a save that
was never completed.

  --json                       one array, for machines
)";

constexpr char kInspectHelp[] = R"(ckpt inspect PATH

Prints what a checkpoint holds: trainer state, topology, model, optimizer, tensors, files. Reads its
manifest only, without --html.

  --html=FILE                  writes one page for a browser instead, which loads nothing: all of
                               that, and of each tensor norm, mean, extremes, zeros, histogram and
                               the boxes in which the files have it. Reads every byte, and checks
                               it; exit code 1 where anything is damaged
  --diff=PATH                  with --html: compares it on the page with that checkpoint, tensor by
                               tensor; exit code 1 where the state differs, too
  --threads=N                  threads that read (4; --html)
  --json                       one object, for machines
)";

constexpr char kVerifyHelp[] = R"(ckpt verify PATH
ckpt verify FOLDER --all

Reads every byte of a checkpoint and checks checksums, headers and coverage. Where another
framework's checkpoint is sealed (ckpt seal), every file is compared with the seal; otherwise, what
its format allows is proven, and printed. Prints each damaged place with file, offset and tensor;
exit code 1 if there is one. Without --all, only the newest checkpoint in a folder is read.

  --all                        every committed checkpoint in the folder, a line each; the exit code
                               is that of the worst
  --digests                    checks the layout-independent digest of every tensor, too
  --key=PUBLIC.pem             checks first that this Ed25519 key has signed the manifest or the
                               seal (ckpt sign); exit code 1 where it has not, or what it signed
                               has changed
  --threads=N                  threads that read (4)
  --json                       one object, or an array of them with --all
)";

constexpr char kDiffHelp[] = R"(ckpt diff PATH PATH

Compares the state in two checkpoints, however they are sharded, by the digests in their manifests
and seals; tensors without one by their contents. Exit code 1 where it differs. Numbers are equal
if their bits are, and values beside tensors also if both are NaN.

  --data                       by their contents instead of by their digests
  --threads=N                  threads that read (4)
  --json                       one object, for machines
)";

constexpr char kSealHelp[] = R"(ckpt seal PATH

Seals another framework's checkpoint: reads it and writes PATH/tessera.seal, beside a file m.gguf
m.gguf.tessera.seal. The seal has size and checksums of every file, and the digests of the tensors
that a checkpoint of this library would have. The command verify then proves that nothing has
changed, and diff compares by these digests. No other file is touched.

  --overwrite                  replaces the seal that is there
  --threads=N                  threads that read (4)
  --json                       one object, for machines
)";

constexpr char kSignHelp[] = R"(ckpt sign PATH --key=PRIVATE.pem

Signs a checkpoint: writes manifest.sig beside its manifest or, for another framework's, which has
to be sealed (ckpt seal), tessera.seal.sig beside its seal. Retention deletes the signature with the
checkpoint. The command verify checks it with --key=PUBLIC.pem.

  openssl genpkey -algorithm ed25519 -out PRIVATE.pem
  openssl pkey -in PRIVATE.pem -pubout -out PUBLIC.pem

  --key=PRIVATE.pem            an Ed25519 key without a password
  --overwrite                  replaces the signature that is there
  --json                       one object, for machines
)";

constexpr char kReshardHelp[] = R"(ckpt reshard PATH FOLDER --topology=T

Writes FOLDER/step-N: the state of the checkpoint at PATH, cut for another topology.

  --topology=T                 dp4_zero2_tp2_pp2, for example; single: one rank
  --dry-run                    only shows what would be written
  --memory=SIZE                of all buffers (1GiB)
  --split=PATTERN=PART,...     how parameters that PATTERN matches may be cut, where the manifest
                               does not say it, or to overrule it; may be repeated, the last counts.
                               In PATTERN, * is any text and # the number of a layer. PARTs:
                               0, 1, ...: the dim that tensor parallelism cuts; 1/3: that dim in 3
                               equal sections; whole: none; padded: its rows are padded;
                               layer, first, last, both: in layer #, at an end of the model, tied
  --virtual-shards=N           what the run calls exact_tp_shards (tp)
  --threads=N                  threads that read (4)
  --json                       one object, for machines
)";

constexpr char kConvertHelp[] = R"(ckpt convert PATH FOLDER --to=FORMAT

Writes the checkpoint at PATH, of any topology or another framework's, in another format. FOLDER
(of gguf: a file) gets its name when every tensor has been read back and is equal to what was read.

  --to=FORMAT                  hf: a folder in Hugging Face's format: config.json, safetensors
                               llmc: llm.c's model file and optimizer state
                               megatron: a folder that Megatron-Core loads (torch_dist)
                               torch: one file for torch.load(), checkpoint.pt
                               dcp: a folder of torch.distributed.checkpoint
                               paddle: a folder of Paddle's auto parallel (dist.load_state_dict())
                               gguf: one file for llama.cpp and Ollama, not quantised
                               tessera: FOLDER/step-N, for one rank or for --topology
  --dtype=TYPE                 of the weights: f32, bf16 or f16 (as they are saved; not tessera);
                               vectors are f32 in gguf
  --allow-overflow             elements beyond the range of --dtype become infinite; otherwise they
                               are an error
  --weights-only               leaves optimizer state out (hf and gguf never have it)
  --max-file-size=SIZE         of one file (5GB; hf, megatron, dcp, paddle)
  --tokenizer=PATH             the model's, as for prepare_data: writes the files by which
                               transformers finds it (hf), or puts it into the file (gguf)
  --ckpt-step=N                of the checkpoint in the folder PATH, or, where PATH is a single one,
                               the step that it gets, whatever its files tell
  --topology=T                 as for ckpt reshard (tessera)
  --memory=SIZE                of all buffers (128MiB; tessera)
  --threads=N                  threads that read (4)
  --json                       one object, for machines
)";

struct Command {
  std::string_view name;
  size_t paths;
  absl::StatusOr<int> (*run)(const CommandOptions&, const CommandOutput&);
  std::string_view help;
};

constexpr Command kCommands[] = {{"ls", 1, RunLs, kLsHelp},
                                 {"inspect", 1, RunInspect, kInspectHelp},
                                 {"verify", 1, RunVerify, kVerifyHelp},
                                 {"diff", 2, RunDiff, kDiffHelp},
                                 {"seal", 1, RunSeal, kSealHelp},
                                 {"sign", 1, RunSign, kSignHelp},
                                 {"reshard", 2, RunReshard, kReshardHelp},
                                 {"convert", 2, RunConvert, kConvertHelp}};

const Command* FindCommand(std::string_view name) {
  const auto command = std::ranges::find(kCommands, name, &Command::name);
  return command == std::end(kCommands) ? nullptr : &*command;
}

template <typename Number>
std::string ParseNumber(std::string_view text, Number least, Number most, Number& out) {
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < least || number > most) {
    return "expected a number from " + std::to_string(least) + " to " + std::to_string(most);
  }
  out = number;
  return "";
}

// "512MiB", "1G" (a GiB), "5GB" (of 1000 MB), "1073741824".
std::string ParseSize(std::string_view text, uint64_t& out) {
  constexpr uint64_t kKiB = 1024, kKB = 1000;
  constexpr std::pair<std::string_view, uint64_t> kUnits[] = {{"KiB", kKiB},
                                                              {"MiB", kKiB * kKiB},
                                                              {"GiB", kKiB * kKiB * kKiB},
                                                              {"TiB", kKiB * kKiB * kKiB * kKiB},
                                                              {"KB", kKB},
                                                              {"MB", kKB * kKB},
                                                              {"GB", kKB * kKB * kKB},
                                                              {"TB", kKB * kKB * kKB * kKB},
                                                              {"K", kKiB},
                                                              {"M", kKiB * kKiB},
                                                              {"G", kKiB * kKiB * kKiB},
                                                              {"T", kKiB * kKiB * kKiB * kKiB}};
  uint64_t unit_bytes = 1;
  for (const auto& [unit, bytes] : kUnits) {
    if (!text.ends_with(unit)) continue;
    text.remove_suffix(unit.size());
    unit_bytes = bytes;
    break;
  }
  uint64_t number = 0;
  const std::string problem =
      ParseNumber<uint64_t>(text, 1, (uint64_t{1} << 62) / unit_bytes, number);
  if (!problem.empty()) return "expected a size such as 512MiB, 4GiB or 5GB";
  out = number * unit_bytes;
  return "";
}

std::string ParseSplit(std::string_view text, CommandOptions& options) {
  absl::StatusOr<PartitionRule> rule = ParsePartitionRule(text);
  if (!rule.ok()) return std::string(rule.status().message());
  options.reshard.layout.rules.push_back(*std::move(rule));
  return "";
}

std::string ParseDType(std::string_view text, DType& out) {
  for (const auto& [name, dtype] : {std::pair("f32", DType::kF32), std::pair("bf16", DType::kBF16),
                                    std::pair("f16", DType::kF16)}) {
    if (text != name) continue;
    out = dtype;
    return "";
  }
  return "expected f32, bf16 or f16";
}

// A flag of one command, or of all commands if that is empty. It switches something on, or takes a
// value: a text, or what a function parses, which returns a problem or "".
struct Flag {
  using Parse = std::function<std::string(std::string_view value)>;
  std::string_view command;
  std::string_view name;
  std::variant<bool*, std::string*, Parse> target;
  const char* expected = nullptr;  // of a text that may not be empty
};

std::vector<Flag> FlagsOf(CommandOptions& o) {
  using V = std::string_view;
  const Flag::Parse memory = [&](V v) { return ParseSize(v, o.reshard.memory_bytes.emplace()); };
  return {
      {"", "--json", &o.json},
      {"", "--threads", [&](V v) { return ParseNumber(v, 1, 1024, o.threads); }},
      {"", "--s3-endpoint", &o.source.stores.s3_endpoint},
      {"", "--from", &o.source.format},
      {"", "--parameter-to-structured-name", &o.source.parameter_names_file, "a file"},
      {"verify", "--all", &o.all},
      {"verify", "--digests", &o.digests},
      {"verify", "--key", &o.key, "the path of a key"},
      {"diff", "--data", &o.data},
      {"inspect", "--html", &o.html, "a file"},
      {"inspect", "--diff", &o.other, "a checkpoint"},
      {"seal", "--overwrite", &o.overwrite},
      {"sign", "--overwrite", &o.overwrite},
      {"sign", "--key", &o.key, "the path of a key"},
      {"reshard", "--dry-run", &o.reshard.dry_run},
      {"reshard", "--topology", &o.reshard.topology},
      {"reshard", "--memory", memory},
      {"reshard", "--split", [&](V v) { return ParseSplit(v, o); }},
      {"reshard", "--virtual-shards",
       [&](V v) { return ParseNumber(v, 1, 1 << 20, o.reshard.layout.virtual_shards); }},
      {"convert", "--topology", &o.reshard.topology},
      {"convert", "--memory", memory},
      {"convert", "--ckpt-step",
       [&](V v) { return ParseNumber<int64_t>(v, 0, kMaxTrainerCount, o.source.step.emplace()); }},
      {"convert", "--to", &o.convert.format},
      {"convert", "--dtype", [&](V v) { return ParseDType(v, o.convert.dtype); }},
      {"convert", "--allow-overflow", &o.convert.allow_overflow},
      {"convert", "--weights-only", &o.convert.weights_only},
      {"convert", "--tokenizer", &o.convert.tokenizer, "a path"},
      {"convert", "--max-file-size",
       [&](V v) { return ParseSize(v, o.convert.max_file_bytes.emplace()); }},
  };
}

// Sets what the flag is for. Returns a problem, or "".
std::string SetFlag(const Flag& flag, std::string_view value) {
  if (bool* const* on = std::get_if<bool*>(&flag.target)) {
    **on = true;
  } else if (std::string* const* text = std::get_if<std::string*>(&flag.target)) {
    **text = value;
    if (value.empty() && flag.expected != nullptr) return absl::StrCat("expected ", flag.expected);
  } else {
    return std::get<Flag::Parse>(flag.target)(value);
  }
  return "";
}

// Empty if the flag exists and applies to the command.
std::string ParseFlag(std::string_view command, const std::string& text, CommandOptions& options) {
  const size_t equals = text.find('=');
  const std::string_view name = std::string_view(text).substr(0, equals);
  for (const Flag& flag : FlagsOf(options)) {
    if (flag.name != name || (!flag.command.empty() && flag.command != command)) continue;
    const bool takes_value = !std::holds_alternative<bool*>(flag.target);
    if (takes_value != (equals != std::string::npos)) {
      return std::string(name) + (takes_value ? " needs a value" : " takes no value");
    }
    const std::string problem =
        SetFlag(flag, takes_value ? std::string_view(text).substr(equals + 1) : "");
    return problem.empty() ? problem : absl::StrCat(text, ": ", problem);
  }
  return std::string(command) + " has no flag " + text;
}

// Flags of `convert` that depend on the format. Empty if they fit each other.
std::string CompleteConvert(CommandOptions& options) {
  ConvertOptions& convert = options.convert;
  if (convert.format.empty()) return "convert needs --to";
  if (convert.format != "tessera") {
    const absl::Status written = convert::CheckIsWritten(convert.format, ", tessera");
    if (!written.ok()) return absl::StrCat("--to=", convert.format, ": ", written.message());
  }
  const std::vector<std::string> with_tokenizer = convert::FormatsWithTokenizer();
  if (!convert.tokenizer.empty() &&
      std::ranges::find(with_tokenizer, convert.format) == with_tokenizer.end()) {
    return absl::StrCat("--tokenizer is for --to=", absl::StrJoin(with_tokenizer, " and --to="));
  }
  const std::vector<std::string> of_files = {"hf", "megatron", "dcp", "paddle"};
  if (convert.max_file_bytes.has_value() &&
      std::ranges::find(of_files, convert.format) == of_files.end()) {
    return absl::StrCat("--max-file-size is for --to=", absl::StrJoin(of_files, " and --to="));
  }
  if (convert.format != "tessera") {
    if (options.reshard.memory_bytes.has_value()) return "--memory is for --to=tessera";
    return options.reshard.topology.empty() ? "" : "--topology is for --to=tessera";
  }
  if (convert.dtype != DType::kUnspecified) return "--dtype is not for --to=tessera";
  if (convert.allow_overflow) return "--allow-overflow is not for --to=tessera";
  if (convert.weights_only) return "--weights-only is not for --to=tessera";
  if (options.reshard.topology.empty()) options.reshard.topology = "single";
  return "";
}

bool IsHelp(const std::string& argument) {
  return argument == "--help" || argument == "-h" || argument == "help";
}

// Parses the paths and flags of a command. Returns what is wrong with them, or an empty text.
std::string ParseOptions(const Command& command, const std::vector<std::string>& arguments,
                         CommandOptions& options) {
  for (size_t i = 1; i < arguments.size(); ++i) {
    if (!arguments[i].starts_with("-")) {
      options.paths.push_back(arguments[i]);
      continue;
    }
    std::string problem = ParseFlag(command.name, arguments[i], options);
    if (!problem.empty()) return problem;
  }
  if (options.paths.size() != command.paths) {
    return absl::StrCat(View(command.name), " takes ",
                        command.paths == 1 ? "one path" : "two paths");
  }
  if (command.name == "reshard" && options.reshard.topology.empty()) {
    return "reshard needs --topology";
  }
  if (command.name == "sign" && options.key.empty()) return "sign needs --key";
  if (!options.other.empty() && options.html.empty()) {
    return "--diff is for --html; ckpt diff compares two checkpoints";
  }
  return command.name == "convert" ? CompleteConvert(options) : "";
}

// Returns the command that the arguments name; null for the help about all commands.
absl::StatusOr<const Command*> ChooseCommand(const std::vector<std::string>& arguments) {
  if (arguments.size() == 1 && IsHelp(arguments[0])) return nullptr;
  const bool help_first = arguments.size() > 1 && IsHelp(arguments[0]);
  const std::string name = arguments.empty() ? "" : arguments[help_first ? 1 : 0];
  if (name.empty() || name.starts_with("-")) {
    return InvalidArgument(
        "a command is missing: ls, inspect, verify, diff, seal, sign, reshard or convert comes "
        "first");
  }
  const Command* const command = FindCommand(name);
  if (command == nullptr) return InvalidArgument("unknown command \"", name, "\"");
  return command;
}

int Run(const std::vector<std::string>& arguments, const CommandOutput& output) {
  // Reports why a command ends without a result: "ckpt ls: ..." and, with --json, {"error": "..."}.
  const auto report = [&](std::string_view who, absl::string_view problem) {
    const bool json = std::ranges::find(arguments, "--json") != arguments.end();
    output.err << who << ": " << problem << "\n";
    if (json) PrintJson({{"error", std::string(problem)}}, output.out);
  };
  const auto usage = [&](absl::string_view problem, std::string_view command) {
    report("ckpt", absl::StrCat(problem, "; see ckpt ", View(command), "--help"));
    return kExitUsage;
  };
  if (!arguments.empty() && arguments[0] == "--version") {
    output.out << "ckpt " << kVersion << ", checkpoint format " << kFormatMajor << "."
               << kFormatMinor << "\n";
    return kExitOk;
  }
  const absl::StatusOr<const Command*> command = ChooseCommand(arguments);
  if (!command.ok()) return usage(command.status().message(), "");
  if (*command == nullptr || std::ranges::any_of(arguments, IsHelp)) {
    if (*command == nullptr) {
      output.out << kHelp;
    } else {
      output.out << (*command)->help << kFlagsOfAll;
    }
    return kExitOk;
  }
  CommandOptions options;
  const std::string problem = ParseOptions(**command, arguments, options);
  if (!problem.empty()) return usage(problem, absl::StrCat(View((*command)->name), " "));
  const std::string who = absl::StrCat("ckpt ", View((*command)->name));
  options.source.stores.note = [&](const std::string& note) {
    output.err << who << ": " << note << "\n" << std::flush;
  };
  const absl::StatusOr<int> exit_code = (*command)->run(options, output);
  if (exit_code.ok()) return *exit_code;
  report(who, exit_code.status().message());
  return absl::IsDataLoss(exit_code.status()) ? kExitDifferent : kExitUsage;
}

}  // namespace

int RunCkpt(const std::vector<std::string>& arguments, const CommandOutput& output) {
  PrintableStream out(output.out), err(output.err);
  return Run(arguments, {out, err, output.progress});
}

}  // namespace tessera::ckpt
