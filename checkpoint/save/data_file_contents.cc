#include "checkpoint/save/data_file_contents.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/status_macros.h"
#include "checkpoint/elements/digest_elements.h"
#include "checkpoint/elements/strided.h"
#include "checkpoint/plan/rank_states.h"
#include "checkpoint/plan/save_plan.h"
#include "layout/dtype.h"

namespace tessera::ckpt {

FileContents::Source FileContents::MakeSource(const WriteItem& item, const StateDict& state,
                                              size_t digest_slot) {
  const ShardedTensor& tensor = state.tensors[item.local_tensor()];
  const Shard& shard = tensor.shards[item.local_shard()];
  const Box box = ItemBox(item);
  const size_t element_bytes = ElementSize(DTypeOf(tensor));
  const std::vector<int64_t> origin(tensor.global_shape.size(), 0);
  return {item.file_offset(),
          item.file_offset() + ElementCount(box.shape) * element_bytes,
          element_bytes,
          digest_slot,
          static_cast<const std::byte*>(shard.data),
          BoxRuns(box, box, shard.box.global_offset, ShardStrides(shard)),
          BoxRuns(box, box, origin, ContiguousStrides(tensor.global_shape))};
}

absl::StatusOr<FileContents> FileContents::Make(const StateDict& state, const RankState& local,
                                                const FilePlan& plan, DigestSlots& slots) {
  FileContents file;
  file.index_ = plan.file_index();
  file.path_ = plan.path();
  file.size_bytes_ = plan.size_bytes();
  TESSERA_ASSIGN_OR_RETURN(file.header_, DataFileHeader(local, plan));
  for (const WriteItem& item : plan.items()) {
    const size_t slot = slots.try_emplace(item.manifest_tensor(), slots.size()).first->second;
    file.sources_.push_back(MakeSource(item, state, slot));
  }
  std::ranges::sort(file.sources_, {}, &Source::begin);
  return file;
}

void FileContents::CopyHeader(uint64_t begin, uint64_t end, std::byte* out) const {
  if (begin >= header_.size()) return;
  std::memcpy(out, header_.data() + begin, std::min<uint64_t>(end, header_.size()) - begin);
}

void FileContents::CopySource(const Source& source, int64_t first, int64_t last, std::byte* to) {
  const int64_t size = source.element_bytes;
  source.memory.ForEach(first, last, [&](const BoxRuns::Run& run) {
    const StridedDim dim = {run.count, source.memory.run_stride(), 1};
    CopyStrided({&dim, 1}, size, source.data + run.strided_element * size,
                to + (run.outer_element - first) * size);
  });
}

void FileContents::Copy(uint64_t begin, uint64_t end, std::byte* out) const {
  CopyHeader(begin, end, out);
  ForEachStored(sources_, begin, end, [&](const Source& source, int64_t first, int64_t last) {
    const int64_t size = source.element_bytes;
    CopySource(source, first, last, out + (source.begin + first * size - begin));
  });
}

void FileContents::Digest(uint64_t begin, uint64_t end, const std::byte* bytes,
                          std::vector<LogicalDigest>& digests) const {
  ForEachStored(sources_, begin, end, [&](const Source& source, int64_t first, int64_t last) {
    const int64_t size = source.element_bytes;
    const std::byte* const from = bytes + (source.begin + first * size - begin);
    digests[source.digest_slot] += DigestRuns(source.global, first, last, from, size);
  });
}

void FileContents::CopyAndDigest(uint64_t begin, uint64_t end, std::byte* out,
                                 std::vector<LogicalDigest>& digests,
                                 const std::function<void(std::span<const std::byte>)>& fn) const {
  CopyHeader(begin, end, out);
  if (begin < header_.size()) fn({out, std::min<uint64_t>(end, header_.size()) - begin});
  ForEachStored(sources_, begin, end, [&](const Source& source, int64_t first, int64_t last) {
    const int64_t size = source.element_bytes;
    std::byte* const to = out + (source.begin + first * size - begin);
    const size_t size_bytes = (last - first) * size;
    LogicalDigest& digest = digests[source.digest_slot];
    if (const auto at = source.memory.Contiguous(first, last)) {
      const std::byte* const from = source.data + *at * size;
      digest += CopyAndDigestRuns(source.global, first, last, from, to, size);
      fn({from, size_bytes});
    } else {
      CopySource(source, first, last, to);
      digest += DigestRuns(source.global, first, last, to, size);
      fn({to, size_bytes});
    }
  });
}

void FileContents::ForEachMemory(
    uint64_t begin, uint64_t end,
    const std::function<void(const std::byte*, const std::byte*)>& fn) const {
  ForEachStored(sources_, begin, end, [&](const Source& source, int64_t first, int64_t last) {
    const int64_t size = source.element_bytes;
    int64_t low = std::numeric_limits<int64_t>::max(), high = std::numeric_limits<int64_t>::min();
    source.memory.ForEach(first, last, [&](const BoxRuns::Run& run) {
      const int64_t back = run.strided_element + (run.count - 1) * source.memory.run_stride();
      low = std::min({low, run.strided_element, back});
      high = std::max({high, run.strided_element, back});
    });
    fn(source.data + low * size, source.data + (high + 1) * size);
  });
}

}  // namespace tessera::ckpt
