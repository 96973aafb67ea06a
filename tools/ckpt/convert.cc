#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "base/units.h"
#include "convert/write_foreign.h"
#include "layout/dtype.h"
#include "operations/named_checkpoint.h"
#include "tokenizer/files/load_tokenizer.h"
#include "tokenizer/tokenizer.h"
#include "tools/ckpt/commands.h"
#include "tools/ckpt/report.h"

namespace tessera::ckpt {
namespace {

absl::StatusOr<convert::WriteForeignReport> Convert(const CommandOptions& options,
                                                    const NamedCheckpoint& source,
                                                    const CommandOutput& output) {
  const std::string& tokenizer_path = options.convert.tokenizer;
  std::unique_ptr<Tokenizer> tokenizer;
  if (!tokenizer_path.empty()) {
    TESSERA_ASSIGN_OR_RETURN(tokenizer, LoadTokenizer(tokenizer_path));
  }
  return Export(source, options.paths[1],
                {.format = options.convert.format,
                 .plan = {.dtype = options.convert.dtype,
                          .weights_only = options.convert.weights_only,
                          .max_file_bytes = options.convert.max_file_bytes.value_or(
                              convert::PlanOptions().max_file_bytes),
                          .state = source.foreign_state(),
                          .tokenizer = tokenizer.get(),
                          .tokenizer_path = tokenizer_path},
                 .stores = options.source.stores,
                 .io = {.io_threads = options.threads,
                        .allow_overflow = options.convert.allow_overflow,
                        .progress = ProgressBar(output.progress).callback()}});
}

std::vector<std::string> NotesOf(const convert::WriteForeignReport& report) {
  std::vector<std::string> notes = report.notes;
  for (const std::string& path : report.removed) {
    notes.push_back(path + " is removed: it was left by a conversion that was killed");
  }
  return notes;
}

void PrintConversion(const CommandOptions& options, const NamedCheckpoint& source,
                     const convert::WriteForeignReport& report, std::ostream& out) {
  out << options.paths[1] << ": written in the format " << options.convert.format << ", "
      << HumanBytes(report.bytes) << " in " << Counted(report.files.size(), "file") << ", "
      << HumanSeconds(absl::ToDoubleSeconds(report.duration)) << "\n"
      << (report.tensors == 1
              ? "its tensor, read back, is that of "
              : absl::StrCat("all ", report.tensors, " tensors, read back, are those of "))
      << source.Describe()
      << (options.convert.dtype == DType::kUnspecified
              ? ", to the last bit"
              : absl::StrCat(", rounded to ", View(DTypeName(options.convert.dtype)),
                             " where they have another dtype"));
  if (report.digests_compared > 0) {
    out << "; " << report.digests_compared << " match the digests there, too";
  }
  out << "\n";
  PrintNotes(NotesOf(report), out);
}

}  // namespace

absl::StatusOr<int> RunConvert(const CommandOptions& options, const CommandOutput& output) {
  if (options.convert.format == "tessera") return RunReshard(options, output);
  TESSERA_ASSIGN_OR_RETURN(const auto source, FindCheckpoint(options.paths[0], options.source));
  TESSERA_ASSIGN_OR_RETURN(const auto report, Convert(options, source, output));
  if (options.json) {
    PrintJson({{"source", source.Describe()},
               {"folder", options.paths[1]},
               {"format", options.convert.format},
               {"bytes", report.bytes},
               {"files", report.files},
               {"tensors", report.tensors},
               {"digests_compared", report.digests_compared},
               {"notes", NotesOf(report)},
               {"seconds", absl::ToDoubleSeconds(report.duration)}},
              output.out);
  } else {
    PrintConversion(options, source, report, output.out);
  }
  return kExitOk;
}

}  // namespace tessera::ckpt
