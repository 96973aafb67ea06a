#include "compute/parallel/gradient_norm.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <numeric>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/checked_math.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "compute/parallel/tree_sum.h"
#include "glog/logging.h"

namespace tessera {
namespace {

int64_t Blocks(int64_t elements) { return CeilDivide(elements, kGradientBlock); }

absl::StatusOr<std::vector<double>> AllGatherValues(const std::vector<double>& mine,
                                                    const std::vector<int64_t>& counts,
                                                    Communicator& group) {
  std::vector<double> all(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  TESSERA_RETURN_IF_ERROR(
      group.AllGather(ConstBuffer(mine), all, counts, {.what = "norm of gradients"}));
  return all;
}

}  // namespace

void AppendGradientParts(const GradientLayout& layout, std::span<const OwnedGradient> owned,
                         std::vector<GradientPart>* parts) {
  size_t first = 0;
  for (const FlatParameter& parameter : layout.parameters) {
    const int64_t parameter_end = parameter.begin + parameter.elements;
    GradientPart part = {
        .key = parameter.key, .elements = parameter.elements, .begin = 0, .grad = {}};
    while (first < owned.size() && owned[first].end <= parameter.begin) ++first;
    for (size_t i = first; i < owned.size() && owned[i].begin < parameter_end; ++i) {
      const int64_t begin = std::max(parameter.begin, owned[i].begin);
      const int64_t end = std::min(parameter_end, owned[i].end);
      if (begin >= end) continue;
      CHECK(part.grad.empty()) << parameter.key << " lies in two owned ranges";
      part.begin = begin - parameter.begin;
      part.grad = owned[i].grad.Slice(0, begin - owned[i].begin, end - owned[i].begin);
    }
    parts->push_back(std::move(part));
  }
}

absl::StatusOr<std::unique_ptr<GradientNorm>> GradientNorm::Create(Backend& backend,
                                                                   std::vector<GradientPart> parts,
                                                                   const Groups& groups) {
  std::sort(parts.begin(), parts.end(),
            [](const GradientPart& a, const GradientPart& b) { return a.key < b.key; });
  std::unique_ptr<GradientNorm> norm(new GradientNorm(backend, std::move(parts)));
  TESSERA_ASSIGN_OR_RETURN(Runs runs, norm->MakeRuns());
  TESSERA_ASSIGN_OR_RETURN(const std::vector<Runs> owners, ExchangeRuns(runs, groups.data));
  TESSERA_RETURN_IF_ERROR(norm->PlanOwners(owners, groups.data));
  norm->PlanTrees();
  if (norm->data_ == nullptr) {
    Runs same = runs;
    TESSERA_ASSIGN_OR_RETURN(norm->replicas_, PlanExchange(groups.data, &same));
  }
  TESSERA_ASSIGN_OR_RETURN(norm->tensor_, PlanExchange(groups.tensor, &runs));
  TESSERA_ASSIGN_OR_RETURN(norm->pipeline_, PlanExchange(groups.pipeline, &runs));
  return norm;
}

absl::StatusOr<GradientNorm::Runs> GradientNorm::MakeRuns() {
  Runs runs;
  for (const GradientPart& part : parts_) {
    const int64_t end = part.begin + (part.grad.empty() ? 0 : part.grad.elements());
    if (!runs.empty() && runs.back().key == part.key) {
      return absl::InternalError(absl::StrCat("gradient of ", part.key, ": twice on one rank"));
    }
    if (part.begin % kGradientBlock != 0 || (end % kGradientBlock != 0 && end != part.elements)) {
      return absl::InternalError(absl::StrCat("gradient of ", part.key, ": elements [", part.begin,
                                              ", ", end, ") are no whole blocks of ",
                                              kGradientBlock));
    }
    runs.push_back({.key = part.key,
                    .elements = part.elements,
                    .begin_block = part.begin / kGradientBlock,
                    .end_block = Blocks(end)});
  }
  return runs;
}

absl::StatusOr<std::vector<GradientNorm::Runs>> GradientNorm::ExchangeRuns(const Runs& mine,
                                                                           Communicator* group) {
  if (group == nullptr) return std::vector<Runs>{mine};
  std::string text;  // a line for each run
  for (const Run& run : mine) {
    absl::StrAppend(&text, run.elements, " ", run.begin_block, " ", run.end_block, " ", run.key,
                    "\n");
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                           group->AllGatherBytes(text, {.what = "keys of gradients"}));
  std::vector<Runs> ranks;
  for (const std::string& lines : all) {
    Runs& runs = ranks.emplace_back();
    for (const auto line : absl::StrSplit(lines, '\n', absl::SkipEmpty())) {
      const std::vector<std::string> words = absl::StrSplit(line, absl::MaxSplits(' ', 3));
      Run& run = runs.emplace_back(Run{.key = words.back()});
      CHECK(words.size() == 4 && absl::SimpleAtoi(words[0], &run.elements) &&
            absl::SimpleAtoi(words[1], &run.begin_block) &&
            absl::SimpleAtoi(words[2], &run.end_block))
          << lines;
    }
  }
  return ranks;
}

absl::Status GradientNorm::PlanOwners(const std::vector<Runs>& ranks, Communicator* group) {
  const Runs& first = ranks[0];
  bool all_own_all = true;
  for (const Runs& runs : ranks) {
    const bool same = std::equal(
        runs.begin(), runs.end(), first.begin(), first.end(),
        [](const Run& a, const Run& b) { return a.key == b.key && a.elements == b.elements; });
    if (!same) return absl::InternalError("data-parallel ranks have different parameters");
    for (const Run& run : runs) {
      all_own_all &= run.begin_block == 0 && run.end_block == Blocks(run.elements);
    }
  }
  if (all_own_all) return absl::OkStatus();
  data_ = group;
  data_counts_.assign(ranks.size(), 0);
  ends_.assign(first.size(), {});
  for (size_t p = 0; p < first.size(); ++p) {
    int64_t end = 0;
    for (size_t r = 0; r < ranks.size(); ++r) {
      const Run& run = ranks[r][p];
      if (run.begin_block != run.end_block) {
        if (run.begin_block != end) break;
        end = run.end_block;
        data_counts_[r] += SubtreeCount(run.begin_block, end, Blocks(run.elements));
      }
      ends_[p].push_back(end);
    }
    if (ends_[p].size() != ranks.size() || end != Blocks(first[p].elements)) {
      return absl::InternalError(absl::StrCat(
          "gradient of ", first[p].key, ": what data-parallel ranks own of it does not add up to ",
          first[p].elements, " elements"));
    }
  }
  return absl::OkStatus();
}

void GradientNorm::PlanTrees() {
  for (const GradientPart& part : parts_) {
    if (data_ == nullptr) {
      trees_.push_back(part.grad);
      continue;
    }
    const int64_t begin = part.begin / kGradientBlock;
    const int64_t elements = part.grad.empty() ? 0 : part.grad.elements();
    for (const Subtree& tree : SubtreesOf(begin, begin + Blocks(elements), Blocks(part.elements))) {
      trees_.push_back(part.grad.Slice(0, (tree.begin - begin) * kGradientBlock,
                                       std::min((tree.end - begin) * kGradientBlock, elements)));
    }
  }
}

absl::StatusOr<GradientNorm::Exchange> GradientNorm::PlanExchange(Communicator* group, Runs* runs) {
  Exchange exchange;
  if (group == nullptr) return exchange;
  TESSERA_ASSIGN_OR_RETURN(const std::vector<Runs> ranks, ExchangeRuns(*runs, group));
  struct Key {
    int64_t elements;
    std::vector<size_t> copies;
  };
  std::map<std::string, Key> keys;
  size_t position = 0;
  for (const Runs& of_rank : ranks) {
    for (const Run& run : of_rank) {
      Key& key = keys.try_emplace(run.key, Key{run.elements, {}}).first->second;
      if (key.elements != run.elements) {
        return absl::InternalError(absl::StrCat("gradient of ", run.key, ": ", key.elements,
                                                " elements on one rank, ", run.elements,
                                                " on another"));
      }
      key.copies.push_back(position++);
    }
    exchange.counts.push_back(static_cast<int64_t>(of_rank.size()));
  }
  runs->clear();
  for (auto& [name, key] : keys) {
    runs->push_back({.key = name, .elements = key.elements});
    exchange.keys.push_back(name);
    exchange.copies.push_back(std::move(key.copies));
  }
  exchange.group = group;
  return exchange;
}

absl::StatusOr<std::vector<double>> GradientNorm::ParameterSums() {
  std::vector<double> sums(trees_.size());
  backend_.SumsOfSquares({trees_, kGradientBlock, sums});
  // This rank's own work may have failed, which must not look like a divergence. The call costs
  // nothing: the sums were waited for.
  TESSERA_RETURN_IF_ERROR(backend_.Synchronize());
  if (data_ == nullptr) return sums;

  TESSERA_ASSIGN_OR_RETURN(const std::vector<double> all,
                           AllGatherValues(sums, data_counts_, *data_));
  // The index of each rank's next number.
  std::vector<int64_t> next(data_counts_.size(), 0);
  std::partial_sum(data_counts_.begin(), data_counts_.end() - 1, next.begin() + 1);
  std::vector<double> subtrees;
  sums.clear();
  for (size_t p = 0; p < parts_.size(); ++p) {
    subtrees.clear();
    int64_t begin = 0;
    for (size_t r = 0; r < next.size(); ++r) {
      const int64_t count = SubtreeCount(begin, ends_[p][r], Blocks(parts_[p].elements));
      subtrees.insert(subtrees.end(), all.begin() + next[r], all.begin() + next[r] + count);
      next[r] += count;
      begin = ends_[p][r];
    }
    sums.push_back(CombineSubtrees(ends_[p], subtrees));
  }
  return sums;
}

absl::StatusOr<std::vector<double>> GradientNorm::MakeExchange(const Exchange& exchange,
                                                               std::vector<double> mine,
                                                               const OnDivergence& on_divergence) {
  if (exchange.group == nullptr) return mine;
  TESSERA_ASSIGN_OR_RETURN(const std::vector<double> all,
                           AllGatherValues(mine, exchange.counts, *exchange.group));
  std::vector<int> ranks;  // in the world, by place among the values
  for (size_t rank = 0; rank < exchange.counts.size(); ++rank) {
    ranks.insert(ranks.end(), exchange.counts[rank],
                 exchange.group->WorldRank(static_cast<int>(rank)));
  }
  std::vector<double> sums;
  std::string key, parties;
  int64_t differing = 0;
  for (size_t k = 0; k < exchange.copies.size(); ++k) {
    const std::vector<size_t>& copies = exchange.copies[k];
    double sum = all[copies[0]];
    std::vector<ReplicaBits> bits;
    for (const size_t copy : copies) {
      // A value that is not finite must be preserved, so that no rank updates.
      if (!std::isfinite(all[copy])) sum = all[copy];
      bits.push_back({ranks[copy], std::bit_cast<uint64_t>(all[copy])});
    }
    sums.push_back(sum);
    const std::string found = std::isfinite(sum) ? DescribeParties(bits) : "";
    if (!found.empty() && ++differing == 1) {
      key = exchange.keys[k];
      parties = found;
    }
  }
  if (differing > 0) {
    TESSERA_RETURN_IF_ERROR(on_divergence(DescribeDivergence("gradient", key, differing, parties),
                                          exchange.group->rank() == 0));
  }
  return sums;
}

absl::StatusOr<std::vector<double>> GradientNorm::CompareOwners(std::vector<double> sums,
                                                                const OnDivergence& on_divergence) {
  if (replicas_.group == nullptr) return sums;
  const int64_t own = Crc32c(std::as_bytes(std::span(sums)));
  std::vector<int64_t> all(replicas_.group->size());
  TESSERA_RETURN_IF_ERROR(replicas_.group->AllGather(ConstBuffer(std::span(&own, 1)), all, {},
                                                     {.what = "checksum of gradients"}));
  if (std::all_of(all.begin(), all.end(), [&](int64_t sum) { return sum == own; })) return sums;
  return MakeExchange(replicas_, std::move(sums), on_divergence);
}

absl::StatusOr<double> GradientNorm::Compute(const OnDivergence& on_divergence) {
  TESSERA_ASSIGN_OR_RETURN(std::vector<double> sums, ParameterSums());
  TESSERA_ASSIGN_OR_RETURN(sums, CompareOwners(std::move(sums), on_divergence));
  TESSERA_ASSIGN_OR_RETURN(sums, MakeExchange(tensor_, std::move(sums), on_divergence));
  TESSERA_ASSIGN_OR_RETURN(sums, MakeExchange(pipeline_, std::move(sums), on_divergence));
  return std::sqrt(std::accumulate(sums.begin(), sums.end(), 0.0));
}

}  // namespace tessera
