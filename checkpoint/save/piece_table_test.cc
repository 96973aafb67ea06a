// What the threads of a save do next, driven by one thread.

#include "checkpoint/save/piece_table.h"

#include <array>
#include <random>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::ckpt {
namespace {

using Do = PieceTable::Do;
using Task = PieceTable::Task;
using Worker = PieceTable::Worker;
using std::chrono::seconds;

constexpr size_t kStride = 8;

std::string ToString(const Task& task) {
  constexpr const char* kNames[] = {"copy",       "checksum",       "finish copy",
                                    "write copy", "write in place", "finish",
                                    "rest",       "wait",           "released"};
  const bool has_piece = task.what <= Do::kFinishWrite;
  return absl::StrCat(kNames[static_cast<int>(task.what)],
                      has_piece ? absl::StrCat(" ", task.piece) : "");
}

class PieceTableTest : public testing::Test {
 protected:
  // Pieces of which those in place are 'i', those of a device 'd' and others 'c'; buffers that have
  // been touched, and new ones.
  void Make(const std::string& pieces, size_t present, size_t untouched,
            PieceTable::Options options = {.io_threads = 4, .copy_threads = 2}) {
    std::vector<bool> in_place, on_device;
    for (const char piece : pieces) {
      in_place.push_back(piece == 'i');
      on_device.push_back(piece == 'd');
    }
    table_ = PieceTable(
        std::move(in_place),
        StagingBuffers(std::span(memory_).first((present + untouched) * kStride), kStride, present),
        options, on_device);
  }

  Task Take(Worker& worker) { return table_.Take(worker, now_); }
  Task Help(PieceTable::Waiter& waiter) { return table_.TakeAsWaiter(waiter); }
  void End(const Task& task, Worker* worker, const PieceTable::Result& result = {}) {
    table_.End(task, worker, result, now_);
    if (task.what == Do::kFinishWrite) table_.Settle();
  }
  // One task of a worker, from its beginning to its end.
  std::string Step(Worker& worker) {
    const Task task = Take(worker);
    End(task, &worker);
    return ToString(task);
  }
  std::string Steps(Worker& worker, int count) {
    std::vector<std::string> steps;
    for (int i = 0; i < count; ++i) steps.push_back(Step(worker));
    return absl::StrJoin(steps, ", ");
  }
  PieceTable::Waiter Arrive(std::vector<size_t> pieces) {
    PieceTable::Waiter waiter = {.pieces = std::move(pieces)};
    table_.Arrive(waiter);
    return waiter;
  }

  std::array<std::byte, 100 * kStride> memory_;
  PieceTable table_;
  PieceTable::Clock::time_point now_{seconds(1000)};
};

TEST_F(PieceTableTest, OneThreadCopiesAndWrites) {
  Make("ccc", 2, 0);
  Worker worker;
  EXPECT_EQ(Steps(worker, 9),
            "copy 0, copy 1, write copy 0, finish 0, copy 2, write copy 1, finish 1, "
            "write copy 2, finish 2");
  EXPECT_TRUE(table_.over() && table_.all_released());
}

TEST_F(PieceTableTest, APieceInPlaceIsCheckedWhileItIsWritten) {
  Make("ii", 2, 0);
  Worker worker;
  EXPECT_EQ(Steps(worker, 6),
            "write in place 0, checksum 0, finish 0, write in place 1, checksum 1, finish 1");
  EXPECT_TRUE(table_.over() && table_.all_released());
}

TEST_F(PieceTableTest, StartsCopiesOfADeviceAsFarAsThereIsMemoryAndFinishesThemInOrder) {
  Make("ddd", 2, 0);
  Worker worker;
  EXPECT_EQ(Steps(worker, 4), "copy 0, copy 1, finish copy 0, write copy 0");
  EXPECT_EQ(Steps(worker, 2), "finish copy 1, finish 0") << "checksums while the disk writes";
  EXPECT_FALSE(table_.all_released());
  EXPECT_EQ(Step(worker), "copy 2");
  EXPECT_TRUE(table_.all_released()) << "when the last copy is started";
  EXPECT_FALSE(table_.over());
  EXPECT_EQ(Steps(worker, 5), "write copy 1, finish copy 2, finish 1, write copy 2, finish 2");
  EXPECT_TRUE(table_.over());
}

TEST_F(PieceTableTest, AWaitingThreadStartsCopiesOfADeviceAndFinishesNone) {
  Make("dddd", 3, 0);
  PieceTable::Waiter waiter = Arrive({1, 2});
  for (const char* const expected : {"copy 1", "copy 2"}) {
    const Task copy = Help(waiter);
    EXPECT_EQ(ToString(copy), expected);
    End(copy, nullptr);
  }
  EXPECT_EQ(ToString(Help(waiter)), "released") << "neither is finished";
  table_.Leave();
  PieceTable::Waiter other = Arrive({0, 3});
  End(Help(other), nullptr);
  EXPECT_EQ(ToString(Help(other)), "wait") << "for a buffer, although there are copies to finish";
  Worker worker;
  EXPECT_EQ(Steps(worker, 5),
            "finish copy 1, write copy 1, finish copy 2, finish copy 0, finish 1");
  EXPECT_EQ(ToString(Help(other)), "copy 3");
}

TEST_F(PieceTableTest, AsManyThreadsFinishCopiesAsCopyAhead) {
  Make("ddd", 3, 0);
  std::array<Worker, 3> workers;
  for (int i = 0; i < 3; ++i) Step(workers[0]);
  const Task first = Take(workers[0]);
  EXPECT_EQ(ToString(first), "finish copy 0");
  EXPECT_EQ(ToString(Take(workers[1])), "finish copy 1");
  EXPECT_EQ(ToString(Take(workers[2])), "wait");
  table_.Fail();
  EXPECT_TRUE(table_.over() && table_.reads());
  End(first, &workers[0], {.ok = false});
  EXPECT_TRUE(table_.reads()) << "the other one";
}

TEST_F(PieceTableTest, CopiesAheadOfTheDiskAsFarAsMemoryIsPresent) {
  Make("cccccccc", 3, 5);
  std::array<Worker, 4> workers;
  EXPECT_EQ(ToString(Take(workers[0])), "copy 0");
  EXPECT_EQ(ToString(Take(workers[1])), "copy 1");
  EXPECT_EQ(ToString(Take(workers[2])), "wait") << "two threads copy ahead";
  Make("cccccccc", 0, 5);
  EXPECT_EQ(ToString(Take(workers[0])), "wait") << "the memory is new";
}

TEST_F(PieceTableTest, AllThreadsCopyWhileSomebodyWaits) {
  Make("cccccccc", 1, 7);
  std::array<Worker, 5> workers;
  Arrive({5});
  EXPECT_EQ(ToString(Take(workers[0])), "copy 5");
  for (int w = 1; w < 4; ++w) EXPECT_TRUE(Take(workers[w]).touches);
  EXPECT_EQ(ToString(Take(workers[4])), "wait") << "each I/O thread copies";
}

TEST_F(PieceTableTest, WithoutCopyingAheadEveryThreadCopiesAndWrites) {
  Make("cccccccc", 8, 0, {.io_threads = 4, .copy_threads = 0});
  std::array<Worker, 5> workers;
  for (int w = 0; w < 4; ++w) EXPECT_EQ(ToString(Take(workers[w])), absl::StrCat("copy ", w));
  EXPECT_EQ(ToString(Take(workers[4])), "wait");
}

TEST_F(PieceTableTest, AWaitingThreadCopiesWhatTheDiskHasNotBegun) {
  Make("iiii", 2, 0);
  Worker worker;
  EXPECT_EQ(ToString(Take(worker)), "write in place 0");
  PieceTable::Waiter waiter = Arrive({2});
  const Task copy = Help(waiter);
  EXPECT_EQ(ToString(copy), "copy 2");
  End(copy, nullptr);
  EXPECT_EQ(ToString(Help(waiter)), "released");
  table_.Leave();
}

TEST_F(PieceTableTest, AWaitingThreadChecksWhatIsWrittenAndWaitsForTheDisk) {
  Make("i", 0, 0);
  Worker worker;
  EXPECT_EQ(ToString(Take(worker)), "write in place 0");
  PieceTable::Waiter waiter = Arrive({0});
  const Task checksum = Help(waiter);
  EXPECT_EQ(ToString(checksum), "checksum 0");
  End(checksum, nullptr);
  EXPECT_EQ(ToString(Help(waiter)), "wait");
  EXPECT_EQ(Step(worker), "finish 0") << "at once, as it is waited for";
  EXPECT_EQ(ToString(Help(waiter)), "released");
}

// While an update waits for the disk, what it will come to next is copied.
TEST_F(PieceTableTest, CopiesAheadOfAnUpdate) {
  Make("iiiii", 2, 0);
  Worker worker;
  EXPECT_EQ(ToString(Take(worker)), "write in place 0");
  PieceTable::Waiter waiter = Arrive({0});
  std::vector<std::string> steps;
  for (int i = 0; i < 4; ++i) {
    const Task task = Help(waiter);
    steps.push_back(ToString(task));
    End(task, nullptr);
  }
  EXPECT_THAT(steps, testing::ElementsAre("checksum 0", "copy 1", "copy 2", "wait"));
}

// If everything can be copied, the disk begins with what an update will come to last.
TEST_F(PieceTableTest, AnUpdateAndTheDiskWorkTowardsEachOther) {
  for (const size_t present : {1, 5, 6}) {
    Make("iiiiiii", present, 0);
    Worker worker;
    EXPECT_EQ(Steps(worker, 3), "write in place 0, checksum 0, finish 0");
    PieceTable::Waiter waiter = Arrive({0});
    EXPECT_EQ(ToString(Help(waiter)), "released");
    table_.Leave();
    waiter = Arrive({1});
    EXPECT_EQ(ToString(Help(waiter)), "copy 1");
    table_.Leave();
    EXPECT_EQ(Step(worker), present == 6 ? "write in place 6" : "write in place 2");
  }
}

TEST_F(PieceTableTest, OneThreadAtATimeTouchesNewMemoryAheadOfAnUpdate) {
  Make("iiii", 0, 3);
  Worker worker;
  EXPECT_EQ(Step(worker), "write in place 0");
  PieceTable::Waiter waiter = Arrive({0});
  End(Help(waiter), nullptr);  // the checksum
  const Task ahead = Help(waiter);
  EXPECT_EQ(ToString(ahead), "copy 1");
  EXPECT_EQ(ToString(Help(waiter)), "wait");
  End(ahead, nullptr);
  EXPECT_EQ(ToString(Help(waiter)), "copy 2");
}

TEST_F(PieceTableTest, ChecksumsRestWhileTheProgramNeedsTheProcessors) {
  Make("ii", 0, 0);
  std::array<Worker, 2> workers;
  EXPECT_EQ(ToString(Take(workers[0])), "write in place 0");
  EXPECT_EQ(ToString(Take(workers[1])), "write in place 1");
  End(Take(workers[0]), &workers[0], {.processor_seconds = 1, .seconds = 4});
  EXPECT_EQ(ToString(Take(workers[1])), "finish 1");
  now_ += seconds(19);
  EXPECT_EQ(table_.rests_until() - now_, seconds(1));
  Arrive({1});
  EXPECT_EQ(ToString(Take(workers[1])), "checksum 1") << "an update comes to it";
}

TEST_F(PieceTableTest, AFailedSaveEndsWhatIsInProgressAndBeginsNothing) {
  Make("iic", 1, 0);
  std::array<Worker, 2> workers;
  EXPECT_EQ(ToString(Take(workers[0])), "copy 2");
  EXPECT_EQ(ToString(Take(workers[1])), "write in place 0");
  PieceTable::Waiter waiter = Arrive({0, 1, 2});
  table_.Fail();
  EXPECT_TRUE(table_.over());
  EXPECT_EQ(ToString(Help(waiter)), "wait");
  End({.what = Do::kCopy, .piece = 2}, &workers[0]);
  EXPECT_EQ(ToString(Help(waiter)), "wait") << "the disk still reads";
  EXPECT_EQ(Step(workers[1]), "finish 0");
  EXPECT_EQ(ToString(Help(waiter)), "released");
}

// Threads work and wait in any order. Each piece is copied or checksummed once and written once. No
// memory changes while it is read, and the table never comes to rest before it is over.
TEST_F(PieceTableTest, AnyOrderOfThreadsWritesEverythingOnce) {
  std::mt19937 random(TestSeed());
  for (int round = 0; round < 2000; ++round) {
    std::string pieces(1 + random() % 12, 'c');
    for (char& piece : pieces) piece = "iiiiccdd"[random() % 8];
    const int threads = 1 + static_cast<int>(random() % 4);
    const bool only_in_place = pieces.find_first_of("cd") == pieces.npos;
    Make(pieces, random() % 4 + (only_in_place ? 0 : 1), random() % 4,
         {.io_threads = threads, .copy_threads = static_cast<int>(random() % 3)});
    std::vector<int> checksums(pieces.size()), writes(pieces.size());
    std::vector<Worker> workers(threads);
    std::vector<std::optional<Task>> tasks(threads + 1);  // the last is the waiter's
    std::optional<PieceTable::Waiter> waiter;
    int idle = 0;
    while (!table_.over() || waiter.has_value()) {
      const size_t thread = random() % tasks.size();
      const bool is_waiter = thread == workers.size();
      Worker* const worker = is_waiter ? nullptr : &workers[thread];
      if (tasks[thread].has_value()) {
        const Task task = *std::exchange(tasks[thread], std::nullopt);
        checksums[task.piece] += task.what == Do::kChecksum || task.what == Do::kFinishCopy ||
                                 (task.what == Do::kCopy && !table_.on_device(task.piece));
        writes[task.piece] += task.what == Do::kFinishWrite;
        End(task, worker, {.processor_seconds = 1.0 * (random() % 2), .seconds = 1});
        idle = 0;
        continue;
      }
      now_ += seconds(random() % 3);
      if (is_waiter && !waiter.has_value()) {
        if (random() % 4 == 0) waiter = Arrive({random() % pieces.size()});
        continue;
      }
      if (!is_waiter && table_.over()) continue;
      const Task task = is_waiter ? Help(*waiter) : Take(*worker);
      if (task.what == Do::kReleased) {
        waiter.reset();
        table_.Leave();
      } else if (task.what != Do::kWait && task.what != Do::kRest) {
        tasks[thread] = task;
      }
      ASSERT_LT(++idle, 10'000) << pieces << ", " << threads << " threads come to rest";
    }
    EXPECT_TRUE(table_.all_released());
    EXPECT_THAT(checksums, testing::Each(1)) << pieces;
    EXPECT_THAT(writes, testing::Each(1)) << pieces;
  }
}

}  // namespace
}  // namespace tessera::ckpt
