#include "trainer/app/timeline.h"

#include <array>
#include <cstdlib>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace tessera {
namespace {

// The quickest of these exchanges is used: the first ones wait for other ranks.
constexpr int kClockExchanges = 16;
constexpr int kClockTag = 0, kPartTag = 1, kTextTag = 2;

std::string ClockJson(int64_t rank, int64_t offset_ns, int64_t uncertainty_ns) {
  return absl::StrFormat(R"({"rank":%d,"offset_us":%.3f,"uncertainty_us":%.3f})", rank,
                         static_cast<double>(offset_ns) * 1e-3,
                         static_cast<double>(uncertainty_ns) * 1e-3);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Timeline>> Timeline::Open(const TrainConfig& config,
                                                         const Mesh& mesh, NoteSink notes) {
  const OutputConfig& output = config.output();
  if (output.trace_steps().empty()) return nullptr;
  TESSERA_ASSIGN_OR_RETURN(const StepRange steps, ParseTraceSteps(output.trace_steps()));
  std::unique_ptr<Timeline> timeline(new Timeline(steps, output.run_dir(), mesh, std::move(notes)));
  if (mesh.world() == nullptr || mesh.world()->size() == 1) return timeline;
  // A group of its own: its messages are not the steps'.
  TESSERA_ASSIGN_OR_RETURN(timeline->ranks_,
                           mesh.world()->Split(/*color=*/0, mesh.rank(), "timeline"));
  return timeline;
}

Timeline::Timeline(const StepRange& steps, std::string run_dir, const Mesh& mesh, NoteSink notes)
    : steps_(steps),
      run_dir_(std::move(run_dir)),
      mesh_(mesh),
      notes_(std::move(notes)),
      recorder_(std::make_shared<TraceRecorder>()),
      thread_(recorder_, "training") {}

absl::Status Timeline::NextStep(int64_t step) {
  step_.reset();
  if (step > steps_.last) return Finish();
  if (step < steps_.first) return absl::OkStatus();
  if (first_step_ == 0) {
    first_step_ = step;
    TESSERA_RETURN_IF_ERROR(AlignClocks());
    recorder_->Start();
  }
  last_step_ = step;
  step_.emplace("step", "step");
  step_->Add("step", step);
  return absl::OkStatus();
}

absl::Status Timeline::Finish() {
  step_.reset();
  if (!recorder_->active()) return absl::OkStatus();
  recorder_->Stop();
  TESSERA_RETURN_IF_ERROR(Gather());
  if (ranks_ == nullptr) return absl::OkStatus();
  // A rank whose run ends next with an error would end the calls in which rank 0 receives the rest.
  return ranks_->Barrier({.what = "end of the timeline"});
}

// Measures each rank's clock against rank 0's, which answers messages with its time. The middle of
// the quickest exchange is wrong by at most half its time. Clocks that agree within that may be one
// clock, and count as such.
absl::Status Timeline::AlignClocks() {
  origin_ns_ = TraceNow();
  if (ranks_ == nullptr) return absl::OkStatus();
  const CallOptions options{.what = "clocks of the timeline"};
  struct Reply {
    int64_t origin_ns, now_ns;
  };
  for (int rank = 1; rank < ranks_->size(); ++rank) {
    for (int exchange = 0; exchange < kClockExchanges; ++exchange) {
      std::array<char, 1> question = {};
      Reply reply{.origin_ns = origin_ns_, .now_ns = 0};
      const std::span<char> bytes(reinterpret_cast<char*>(&reply), sizeof(reply));
      if (ranks_->rank() == 0) {
        TESSERA_RETURN_IF_ERROR(
            ranks_->Receive(std::span<char>(question), rank, kClockTag, options));
        reply.now_ns = TraceNow();
        TESSERA_RETURN_IF_ERROR(ranks_->Send(bytes, rank, kClockTag, options));
      } else if (ranks_->rank() == rank) {
        const int64_t asked_ns = TraceNow();
        TESSERA_RETURN_IF_ERROR(ranks_->Send(std::span<char>(question), 0, kClockTag, options));
        TESSERA_RETURN_IF_ERROR(ranks_->Receive(bytes, 0, kClockTag, options));
        const int64_t took_ns = TraceNow() - asked_ns;
        if (exchange > 0 && took_ns / 2 >= part_.uncertainty_ns) continue;
        part_.uncertainty_ns = took_ns / 2;
        part_.offset_ns = reply.now_ns - (asked_ns + took_ns / 2);
        origin_ns_ = reply.origin_ns;
      }
    }
  }
  if (std::abs(part_.offset_ns) <= part_.uncertainty_ns) part_.offset_ns = 0;
  return absl::OkStatus();
}

absl::Status Timeline::Gather() {
  const std::string name = absl::StrCat("trace-", first_step_, "-", last_step_, ".json");
  absl::Status written;
  if (mesh_.rank() != 0) return GatherParts(nullptr, written);
  absl::StatusOr<std::unique_ptr<FileReplacement>> file =
      FileReplacement::Create(absl::StrCat(run_dir_, "/", name));
  // The other ranks send theirs, whether there is a file or not.
  written = file.status();
  TESSERA_RETURN_IF_ERROR(GatherParts(file.ok() ? file->get() : nullptr, written));
  if (written.ok()) written = (*file)->Commit();
  notes_(written.ok()
             ? absl::StrCat("timeline of steps ", first_step_, " to ", last_step_, ": ", name)
             : absl::StrCat("the timeline of steps ", first_step_, " to ", last_step_,
                            " is not written: ", written.message()));
  return absl::OkStatus();
}

absl::Status Timeline::GatherParts(FileReplacement* file, absl::Status& written) {
  const CallOptions options{.what = "timeline"};
  std::string text = recorder_->Json(mesh_.rank(), part_.offset_ns - origin_ns_);
  part_.bytes = static_cast<int64_t>(text.size());
  part_.dropped = recorder_->dropped();
  const auto bytes_of = [](Part& part) {
    return std::span<char>(reinterpret_cast<char*>(&part), sizeof(part));
  };
  if (mesh_.rank() != 0) {
    TESSERA_RETURN_IF_ERROR(ranks_->Send(bytes_of(part_), 0, kPartTag, options));
    return ranks_->Send(std::span<char>(text), 0, kTextTag, options);
  }
  const auto append = [&](const std::string& more) {
    if (written.ok()) written = file->Append(AsBytes(more));
  };
  append(absl::StrCat("{\"traceEvents\":[\n", ProcessNames()));
  std::string clocks;
  int64_t dropped = 0;
  const int ranks = ranks_ == nullptr ? 1 : ranks_->size();
  for (int rank = 0; rank < ranks; ++rank) {
    Part part = part_;
    if (rank > 0) {
      TESSERA_RETURN_IF_ERROR(ranks_->Receive(bytes_of(part), rank, kPartTag, options));
      text.resize(static_cast<size_t>(part.bytes));
      TESSERA_RETURN_IF_ERROR(ranks_->Receive(std::span<char>(text), rank, kTextTag, options));
    }
    if (!text.empty()) append(absl::StrCat(",\n", text));
    absl::StrAppend(&clocks, rank == 0 ? "" : ",",
                    ClockJson(rank, part.offset_ns, part.uncertainty_ns));
    dropped += part.dropped;
  }
  append(
      absl::StrFormat("\n],\n\"displayTimeUnit\":\"ms\",\n\"otherData\":{\"first_step\":%d,"
                      "\"last_step\":%d,\"ranks\":%d,\"dropped_events\":%d,\"clocks\":[%s]}}\n",
                      first_step_, last_step_, ranks, dropped, clocks));
  return absl::OkStatus();
}

std::string Timeline::ProcessNames() const {
  std::string json;
  const Topology& topology = mesh_.topology();
  const auto add = [&](int rank, const char* what, const std::string& argument) {
    absl::StrAppend(&json, json.empty() ? "" : ",\n", "{\"ph\":\"M\",\"name\":\"", what,
                    "\",\"pid\":", rank, ",\"args\":{", argument, "}}");
  };
  for (int rank = 0; rank < topology.world_size(); ++rank) {
    const Coordinate at = topology.CoordinateOf(rank);
    add(rank, "process_name",
        absl::StrFormat("\"name\":\"rank %d (dp %d, tp %d, pp %d)\"", rank, at.data, at.tensor,
                        at.pipeline));
    add(rank, "process_sort_index", absl::StrCat("\"sort_index\":", rank));
  }
  return json;
}

}  // namespace tessera
