#ifndef TESSERA_CHECKPOINT_LOAD_SHARED_READER_H_
#define TESSERA_CHECKPOINT_LOAD_SHARED_READER_H_

// Shared reads of ranks that need the same bytes: one of them reads and checks each byte, and sends
// it to the others while it reads on.
//
// Every rank processes its pieces in one global order, (begin, file): it sends the pieces that it
// reads, and receives those that others read. Meanwhile its threads read ahead into free buffers.
//
// This cannot deadlock. Take the first message, in that order, that has not arrived. Its sender has
// sent everything before it, reads without waiting for other ranks, and so comes to send it; its
// receiver has received everything before it, and so comes to receive it.
//
// Ranks of one host do not send contents. The others map the reader's memory, get a message for
// each piece in it, and place the piece from there. Their answer frees its buffer. The contents
// themselves are sent to other hosts, and if memory cannot be mapped.
//
// Answers cannot deadlock, either: a rank's answer at a piece is awaited only at later pieces.
//
// A piece is sent in several messages, each small enough to be still in the receiver's cache when
// it is placed. The first message begins with a mark. A rank that cannot read a piece sets the
// mark, sends messages of the same sizes, and continues to take part. No rank waits in vain, and
// the following agreement reports the error to all ranks.

#include "absl/status/status.h"
#include "checkpoint/include/load_options.h"
#include "checkpoint/include/manifest.pb.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/load/placer.h"
#include "checkpoint/plan/plan.pb.h"
#include "checkpoint/scan/scan.h"

namespace tessera::ckpt {

// Reads, sends and places what a share asks of this rank, with all buffers within
// options.staging_bytes, but at least seven pieces. Opens the files that this rank reads only for
// others. The report gets the bytes read, received and sent, and the size of the buffers.
// Collective; the same status on all ranks. A rank whose exchange has failed abandons the group.
absl::Status ReadTogether(const Manifest& manifest, Scanner& scanner, const Placer& placer,
                          const ReadShare& share, ProcessGroup& group, const LoadOptions& options,
                          LoadReport& report);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_LOAD_SHARED_READER_H_
