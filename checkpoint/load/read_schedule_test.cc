#include "checkpoint/load/read_schedule.h"

#include "gtest/gtest.h"

namespace tessera::ckpt {
namespace {

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

}  // namespace
}  // namespace tessera::ckpt
