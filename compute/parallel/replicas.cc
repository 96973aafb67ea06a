#include "compute/parallel/replicas.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/crc32c.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

constexpr size_t kMaxRanksNamed = 16;

std::string RankList(const std::vector<int>& ranks) {
  const size_t named = std::min(ranks.size(), kMaxRanksNamed);
  std::string text = absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ",
                                  absl::StrJoin(ranks.begin(), ranks.begin() + named, ", "));
  if (ranks.size() > named) absl::StrAppend(&text, " and ", ranks.size() - named, " more");
  return text;
}

}  // namespace

uint32_t TensorChecksum(const TensorView& value, Backend& backend) {
  const auto bytes = static_cast<size_t>(value.bytes());
  if (backend.device().type == DeviceType::kCpu) return Crc32c({value.as<std::byte>(), bytes});
  std::vector<std::byte> copy(bytes);
  backend.Download(value, copy.data());
  return Crc32c(copy);
}

std::string DescribeParties(std::span<const ReplicaBits> copies) {
  struct Party {
    uint64_t bits;
    std::vector<int> ranks;
  };
  std::vector<Party> parties;
  for (const ReplicaBits& copy : copies) {
    auto party = std::find_if(parties.begin(), parties.end(),
                              [&](const Party& p) { return p.bits == copy.bits; });
    if (party == parties.end()) party = parties.insert(parties.end(), {copy.bits, {}});
    party->ranks.push_back(copy.world_rank);
  }
  if (parties.size() <= 1) return "";
  std::stable_sort(parties.begin(), parties.end(),
                   [](const Party& a, const Party& b) { return a.ranks.size() > b.ranks.size(); });
  std::vector<std::string> texts;
  for (const Party& party : parties) texts.push_back(RankList(party.ranks));
  return absl::StrJoin(texts, " against ");
}

std::string DescribeDivergence(std::string_view what, std::string_view key, int64_t tensors,
                               std::string_view parties) {
  std::string text = absl::StrCat(std::string(what), " of '", std::string(key), "'");
  if (tensors > 1) {
    absl::StrAppend(&text, " (and of ", tensors - 1, " more tensor", tensors == 2 ? "" : "s", ")");
  }
  absl::StrAppend(&text, " is not the same on all ranks that hold it: ", std::string(parties));
  return text;
}

absl::Status CheckReplicas(std::string_view what, std::span<const ReplicatedTensor> tensors,
                           Backend& backend, Communicator* group,
                           const OnDivergence& on_divergence) {
  if (group == nullptr) return absl::OkStatus();
  const CallOptions call = {.what = "checksums of replicas"};
  std::vector<uint32_t> mine;
  for (const ReplicatedTensor& tensor : tensors) {
    mine.push_back(TensorChecksum(tensor.value, backend));
  }
  const auto bytes = std::as_bytes(std::span(mine));
  const int64_t own = Crc32c(bytes);
  std::vector<int64_t> summaries(group->size());
  TESSERA_RETURN_IF_ERROR(group->AllGather(ConstBuffer(std::span(&own, 1)), summaries, {}, call));
  if (std::all_of(summaries.begin(), summaries.end(), [&](int64_t s) { return s == own; })) {
    return absl::OkStatus();
  }

  std::vector<int64_t> wide(mine.begin(), mine.end()), all(mine.size() * group->size());
  TESSERA_RETURN_IF_ERROR(group->AllGather(ConstBuffer(wide), all, {}, call));
  std::string key, parties;
  int64_t differing = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::vector<ReplicaBits> copies;
    for (int rank = 0; rank < group->size(); ++rank) {
      copies.push_back(
          {group->WorldRank(rank), static_cast<uint64_t>(all[rank * tensors.size() + i])});
    }
    const std::string found = DescribeParties(copies);
    if (found.empty()) continue;
    if (++differing == 1) {
      key = tensors[i].key;
      parties = found;
    }
  }
  if (differing == 0) return absl::OkStatus();
  return on_divergence(DescribeDivergence(what, key, differing, parties), group->rank() == 0);
}

}  // namespace tessera
