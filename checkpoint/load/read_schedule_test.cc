// All ranks exchange pieces in one order, with buffers that suffice within their limit.

#include "checkpoint/load/read_schedule.h"

#include <initializer_list>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/testing.h"
#include "checkpoint/format/manifest_codec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::ckpt {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

constexpr uint64_t kMiB = uint64_t{1} << 20;

// A schedule of so many pieces of 4 MiB: for others too, for this rank only, and from others.
ReadSchedule MakeSchedule(size_t own, size_t private_pieces, size_t incoming, bool packs) {
  ReadSchedule schedule;
  schedule.own.resize(own);
  schedule.private_pieces.resize(private_pieces);
  schedule.incoming.resize(incoming);
  schedule.largest_own = own > 0 ? 4 * kMiB : 0;
  schedule.largest_private = private_pieces > 0 ? 4 * kMiB : 0;
  schedule.largest_incoming = incoming > 0 ? ReadSchedule::kMessageBytes : 0;
  schedule.packs = packs;
  return schedule;
}

uint64_t BytesOf(const ReadSchedule& schedule, const ReadSchedule::BufferCounts& counts) {
  return counts.own * (schedule.largest_own + ReadSchedule::kReadRoomBytes) +
         counts.private_pieces * schedule.largest_private +
         counts.receive * schedule.receive_bytes() + schedule.pack_bytes();
}

// The buffers stay within the limit, or are the minimum that lets all work proceed.
TEST(ReadScheduleTest, BuffersKeepTheLimitAndServeAllWork) {
  for (const size_t own : {0, 1, 5, 1000}) {
    for (const size_t private_pieces : {0, 1, 1000}) {
      for (const size_t incoming : {0, 2, 1000}) {
        for (const int io_threads : {1, 4, 64}) {
          for (const uint64_t staging_bytes : {uint64_t{0}, 8 * kMiB, 64 * kMiB, 4096 * kMiB}) {
            const ReadSchedule schedule = MakeSchedule(own, private_pieces, incoming, own % 2 == 1);
            const auto counts = schedule.CountBuffers(io_threads, staging_bytes);
            SCOPED_TRACE(testing::Message() << own << " " << private_pieces << " " << incoming
                                            << " " << io_threads << " " << staging_bytes);
            EXPECT_GE(counts.workers, 1);
            EXPECT_LE(counts.workers, io_threads);
            EXPECT_EQ(counts.own > 0, own > 0);
            EXPECT_EQ(counts.private_pieces > 0, private_pieces > 0);
            EXPECT_EQ(counts.receive > 0, incoming > 0);
            EXPECT_LE(counts.own, std::min<size_t>(own, kPiecesPerWorker * counts.workers));
            EXPECT_LE(counts.private_pieces, private_pieces);
            const uint64_t seven = 7 * (4 * kMiB + 2 * kIoAlignmentBytes);
            EXPECT_LE(BytesOf(schedule, counts), std::max(staging_bytes, seven));
          }
        }
      }
    }
  }
}

TEST(ReadScheduleTest, PiecesThatOthersWaitForHaveTheirBuffersFirst) {
  // Room for about 15 pieces: two for each of seven workers, of which each keeps one for itself.
  const auto counts = MakeSchedule(1000, 1000, 0, false).CountBuffers(64, 64 * kMiB);
  EXPECT_EQ(counts.workers, 7);
  EXPECT_EQ(counts.own, 8);
  EXPECT_EQ(counts.private_pieces, 7);
}

std::string CountsOf(const ReadSchedule& schedule, int io_threads, uint64_t staging_bytes) {
  const auto counts = schedule.CountBuffers(io_threads, staging_bytes);
  return absl::StrCat(counts.workers, " ", counts.own, " ", counts.private_pieces, " ",
                      counts.receive);
}

TEST(ReadScheduleTest, CountsOfBuffers) {
  const ReadSchedule all = MakeSchedule(1000, 1000, 1000, /*packs=*/false);
  EXPECT_EQ(CountsOf(all, 64, 64 * kMiB), "7 8 7 3");
  EXPECT_EQ(CountsOf(all, 3, 64 * kMiB), "3 6 6 3");
  EXPECT_EQ(CountsOf(all, 0, 64 * kMiB), "1 2 2 3");
  EXPECT_EQ(CountsOf(all, 64, 0), "1 2 1 1");
  // Three messages arrive ahead if three pieces have buffers besides.
  const uint64_t piece = 4 * kMiB + ReadSchedule::kReadRoomBytes + kIoAlignmentBytes;
  EXPECT_EQ(CountsOf(all, 64, 3 * (piece + all.receive_bytes())), "1 2 1 3");
  EXPECT_EQ(CountsOf(all, 64, 3 * (piece + all.receive_bytes()) - 1), "1 2 1 1");
  EXPECT_EQ(CountsOf(MakeSchedule(1000, 1000, 1000, /*packs=*/true), 64, 64 * kMiB), "7 7 7 3");
  EXPECT_EQ(CountsOf(MakeSchedule(1, 1, 2, /*packs=*/false), 4, 4096 * kMiB), "4 1 1 2");
}

// A tensor of 64 rows of 256 bytes, which file 0 begins with.
Manifest OneMatrix() {
  Manifest manifest;
  LogicalTensor& tensor = *manifest.add_tensors();
  tensor.set_dtype(F32);
  for (int d = 0; d < 2; ++d) tensor.add_global_shape(64);
  AddShard({.global_offset = {0, 0}, .shape = {64, 64}}, 0, 0, tensor);
  return manifest;
}

// Makes the answer of rank 0 to what the ranks need.
struct MadeShare {
  ReadShare message;

  MadeShare() {
    AddSet(5, {0, 1});
    AddSet(9, {1, 2});
  }
  void AddSet(uint32_t id, std::initializer_list<uint32_t> ranks) {
    RankSet& set = *message.add_rank_sets();
    set.set_id(id);
    for (const uint32_t rank : ranks) set.add_rank(rank);
  }
  ReadSegment& Add(uint32_t file, uint64_t begin, uint64_t end, uint64_t piece_bytes,
                   std::initializer_list<uint32_t> readers) {
    ReadSegment& segment = *message.add_segments();
    segment.set_file_index(file);
    segment.set_begin(begin);
    segment.set_end(end);
    segment.set_piece_bytes(piece_bytes);
    for (const uint32_t reader : readers) segment.add_reader(reader);
    return segment;
  }
  static Receivers& AddReceivers(uint32_t rank_set, ReadSegment& segment) {
    Receivers& receivers = *segment.add_receivers();
    receivers.set_rank_set(rank_set);
    return receivers;
  }
  // Receivers of a box of the matrix alone.
  static ShardRegion& AddRegion(uint32_t rank_set, int64_t rows, int64_t columns,
                                ReadSegment& segment) {
    ShardRegion& region = *AddReceivers(rank_set, segment).mutable_region();
    for (int d = 0; d < 2; ++d) region.mutable_box()->add_offset(0);
    region.mutable_box()->add_shape(rows);
    region.mutable_box()->add_shape(columns);
    return region;
  }
};

std::vector<std::string> PiecesOf(const std::vector<FilePiece>& pieces) {
  std::vector<std::string> text;
  for (const FilePiece& piece : pieces) {
    text.push_back(absl::StrCat(piece.file_index, ": ", piece.begin, "-", piece.end));
  }
  return text;
}

// What a rank does, in its order.
std::vector<std::string> StepsOf(const ReadSchedule& schedule) {
  std::vector<std::string> text;
  for (const ReadSchedule::Step& step : schedule.steps) {
    if (step.own) {
      text.push_back("read " + PiecesOf({schedule.own[step.index].piece})[0]);
      continue;
    }
    const ReadSchedule::Incoming& message = schedule.incoming[step.index];
    const bool is_offset = message.carries == ReadSchedule::Carries::kOffset;
    text.push_back(absl::StrCat(is_offset ? "map " : "receive ", PiecesOf({message.piece})[0],
                                " from ", message.source, ", ", message.bytes,
                                message.region != nullptr ? " packed" : "",
                                message.marked ? " marked" : ""));
  }
  return text;
}

TEST(ReadScheduleTest, AllRanksProcessPiecesInOneOrder) {
  const Manifest manifest = OneMatrix();
  MadeShare share;
  share.Add(1, 0, 2500, 1000, {});
  MadeShare::AddReceivers(5, share.Add(0, 0, 8192, 4096, {0, 1}));
  MadeShare::AddReceivers(5, share.Add(2, 0, 3000, 4096, {2}));
  MadeShare::AddReceivers(9, share.Add(3, 0, 100, 4096, {3}));
  ASSERT_OK_AND_ASSIGN(ReadSchedule schedule, ReadSchedule::Create(manifest, share.message, 0));
  EXPECT_THAT(PiecesOf(schedule.private_pieces),
              ElementsAre("1: 0-1000", "1: 1000-2000", "1: 2000-2500"));
  EXPECT_EQ(schedule.largest_private, 1000);
  EXPECT_EQ(schedule.largest_own, 4096);
  EXPECT_EQ(schedule.largest_incoming, 4096);
  EXPECT_FALSE(schedule.packs);
  EXPECT_EQ(schedule.pack_bytes(), 0);
  EXPECT_THAT(StepsOf(schedule),
              ElementsAre("read 0: 0-4096", "receive 2: 0-3000 from 2, 3000 marked",
                          "receive 0: 4096-8192 from 1, 4096 marked"));
  EXPECT_TRUE(schedule.Needs(1));
  EXPECT_TRUE(schedule.Needs(2));
  EXPECT_FALSE(schedule.Needs(3)) << "for others";
  EXPECT_FALSE(schedule.IsMapper(1));

  schedule.SetMappings({1}, [](uint32_t reader) { return reader == 2; });
  EXPECT_THAT(StepsOf(schedule), ElementsAre("read 0: 0-4096", "map 2: 0-3000 from 2, 3000 marked",
                                             "receive 0: 4096-8192 from 1, 4096 marked"));
  EXPECT_TRUE(schedule.IsMapper(1));
  EXPECT_FALSE(schedule.IsMapper(2));
  EXPECT_THAT(schedule.own[0].mapped_by, ElementsAre(Pair(1, 4096)));
  const ReadSchedule::Incoming& answer = schedule.incoming[schedule.own[0].first_answer];
  EXPECT_EQ(answer.carries, ReadSchedule::Carries::kAnswer);
  EXPECT_EQ(answer.source, 1);
  EXPECT_EQ(schedule.incoming.size(), 3);
  schedule.SetMappings({}, [](uint32_t) { return false; });
  EXPECT_THAT(schedule.own[0].mapped_by, IsEmpty());
  EXPECT_EQ(schedule.incoming.size(), 2);
}

TEST(ReadScheduleTest, ALargePieceIsSeveralMessages) {
  const Manifest manifest = OneMatrix();
  MadeShare share;
  MadeShare::AddReceivers(5, share.Add(4, 100, 2 * kMiB, kMiB + 8, {1, 1}));
  ASSERT_OK_AND_ASSIGN(const auto schedule, ReadSchedule::Create(manifest, share.message, 0));
  EXPECT_THAT(StepsOf(schedule), ElementsAre("receive 4: 100-524388 from 1, 524288 marked",
                                             "receive 4: 524388-1048676 from 1, 524288",
                                             "receive 4: 1048676-1048684 from 1, 8",
                                             "receive 4: 1048684-1572972 from 1, 524288 marked",
                                             "receive 4: 1572972-2097152 from 1, 524180"));
  EXPECT_EQ(schedule.receive_bytes(), 524288 + ReadSchedule::kCopyRoomBytes);
  EXPECT_EQ(schedule.largest_own, 0);
}

TEST(ReadScheduleTest, OfAPieceOnlyTheRegionTravels) {
  const Manifest manifest = OneMatrix();
  MadeShare share;
  // The region has 64 bytes of each row, and a piece has 16 rows.
  MadeShare::AddRegion(5, 32, 16, share.Add(0, 0, 12288, 4096, {1, 0, 1}));
  ASSERT_OK_AND_ASSIGN(ReadSchedule schedule, ReadSchedule::Create(manifest, share.message, 0));
  EXPECT_TRUE(schedule.packs);
  EXPECT_EQ(schedule.pack_bytes(), 4096 + ReadSchedule::kReadRoomBytes);
  EXPECT_EQ(schedule.largest_incoming, 1024);
  EXPECT_THAT(StepsOf(schedule),
              ElementsAre("receive 0: 0-4096 from 1, 1024 packed marked", "read 0: 4096-8192"));
  schedule.SetMappings({1, 2}, [](uint32_t) { return true; });
  EXPECT_THAT(StepsOf(schedule),
              ElementsAre("map 0: 0-4096 from 1, 1024 marked", "read 0: 4096-8192"));
  EXPECT_THAT(schedule.own[0].mapped_by, ElementsAre(Pair(1, 1024)));
  ASSERT_OK_AND_ASSIGN(const auto other, ReadSchedule::Create(manifest, share.message, 2));
  EXPECT_FALSE(other.Needs(1));
  EXPECT_THAT(StepsOf(other), IsEmpty());
}

TEST(ReadScheduleTest, AShareThatContradictsItselfIsAnError) {
  const Manifest manifest = OneMatrix();
  const auto error_of = [&](const MadeShare& share) {
    return ReadSchedule::Create(manifest, share.message, 0).status().ToString();
  };
  MadeShare unread;
  MadeShare::AddReceivers(5, unread.Add(0, 0, 8193, 4096, {0, 1}));
  EXPECT_EQ(error_of(unread), "INTERNAL: a piece without a reader");
  MadeShare unknown;
  MadeShare::AddReceivers(6, unknown.Add(0, 0, 4096, 4096, {0}));
  EXPECT_EQ(error_of(unknown), "INTERNAL: an unknown set of ranks");
  for (const int wrong : {0, 1, 2, 3, 4}) {
    MadeShare share;
    ShardRegion& region = MadeShare::AddRegion(5, wrong == 0 ? 65 : 64, wrong == 1 ? 0 : 64,
                                               share.Add(0, 0, 4096, 4096, {0}));
    if (wrong == 2) region.set_saved_tensor(1);
    if (wrong == 3) region.set_shard(1);
    EXPECT_EQ(error_of(share), wrong == 4 ? "OK"
                                          : "INVALID_ARGUMENT: a region outside of all saved "
                                            "shards")
        << wrong;
  }
}

}  // namespace
}  // namespace tessera::ckpt
