#ifndef TESSERA_OPERATIONS_EXPORT_H_
#define TESSERA_OPERATIONS_EXPORT_H_

#include <string>

#include "absl/status/statusor.h"
#include "convert/write_foreign.h"
#include "operations/named_checkpoint.h"

namespace tessera::ckpt {

// Writes a checkpoint of any format in the format of another framework, after checking all records
// of the source; see WriteForeign(). The report's notes begin with the notes about the source. An
// error has the notes that may be its reason; see WithNotes().
absl::StatusOr<convert::WriteForeignReport> Export(const NamedCheckpoint& source,
                                                   const std::string& folder,
                                                   const convert::WriteForeignOptions& options);

}  // namespace tessera::ckpt

#endif  // TESSERA_OPERATIONS_EXPORT_H_
