#include "convert/operations/export.h"

#include "base/status_macros.h"
#include "convert/core/notes.h"

namespace tessera::ckpt {

absl::StatusOr<convert::WriteForeignReport> Export(const NamedCheckpoint& source,
                                                   const std::string& folder,
                                                   const convert::WriteForeignOptions& options) {
  TESSERA_RETURN_IF_ERROR(source.opened.status());
  TESSERA_RETURN_IF_ERROR(source.CheckOtherRecords());
  absl::StatusOr<convert::WriteForeignReport> report =
      convert::WriteForeign(*source.opened, folder, options);
  if (!report.ok()) return convert::WithNotes(report.status(), source.notes);
  report->notes.insert(report->notes.begin(), source.notes.begin(), source.notes.end());
  return report;
}

}  // namespace tessera::ckpt
