#include "compute/kernels/cuda/product_table.h"

#include <fcntl.h>
#include <glog/logging.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/crc32c.h"
#include "base/files.h"
#include "base/program.h"
#include "base/replace_file.h"
#include "base/scoped_fd.h"
#include "base/status_macros.h"

namespace tessera::cuda {
namespace {

constexpr std::string_view kFirstLine = "tessera product table 2\n";
constexpr std::string_view kOldFirstLine = "tessera product table 1\n";
static_assert(kFirstLine.size() == kOldFirstLine.size());

bool BeginsAsATable(std::string_view text) {
  return text.starts_with(kFirstLine) || text.starts_with(kOldFirstLine);
}

std::string Lines(const MeasuredProducts& measured) {
  std::string text;
  for (const auto& way : measured.ways) absl::StrAppend(&text, WaysText(Ways{way}), "\n");
  for (const auto& [product, proposal] : measured.proposals) {
    absl::StrAppend(&text, proposal, " ", product, "\n");
  }
  return text;
}

std::string ChecksumLine(std::string_view text) {
  return absl::StrFormat("crc32c %08x\n", Crc32c(text));
}

// Reads one line into the table. `device` points to the entries of the last device.
bool ParseLine(const std::string& line, ProductTable* table, MeasuredProducts** device) {
  if (line.size() > 2 && line.front() == '[' && line.back() == ']') {
    const auto [place, added] = table->try_emplace(line.substr(1, line.size() - 2));
    *device = &place->second;
    return added;
  }
  if (*device == nullptr) return false;
  if (AddWay(line, &(*device)->ways)) return true;
  const std::pair<std::string, std::string> parts = absl::StrSplit(line, absl::MaxSplits(' ', 1));
  int proposal = 0;
  return absl::SimpleAtoi(parts.first, &proposal) && proposal >= 0 && !parts.second.empty() &&
         (*device)->proposals.emplace(parts.second, proposal).second;
}

// Returns the table of a file, empty if it is missing or damaged.
absl::StatusOr<ProductTable> TableToChange(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadWholeFile(path);
  if (absl::IsNotFound(text.status())) return ProductTable();
  if (!text.ok()) return text.status();
  absl::StatusOr<ProductTable> table = ParseProductTable(*text);
  if (table.ok() || !BeginsAsATable(*text)) return table;
  LOG(WARNING) << path << " is replaced: " << table.status().message();
  return ProductTable();
}

// Waits for other processes that change the file. Without an effect where the file system has no
// locks.
absl::StatusOr<ScopedFd> LockTable(const std::string& path) {
  TESSERA_RETURN_IF_ERROR(
      MakeDirectories(AT_FDCWD, std::filesystem::absolute(path).parent_path().string()));
  TESSERA_ASSIGN_OR_RETURN(ScopedFd fd,
                           OpenRegularFile(AT_FDCWD, path + ".lock", O_WRONLY | O_CREAT));
  while (::flock(fd.get(), LOCK_EX) != 0 && errno == EINTR) continue;
  return fd;
}

// Calls change(measured) for what the file has of a device, and writes the file.
absl::Status ChangeTable(const std::string& path, const std::string& device,
                         const std::function<void(MeasuredProducts&)>& change) {
  const auto in_file = [&](const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
  };
  const absl::StatusOr<ScopedFd> lock = LockTable(path);
  if (!lock.ok()) return in_file(lock.status());
  absl::StatusOr<ProductTable> table = TableToChange(path);
  if (!table.ok()) return in_file(table.status());
  change((*table)[device]);
  return ReplaceFile(path, ToText(*table));
}

}  // namespace

bool AddWay(std::string_view text, Ways* ways) {
  const size_t equals = std::min(text.find('='), text.size());
  const std::string_view name = text.substr(0, equals), value = text.substr(equals);
  const bool known = std::ranges::any_of(kWays, [&](const Way& way) { return way.name == name; });
  return known && (value == "=true" || value == "=false") &&
         ways->emplace(name, value == "=true").second;
}

std::string WaysText(const Ways& ways) {
  return absl::StrJoin(ways, ",", [](std::string* text, const auto& way) {
    absl::StrAppend(text, way.first, way.second ? "=true" : "=false");
  });
}

ProductChoices WithWays(ProductChoices choices, const Ways& ways) {
  for (const auto& [name, member] : kWays) {
    const auto found = ways.find(name);
    if (found != ways.end()) choices.*member = found->second;
  }
  return choices;
}

std::string DeviceName(const std::string& gpu_type, const std::string& library) {
  return absl::StrCat(gpu_type, "; ", library);
}

std::string ToText(const ProductTable& table) {
  std::string text(kFirstLine);
  for (const auto& [device, measured] : table) {
    absl::StrAppend(&text, "[", device, "]\n", Lines(measured));
  }
  return absl::StrCat(text, ChecksumLine(text));
}

absl::StatusOr<ProductTable> ParseProductTable(std::string_view text) {
  if (!BeginsAsATable(text)) {
    return absl::DataLossError("it is no table of products of version 1 or 2");
  }
  const size_t checksum_size = ChecksumLine("").size();
  const size_t size = text.size() - std::min(text.size(), checksum_size);
  const std::string_view lines = text.substr(0, size);
  if (size < kFirstLine.size() || text.substr(size) != ChecksumLine(lines)) {
    return absl::DataLossError("its checksum is wrong: it is damaged, or was edited");
  }
  ProductTable table;
  MeasuredProducts* device = nullptr;
  const std::string rest(lines.substr(kFirstLine.size()));
  for (const absl::string_view line : absl::StrSplit(rest, '\n', absl::SkipEmpty())) {
    if (!ParseLine(std::string(line), &table, &device)) {
      return absl::DataLossError(absl::StrCat("it has a line that means nothing: ", line));
    }
  }
  return table;
}

std::string DigestOf(const MeasuredProducts& measured) {
  return absl::StrFormat("%08x", Crc32c(Lines(measured)));
}

absl::StatusOr<std::string> ProductTablePath() {
  const std::string cache = EnvironmentVariable("XDG_CACHE_HOME");
  if (!cache.empty()) return absl::StrCat(cache, "/tessera/products");
  const std::string home = EnvironmentVariable("HOME");
  if (!home.empty()) return absl::StrCat(home, "/.cache/tessera/products");
  return absl::FailedPreconditionError(
      "there is no folder for a table of products: neither XDG_CACHE_HOME nor HOME is set");
}

absl::Status AddProposals(const std::string& path, const std::string& device,
                          const ProductProposals& proposals) {
  return ChangeTable(path, device, [&](MeasuredProducts& measured) {
    for (const auto& [product, proposal] : proposals) {
      measured.proposals.erase(product);
      if (proposal > 0) measured.proposals.emplace(product, proposal);
    }
  });
}

absl::Status SetWays(const std::string& path, const std::string& device,
                     const std::map<std::string, std::optional<bool>>& ways) {
  return ChangeTable(path, device, [&](MeasuredProducts& measured) {
    for (const auto& [name, value] : ways) {
      measured.ways.erase(name);
      if (value.has_value()) measured.ways.emplace(name, *value);
    }
  });
}

}  // namespace tessera::cuda
