#ifndef TESSERA_CHECKPOINT_SAVE_OUTPUT_FILE_H_
#define TESSERA_CHECKPOINT_SAVE_OUTPUT_FILE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/elements/box_runs.h"
#include "checkpoint/format/digest.h"
#include "checkpoint/plan/plan.pb.h"
#include "checkpoint/plan/state_dict.h"

namespace tessera::ckpt {

// Places of logical digests, by index into Manifest.tensors.
using DigestSlots = std::map<uint32_t, size_t>;

// What the bytes of a planned data file are, and where in this process's memory they come from.
// Thread-safe.
class OutputFile {
 public:
  // Tensors without a place in `slots` get one. The memory of `state` is read by Copy() and must
  // stay; its description and the plans may go.
  static absl::StatusOr<OutputFile> Make(const StateDict& state, const LocalPlan& local,
                                         const FilePlan& plan, DigestSlots& slots);

  uint32_t index() const { return index_; }  // into Manifest.files
  const std::string& path() const { return path_; }
  uint64_t size_bytes() const { return size_bytes_; }

  // Bytes [begin, end) of the file, read from the state. Neither end may cut an element: multiples
  // of 8 do not.
  void Copy(uint64_t begin, uint64_t end, std::byte* out) const;

  // Adds the digests of the tensors' elements in bytes [begin, end), which are at `bytes`.
  void Digest(uint64_t begin, uint64_t end, const std::byte* bytes,
              std::vector<LogicalDigest>& digests) const;

  // Both in one pass. fn(bytes) sees the range once more, in stretches of any length, in their
  // order and still in the cache if the range fits it; what is at `out` need not be.
  void CopyAndDigest(uint64_t begin, uint64_t end, std::byte* out,
                     std::vector<LogicalDigest>& digests,
                     const std::function<void(std::span<const std::byte>)>& fn) const;

  // fn(first, last) for stretches of memory that hold everything that Copy() reads for the same
  // range.
  void ForEachMemory(uint64_t begin, uint64_t end,
                     const std::function<void(const std::byte*, const std::byte*)>& fn) const;

 private:
  // One box on its way to bytes [begin, end) of the file.
  struct Source {
    uint64_t begin;
    uint64_t end;
    size_t element_bytes;
    size_t digest_slot;
    const std::byte* data;
    BoxRuns memory;  // file <-> the shard's memory
    BoxRuns global;  // file <-> row-major indices of the logical tensor
  };
  static Source MakeSource(const WriteItem& item, const StateDict& state, size_t digest_slot);
  void CopyHeader(uint64_t begin, uint64_t end, std::byte* out) const;
  static void CopySource(const Source& source, int64_t first, int64_t last, std::byte* to);
  template <typename Function>
  void ForEachSource(uint64_t begin, uint64_t end, Function&& fn) const;

  uint32_t index_ = 0;
  std::string path_;
  uint64_t size_bytes_ = 0;
  std::string header_;
  std::vector<Source> sources_;  // ascending
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_SAVE_OUTPUT_FILE_H_
