#include "compute/parallel/pipeline.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "base/trace.h"
#include "glog/logging.h"
#include "tensor/memory.h"

namespace tessera {
namespace {

constexpr int kBuffers = Pipeline::kBuffers;

double SteadySeconds() { return absl::ToDoubleSeconds(SteadyNow()); }

// Adds up the time that one run spends waiting for the neighbours.
class Stopwatch {
 public:
  explicit Stopwatch(const std::function<double()>& clock) : clock_(clock), started_(clock_()) {}

  absl::Status Wait(Pending& pending) {
    const TimeSpent spent(TimeUse::kWaiting);
    const TraceSpan span("pipeline", "wait for a neighbour");
    const double from = clock_();
    absl::Status status = pending.Follow();
    waited_ += clock_() - from;
    return status;
  }
  double waited() const { return waited_; }
  double total() const { return clock_() - started_; }

 private:
  const std::function<double()> clock_;
  const double started_;
  double waited_ = 0;
};

// One end of the connection between two neighbouring virtual stages in one direction.
struct Link {
  Communicator* communicator = nullptr;
  int peer = 0;
  int tag = 0;
  std::string_view what;            // names the data
  int64_t messages = 0;             // in this run, one for each micro-batch
  std::vector<TensorView> buffers;  // empty: there is no such link

  bool exists() const { return !buffers.empty(); }
  std::string Describe(int64_t micro_batch) const {
    return absl::StrCat(std::string(what), ", micro-batch ", micro_batch);
  }
};

// Incoming messages, in the order of micro-batches.
class Inbox {
 public:
  explicit Inbox(Link link) : link_(std::move(link)) { PostAhead(); }

  // Returns the next message, valid until Release(). Empty if there is no previous stage.
  absl::StatusOr<TensorView> Take(Stopwatch& stopwatch) {
    if (!link_.exists()) return TensorView();
    TESSERA_RETURN_IF_ERROR(stopwatch.Wait(pending_[released_ % kBuffers]));
    return link_.buffers[released_ % kBuffers];
  }
  void Release() {
    ++released_;
    PostAhead();
  }

 private:
  void PostAhead() {
    if (!link_.exists()) return;
    for (; posted_ < std::min(link_.messages, released_ + kBuffers); ++posted_) {
      const std::string what = link_.Describe(posted_);
      pending_[posted_ % kBuffers] = link_.communicator->StartReceive(
          link_.buffers[posted_ % kBuffers], link_.peer, link_.tag, {.what = what});
    }
  }

  const Link link_;
  int64_t posted_ = 0;
  int64_t released_ = 0;
  std::array<Pending, kBuffers> pending_;
};

// Outgoing messages, in the order of micro-batches.
class Outbox {
 public:
  explicit Outbox(Link link) : link_(std::move(link)) {}

  // Returns the buffer for the next message. Empty if there is no next stage.
  absl::StatusOr<TensorView> Prepare(Stopwatch& stopwatch) {
    if (!link_.exists()) return TensorView();
    TESSERA_RETURN_IF_ERROR(stopwatch.Wait(pending_[sent_ % kBuffers]));
    return link_.buffers[sent_ % kBuffers];
  }
  void Send() {
    if (!link_.exists()) return;
    const std::string what = link_.Describe(sent_);
    pending_[sent_ % kBuffers] = link_.communicator->StartSend(
        link_.buffers[sent_ % kBuffers], link_.peer, link_.tag, {.what = what});
    ++sent_;
  }
  absl::Status Finish(Stopwatch& stopwatch) {
    for (Pending& pending : pending_) TESSERA_RETURN_IF_ERROR(stopwatch.Wait(pending));
    return absl::OkStatus();
  }

 private:
  const Link link_;
  int64_t sent_ = 0;
  std::array<Pending, kBuffers> pending_;
};

std::vector<TensorView> FirstRows(const std::vector<Tensor>& tensors, int64_t rows) {
  std::vector<TensorView> views;
  for (const Tensor& tensor : tensors) views.push_back(tensor.view().Slice(0, 0, rows));
  return views;
}

// Returns the n-th pass of a rank in one direction: `ranks` micro-batches through the first chunk,
// the same through the next, and so on; then the next `ranks` micro-batches. Backward, the chunks
// are in reverse order.
PipelineAction NthPass(const PipelineShape& shape, PipelineAction::Kind kind, int64_t n) {
  if (shape.chunks == 1) return {.kind = kind, .micro_batch = n, .chunk = 0};
  const int64_t round = int64_t{shape.ranks} * shape.chunks;
  const int chunk = static_cast<int>(n % round / shape.ranks);
  return {.kind = kind,
          .micro_batch = n / round * shape.ranks + n % shape.ranks,
          .chunk = kind == PipelineAction::kForward ? chunk : shape.chunks - 1 - chunk};
}

// Forward passes before the first backward pass.
int64_t WarmupPasses(const PipelineShape& shape, int rank) {
  const int64_t all = shape.micro_batches * shape.chunks;
  const int64_t behind = shape.ranks - 1 - rank;
  const int64_t wanted =
      shape.chunks == 1 ? behind : 2 * behind + int64_t{shape.chunks - 1} * shape.ranks;
  return std::min(all, wanted);
}

}  // namespace

// One call of Train(), TrainOne() or Forward().
class Pipeline::Run {
 public:
  Run(const Pipeline& pipeline, PipelineStage& stage, int64_t micro_batches, int64_t rows,
      bool backward)
      : pipeline_(pipeline),
        stage_(stage),
        stopwatch_(pipeline.options_.clock),
        backward_(backward) {
    if (pipeline.last()) result_.losses.resize(micro_batches);
    chunks_.reserve(pipeline.shape_.chunks);
    for (int chunk = 0; chunk < pipeline.shape_.chunks; ++chunk) {
      Connect(chunk, micro_batches, rows);
    }
  }

  absl::StatusOr<PipelineRun> Execute(const std::vector<PipelineAction>& actions) {
    for (const PipelineAction& action : actions) {
      TESSERA_RETURN_IF_ERROR(action.kind == PipelineAction::kForward ? Forward(action)
                                                                      : Backward(action));
    }
    for (Boundaries& chunk : chunks_) {
      for (Outbox* outbox : {&chunk.output, &chunk.d_input}) {
        TESSERA_RETURN_IF_ERROR(outbox->Finish(stopwatch_));
      }
    }
    result_.total_s = stopwatch_.total();
    result_.waited_s = stopwatch_.waited();
    return std::move(result_);
  }

 private:
  // Inputs and outputs of one chunk.
  struct Boundaries {
    Inbox input;
    Outbox output;
    Inbox d_output;
    Outbox d_input;
  };

  // Virtual stage v of V is on rank v % ranks. Boundary v lies before it.
  void Connect(int chunk, int64_t micro_batches, int64_t rows) {
    const int ranks = pipeline_.shape_.ranks;
    const int stage = chunk * ranks + pipeline_.rank_;
    const ChunkBuffers& buffers = pipeline_.buffers_[chunk];
    const auto link = [&](std::string_view what, int peer_stage, int boundary, int direction,
                          const std::vector<Tensor>& tensors) {
      return Link{.communicator = pipeline_.communicator_,
                  .peer = (peer_stage + ranks) % ranks,
                  .tag = 2 * boundary + direction,
                  .what = what,
                  .messages = micro_batches,
                  .buffers = FirstRows(tensors, rows)};
    };
    const std::vector<Tensor> none;
    chunks_.push_back(
        {.input = Inbox(link("activations", stage - 1, stage, 0, buffers.input)),
         .output = Outbox(link("activations", stage + 1, stage + 1, 0, buffers.output)),
         .d_output = Inbox(link("gradients of activations", stage + 1, stage + 1, 1,
                                backward_ ? buffers.d_output : none)),
         .d_input = Outbox(link("gradients of activations", stage - 1, stage, 1,
                                backward_ ? buffers.d_input : none))});
  }

  PipelinePass PassOf(const PipelineAction& action) const {
    return {.chunk = action.chunk,
            .micro_batch = action.micro_batch,
            .slot = backward_ ? action.micro_batch % pipeline_.slots(action.chunk) : 0};
  }

  void Describe(const PipelineAction& action, TraceSpan& slot) const {
    slot.Add("stage", int64_t{action.chunk} * pipeline_.shape_.ranks + pipeline_.rank_)
        .Add("chunk", int64_t{action.chunk})
        .Add("micro_batch", action.micro_batch);
  }

  absl::Status Forward(const PipelineAction& action) {
    TraceSpan slot("pipeline", backward_ ? "forward" : "forward only");
    Describe(action, slot);
    Boundaries& chunk = chunks_[action.chunk];
    TESSERA_ASSIGN_OR_RETURN(const TensorView input, chunk.input.Take(stopwatch_));
    TESSERA_ASSIGN_OR_RETURN(const TensorView output, chunk.output.Prepare(stopwatch_));
    if (backward_) ++in_flight_;
    result_.max_in_flight = std::max(result_.max_in_flight, backward_ ? in_flight_ : int64_t{1});
    TESSERA_ASSIGN_OR_RETURN(const double loss, stage_.Forward(PassOf(action), input, output));
    chunk.output.Send();
    chunk.input.Release();
    if (pipeline_.last() && action.chunk == pipeline_.shape_.chunks - 1) {
      result_.losses[action.micro_batch] = loss;
    }
    return absl::OkStatus();
  }

  absl::Status Backward(const PipelineAction& action) {
    TraceSpan slot("pipeline", "backward");
    Describe(action, slot);
    Boundaries& chunk = chunks_[action.chunk];
    TESSERA_ASSIGN_OR_RETURN(const TensorView d_output, chunk.d_output.Take(stopwatch_));
    TESSERA_ASSIGN_OR_RETURN(const TensorView d_input, chunk.d_input.Prepare(stopwatch_));
    TESSERA_RETURN_IF_ERROR(stage_.Backward(PassOf(action), d_output, d_input));
    chunk.d_input.Send();
    chunk.d_output.Release();
    --in_flight_;
    return absl::OkStatus();
  }

  const Pipeline& pipeline_;
  PipelineStage& stage_;
  Stopwatch stopwatch_;
  const bool backward_;
  std::vector<Boundaries> chunks_;
  int64_t in_flight_ = 0;
  PipelineRun result_;
};

absl::StatusOr<std::unique_ptr<Pipeline>> Pipeline::Create(Communicator* pipeline,
                                                           PipelineOptions options) {
  const int64_t ranks = pipeline == nullptr ? 1 : pipeline->size();
  const auto invalid = [](auto&&... parts) {
    return absl::InvalidArgumentError(absl::StrCat("pipeline: ", parts...));
  };
  if (options.chunks < 1 || options.micro_batches < 1) {
    return invalid(options.chunks, " chunks and ", options.micro_batches, " micro-batches");
  }
  if (ranks == 1 && options.chunks > 1) {
    return invalid(options.chunks, " chunks need more than one rank");
  }
  if (options.chunks > 1 && options.trains && options.micro_batches % ranks != 0) {
    return invalid(options.micro_batches, " micro-batches are no multiple of the ", ranks,
                   " ranks, as chunks need");
  }
  if (ranks > 1 && (options.rows < 1 || options.columns < 1)) {
    return invalid("activations of ", options.rows, " rows and ", options.columns, " columns");
  }
  if (2 * ranks * options.chunks > Communicator::kTagLimit) {
    return invalid(ranks, " ranks with ", options.chunks, " chunks are more than ",
                   Communicator::kTagLimit / 2, " virtual stages");
  }
  if (!options.clock) options.clock = SteadySeconds;
  AllocationScope allocations;
  std::unique_ptr<Pipeline> made(new Pipeline(pipeline, std::move(options)));
  TESSERA_RETURN_IF_ERROR(allocations.End());
  return made;
}

Pipeline::Pipeline(Communicator* pipeline, PipelineOptions options)
    : communicator_(pipeline),
      options_(std::move(options)),
      rank_(pipeline == nullptr ? 0 : pipeline->rank()),
      shape_{.ranks = pipeline == nullptr ? 1 : pipeline->size(),
             .chunks = options_.chunks,
             .micro_batches = options_.micro_batches},
      schedule_(options_.trains ? PipelineSchedule(shape_, rank_) : std::vector<PipelineAction>()) {
  const auto tensors = [this](bool wanted) {
    std::vector<Tensor> made;
    for (int i = 0; wanted && i < kBuffers; ++i) made.push_back(MakeBuffer(options_.rows));
    return made;
  };
  for (int chunk = 0; chunk < shape_.chunks; ++chunk) {
    slots_.push_back(MaxInFlight(schedule_, chunk));
    const bool before = !first() || chunk > 0;
    const bool after = !last() || chunk < shape_.chunks - 1;
    buffers_.push_back({.input = tensors(before),
                        .output = tensors(after),
                        .d_output = tensors(after && options_.trains),
                        .d_input = tensors(before && options_.trains)});
  }
}

Pipeline::~Pipeline() = default;

Tensor Pipeline::MakeBuffer(int64_t rows) const {
  const MemoryScope scope(MemoryCategory::kActivations);
  return Tensor(options_.dtype, {rows, options_.columns}, options_.device);
}

void Pipeline::GrowForwardBuffers(int64_t rows) {
  for (ChunkBuffers& chunk : buffers_) {
    for (auto* tensors : {&chunk.input, &chunk.output}) {
      for (Tensor& tensor : *tensors) {
        if (tensor.view().dim(0) < rows) tensor = MakeBuffer(rows);
      }
    }
  }
}

absl::StatusOr<PipelineRun> Pipeline::Train(PipelineStage& stage) {
  CHECK(options_.trains) << "a pipeline for forward passes only";
  return Execute(stage, schedule_, /*backward=*/true, shape_.micro_batches, options_.rows);
}

absl::StatusOr<PipelineRun> Pipeline::TrainOne(PipelineStage& stage) {
  CHECK(options_.trains) << "a pipeline for forward passes only";
  std::vector<PipelineAction> actions;
  for (int chunk = 0; chunk < shape_.chunks; ++chunk) {
    actions.push_back({PipelineAction::kForward, /*micro_batch=*/0, chunk});
  }
  for (int chunk = shape_.chunks - 1; chunk >= 0; --chunk) {
    actions.push_back({PipelineAction::kBackward, /*micro_batch=*/0, chunk});
  }
  return Execute(stage, actions, /*backward=*/true, /*micro_batches=*/1, options_.rows);
}

absl::StatusOr<PipelineRun> Pipeline::Forward(PipelineStage& stage, int64_t micro_batches,
                                              int64_t rows) {
  if (rows < 0 || micro_batches < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("pipeline: ", micro_batches, " micro-batches of ", rows, " rows forward"));
  }
  AllocationScope allocations;
  GrowForwardBuffers(rows);
  TESSERA_RETURN_IF_ERROR(allocations.End());
  PipelineShape shape = shape_;
  shape.micro_batches = micro_batches;
  return Execute(stage, ForwardSchedule(shape), /*backward=*/false, micro_batches,
                 rows == 0 ? options_.rows : rows);
}

absl::StatusOr<PipelineRun> Pipeline::Execute(PipelineStage& stage,
                                              const std::vector<PipelineAction>& actions,
                                              bool backward, int64_t micro_batches, int64_t rows) {
  Run run(*this, stage, micro_batches, rows, backward);
  absl::StatusOr<PipelineRun> result = run.Execute(actions);
  // Before the run is destroyed, which waits for messages in flight: other ranks would not complete
  // them.
  if (!result.ok() && communicator_ != nullptr) communicator_->Abort(result.status());
  return result;
}

int64_t Pipeline::buffer_bytes() const {
  int64_t bytes = 0;
  for (const ChunkBuffers& chunk : buffers_) {
    for (const auto* tensors : {&chunk.input, &chunk.output, &chunk.d_output, &chunk.d_input}) {
      for (const Tensor& tensor : *tensors) bytes += tensor.view().bytes();
    }
  }
  return bytes;
}

std::vector<PipelineAction> PipelineSchedule(const PipelineShape& shape, int rank) {
  CHECK(rank >= 0 && rank < shape.ranks) << rank << " of " << shape.ranks;
  CHECK(shape.chunks == 1 || shape.micro_batches % shape.ranks == 0)
      << shape.micro_batches << " micro-batches, " << shape.ranks << " ranks";
  const int64_t all = shape.micro_batches * shape.chunks;
  const int64_t warmup = WarmupPasses(shape, rank);
  std::vector<PipelineAction> actions;
  for (int64_t n = 0; n < warmup; ++n) {
    actions.push_back(NthPass(shape, PipelineAction::kForward, n));
  }
  for (int64_t n = 0; n < all; ++n) {
    if (warmup + n < all) actions.push_back(NthPass(shape, PipelineAction::kForward, warmup + n));
    actions.push_back(NthPass(shape, PipelineAction::kBackward, n));
  }
  return actions;
}

std::vector<PipelineAction> ForwardSchedule(const PipelineShape& shape) {
  std::vector<PipelineAction> actions;
  // As many micro-batches as there are ranks through all chunks, if there are as many: the last
  // rank's messages then reach a first rank that has finished the previous chunk.
  const int64_t round = shape.chunks == 1 ? shape.micro_batches : shape.ranks;
  for (int64_t begin = 0; begin < shape.micro_batches; begin += round) {
    const int64_t end = std::min(begin + round, shape.micro_batches);
    for (int chunk = 0; chunk < shape.chunks; ++chunk) {
      for (int64_t i = begin; i < end; ++i) {
        actions.push_back({.kind = PipelineAction::kForward, .micro_batch = i, .chunk = chunk});
      }
    }
  }
  return actions;
}

int64_t MaxInFlight(const std::vector<PipelineAction>& actions, int chunk) {
  std::vector<PipelineAction> of_chunk;
  std::copy_if(actions.begin(), actions.end(), std::back_inserter(of_chunk),
               [chunk](const PipelineAction& action) { return action.chunk == chunk; });
  return MaxInFlight(of_chunk);
}

int64_t MaxInFlight(const std::vector<PipelineAction>& actions) {
  int64_t in_flight = 0, most = 0;
  for (const PipelineAction& action : actions) {
    in_flight += action.kind == PipelineAction::kForward ? 1 : -1;
    most = std::max(most, in_flight);
  }
  return most;
}

}  // namespace tessera
