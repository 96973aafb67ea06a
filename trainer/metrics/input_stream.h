#ifndef TESSERA_TRAINER_METRICS_INPUT_STREAM_H_
#define TESSERA_TRAINER_METRICS_INPUT_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "base/scoped_fd.h"

namespace tessera {

// A file of any size. Only a part of it is in memory at a time.
class InputStream {
 public:
  // Opens a file. `may_be_pipe`: the user named the path, which may be <(zcat run.gz). A pipe to
  // which nobody writes is empty.
  explicit InputStream(const std::string& path, bool may_be_pipe = false);

  // Returns the reason why the file cannot be read, or not to its end.
  const absl::Status& status() const { return status_; }
  // Returns the next bytes, fewer only at the end of the file, without consuming them.
  std::string_view Peek(size_t bytes);
  // Skips the next bytes; returns whether the file has that many.
  bool Skip(uint64_t bytes);
  // Appends the next bytes; returns whether the file has that many.
  bool Read(uint64_t bytes, std::string& data);
  // Reads the next line, cut after kMaxLineBytes; returns false at the end. `complete` is whether a
  // line break ended the line.
  bool ReadLine(std::string& line, bool& complete);

  static constexpr size_t kMaxLineBytes = size_t{1} << 20;

 private:
  bool Fill();

  const std::string path_;
  ScopedFd fd_;
  absl::Status status_;
  std::string buffer_;
  size_t at_ = 0;  // in buffer_: what is before is read
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_METRICS_INPUT_STREAM_H_
