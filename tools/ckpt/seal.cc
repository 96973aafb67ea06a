#include <string>

#include "absl/time/time.h"
#include "base/errors.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "base/units.h"
#include "operations/named_checkpoint.h"
#include "operations/sealing.h"
#include "operations/signature.h"
#include "tools/ckpt/commands.h"
#include "tools/ckpt/report.h"

namespace tessera::ckpt {

absl::StatusOr<int> RunSeal(const CommandOptions& options, const CommandOutput& output) {
  // An older seal's digests are not to be taken for what is there now.
  SourceOptions source = options.source;
  source.use_seal = false;
  TESSERA_ASSIGN_OR_RETURN(const auto named, FindCheckpoint(options.paths[0], source));
  if (named.format.empty()) {
    return InvalidArgument(named.Describe(),
                           ": a checkpoint of this library needs no seal, its manifest has ",
                           "checksums and digests: see ckpt verify");
  }
  TESSERA_RETURN_IF_ERROR(named.opened.status());
  TESSERA_ASSIGN_OR_RETURN(
      const auto report,
      convert::WriteSeal(named.foreign_name, *named.opened, *named.foreign,
                         {.overwrite = options.overwrite,
                          .stores = options.source.stores,
                          .io = {.io_threads = options.threads,
                                 .progress = ProgressBar(output.progress).callback()}}));
  if (options.json) {
    PrintJson({{"checkpoint", named.Describe()},
               {"format", named.format},
               {"seal", report.path},
               {"files", report.files},
               {"bytes", report.bytes},
               {"tensors", report.tensors},
               {"removed_signature", report.removed_signature},
               {"notes", named.notes},
               {"seconds", absl::ToDoubleSeconds(report.duration)}},
              output.out);
    return kExitOk;
  }
  output.out << report.path << ": written for " << named.Describe() << " (" << named.format << "), "
             << HumanBytes(report.bytes) << " in " << Counted(report.files, "file")
             << ", digests of " << Counted(report.tensors, "tensor") << ", "
             << HumanSeconds(absl::ToDoubleSeconds(report.duration)) << "\n";
  if (report.removed_signature) {
    output.out << "the signature of the seal that was there is removed: see ckpt sign\n";
  }
  PrintNotes(named.notes, output.out);
  return kExitOk;
}

absl::StatusOr<int> RunSign(const CommandOptions& options, const CommandOutput& output) {
  TESSERA_ASSIGN_OR_RETURN(const auto named, FindCheckpoint(options.paths[0], options.source));
  TESSERA_RETURN_IF_ERROR(named.opened.status());
  if (named.seal.has_value() && !named.seal->seal.ok()) return named.seal->seal.status();
  TESSERA_ASSIGN_OR_RETURN(const auto file, FindSignedFile(named));
  TESSERA_ASSIGN_OR_RETURN(const auto key, Sign(file, options.key, options.overwrite));
  const std::string signature = file.storage->Describe(file.signature_path);
  if (options.json) {
    PrintJson({{"checkpoint", named.Describe()},
               {"signed", file.storage->Describe(file.path)},
               {"signature", signature},
               {"key", key}},
              output.out);
    return kExitOk;
  }
  output.out << signature << ": the signature of " << file.storage->Describe(file.path)
             << ", by the key " << key << "\n";
  return kExitOk;
}

}  // namespace tessera::ckpt
