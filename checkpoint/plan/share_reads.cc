#include "checkpoint/plan/share_reads.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <memory_resource>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/format/pieces.h"
#include "checkpoint/plan/least_loaded.h"
#include "checkpoint/plan/rank_states.h"

namespace tessera::ckpt {
namespace {

// The number of pieces that a rank holds at a time.
constexpr uint64_t kPiecesPerStaging = 12;

constexpr uint32_t kEverything = 0;  // as the index of a region

// Bytes [begin, end) of a file that one rank needs, completely or a region of them.
struct Need {
  uint64_t begin;
  uint64_t end;
  uint32_t region;
  uint32_t rank;
  auto operator<=>(const Need&) const = default;  // NOLINT(modernize-use-nullptr): a false alarm
};

// The same bytes for all ranks that need them.
struct SharedNeed {
  uint64_t begin;
  uint64_t end;
  uint32_t region;
  uint32_t rank_set;
};

// Combines the needs of all ranks, AddRank(), and assigns each byte range to one of its readers.
class ReadAssigner {
 public:
  ReadAssigner(const Manifest& manifest, size_t ranks, std::span<const RankList> openers)
      : manifest_(manifest),
        openers_(openers),
        last_private_(ranks, std::numeric_limits<size_t>::max()),
        load_(ranks),
        answers_(ranks),
        sets_to_send_(ranks) {
    regions_.emplace_back();
  }

  absl::Status AddRank(uint32_t rank, const std::string& bytes) {
    const auto bad = [&] {
      return absl::InternalError(absl::StrCat("rank ", rank, " sent needs that make no sense"));
    };
    ReadNeeds needs;
    if (!needs.ParseFromString(bytes)) return bad();
    staging_bytes_ = std::min(staging_bytes_, needs.staging_bytes());
    for (const FileNeeds& file : needs.files()) {
      if (file.file_index() >= static_cast<uint32_t>(manifest_.files_size())) return bad();
      if (!openers_.empty() && openers_[file.file_index()].empty()) {
        return absl::InternalError(
            absl::StrCat("no rank can read ", manifest_.files(file.file_index()).path()));
      }
      const auto add = [&](const auto& range, uint32_t region) {
        for (int i = 0; i + 1 < range.size(); i += 2) {
          if (range[i] >= range[i + 1]) return false;
          needs_[file.file_index()].push_back({range[i], range[i + 1], region, rank});
        }
        return range.size() % 2 == 0;
      };
      if (!add(file.range(), kEverything)) return bad();
      for (const SparseNeed& sparse : file.sparse()) {
        if (!add(sparse.range(), InternRegion(sparse.region()))) return bad();
      }
    }
    return absl::OkStatus();
  }

  std::vector<std::string> Finish() && {
    for (auto& [file, needs] : needs_) CutIntoSegments(file, MergeNeeds(needs));
    AssignReaders();
    for (const auto& [rank, segment] : private_) answers_[rank] += AsField(segment);
    for (const Shared& shared : shared_) {
      const std::string bytes = AsField(shared.segment);
      for (const uint32_t rank : Union(rank_sets_.sets[shared.all_receivers], shared.readers)) {
        for (const Receivers& receivers : shared.segment.receivers()) {
          sets_to_send_[rank].push_back(receivers.rank_set());
        }
        answers_[rank] += bytes;
      }
    }
    for (uint32_t rank = 0; rank < answers_.size(); ++rank) SendRankSets(rank);
    ReadShare common;
    common.set_any_shared(!shared_.empty());
    for (std::string& answer : answers_) answer += common.SerializeAsString();
    return std::move(answers_);
  }

 private:
  struct Shared {
    ReadSegment segment;
    uint32_t all_receivers;  // the set of all receivers
    RankList readers = {};   // those that read some of it and receive nothing; ascending
  };

  uint32_t InternRegion(const ShardRegion& region) {
    const auto [at, is_new] =
        region_ids_.try_emplace(region.SerializeAsString(), static_cast<uint32_t>(regions_.size()));
    if (is_new) regions_.push_back(region);
    return at->second;
  }

  std::vector<SharedNeed> MergeNeeds(std::vector<Need>& needs) {
    std::ranges::sort(needs);
    std::vector<SharedNeed> joint;
    for (size_t i = 0; i < needs.size();) {
      const Need& first = needs[i];
      std::vector<uint32_t> ranks;
      for (; i < needs.size() && needs[i].begin == first.begin && needs[i].end == first.end &&
             needs[i].region == first.region;
           ++i) {
        if (ranks.empty() || ranks.back() != needs[i].rank) ranks.push_back(needs[i].rank);
      }
      joint.push_back({first.begin, first.end, first.region, rank_sets_.Add(std::move(ranks))});
    }
    return joint;
  }

  // Cuts at every end of a need, so that the same ranks need all of a segment.
  void CutIntoSegments(uint32_t file, const std::vector<SharedNeed>& needs) {
    std::vector<uint64_t> ends;
    for (const SharedNeed& need : needs) {
      ends.push_back(need.begin);
      ends.push_back(need.end);
    }
    std::ranges::sort(ends);
    ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
    std::vector<SharedNeed> active;
    size_t next = 0;
    for (size_t i = 0; i + 1 < ends.size(); ++i) {
      std::erase_if(active, [&](const SharedNeed& need) { return need.end <= ends[i]; });
      for (; next < needs.size() && needs[next].begin == ends[i]; ++next) {
        active.push_back(needs[next]);
      }
      if (!active.empty()) AddSegment(file, ends[i], ends[i + 1], active);
    }
  }

  std::vector<uint32_t> Union(const std::vector<uint32_t>& a, const std::vector<uint32_t>& b) {
    std::vector<uint32_t> both;
    std::ranges::set_union(a, b, std::back_inserter(both));
    return both;
  }

  void AddSegment(uint32_t file, uint64_t begin, uint64_t end,
                  const std::vector<SharedNeed>& active) {
    std::map<uint32_t, std::vector<uint32_t>> by_region;
    std::vector<uint32_t> all_receivers;
    for (const SharedNeed& need : active) {
      std::vector<uint32_t>& ranks = by_region[need.region];
      ranks = Union(ranks, rank_sets_.sets[need.rank_set]);
      all_receivers = Union(all_receivers, rank_sets_.sets[need.rank_set]);
    }
    ReadSegment segment;
    segment.set_file_index(file);
    segment.set_begin(begin);
    segment.set_end(end);
    segment.set_piece_bytes(PieceBytes(file));
    const bool can_read =
        openers_.empty() || std::ranges::binary_search(openers_[file], all_receivers[0]);
    if (all_receivers.size() == 1 && can_read) {
      AddPrivate(all_receivers[0], segment);
      return;
    }
    const std::vector<uint32_t> whole = by_region[kEverything];
    for (const auto& [region, ranks] : by_region) {
      std::vector<uint32_t> rest;
      if (region == kEverything) {
        rest = ranks;
      } else {
        // A rank that receives everything needs no region of it.
        std::ranges::set_difference(ranks, whole, std::back_inserter(rest));
      }
      if (rest.empty()) continue;
      Receivers& receivers = *segment.add_receivers();
      if (region != kEverything) *receivers.mutable_region() = regions_[region];
      receivers.set_rank_set(rank_sets_.Add(std::move(rest)));
    }
    shared_.push_back({std::move(segment), rank_sets_.Add(std::move(all_receivers)), {}});
  }

  // Returns the ranks that may read what this set receives: its members that can open the file, or
  // all ranks that can if no member can.
  uint32_t ReadersFor(uint32_t file, uint32_t receivers) {
    if (openers_.empty()) return receivers;
    RankList able;
    std::ranges::set_intersection(rank_sets_.sets[receivers], openers_[file],
                                  std::back_inserter(able));
    return rank_sets_.Add(able.empty() ? openers_[file] : std::move(able));
  }

  void AddPrivate(uint32_t rank, const ReadSegment& segment) {
    load_[rank] += segment.end() - segment.begin();
    size_t& at = last_private_[rank];
    if (at < private_.size()) {
      ReadSegment& last = private_[at].second;
      if (last.file_index() == segment.file_index() && last.end() == segment.begin()) {
        last.set_end(segment.end());
        return;
      }
    }
    at = private_.size();
    private_.push_back({rank, segment});
  }

  uint64_t PieceBytes(uint32_t file) const {
    const uint64_t chunk_bytes = manifest_.files(file).chunk_bytes();
    const uint64_t wanted = std::min(kPieceBytes, staging_bytes_ / kPiecesPerStaging);
    return std::max<uint64_t>(wanted / chunk_bytes, 1) * chunk_bytes;
  }

  void AssignReaders() {
    using Key = std::tuple<uint64_t, uint32_t, size_t>;  // begin, file, segment
    std::vector<Key> pieces;
    for (size_t s = 0; s < shared_.size(); ++s) {
      const ReadSegment& segment = shared_[s].segment;
      for (uint64_t at = segment.begin(); at < segment.end(); at += segment.piece_bytes()) {
        pieces.push_back({at, segment.file_index(), s});
      }
    }
    std::ranges::sort(pieces);
    std::unordered_map<uint32_t, LeastLoaded> queues;
    for (const auto& [begin, file, s] : pieces) {
      ReadSegment& segment = shared_[s].segment;
      const uint64_t bytes = std::min(segment.piece_bytes(), segment.end() - begin);
      const uint32_t set = ReadersFor(file, shared_[s].all_receivers);
      LeastLoaded& queue = queues.try_emplace(set, rank_sets_.sets[set], load_).first->second;
      const uint32_t reader = queue.Take(bytes, load_);
      segment.add_reader(reader);
      if (!openers_.empty()) shared_[s].readers = Union(shared_[s].readers, {reader});
    }
  }

  static std::string AsField(const ReadSegment& segment) {
    ReadShare share;
    *share.add_segments() = segment;
    return share.SerializeAsString();
  }

  void SendRankSets(uint32_t rank) {
    std::vector<uint32_t>& sets = sets_to_send_[rank];
    std::ranges::sort(sets);
    sets.erase(std::unique(sets.begin(), sets.end()), sets.end());
    ReadShare share;
    for (const uint32_t set : sets) {
      RankSet& reply = *share.add_rank_sets();
      reply.set_id(set);
      reply.mutable_rank()->Add(rank_sets_.sets[set].begin(), rank_sets_.sets[set].end());
    }
    answers_[rank] += share.SerializeAsString();
  }

  const Manifest& manifest_;
  const std::span<const RankList> openers_;
  uint64_t staging_bytes_ = std::numeric_limits<uint64_t>::max();
  std::map<uint32_t, std::vector<Need>> needs_;  // by file
  std::vector<ShardRegion> regions_;
  std::pmr::monotonic_buffer_resource nodes_;  // of the table
  std::pmr::unordered_map<std::string, uint32_t> region_ids_{&nodes_};
  RankSets rank_sets_;
  std::vector<std::pair<uint32_t, ReadSegment>> private_;  // rank and segment
  std::vector<size_t> last_private_;                       // by rank
  std::vector<Shared> shared_;
  std::vector<uint64_t> load_;                       // bytes to read, by rank
  std::vector<std::string> answers_;                 // serialized parts of a ReadShare, by rank
  std::vector<std::vector<uint32_t>> sets_to_send_;  // by rank
};

}  // namespace

absl::StatusOr<std::vector<std::string>> ShareReads(const Manifest& manifest,
                                                    std::span<const std::string> needs,
                                                    std::span<const RankList> openers) {
  ReadAssigner assigner(manifest, needs.size(), openers);
  for (uint32_t rank = 0; rank < needs.size(); ++rank) {
    TESSERA_RETURN_IF_ERROR(assigner.AddRank(rank, needs[rank]));
  }
  return std::move(assigner).Finish();
}

}  // namespace tessera::ckpt
