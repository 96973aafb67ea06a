#include "operations/export.h"

#include "base/status_macros.h"
#include "convert/core/notes.h"
#include "convert/open_foreign.h"

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
  const std::string unread = convert::DescribeUnread(source.format);
  if (!unread.empty()) report->notes.push_back(unread);
  return report;
}

}  // namespace tessera::ckpt
