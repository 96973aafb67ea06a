// Each chunk is read once and reaches all ranks that need it.

#include "checkpoint/plan/share_reads.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/testing.h"
#include "gtest/gtest.h"

namespace tessera::ckpt {
namespace {

constexpr uint64_t kChunk = 10;

Manifest Files(int count) {
  Manifest manifest;
  for (int f = 0; f < count; ++f) {
    DataFile& file = *manifest.add_files();
    file.set_size_bytes(100000);
    file.set_chunk_bytes(kChunk);
  }
  return manifest;
}

struct ChunkRange {
  uint64_t begin, end;
};

// Adds ranges of chunks of a file; `region` > 0: of that region only.
void Need(ReadNeeds& needs, uint32_t file_index, const std::vector<ChunkRange>& chunks,
          int region) {
  FileNeeds* file = nullptr;
  for (FileNeeds& f : *needs.mutable_files()) {
    if (f.file_index() == file_index) file = &f;
  }
  if (file == nullptr) {
    file = needs.add_files();
    file->set_file_index(file_index);
  }
  google::protobuf::RepeatedField<uint64_t>* to = file->mutable_range();
  if (region > 0) {
    SparseNeed& sparse = *file->add_sparse();
    sparse.mutable_region()->set_saved_tensor(region);
    to = sparse.mutable_range();
  }
  for (const ChunkRange& r : chunks) {
    to->Add(r.begin * kChunk);
    to->Add(r.end * kChunk);
  }
}

std::vector<ReadShare> Share(int files, const std::vector<ReadNeeds>& needs) {
  std::vector<std::string> bytes;
  for (const ReadNeeds& need : needs) bytes.push_back(need.SerializeAsString());
  const auto answers = OrFail(ShareReads(Files(files), bytes));
  std::vector<ReadShare> shares(needs.size());
  for (size_t r = 0; r < shares.size(); ++r) EXPECT_TRUE(shares[r].ParseFromString(answers[r]));
  return shares;
}

ReadNeeds WithStaging(uint64_t chunks) {
  ReadNeeds needs;
  needs.set_staging_bytes(12 * kChunk * chunks);  // pieces of that many chunks
  return needs;
}

TEST(ShareReadsTest, WhatOneRankNeedsIsItsOwn) {
  std::vector<ReadNeeds> needs(2, WithStaging(1));
  Need(needs[0], 0, {{0, 5}}, 0);
  Need(needs[1], 0, {{5, 9}}, 0);
  for (const ReadShare& share : Share(1, needs)) {
    EXPECT_FALSE(share.any_shared());
    ASSERT_EQ(share.segments_size(), 1);
    EXPECT_EQ(share.segments(0).reader_size(), 0);
  }
}

TEST(ShareReadsTest, WhoHasMoreOfItsOwnReadsLessForOthers) {
  std::vector<ReadNeeds> needs(2, WithStaging(1));
  Need(needs[0], 0, {{0, 6}}, 0);
  Need(needs[0], 1, {{0, 10}}, 0);
  Need(needs[1], 1, {{0, 10}}, 0);
  int reads[2] = {0, 0};
  const std::vector<ReadShare> shares = Share(2, needs);
  for (const ReadSegment& segment : shares[0].segments()) {
    for (const uint32_t reader : segment.reader()) ++reads[reader];
  }
  EXPECT_EQ(reads[0], 2);
  EXPECT_EQ(reads[1], 8);
}

TEST(ShareReadsTest, WhatMakesNoSenseIsRefused) {
  const auto refused = [](const std::string& needs) {
    return !ShareReads(Files(1), std::vector<std::string>{needs}).ok();
  };
  EXPECT_TRUE(refused("\xff"));
  ReadNeeds other_file = WithStaging(1);
  Need(other_file, 1, {{0, 1}}, 0);
  EXPECT_TRUE(refused(other_file.SerializeAsString()));
  ReadNeeds backwards = WithStaging(1);
  Need(backwards, 0, {{2, 1}}, 0);
  EXPECT_TRUE(refused(backwards.SerializeAsString()));
  ReadNeeds odd = WithStaging(1);
  Need(odd, 0, {{0, 1}}, 0);
  odd.mutable_files(0)->add_range(7);
  EXPECT_TRUE(refused(odd.SerializeAsString()));
}

// Compared with a list of the ranks that need each chunk, completely or which regions of it.
TEST(ShareReadsTest, EveryChunkIsReadOnceAndReachesWhoeverNeedsIt) {
  const uint64_t seed = TestSeed();
  std::mt19937_64 random(seed);
  using Chunk = std::pair<uint32_t, uint64_t>;  // file and number
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(absl::StrCat("seed ", seed, " round ", round));
    const int ranks = 1 + static_cast<int>(random() % 6),
              files = 1 + static_cast<int>(random() % 3);
    const uint64_t chunks_per_piece = 1 + random() % 3;
    std::vector<ReadNeeds> needs(ranks, WithStaging(chunks_per_piece));
    std::vector<std::map<Chunk, std::set<int>>> wanted(ranks);  // regions; 0: everything
    for (int r = 0; r < ranks; ++r) {
      for (int n = static_cast<int>(random() % 6); n > 0; --n) {
        const uint32_t file = random() % files;
        const int region = static_cast<int>(random() % 3);
        uint64_t at = random() % 4;
        std::vector<ChunkRange> ranges;
        for (int i = static_cast<int>(random() % 3); i >= 0; --i) {
          const uint64_t end = at + 1 + random() % 9;
          ranges.push_back({at, end});
          for (; at < end; ++at) wanted[r][{file, at}].insert(region);
          at += 1 + random() % 3;
        }
        Need(needs[r], file, ranges, region);
      }
    }
    const std::vector<ReadShare> shares = Share(files, needs);

    std::map<Chunk, uint32_t> reader_of;
    std::vector<std::map<Chunk, std::set<int>>> got(ranks);
    std::vector<uint64_t> load(ranks, 0);
    bool any_shared = false;
    for (int r = 0; r < ranks; ++r) {
      std::map<uint32_t, std::vector<uint32_t>> sets;
      for (const RankSet& set : shares[r].rank_sets()) {
        sets[set.id()] = {set.rank().begin(), set.rank().end()};
      }
      for (const ReadSegment& segment : shares[r].segments()) {
        any_shared |= segment.reader_size() > 0;
        EXPECT_LE(segment.piece_bytes(), kChunk * chunks_per_piece);
        for (uint64_t at = segment.begin(); at < segment.end(); at += kChunk) {
          const Chunk chunk = {segment.file_index(), at / kChunk};
          const uint64_t piece = (at - segment.begin()) / segment.piece_bytes();
          const uint32_t reader =
              segment.reader_size() == 0 ? r : segment.reader(static_cast<int>(piece));
          // All ranks that are assigned a chunk agree on its reader.
          EXPECT_EQ(reader_of.try_emplace(chunk, reader).first->second, reader);
          if (reader == static_cast<uint32_t>(r)) {
            load[r] += kChunk;
            got[r][chunk].insert(0);
            continue;
          }
          for (const Receivers& receivers : segment.receivers()) {
            const std::vector<uint32_t>& set = sets.at(receivers.rank_set());
            if (std::ranges::find(set, static_cast<uint32_t>(r)) == set.end()) continue;
            const int region =
                receivers.has_region() ? static_cast<int>(receivers.region().saved_tensor()) : 0;
            EXPECT_TRUE(got[r][chunk].insert(region).second);
          }
        }
      }
    }
    std::set<Chunk> needed;
    for (int r = 0; r < ranks; ++r) {
      EXPECT_EQ(shares[r].any_shared(), any_shared);
      for (const auto& [chunk, regions] : wanted[r]) {
        needed.insert(chunk);
        const std::set<int>& received = got[r][chunk];
        EXPECT_TRUE(received.contains(0) || received == regions);
      }
      for (const auto& [chunk, regions] : got[r]) EXPECT_TRUE(wanted[r].contains(chunk));
    }
    EXPECT_EQ(reader_of.size(), needed.size());
    if (HasFailure()) return;
  }
}

TEST(ShareReadsTest, WhatARankCannotReadIsReadByOneThatCan) {
  // Rank 0 needs both files and rank 1 the second one; rank 2 alone can read the first one, and
  // ranks 1 and 2 the second one.
  std::vector<ReadNeeds> needs = {WithStaging(4), WithStaging(4), WithStaging(4)};
  Need(needs[0], 0, {{0, 10}}, 0);
  Need(needs[0], 1, {{0, 10}}, 0);
  Need(needs[1], 1, {{0, 20}}, 0);
  std::vector<std::string> bytes;
  for (const ReadNeeds& need : needs) bytes.push_back(need.SerializeAsString());
  const std::vector<RankList> openers = {{2}, {1, 2}};
  ASSERT_OK_AND_ASSIGN(const auto answers, ShareReads(Files(2), bytes, openers));
  std::vector<ReadShare> shares(3);
  for (int r = 0; r < 3; ++r) ASSERT_TRUE(shares[r].ParseFromString(answers[r]));
  const auto readers = [&](int rank, uint32_t file) {
    std::set<uint32_t> all;
    for (const ReadSegment& segment : shares[rank].segments()) {
      if (segment.file_index() == file)
        all.insert(segment.reader().begin(), segment.reader().end());
    }
    return all;
  };
  EXPECT_EQ(readers(0, 0), std::set<uint32_t>{2});
  EXPECT_EQ(readers(2, 0), std::set<uint32_t>{2});
  EXPECT_EQ(readers(0, 1), std::set<uint32_t>{1});  // of those that need it, the one that can
  EXPECT_TRUE(shares[0].any_shared());
  // A file that no rank can read.
  EXPECT_FALSE(ShareReads(Files(2), bytes, std::vector<RankList>{{}, {1}}).ok());
}

}  // namespace
}  // namespace tessera::ckpt
