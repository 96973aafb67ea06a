#include "base/system_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "base/files.h"

namespace tessera {
namespace {

constexpr uint64_t kUnknown = std::numeric_limits<uint64_t>::max();

std::string ReadText(const std::string& path) { return ReadWholeFile(path).value_or(""); }

// Returns the number at the beginning of `text`, after blanks.
std::optional<uint64_t> ParseNumber(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  uint64_t value;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc()) return std::nullopt;
  return value;
}

// Returns the number after `key` at the beginning of a line.
std::optional<uint64_t> FindNumber(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    if (line.starts_with(key)) return ParseNumber(line.substr(key.size()));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
  }
  return std::nullopt;
}

// Returns "/a/b" of the line "0::/a/b" of /proc/self/cgroup; empty without one.
std::string ControlGroupPath() {
  std::istringstream lines(ReadText("/proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("0::")) return line.substr(3);
  }
  return "";
}

}  // namespace

uint64_t ParseMemAvailable(std::string_view meminfo) {
  const std::optional<uint64_t> kib = FindNumber(meminfo, "MemAvailable:");
  return kib && *kib < kUnknown / 1024 ? *kib * 1024 : kUnknown;
}

uint64_t ParseControlGroupRoom(std::string_view max, std::string_view current,
                               std::string_view stat) {
  const std::optional<uint64_t> limit = ParseNumber(max);  // no limit for "max"
  const std::optional<uint64_t> usage = ParseNumber(current);
  if (!limit || !usage) return kUnknown;
  const uint64_t cache = FindNumber(stat, "inactive_file ").value_or(0);
  const uint64_t held = *usage - std::min(cache, *usage);
  return *limit - std::min(held, *limit);
}

uint64_t AvailableMemoryBytes() {
  uint64_t available = ParseMemAvailable(ReadText("/proc/meminfo"));
  // A group is also subject to the limits of all groups that contain it.
  for (std::string path = ControlGroupPath();; path.resize(path.rfind('/'))) {
    const std::string folder = absl::StrCat("/sys/fs/cgroup", path, "/memory.");
    available = std::min(
        available, ParseControlGroupRoom(ReadText(folder + "max"), ReadText(folder + "current"),
                                         ReadText(folder + "stat")));
    if (path.find('/') == path.npos) break;
  }
  return available;
}

// A huge page must be aligned to its size: maps one more and unmaps the ends. The last one must
// begin with a page of the system: callers' pages have 4 KiB, but some ARM systems' 64 KiB.
void* MapOnHugePages(size_t size_bytes, int flags) {
  size_bytes = RoundUp<size_t>(size_bytes, sysconf(_SC_PAGESIZE));
  void* mapped = mmap(nullptr, size_bytes + kHugePageBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  if (mapped == MAP_FAILED) return MAP_FAILED;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(mapped);
  const uintptr_t aligned = RoundUp(begin, kHugePageBytes);
  if (aligned > begin) munmap(mapped, aligned - begin);
  const size_t behind_bytes = begin + kHugePageBytes - aligned;
  if (behind_bytes > 0) munmap(reinterpret_cast<void*>(aligned + size_bytes), behind_bytes);
  madvise(reinterpret_cast<void*>(aligned), size_bytes, MADV_HUGEPAGE);
  return reinterpret_cast<void*>(aligned);
}

}  // namespace tessera
