// What planning a save costs at scale: every rank of Llama-3 405B on 8,960 and of 70B on 1,024
// ranks describes its state with its optimizer, rank 0 plans, every rank takes its part. The ranks
// run one after the other in this process, through the code that a save runs, over a group that
// records when each waits for which:
//
//   figure plan.<model>_<ranks>.first_seconds    critical path, without the network: the slowest
//                                                rank's description, rank 0, the slowest way down
//                                                the tree of parts
//   figure plan.<model>_<ranks>.cached_seconds   the same for a second save of the same structure
//   figure plan.<model>_<ranks>.encode_seconds   of the manifest, checksums included; likewise
//                                                parse_seconds, manifest_bytes
//   figure plan.<model>_<ranks>.peak_memory      of rank 0, above what it has before
//   figure plan.<model>_<ranks>.max_over_mean    bytes to write, within a pipeline stage
//   figure plan.<model>_<ranks>.load_seconds     a load under another grid: the slowest rank's
//                                                plan, and rank 0's sharing out
//   figure plan.growth                           seconds per described shard, 8,960 ranks over 64

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/include/state_dict.h"
#include "checkpoint/plan/load_plan.h"
#include "checkpoint/plan/rank_states.h"
#include "checkpoint/plan/share_reads.h"
#include "checkpoint/save/save_agreement.h"
#include "layout/box.h"
#include "tests/perf/allocated_memory.h"
#include "tests/perf/harness.h"

namespace tessera::ckpt {
namespace {

// The tensor sizes of a Llama-3.
struct LlamaShape {
  int layers;
  int64_t hidden;
  int64_t ffn_hidden;
  int64_t kv_hidden;  // all key-value heads
  int64_t vocab;
};
constexpr LlamaShape kLlama70B = {80, 8192, 28672, 1024, 128256};
constexpr LlamaShape kLlama405B = {126, 16384, 53248, 1024, 128256};

struct Grid {
  int data, tensor, pipeline;
  int size() const { return data * tensor * pipeline; }
};

enum class Split { kNone, kRows, kColumns };

struct Parameter {
  std::string name;
  Shape shape;
  Split split;  // over the tensor axis
};

void AppendLayer(const LlamaShape& m, int layer, std::vector<Parameter>& out) {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  out.push_back({prefix + "input_layernorm.weight", {m.hidden}, Split::kNone});
  out.push_back({prefix + "self_attn.q_proj.weight", {m.hidden, m.hidden}, Split::kRows});
  out.push_back({prefix + "self_attn.k_proj.weight", {m.kv_hidden, m.hidden}, Split::kRows});
  out.push_back({prefix + "self_attn.v_proj.weight", {m.kv_hidden, m.hidden}, Split::kRows});
  out.push_back({prefix + "self_attn.o_proj.weight", {m.hidden, m.hidden}, Split::kColumns});
  out.push_back({prefix + "post_attention_layernorm.weight", {m.hidden}, Split::kNone});
  out.push_back({prefix + "mlp.gate_proj.weight", {m.ffn_hidden, m.hidden}, Split::kRows});
  out.push_back({prefix + "mlp.up_proj.weight", {m.ffn_hidden, m.hidden}, Split::kRows});
  out.push_back({prefix + "mlp.down_proj.weight", {m.hidden, m.ffn_hidden}, Split::kColumns});
}

std::vector<Parameter> StageParameters(const LlamaShape& m, const Grid& grid, int stage) {
  std::vector<Parameter> parameters;
  if (stage == 0) {
    parameters.push_back({"model.embed_tokens.weight", {m.vocab, m.hidden}, Split::kRows});
  }
  const int first = m.layers * stage / grid.pipeline;
  const int last = m.layers * (stage + 1) / grid.pipeline;
  for (int layer = first; layer < last; ++layer) AppendLayer(m, layer, parameters);
  if (stage == grid.pipeline - 1) {
    parameters.push_back({"model.norm.weight", {m.hidden}, Split::kNone});
    parameters.push_back({"lm_head.weight", {m.vocab, m.hidden}, Split::kRows});
  }
  return parameters;
}

Box LocalBox(const Parameter& parameter, const Grid& grid, int tensor_rank) {
  Box box = WholeBox(parameter.shape);
  if (parameter.split == Split::kNone) return box;
  const size_t dim = parameter.split == Split::kRows ? 0 : 1;
  box.shape[dim] /= grid.tensor;
  box.global_offset[dim] = tensor_rank * box.shape[dim];
  return box;
}

ShardedTensor Tensor(std::string name, TensorRole role, DType dtype, const Shape& shape,
                     const std::vector<Box>& boxes) {
  static char memory;  // stands in for memory that is never touched
  ShardedTensor tensor;
  tensor.name = std::move(name);
  tensor.role = role;
  tensor.dtype = dtype;
  tensor.global_shape = shape;
  for (const Box& box : boxes) tensor.shards.push_back({box, &memory, {}});
  return tensor;
}

// Returns the state of one rank that trains with AdamW in bf16 under ZeRO-2. It has a part of the
// weights, which all ranks of its data-parallel group share. It has fp32 master weights and moments
// for a part of the stage's flattened parameters, with arbitrary boundaries. Ranks are numbered
// tensor fastest, then data, then pipeline. The memory does not exist.
StateDict LlamaState(const LlamaShape& model, const Grid& grid, int rank) {
  const int tensor_rank = rank % grid.tensor;
  const int data_rank = rank / grid.tensor % grid.data;
  const std::vector<Parameter> parameters =
      StageParameters(model, grid, rank / grid.tensor / grid.data);
  StateDict state;
  int64_t elements = 0;
  for (const Parameter& p : parameters) {
    const Box local = LocalBox(p, grid, tensor_rank);
    elements += ElementCount(local.shape);
    state.tensors.push_back(Tensor(p.name, TensorRole::kWeight, DType::kBF16, p.shape, {local}));
  }
  const int64_t begin = elements * data_rank / grid.data;
  const int64_t end = elements * (data_rank + 1) / grid.data;
  int64_t at = 0;
  for (const Parameter& p : parameters) {
    const Box local = LocalBox(p, grid, tensor_rank);
    const int64_t size = ElementCount(local.shape);
    const int64_t first = std::clamp<int64_t>(begin - at, 0, size);
    const int64_t last = std::clamp<int64_t>(end - at, 0, size);
    at += size;
    if (first == last) continue;
    const std::vector<Box> boxes = FlatRangeToBoxes(local, first, last);
    state.tensors.push_back(
        Tensor(p.name + ".master", TensorRole::kMasterWeight, DType::kF32, p.shape, boxes));
    state.tensors.push_back(
        Tensor(p.name + ".exp_avg", TensorRole::kOptimizerState, DType::kF32, p.shape, boxes));
    state.tensors.push_back(
        Tensor(p.name + ".exp_avg_sq", TensorRole::kOptimizerState, DType::kF32, p.shape, boxes));
  }
  return state;
}

// The messages of all simulated ranks.
struct Mail {
  std::vector<std::string> gathered;
  std::map<std::pair<int, int>, std::deque<std::string>> messages;  // by source and destination
};

// One rank, which runs alone. The first run goes as far as Gather(), which stores the message and
// ends the run with an error; the second run follows when everything that it waits for has been
// sent.
class SimulatedGroup final : public ProcessGroup {
 public:
  SimulatedGroup(Mail& mail, int rank, int size, bool only_to_gather)
      : mail_(mail), rank_(rank), size_(size), only_to_gather_(only_to_gather) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  // When the rank called Gather(), and when the data that it waited for afterwards was there.
  double gather_called() const { return gather_called_; }
  int source() const { return source_; }

  absl::StatusOr<std::vector<std::string>> Gather(std::string_view mine, absl::Duration) override {
    gather_called_ = Now();
    if (only_to_gather_) {
      mail_.gathered[rank_] = std::string(mine);
      return absl::CancelledError("as far as it goes alone");
    }
    if (rank_ != 0) return std::vector<std::string>();
    return std::move(mail_.gathered);
  }
  absl::StatusOr<std::string> Broadcast(std::string_view, absl::Duration) override {
    return absl::UnimplementedError("not simulated");
  }
  std::unique_ptr<PendingMessage> StartSend(std::span<const std::byte> data,
                                            int destination) override {
    mail_.messages[{rank_, destination}].emplace_back(reinterpret_cast<const char*>(data.data()),
                                                      data.size());
    return std::make_unique<Done>();
  }
  std::unique_ptr<PendingMessage> StartReceive(std::span<std::byte> data, int source) override {
    source_ = source;
    std::deque<std::string>& queue = mail_.messages[{source, rank_}];
    std::memcpy(data.data(), queue.front().data(), data.size());
    queue.pop_front();
    return std::make_unique<Done>();
  }

 private:
  struct Done final : PendingMessage {
    absl::Status Wait(absl::Duration) override { return absl::OkStatus(); }
  };

  Mail& mail_;
  const int rank_, size_;
  const bool only_to_gather_;
  double gather_called_ = 0;
  int source_ = 0;
};

struct Save {
  double describe_seconds = 0;    // the slowest rank
  double coordinate_seconds = 0;  // rank 0
  double receive_seconds = 0;     // the slowest path from rank 0 to a rank
  int64_t peak_bytes = 0;         // of rank 0
  int64_t described_shards = 0;
  int64_t sent_bytes = 0;  // to rank 0
  Manifest manifest;
  bool ok = true;
  bool from_cache = true;
  double seconds() const { return describe_seconds + coordinate_seconds + receive_seconds; }
};

absl::StatusOr<SaveTask> RunRank(SimulatedGroup& group, const StateDict& state, PlanCache& cache,
                                 Manifest* manifest) {
  if (const absl::Status checked = CheckStateDict(state); !checked.ok()) return checked;
  const auto prepare = [&](const PlannedManifest& planned) {
    if (planned.is_new) *manifest = planned.layout;
    return SaveTarget{.directory = "step-00000001", .attempt = "1a2b3c4d"};
  };
  return AgreeOnSave(DescribeState(state), {.group = group,
                                            .step = 1,
                                            .metadata = {},
                                            .cache = cache,
                                            .prepare = prepare,
                                            .timeout = absl::InfiniteDuration()});
}

Save Simulate(const LlamaShape& model, const Grid& grid, std::vector<PlanCache>& caches) {
  Save save;
  Mail mail;
  mail.gathered.resize(grid.size());
  for (int rank = 0; rank < grid.size(); ++rank) {
    const StateDict state = LlamaState(model, grid, rank);
    for (const ShardedTensor& tensor : state.tensors) save.described_shards += tensor.shards.size();
    double fastest = 1e9;  // of two runs, to exclude other load
    for (int run = 0; run < 2; ++run) {
      SimulatedGroup group(mail, rank, grid.size(), true);
      const double start = Now();
      RunRank(group, state, caches[rank], nullptr).IgnoreError();
      fastest = std::min(fastest, group.gather_called() - start);
    }
    save.describe_seconds = std::max(save.describe_seconds, fastest);
  }
  for (const std::string& message : mail.gathered) save.sent_bytes += message.size();
  std::vector<double> arrival(grid.size(), 0);  // since rank 0 was done
  for (int rank = 0; rank < grid.size(); ++rank) {
    const StateDict state = LlamaState(model, grid, rank);
    SimulatedGroup group(mail, rank, grid.size(), false);
    const int64_t before = AllocatedBytes();
    ResetPeak();
    const auto task = RunRank(group, state, caches[rank], &save.manifest);
    const double seconds = Now() - group.gather_called();
    save.ok &= task.ok();
    if (!task.ok()) {
      std::fprintf(stderr, "rank %d: %s\n", rank, task.status().ToString().c_str());
      break;
    }
    save.from_cache &= task->from_cache;
    if (rank == 0) {
      save.coordinate_seconds = seconds;
      save.peak_bytes = PeakAllocatedBytes() - before;
    } else {
      arrival[rank] = arrival[group.source()] + seconds;
      save.receive_seconds = std::max(save.receive_seconds, arrival[rank]);
    }
  }
  return save;
}

// Completes the manifest like a commit. The values of checksums do not matter here, but they must
// not be compressible.
void AddChecksumsAndDigests(Manifest& manifest) {
  uint64_t state = 1;
  const auto next = [&] { return state = state * 6364136223846793005u + 1442695040888963407u; };
  for (DataFile& file : *manifest.mutable_files()) {
    const uint64_t chunks = CeilDivide(file.size_bytes(), file.chunk_bytes());
    for (uint64_t c = 0; c < chunks; ++c) {
      file.add_chunk_crc32c(static_cast<uint32_t>(next() >> 32));
    }
  }
  for (LogicalTensor& tensor : *manifest.mutable_tensors()) {
    tensor.mutable_digest()->set_lo(next());
    tensor.mutable_digest()->set_hi(next());
  }
}

int64_t ShardsOf(const Manifest& manifest) {
  int64_t shards = 0;
  for (const LogicalTensor& tensor : manifest.tensors()) shards += ShardCount(tensor);
  return shards;
}

// Bytes to write: the maximum over the mean of the ranks that hold the same layers, in the worst
// pipeline stage. Differences between stages are inherent to the model. 0: ranks have more than one
// file of each kind, which are not distinguished.
double MaxOverMean(const Manifest& manifest, const Grid& grid) {
  std::vector<double> bytes[2];
  for (const DataFile& file : manifest.files()) {
    bytes[file.path().starts_with("model")].push_back(static_cast<double>(file.size_bytes()));
  }
  const size_t ranks = grid.size(), stage_ranks = ranks / grid.pipeline;
  if (bytes[0].size() != ranks || bytes[1].size() != ranks) return 0;
  double worst = 0;
  for (size_t first = 0; first < ranks; first += stage_ranks) {
    double most = 0, sum = 0;
    for (size_t r = first; r < first + stage_ranks; ++r) {
      most = std::max(most, bytes[0][r] + bytes[1][r]);
      sum += bytes[0][r] + bytes[1][r];
    }
    worst = std::max(worst, most * static_cast<double>(stage_ranks) / sum);
  }
  return worst;
}

// A load of the checkpoint under another grid: what each rank needs, and which rank reads it.
struct Load {
  bool ok = true;
  double rank_seconds = 0;   // the slowest
  double share_seconds = 0;  // rank 0
  int64_t needs_bytes = 0;   // to rank 0
  uint64_t alone_bytes = 0;  // if every rank read for itself
  uint64_t read_bytes = 0;   // by all ranks together
};

Load SimulateLoad(const Manifest& manifest, const LlamaShape& model, const Grid& grid) {
  Load load;
  std::map<std::string_view, uint32_t> index;
  for (int t = 0; t < manifest.tensors_size(); ++t) index[manifest.tensors(t).name()] = t;
  std::vector<std::string> needs;
  for (int rank = 0; rank < grid.size(); ++rank) {
    std::vector<WantedBox> wanted;
    const StateDict state = LlamaState(model, grid, rank);
    for (const ShardedTensor& tensor : state.tensors) {
      for (const Shard& shard : tensor.shards) wanted.push_back({index.at(tensor.name), shard.box});
    }
    const double start = Now();
    const auto plan = PlanLoad(manifest, wanted);
    if (!plan.ok()) return {false};
    needs.push_back(DescribeNeeds(manifest, *plan, uint64_t{64} << 20).SerializeAsString());
    load.rank_seconds = std::max(load.rank_seconds, Now() - start);
    load.needs_bytes += needs.back().size();
    load.alone_bytes += plan->bytes;
  }
  const double start = Now();
  const auto shares = ShareReads(manifest, needs);
  load.share_seconds = Now() - start;
  load.ok = shares.ok();
  for (int rank = 0; load.ok && rank < grid.size(); ++rank) {
    ReadShare share;
    load.ok = share.ParseFromString((*shares)[rank]);
    for (const ReadSegment& segment : share.segments()) {
      uint64_t at = segment.begin();
      for (const uint32_t reader : segment.reader()) {
        const uint64_t end = std::min(at + segment.piece_bytes(), segment.end());
        if (reader == static_cast<uint32_t>(rank)) load.read_bytes += end - at;
        at = end;
      }
      if (segment.reader_size() == 0) load.read_bytes += segment.end() - segment.begin();
    }
  }
  return load;
}

struct Result {
  bool ok;
  double seconds_per_shard;
};

Result Report(const LlamaShape& model, const char* name, const Grid& grid, const Grid& load_grid,
              bool figures) {
  std::fprintf(stderr, "%s on %d ranks\n", name, grid.size());
  std::vector<PlanCache> caches(grid.size());
  Save first = Simulate(model, grid, caches);
  const Save cached = Simulate(model, grid, caches);
  if (!first.ok || !cached.ok || first.from_cache || !cached.from_cache) return {false, 0};
  const double balance = MaxOverMean(first.manifest, grid);
  AddChecksumsAndDigests(first.manifest);
  const int64_t shards = ShardsOf(first.manifest);
  double start = Now();
  const auto encoded = EncodeManifest(std::move(first.manifest));
  const double encode_seconds = Now() - start;
  if (!encoded.ok()) {
    std::fprintf(stderr, "%s\n", encoded.status().ToString().c_str());
    return {false, 0};
  }
  start = Now();
  const auto parsed = DecodeManifest(*encoded);
  const double parse_seconds = Now() - start;
  if (!parsed.ok()) return {false, 0};
  std::printf(
      "%5s %6d ranks (dp%d tp%d pp%d): %8ld shards described, %7ld written, max/mean %.3f\n"
      "      first %.3f s = describe %.4f + rank 0 %.3f + hand out %.4f, %.1f MB to rank 0, "
      "%.0f MB peak; cached %.4f s, %.2f MB to rank 0; %.2f us per described shard\n",
      name, grid.size(), grid.data, grid.tensor, grid.pipeline, first.described_shards, shards,
      balance, first.seconds(), first.describe_seconds, first.coordinate_seconds,
      first.receive_seconds, first.sent_bytes / 1e6, first.peak_bytes / 1e6, cached.seconds(),
      cached.sent_bytes / 1e6, first.seconds() / first.described_shards * 1e6);
  if (figures) {
    const auto figure = [&](const char* what, double value, const char* unit) {
      PrintFigure(absl::StrCat("plan.", name, "_", grid.size(), ".", what), value, unit);
    };
    figure("first_seconds", first.seconds(), "s");
    figure("cached_seconds", cached.seconds(), "s");
    figure("encode_seconds", encode_seconds, "s");
    figure("parse_seconds", parse_seconds, "s");
    figure("manifest_bytes", static_cast<double>(encoded->size()), "B");
    figure("peak_memory", static_cast<double>(first.peak_bytes), "B");
    figure("max_over_mean", balance, "ratio");
  }
  if (load_grid.size() > 0) {
    const Load load = SimulateLoad(*parsed, model, load_grid);
    if (!load.ok) return {false, 0};
    std::printf(
        "      load at dp%d tp%d pp%d: slowest rank %.4f s, rank 0 %.3f s, %.1f MB to rank 0; %.1f "
        "GB "
        "read instead of %.1f GB\n",
        load_grid.data, load_grid.tensor, load_grid.pipeline, load.rank_seconds, load.share_seconds,
        load.needs_bytes / 1e6, load.read_bytes / 1e9, load.alone_bytes / 1e9);
    PrintFigure(absl::StrCat("plan.", name, "_", grid.size(), ".load_seconds"),
                load.rank_seconds + load.share_seconds, "s");
  }
  std::fflush(stdout);
  return {true, first.seconds() / first.described_shards};
}

int Main() {
  const Grid none = {0, 0, 0};
  bool ok = Report(kLlama70B, "70b", {16, 8, 8}, {32, 4, 8}, true).ok;
  const Result small = Report(kLlama405B, "405b", {1, 8, 8}, none, false);
  for (const Grid& grid : {Grid{2, 8, 16}, Grid{8, 8, 16}, Grid{32, 8, 16}}) {
    ok &= Report(kLlama405B, "405b", grid, none, false).ok;
  }
  const Result large = Report(kLlama405B, "405b", {70, 8, 16}, {70, 4, 32}, true);
  ok &= small.ok && large.ok;
  if (ok) PrintFigure("plan.growth", large.seconds_per_shard / small.seconds_per_shard);
  return ok ? 0 : 1;
}

}  // namespace
}  // namespace tessera::ckpt

int main() { return tessera::ckpt::Main(); }
