#include "checkpoint/load/placer.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "base/mutex.h"
#include "base/no_memory.h"
#include "base/status_macros.h"
#include "checkpoint/directory/file_map.h"
#include "checkpoint/elements/device_copies.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/plan/rank_states.h"
#include "storage/storage.h"

namespace tessera::ckpt {

// The page-locked memory through which a load copies elements to devices, in slots of one size.
// Copies of a slot are started together when it has no more room, and waited for when the slot is
// needed again. So copies overlap with reading, and many small tensors share one start. The
// destructor waits for copies in flight.
class DeviceSlots {
 public:
  // Allocates, from one of the devices, two slots for each thread, or fewer if they hold
  // `total_bytes` of elements. Together they have at most `limit_bytes`, or a page.
  static absl::StatusOr<std::shared_ptr<DeviceSlots>> Create(std::shared_ptr<DeviceMemory> device,
                                                             uint64_t total_bytes,
                                                             uint64_t limit_bytes, int threads) {
    // A start of copies costs as much as copying some hundred KiB.
    constexpr uint64_t kLeastBytes = uint64_t{1} << 20, kMostBytes = uint64_t{16} << 20;
    const uint64_t most = 2 * static_cast<uint64_t>(threads);
    limit_bytes = std::max(RoundDown(limit_bytes, kIoAlignmentBytes), kIoAlignmentBytes);
    const uint64_t wanted =
        std::clamp(std::min(limit_bytes, total_bytes) / most, kLeastBytes, kMostBytes);
    const uint64_t slot_bytes = RoundUp(std::min(wanted, limit_bytes), kIoAlignmentBytes);
    const uint64_t count =
        std::min({most, limit_bytes / slot_bytes, CeilDivide(total_bytes, slot_bytes)});
    TESSERA_ASSIGN_OR_RETURN(PageLockedMemory memory,
                             AllocatePageLocked(std::move(device), count * slot_bytes));
    return std::make_shared<DeviceSlots>(std::move(memory), slot_bytes, count);
  }

  DeviceSlots(PageLockedMemory memory, uint64_t slot_bytes, uint64_t count)
      : slot_bytes_(slot_bytes), memory_(std::move(memory)) {
    for (uint64_t i = 0; i < count; ++i) {
      open_.push_back(&slots_.emplace_back(Slot{memory_.get() + i * slot_bytes}));
    }
  }

  uint64_t slot_bytes() const { return slot_bytes_; }

  // Calls fill(memory, copies), which writes `bytes` bytes, at most slot_bytes(), and adds their
  // copies. Waits for the devices if no slot has room. Thread-safe.
  absl::Status Fill(uint64_t bytes, const std::function<void(std::byte*, DeviceCopies&)>& fill) {
    constexpr uint64_t kAlignmentBytes = 64;
    TESSERA_ASSIGN_OR_RETURN(Slot* const slot, Take(bytes));
    const absl::Status filled = CatchExceptions("copy to a device", [&] {
      fill(slot->memory + slot->used_bytes, slot->copies);
      return absl::OkStatus();
    });
    slot->used_bytes += RoundUp(bytes, kAlignmentBytes);
    const MutexLock lock(&mutex_);
    open_.push_front(slot);
    changed_.NotifyAll();
    return filled;
  }

  // Waits until all copies have ended. Call once all is filled, or the last copies are not made.
  absl::Status Finish() {
    const MutexLock lock(&mutex_);
    while (!open_.empty()) TESSERA_RETURN_IF_ERROR(StartFirst());
    while (!in_flight_.empty()) TESSERA_RETURN_IF_ERROR(AwaitFirst());
    return absl::OkStatus();
  }

 private:
  struct Slot {
    std::byte* memory;
    uint64_t used_bytes = 0;
    DeviceCopies copies = {};
  };

  // Takes a slot that has room, for the calling thread alone. No thread holds a slot while it waits
  // here, so all slots in use are returned.
  absl::StatusOr<Slot*> Take(uint64_t bytes) {
    const MutexLock lock(&mutex_);
    while (true) {
      if (open_.empty() && in_flight_.empty()) {
        changed_.Wait(&mutex_);
      } else if (open_.empty()) {
        TESSERA_RETURN_IF_ERROR(AwaitFirst());
      } else if (open_.front()->used_bytes + bytes > slot_bytes_) {
        TESSERA_RETURN_IF_ERROR(StartFirst());
      } else {
        Slot* const slot = open_.front();
        open_.pop_front();
        return slot;
      }
    }
  }

  // Starts the copies of the first open slot.
  absl::Status StartFirst() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Slot* const slot = open_.front();
    open_.pop_front();
    mutex_.unlock();
    const absl::Status started = CatchExceptions(
        "copy to a device", [&] { return slot->copies.Start(DeviceMemory::Direction::kToDevice); });
    mutex_.lock();
    in_flight_.push_back(slot);
    changed_.NotifyAll();
    return started;
  }

  // Waits for the copies that were started first.
  absl::Status AwaitFirst() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Slot* const slot = in_flight_.front();
    in_flight_.pop_front();
    mutex_.unlock();
    const absl::Status ended =
        CatchExceptions("copy to a device", [&] { return slot->copies.Wait(); });
    mutex_.lock();
    slot->used_bytes = 0;
    open_.push_back(slot);
    changed_.NotifyAll();
    return ended;
  }

  const uint64_t slot_bytes_;
  const PageLockedMemory memory_;
  std::deque<Slot> slots_;
  Mutex mutex_;
  CondVar changed_;
  // Slots that no thread has taken; partly filled ones come first.
  std::deque<Slot*> open_ ABSL_GUARDED_BY(mutex_), in_flight_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<Placer> Placer::Create(const Manifest& manifest, const LoadPlan& plan,
                                      std::span<const Destination> destinations,
                                      const LoadOptions& options) {
  Placer placer;
  placer.manifest_ = &manifest;
  uint64_t total_bytes = 0, device_bytes = 0;
  std::shared_ptr<DeviceMemory> device;
  for (const FileReads& reads : plan.files) {
    std::vector<Target>& targets = placer.targets_[reads.file_index];
    for (const Placement& placement : reads.placements) {
      const LogicalTensor& tensor = manifest.tensors(placement.saved_tensor);
      if (const std::optional<Damage> cut =
              FindCutElements(manifest, reads.file_index, placement.shard_begin, tensor)) {
        return absl::DataLossError(ToString(*cut));
      }
      const Destination& to = destinations[placement.wanted];
      targets.push_back(
          {{placement.shard_begin, placement.shard_end, placement.saved_tensor,
            ElementSize(FromProto(tensor.dtype())),
            BoxRuns(placement.saved_box, placement.region, to.box.global_offset, to.strides)},
           &to,
           &placement});
      const int64_t elements = ElementCount(placement.region.shape);
      total_bytes += elements * targets.back().element_bytes;
      if (to.device == nullptr) continue;
      device_bytes += elements * to.element_bytes;
      device = to.device;
    }
  }
  placer.progress_ = std::make_shared<ByteProgress>(options.progress, total_bytes);
  if (device != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(
        placer.slots_, DeviceSlots::Create(std::move(device), device_bytes, options.staging_bytes,
                                           options.io_threads));
  }
  return placer;
}

// Places elements [first, last) of a shard. source(run, index) returns the address of a run whose
// first element is number `index` of these elements.
template <typename Source>
absl::Status Placer::PlaceTarget(const Target& target, int64_t first, int64_t last,
                                 const Source& source) const {
  const Destination& to = *target.destination;
  if (to.device != nullptr) return PlaceOnDevice(target, first, last, source);
  int64_t index = 0;
  const int64_t stride = target.runs.run_stride();
  absl::Status in_range;
  target.runs.ForEach(first, last, [&](const BoxRuns::Run& run) {
    const std::byte* const from = source(run, index);
    index += run.count;
    if (to.find_overflow != nullptr && in_range.ok()) {
      in_range = CheckRange(target, run.outer_element, run.count, from);
    }
    if (to.digest != nullptr) {
      to.digest->Place(from, to.data, run.strided_element, run.count, stride);
      return;
    }
    to.copy(from, to.data + run.strided_element * static_cast<int64_t>(to.element_bytes), run.count,
            stride);
  });
  progress_->Add(index * target.element_bytes);
  return in_range;
}

absl::Status Placer::CheckRange(const Target& target, int64_t first, int64_t count,
                                const std::byte* elements) const {
  const int64_t beyond = target.destination->find_overflow(elements, count);
  if (beyond < 0) return absl::OkStatus();
  const LogicalTensor& tensor = manifest_->tensors(target.tensor);
  const DType dtype = FromProto(tensor.dtype());
  double value;
  FindCopy(dtype, DType::kF64)(elements + beyond * target.element_bytes,
                               reinterpret_cast<std::byte*>(&value), 1, 1);
  const Box& box = target.placement->saved_box;
  const Box one = FlatRangeToBoxes(box, first + beyond, first + beyond + 1).front();
  return absl::FailedPreconditionError(
      absl::StrCat("tensor ", tensor.name(), ": element ", ShapeToString(one.global_offset), " is ",
                   value, ", which ", ProtoName(target.destination->dtype),
                   " cannot hold; allow_overflow makes such elements infinite (ckpt convert: "
                   "--allow-overflow)"));
}

// Packs the elements in the order of the file. They fill the boxes one after the other.
template <typename Source>
absl::Status Placer::PlaceOnDevice(const Target& target, int64_t first, int64_t last,
                                   const Source& source) const {
  const Destination& to = *target.destination;
  const Placement& placement = *target.placement;
  const auto size = static_cast<int64_t>(to.element_bytes);
  int64_t index = 0;
  absl::Status in_range;
  for (int64_t end; first < last; first = end) {
    end = std::min(last, first + static_cast<int64_t>(slots_->slot_bytes()) / size);
    std::vector<Box> boxes;
    int64_t count = 0;
    for (const Box& part : FlatRangeToBoxes(placement.saved_box, first, end)) {
      std::optional<Box> wanted = Intersect(part, placement.region);
      if (!wanted.has_value()) continue;
      count += ElementCount(wanted->shape);
      boxes.push_back(*std::move(wanted));
    }
    if (boxes.empty()) continue;
    TESSERA_RETURN_IF_ERROR(
        slots_->Fill(count * size, [&](std::byte* memory, DeviceCopies& copies) {
          std::byte* at = memory;
          target.runs.ForEach(first, end, [&](const BoxRuns::Run& run) {
            const std::byte* const from = source(run, index);
            if (to.find_overflow != nullptr && in_range.ok()) {
              in_range = CheckRange(target, run.outer_element, run.count, from);
            }
            to.copy(from, at, run.count, 1);
            index += run.count;
            at += run.count * size;
          });
          at = memory;
          for (const Box& box : boxes) {
            if (to.digest != nullptr) to.digest->Add(box, at);
            at += ElementCount(box.shape) * size;
          }
          copies.Add(to.device.get(), to.handle, to.box.global_offset, std::move(boxes), memory,
                     to.host_dtype);
        }));
  }
  progress_->Add(index * target.element_bytes);
  return in_range;
}

absl::Status Placer::Place(const FilePiece& piece, const std::byte* data) const {
  absl::Status status;
  const auto targets = targets_.find(piece.file_index);
  if (targets == targets_.end()) return status;  // read for other ranks alone
  ForEachStored(
      targets->second, piece.begin, piece.end,
      [&](const Target& target, int64_t first, int64_t last) {
        status.Update(PlaceTarget(target, first, last, [&](const BoxRuns::Run& run, int64_t) {
          return data + (target.begin + run.outer_element * target.element_bytes - piece.begin);
        }));
      });
  return status;
}

absl::Status Placer::PlaceRegion(const FilePiece& piece, const ShardRegion& region,
                                 const std::byte* packed) const {
  absl::Status status;
  const Box box = FromProto(region.box());
  ForEachStored(
      targets_.at(piece.file_index), piece.begin, piece.end,
      [&](const Target& target, int64_t first, int64_t last) {
        const Placement& placement = *target.placement;
        if (placement.saved_tensor != region.saved_tensor() || placement.shard != region.shard() ||
            placement.region != box) {
          return;
        }
        status.Update(PlaceTarget(target, first, last, [&](const BoxRuns::Run&, int64_t index) {
          return packed + index * target.element_bytes;
        }));
      });
  return status;
}

absl::Status Placer::Finish() const {
  return slots_ == nullptr ? absl::OkStatus() : slots_->Finish();
}

ChunkFunction Placer::AsCallback() const {
  return [this](int, const FilePiece& chunk, const std::byte* data) { return Place(chunk, data); };
}

std::vector<FilePiece> RangesOf(const LoadPlan& plan) {
  std::vector<FilePiece> ranges;
  for (const FileReads& reads : plan.files) {
    for (const ByteRange& range : reads.ranges) {
      ranges.push_back({reads.file_index, range.begin, range.end});
    }
  }
  return ranges;
}

std::vector<uint32_t> FilesOf(const LoadPlan& plan) {
  std::vector<uint32_t> files;
  for (const FileReads& reads : plan.files) files.push_back(reads.file_index);
  return files;
}

absl::StatusOr<PackedRegion> PackedRegion::Create(const Manifest& manifest,
                                                  const ShardRegion& region) {
  const auto bad = [] {
    return absl::InvalidArgumentError("a region outside of all saved shards");
  };
  if (region.saved_tensor() >= static_cast<uint32_t>(manifest.tensors_size())) return bad();
  const LogicalTensor& tensor = manifest.tensors(region.saved_tensor());
  if (region.shard() >= ShardCount(tensor)) return bad();
  const Box box = FromProto(region.box());
  const Box saved = ShardBox(tensor, region.shard());
  if (box.empty() || !Contains(saved, box)) return bad();
  const uint64_t begin = tensor.shards().file_offset(region.shard());
  return PackedRegion({begin, begin + ShardBytes(tensor, region.shard()), region.saved_tensor(),
                       ElementSize(FromProto(tensor.dtype())),
                       BoxRuns(saved, box, box.global_offset, ContiguousStrides(box.shape))});
}

uint64_t PackedRegion::BytesIn(const FilePiece& piece) const {
  uint64_t bytes = 0;
  ForEachStored(std::span(&shard_, 1), piece.begin, piece.end,
                [&](const StoredBox& shard, int64_t first, int64_t last) {
                  shard.runs.ForEach(first, last, [&](const BoxRuns::Run& run) {
                    bytes += run.count * shard.element_bytes;
                  });
                });
  return bytes;
}

void PackedRegion::Pack(const FilePiece& piece, const std::byte* data, std::byte* packed) const {
  ForEachStored(std::span(&shard_, 1), piece.begin, piece.end,
                [&](const StoredBox& shard, int64_t first, int64_t last) {
                  shard.runs.ForEach(first, last, [&](const BoxRuns::Run& run) {
                    const int64_t bytes = run.count * shard.element_bytes;
                    const std::byte* const from =
                        data +
                        (shard.begin + run.outer_element * shard.element_bytes - piece.begin);
                    std::memcpy(packed, from, bytes);
                    packed += bytes;
                  });
                });
}

}  // namespace tessera::ckpt
