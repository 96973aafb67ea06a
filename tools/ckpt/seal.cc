#include <string>

#include "absl/strings/str_cat.h"
#include "base/units.h"
#include "convert/sealing.h"
#include "operations/named_checkpoint.h"
#include "operations/signature.h"
#include "tools/ckpt/commands.h"
#include "tools/ckpt/report.h"

namespace tessera::ckpt {

int RunSeal(const CommandOptions& options, const CommandOutput& output) {
  const auto fail = [&](const absl::Status& status) {
    return Fail(output, options, "ckpt seal", status);
  };
  // An older seal's digests are not to be taken for what is there now.
  SourceOptions source = options.source;
  source.use_seal = false;
  const auto named = FindCheckpoint(options.paths[0], source);
  if (!named.ok()) return fail(named.status());
  if (named->format.empty()) {
    return fail(absl::InvalidArgumentError(
        absl::StrCat(named->Describe(),
                     ": a checkpoint of this library needs no seal, its "
                     "manifest has checksums and digests: see ckpt verify")));
  }
  if (!named->opened.ok()) return fail(named->opened.status());
  absl::StatusOr<convert::WriteSealReport> report = absl::UnknownError("");
  {
    ProgressBar bar(output.progress);
    report = convert::WriteSeal(
        named->foreign_name, *named->opened, *named->foreign,
        {.overwrite = options.overwrite,
         .stores = options.source.stores,
         .io_threads = options.threads,
         .progress = [&](uint64_t done, uint64_t total) { bar.Update(done, total); }});
  }
  if (!report.ok()) return fail(report.status());
  if (options.json) {
    PrintJson({{"checkpoint", named->Describe()},
               {"format", named->format},
               {"seal", report->path},
               {"files", report->files},
               {"bytes", report->bytes},
               {"tensors", report->tensors},
               {"removed_signature", report->removed_signature},
               {"notes", named->notes},
               {"seconds", report->seconds}},
              output.out);
    return kExitOk;
  }
  output.out << report->path << ": written for " << named->Describe() << " (" << named->format
             << "), " << HumanBytes(report->bytes) << " in " << report->files
             << (report->files == 1 ? " file" : " files") << ", digests of " << report->tensors
             << " tensors, " << HumanSeconds(report->seconds) << "\n";
  if (report->removed_signature) {
    output.out << "the signature of the seal that was there is removed: see ckpt sign\n";
  }
  PrintNotes(named->notes, output.out);
  return kExitOk;
}

int RunSign(const CommandOptions& options, const CommandOutput& output) {
  const auto fail = [&](const absl::Status& status) {
    return Fail(output, options, "ckpt sign", status);
  };
  const auto named = FindCheckpoint(options.paths[0], options.source);
  if (!named.ok()) return fail(named.status());
  if (!named->opened.ok()) return fail(named->opened.status());
  if (named->seal.has_value() && !named->seal->seal.ok()) return fail(named->seal->seal.status());
  const auto file = FindSignedFile(*named);
  if (!file.ok()) return fail(file.status());
  const auto key = Sign(*file, options.key, options.overwrite);
  if (!key.ok()) return fail(key.status());
  const std::string signature = file->storage->Describe(file->signature_path);
  if (options.json) {
    PrintJson({{"checkpoint", named->Describe()},
               {"signed", file->storage->Describe(file->path)},
               {"signature", signature},
               {"key", *key}},
              output.out);
    return kExitOk;
  }
  output.out << signature << ": the signature of " << file->storage->Describe(file->path)
             << ", by the key " << *key << "\n";
  return kExitOk;
}

}  // namespace tessera::ckpt
