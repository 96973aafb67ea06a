#ifndef TESSERA_BASE_BOUNDED_WRITE_H_
#define TESSERA_BASE_BOUNDED_WRITE_H_

#include <chrono>
#include <string_view>

namespace tessera {

// Writes `text` to a file descriptor without ever waiting longer than `limit`: for the last message
// of a process that must end even if its pipe, terminal or socket has no reader. Returns true if
// all of it was written. Does not change the descriptor's own flags, which other processes share.
//
// May be called from any thread; allocates nothing.
bool WriteBounded(int fd, std::string_view text, std::chrono::milliseconds limit);

}  // namespace tessera

#endif  // TESSERA_BASE_BOUNDED_WRITE_H_
