#include "compute/parallel/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "comm/endpoint.h"
#include "comm/threads/thread_world.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

// The "activations" of a micro-batch after v virtual stages, and the "gradients" before stage v: a
// chain to which each stage adds its own link, modulo 2^24, so that fp32 holds it exactly. A wrong,
// missing or swapped stage or micro-batch changes the result.
int64_t Link(int64_t value, int64_t stage) { return (value * 31 + stage + 1) % (1 << 24); }
int64_t Start(int64_t micro_batch, int64_t element) { return micro_batch * 1009 + element * 7 + 5; }

int64_t ForwardValue(int64_t micro_batch, int64_t element, int stages) {
  int64_t value = Start(micro_batch, element);
  for (int stage = 0; stage < stages; ++stage) value = Link(value, stage);
  return value;
}

// Before backward through stages [stage, stages).
int64_t BackwardValue(int64_t micro_batch, int64_t element, int stage, int stages) {
  int64_t value = ForwardValue(micro_batch, element, stages);
  for (int s = stages - 1; s >= stage; --s) value = Link(value, s + 1000);
  return value;
}

class ChainStage : public PipelineStage {
 public:
  ChainStage(const PipelineShape& shape, int rank, int64_t elements)
      : shape_(shape), rank_(rank), elements_(elements) {}

  absl::StatusOr<double> Forward(const PipelinePass& pass, TensorView input,
                                 TensorView output) override {
    const int stage = pass.chunk * shape_.ranks + rank_;
    const int stages = shape_.ranks * shape_.chunks;
    EXPECT_EQ(input.empty(), stage == 0);
    EXPECT_EQ(output.empty(), stage == stages - 1);
    EXPECT_TRUE(live_.insert({pass.chunk, pass.slot}).second) << "slot in use";
    std::vector<int64_t>& kept = kept_[{pass.chunk, pass.slot}];
    kept.resize(elements_);
    for (int64_t i = 0; i < elements_; ++i) {
      const int64_t before =
          input.empty() ? Start(pass.micro_batch, i) : static_cast<int64_t>(input.as<float>()[i]);
      kept[i] = Link(before, stage);
      EXPECT_EQ(kept[i], ForwardValue(pass.micro_batch, i, stage + 1));
      if (!output.empty()) output.as<float>()[i] = static_cast<float>(kept[i]);
      if (!input.empty()) input.as<float>()[i] = -1;  // allowed
    }
    if (forward_only_) live_.clear();
    highest_slot_ = std::max(highest_slot_, pass.slot);
    return static_cast<double>(kept[0]);
  }

  absl::Status Backward(const PipelinePass& pass, TensorView d_output,
                        TensorView d_input) override {
    const int stage = pass.chunk * shape_.ranks + rank_;
    const int stages = shape_.ranks * shape_.chunks;
    EXPECT_EQ(d_output.empty(), stage == stages - 1);
    EXPECT_EQ(d_input.empty(), stage == 0);
    EXPECT_EQ(live_.erase({pass.chunk, pass.slot}), 1u);
    EXPECT_EQ(pass.micro_batch, next_backward_[pass.chunk]++);
    const std::vector<int64_t>& kept = kept_[{pass.chunk, pass.slot}];
    for (int64_t i = 0; i < elements_; ++i) {
      EXPECT_EQ(kept[i], ForwardValue(pass.micro_batch, i, stage + 1));
      const int64_t after =
          d_output.empty() ? kept[i] : static_cast<int64_t>(d_output.as<float>()[i]);
      const int64_t d = Link(after, stage + 1000);
      EXPECT_EQ(d, BackwardValue(pass.micro_batch, i, stage, stages));
      if (!d_input.empty()) d_input.as<float>()[i] = static_cast<float>(d);
    }
    return absl::OkStatus();
  }

  void set_forward_only(bool forward_only) { forward_only_ = forward_only; }
  void StartStep() { next_backward_.clear(); }
  int64_t highest_slot() const { return highest_slot_; }
  int64_t backward_passes(int chunk) { return next_backward_[chunk]; }

 private:
  const PipelineShape shape_;
  const int rank_;
  const int64_t elements_;
  bool forward_only_ = false;
  std::set<std::pair<int, int64_t>> live_;  // (chunk, slot)
  std::map<std::pair<int, int64_t>, std::vector<int64_t>> kept_;
  std::map<int, int64_t> next_backward_;
  int64_t highest_slot_ = 0;
};

constexpr int64_t kRows = 3, kColumns = 4;

PipelineOptions Options(const PipelineShape& shape) {
  return {.chunks = shape.chunks,
          .micro_batches = shape.micro_batches,
          .rows = kRows,
          .columns = kColumns};
}

void ExpectLosses(const PipelineShape& shape, const Pipeline& pipeline, const PipelineRun& run,
                  int64_t micro_batches) {
  if (!pipeline.last()) {
    EXPECT_TRUE(run.losses.empty());
    return;
  }
  ASSERT_EQ(run.losses.size(), static_cast<size_t>(micro_batches));
  for (int64_t i = 0; i < micro_batches; ++i) {
    EXPECT_EQ(run.losses[i], static_cast<double>(ForwardValue(i, 0, shape.ranks * shape.chunks)));
  }
}

std::string Name(const PipelineShape& shape) {
  return absl::StrCat(shape.ranks, " ranks, ", shape.chunks, " chunks, ", shape.micro_batches,
                      " micro-batches");
}

// Two steps, with evaluations around them, on one rank.
absl::Status TwoSteps(const PipelineShape& shape, Communicator* communicator) {
  const int rank = communicator == nullptr ? 0 : communicator->rank();
  TESSERA_ASSIGN_OR_RETURN(const auto pipeline, Pipeline::Create(communicator, Options(shape)));
  ChainStage stage(shape, rank, kRows * kColumns);
  for (int step = 0; step < 2; ++step) {
    const int64_t evaluated = 3 * step + 1;
    stage.set_forward_only(true);
    TESSERA_ASSIGN_OR_RETURN(PipelineRun run, pipeline->Forward(stage, evaluated));
    ExpectLosses(shape, *pipeline, run, evaluated);
    EXPECT_EQ(stage.highest_slot(), 0);
    EXPECT_EQ(run.max_in_flight, 1);

    ChainStage trained(shape, rank, kRows * kColumns);
    TESSERA_ASSIGN_OR_RETURN(run, pipeline->Train(trained));
    ExpectLosses(shape, *pipeline, run, shape.micro_batches);
    const std::vector<PipelineAction> schedule = PipelineSchedule(shape, rank);
    EXPECT_EQ(run.max_in_flight, MaxInFlight(schedule));
    int64_t max_slots = 0;
    for (int chunk = 0; chunk < shape.chunks; ++chunk) {
      EXPECT_EQ(trained.backward_passes(chunk), shape.micro_batches);
      EXPECT_EQ(pipeline->slots(chunk), MaxInFlight(schedule, chunk));
      max_slots = std::max(max_slots, pipeline->slots(chunk));
    }
    EXPECT_EQ(trained.highest_slot(), max_slots - 1);
    EXPECT_LE(run.waited_s, run.total_s);
  }
  return absl::OkStatus();
}

TEST(PipelineTest, EveryMicroBatchPassesEveryChunkInOrder) {
  for (int ranks = 2; ranks <= 5; ++ranks) {
    for (int chunks = 1; chunks <= 3; ++chunks) {
      for (const int64_t micro_batches : {1, 2, 3, 5, 8, 13}) {
        const PipelineShape shape{.ranks = ranks,
                                  .chunks = chunks,
                                  .micro_batches = micro_batches * (chunks > 1 ? ranks : 1)};
        SCOPED_TRACE(Name(shape));
        ASSERT_OK(
            ThreadWorld(ranks).Run([&](Communicator& comm) { return TwoSteps(shape, &comm); }));
      }
    }
  }
}

TEST(PipelineTest, OneRankNeedsNoCommunicator) {
  for (const int64_t micro_batches : {1, 2, 7}) {
    const PipelineShape shape{.micro_batches = micro_batches};
    EXPECT_OK(TwoSteps(shape, nullptr));
  }
  ASSERT_OK_AND_ASSIGN(const auto pipeline, Pipeline::Create(nullptr, {.micro_batches = 4}));
  EXPECT_EQ(pipeline->slots(0), 1);
  EXPECT_EQ(pipeline->buffer_bytes(), 0);
  EXPECT_TRUE(pipeline->first() && pipeline->last());
}

TEST(PipelineTest, BytesOnTheWireAndInBuffersAreThoseOfTheBoundaries) {
  const PipelineShape shape{.ranks = 3, .chunks = 2, .micro_batches = 6};
  constexpr int64_t kMessage = kRows * kColumns * sizeof(float);
  EXPECT_OK(ThreadWorld(3).Run([&](Communicator& comm) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const auto pipeline, Pipeline::Create(&comm, Options(shape)));
    ChainStage stage(shape, comm.rank(), kRows * kColumns);
    TESSERA_RETURN_IF_ERROR(pipeline->Train(stage).status());
    // Boundaries after this rank's chunks, which activations cross, and before them.
    const int64_t after = comm.rank() == 2 ? 1 : 2, before = comm.rank() == 0 ? 1 : 2;
    EXPECT_EQ(comm.counters()[CommOp::kSend].calls, 6 * (after + before));
    EXPECT_EQ(comm.counters()[CommOp::kSend].bytes_sent, 6 * (after + before) * kMessage);
    EXPECT_EQ(pipeline->buffer_bytes(), 2 * Pipeline::kBuffers * (after + before) * kMessage);
    return absl::OkStatus();
  }));
}

// Sampling: one short micro-batch.
TEST(PipelineTest, ForwardTakesFewerOrMoreRowsAndNoBackwardBuffers) {
  const PipelineShape shape{.ranks = 2, .chunks = 1, .micro_batches = 1};
  EXPECT_OK(ThreadWorld(2).Run([&](Communicator& comm) -> absl::Status {
    PipelineOptions options = Options(shape);
    options.trains = false;
    TESSERA_ASSIGN_OR_RETURN(const auto pipeline, Pipeline::Create(&comm, options));
    EXPECT_EQ(pipeline->buffer_bytes(),
              Pipeline::kBuffers * kRows * kColumns * static_cast<int64_t>(sizeof(float)));
    ChainStage stage(shape, comm.rank(), 1 * kColumns);
    stage.set_forward_only(true);
    TESSERA_ASSIGN_OR_RETURN(const auto run, pipeline->Forward(stage, 5, 1));
    ExpectLosses(shape, *pipeline, run, 5);
    EXPECT_EQ(comm.counters().bytes_sent(), comm.rank() == 0 ? 5 * kColumns * 4 : 0);
    EXPECT_OK(pipeline->Forward(stage, 0));
    EXPECT_TRUE(absl::IsInvalidArgument(pipeline->Forward(stage, 1, -1).status()));
    ChainStage larger(shape, comm.rank(), (kRows + 2) * kColumns);
    larger.set_forward_only(true);
    TESSERA_ASSIGN_OR_RETURN(const auto grown, pipeline->Forward(larger, 5, kRows + 2));
    ExpectLosses(shape, *pipeline, grown, 5);
    EXPECT_EQ(pipeline->buffer_bytes(),
              Pipeline::kBuffers * (kRows + 2) * kColumns * static_cast<int64_t>(sizeof(float)));
    return absl::OkStatus();
  }));
}

TEST(PipelineTest, WrongSizesAreRefused) {
  const auto message = [](PipelineOptions options) {
    return std::string(Pipeline::Create(nullptr, std::move(options)).status().message());
  };
  EXPECT_EQ(message({.chunks = 2}), "pipeline: 2 chunks need more than one rank");
  EXPECT_EQ(message({.chunks = 0}), "pipeline: 0 chunks and 1 micro-batches");
  ThreadWorld world(2);
  EXPECT_EQ(world
                .Run([](Communicator& comm) {
                  return Pipeline::Create(
                             &comm, {.chunks = 2, .micro_batches = 3, .rows = 1, .columns = 1})
                      .status();
                })
                .message()
                .substr(8),
            "pipeline: 3 micro-batches are no multiple of the 2 ranks, as chunks need");
}

// A stage that fails at one pass.
class FailingStage : public ChainStage {
 public:
  FailingStage(const PipelineShape& shape, int rank, PipelineAction at)
      : ChainStage(shape, rank, kRows * kColumns), at_(at) {}

  absl::StatusOr<double> Forward(const PipelinePass& pass, TensorView input,
                                 TensorView output) override {
    if (Here(PipelineAction::kForward, pass)) return absl::DataLossError("no such token");
    return ChainStage::Forward(pass, input, output);
  }
  absl::Status Backward(const PipelinePass& pass, TensorView d_output,
                        TensorView d_input) override {
    if (Here(PipelineAction::kBackward, pass)) return absl::DataLossError("no such token");
    return ChainStage::Backward(pass, d_output, d_input);
  }

 private:
  bool Here(PipelineAction::Kind kind, const PipelinePass& pass) const {
    return at_ == PipelineAction{kind, pass.micro_batch, pass.chunk};
  }
  const PipelineAction at_;
};

TEST(PipelineTest, AFailureOnOneRankEndsAllWithItsMessage) {
  for (const int chunks : {1, 2}) {
    const PipelineShape shape{.ranks = 3, .chunks = chunks, .micro_batches = 6};
    for (int rank = 0; rank < shape.ranks; ++rank) {
      for (const PipelineAction::Kind kind :
           {PipelineAction::kForward, PipelineAction::kBackward}) {
        for (const int64_t micro_batch : {0, 3, 5}) {
          SCOPED_TRACE(absl::StrCat(Name(shape), ", rank ", rank, ", micro-batch ", micro_batch));
          CommOptions options;
          options.timeout = absl::Seconds(20);
          ThreadWorld world(shape.ranks, options);
          const absl::Status status = world.Run([&](Communicator& comm) -> absl::Status {
            TESSERA_ASSIGN_OR_RETURN(const auto pipeline, Pipeline::Create(&comm, Options(shape)));
            const int chunk = comm.rank() == rank ? chunks - 1 : -1;
            FailingStage stage(shape, comm.rank(),
                               {.kind = kind, .micro_batch = micro_batch, .chunk = chunk});
            absl::Status result = pipeline->Train(stage).status();
            // The rank may have finished before the failure.
            return result.ok() ? comm.Barrier() : result;
          });
          EXPECT_EQ(status, absl::DataLossError(absl::StrCat("rank ", rank, ": no such token")));
          for (int i = 0; i < shape.ranks; ++i) {
            EXPECT_EQ(
                world.statuses()[i],
                absl::DataLossError(i == rank ? "no such token"
                                              : absl::StrCat("rank ", rank, ": no such token")));
          }
        }
      }
    }
  }
}

// Simulated time, which passes on a rank only while its stage computes, or while it waits for a
// message from a rank whose time is ahead. Messages take no time: each is followed by the time at
// which it was sent.
class SimulatedComm final : public Communicator {
 public:
  SimulatedComm(Endpoint* endpoint, CommGroup group) : Communicator(endpoint, std::move(group)) {}
  ~SimulatedComm() override { EndFollowed(); }

  double now() const { return now_; }
  void Work(double seconds) { now_ += seconds; }

 private:
  // Ends once it has been followed, as an operation of a device does.
  class Timed final : public Task {
   public:
    Timed(double& now, bool is_send, const Buffer& data, int peer)
        : now_(now), is_send_(is_send), data_(data), peer_(peer), time_(now) {}

    bool Advance() override {
      if (!started_ && is_send_) {
        Send(peer_, data_.data, data_.bytes());
        Send(peer_, &time_, sizeof(time_), kTimePhase);
      } else if (!started_) {
        Receive(peer_, data_.data, data_.bytes());
        Receive(peer_, &time_, sizeof(time_), kTimePhase);
      }
      started_ = true;
      return followed_ && outstanding() == 0;
    }
    bool polled() const override { return true; }
    bool queued() const override { return outstanding() == 0; }
    void Follow() override {
      followed_ = true;
      if (!is_send_) now_ = std::max(now_, time_);
    }

   private:
    static constexpr int kTimePhase = 15;  // of no other message
    double& now_;
    const bool is_send_;
    const Buffer data_;
    const int peer_;
    double time_;
    bool started_ = false, followed_ = false;
  };

  std::unique_ptr<Task> MakeSend(ConstBuffer data, int destination) override {
    const Buffer sent(const_cast<void*>(data.data), data.type, data.elements);
    return std::make_unique<Timed>(now_, true, sent, destination);
  }
  std::unique_ptr<Task> MakeReceive(Buffer data, int source) override {
    return std::make_unique<Timed>(now_, false, data, source);
  }

  double now_ = 0;
};

class TimedStage final : public PipelineStage {
 public:
  TimedStage(SimulatedComm* comm, int chunks) : comm_(comm), chunks_(chunks) {}
  absl::StatusOr<double> Forward(const PipelinePass&, TensorView, TensorView) override {
    comm_->Work(1.0 / chunks_);
    return 0.0;
  }
  absl::Status Backward(const PipelinePass&, TensorView, TensorView) override {
    comm_->Work(2.0 / chunks_);
    return absl::OkStatus();
  }

 private:
  SimulatedComm* const comm_;
  const double chunks_;
};

// For every rank, relative to the time until the last rank ends; and for the first one, which ends
// last, as measured.
TEST(PipelineTest, WaitsAsLongAsTheorySays) {
  for (int ranks = 2; ranks <= 5; ++ranks) {
    for (int chunks = 1; chunks <= 3; ++chunks) {
      for (const int64_t count : {1, 2, 4, 13}) {
        const PipelineShape shape{
            .ranks = ranks, .chunks = chunks, .micro_batches = count * (chunks > 1 ? ranks : 1)};
        SCOPED_TRACE(Name(shape));
        std::vector<PipelineRun> runs(ranks);
        ASSERT_OK(ThreadWorld(ranks).Run([&](Communicator& comm) -> absl::Status {
          TESSERA_ASSIGN_OR_RETURN(CommGroup group, comm.Agree(0, comm.rank(), "pp", {}));
          SimulatedComm simulated(comm.endpoint(), std::move(group));
          PipelineOptions options = Options(shape);
          options.clock = [&simulated] { return simulated.now(); };
          TESSERA_ASSIGN_OR_RETURN(const auto pipeline, Pipeline::Create(&simulated, options));
          TimedStage stage(&simulated, chunks);
          TESSERA_ASSIGN_OR_RETURN(runs[comm.rank()], pipeline->Train(stage));
          return absl::OkStatus();
        }));
        const double waits = ranks - 1;
        const double bubble = waits / (static_cast<double>(chunks * shape.micro_batches) + waits);
        EXPECT_NEAR(runs[0].waiting_share(), bubble, 1e-9);
        for (const PipelineRun& run : runs) {
          EXPECT_NEAR(run.total_s - run.waited_s, 3.0 * static_cast<double>(shape.micro_batches),
                      1e-9);
          EXPECT_LE(run.total_s, runs[0].total_s + 1e-9);
        }
      }
    }
  }
}

std::vector<PipelineShape> Shapes() {
  std::vector<PipelineShape> shapes;
  for (const int ranks : {1, 2, 3, 4, 7, 8}) {
    for (const int64_t micro_batches : {1, 2, 3, 4, 8, 13, 32}) {
      shapes.push_back({.ranks = ranks, .chunks = 1, .micro_batches = micro_batches});
    }
    for (const int chunks : {2, 3, 4}) {
      for (const int64_t rounds : {1, 2, 5}) {
        shapes.push_back({.ranks = ranks, .chunks = chunks, .micro_batches = rounds * ranks});
      }
    }
  }
  return shapes;
}

TEST(PipelineScheduleTest, EveryPassOnceAndBackwardAfterForwardInOrder) {
  for (const PipelineShape& shape : Shapes()) {
    for (int rank = 0; rank < shape.ranks; ++rank) {
      SCOPED_TRACE(Name(shape) + ", rank " + std::to_string(rank));
      std::set<std::pair<int64_t, int>> forward, backward;
      std::vector<int64_t> last_backward(shape.chunks, -1);
      for (const PipelineAction& action : PipelineSchedule(shape, rank)) {
        const std::pair<int64_t, int> pass{action.micro_batch, action.chunk};
        if (action.kind == PipelineAction::kForward) {
          EXPECT_TRUE(forward.insert(pass).second);
          continue;
        }
        EXPECT_TRUE(forward.contains(pass));
        EXPECT_TRUE(backward.insert(pass).second);
        EXPECT_GT(action.micro_batch, last_backward[action.chunk]);
        last_backward[action.chunk] = action.micro_batch;
      }
      EXPECT_EQ(backward.size(), static_cast<size_t>(shape.micro_batches * shape.chunks));
      EXPECT_EQ(forward, backward);
    }
  }
}

TEST(PipelineScheduleTest, HoldsNoMoreActivationsThanThePipelineIsDeep) {
  for (const PipelineShape& shape : Shapes()) {
    for (int rank = 0; rank < shape.ranks; ++rank) {
      SCOPED_TRACE(Name(shape) + ", rank " + std::to_string(rank));
      const int64_t all = shape.micro_batches * shape.chunks;
      const int64_t behind = shape.ranks - rank;
      const int64_t bound = shape.chunks == 1
                                ? behind
                                : 2 * (behind - 1) + int64_t{shape.chunks - 1} * shape.ranks + 1;
      EXPECT_EQ(MaxInFlight(PipelineSchedule(shape, rank)), std::min(all, bound));
    }
  }
}

TEST(PipelineScheduleTest, ForwardAloneTakesAnyNumberOfMicroBatches) {
  for (const int chunks : {1, 3}) {
    for (const int64_t micro_batches : {0, 1, 2, 5, 8}) {
      const PipelineShape shape{.ranks = 4, .chunks = chunks, .micro_batches = micro_batches};
      std::vector<int64_t> next(chunks);
      for (const PipelineAction& action : ForwardSchedule(shape)) {
        EXPECT_EQ(action.kind, PipelineAction::kForward);
        EXPECT_EQ(action.micro_batch, next[action.chunk]++);
        if (action.chunk > 0) EXPECT_LE(next[action.chunk], next[action.chunk - 1]);
      }
      EXPECT_EQ(next, std::vector<int64_t>(chunks, micro_batches));
    }
  }
}

}  // namespace
}  // namespace tessera
