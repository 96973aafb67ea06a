#ifndef TESSERA_CONVERT_PICKLE_READ_H_
#define TESSERA_CONVERT_PICKLE_READ_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "convert/pickle/value.h"
#include "storage/storage.h"

namespace tessera::ckpt::pickle {

struct ReadOptions {
  // The most objects in one pickle. The metadata of a million shards needs far fewer.
  uint64_t max_nodes = uint64_t{1} << 28;
};

// Reads the pickle that begins at `within.offset` as data. Python's own reader calls whatever a
// pickle names; this reader records the name and the arguments (Kind::kObject), resolves no name
// and executes nothing. The pickle must end within `within`; bytes after it are not read
// (Pickle::end_offset() is where they begin).
//
//   TESSERA_ASSIGN_OR_RETURN(const Pickle pickle, ReadPickle(file, {0, file.size_bytes()}));
//   const std::optional<int64_t> step = pickle.root().Find("step").AsInt();
//
// Reads: protocols 2 to 5, with every kind of object in them, those that refer to themselves too.
// Refuses: the text forms of protocols 0 and 1; objects of the extension registry and out-of-band
// buffers, which mean nothing without the program that wrote them.
// Limits: max_nodes objects. Memory is proportional to the opcodes and texts that are read, below
// 100 bytes per byte; the contents of bytes objects are skipped, not read. Nesting costs no stack.
// A small pickle can refer to one object many times: code that walks over it takes from a Budget
// (value.h).
// Errors: DataLoss with the file offset and the opcode; ResourceExhausted beyond max_nodes; the
// file's own.
// Threads: any number may read pickles at once, of one file too, and use one Pickle, which nothing
// changes once it is read.
absl::StatusOr<Pickle> ReadPickle(const ReadableFile& file, Extent within,
                                  const ReadOptions& options = {});

}  // namespace tessera::ckpt::pickle

#endif  // TESSERA_CONVERT_PICKLE_READ_H_
