#ifndef TESSERA_CONVERT_PICKLE_READ_H_
#define TESSERA_CONVERT_PICKLE_READ_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "convert/pickle/value.h"
#include "storage/storage.h"

namespace tessera::ckpt::pickle {

struct ReadOptions {
  // The most objects in one pickle. The default suffices many times over for the metadata of a
  // million shards.
  uint64_t max_nodes = uint64_t{1} << 28;
};

// Reads the pickle that begins at `within.offset`, of protocol 2 to 5, as data: nothing is executed
// and no name is resolved. It must end within `within`; bytes after it are left alone
// (Pickle::end_offset() is where they begin).
//
// Memory is proportional to the opcodes and texts that are read, below 100 bytes per byte; the
// contents of bytes objects are skipped, not read. Nesting costs no stack. Refused are objects of
// the extension registry and out-of-band buffers, which mean nothing without the program that wrote
// them, and the text forms of protocols 0 and 1.
//
// Errors: DataLoss with the file offset and the opcode; ResourceExhausted beyond max_nodes; the
// file's own.
absl::StatusOr<Pickle> ReadPickle(const ReadableFile& file, Extent within,
                                  const ReadOptions& options = {});

}  // namespace tessera::ckpt::pickle

#endif  // TESSERA_CONVERT_PICKLE_READ_H_
