#include "compute/kernels/cuda/simt_common.h"

#include <cctype>
#include <cstddef>
#include <utility>

namespace tessera::simt {
namespace {

thread_local const LaunchScope* current_scope = nullptr;
thread_local std::string first_error;

bool IsIdentifier(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

}  // namespace

LaunchScope::LaunchScope() : outer_(current_scope) { current_scope = this; }

LaunchScope::~LaunchScope() { current_scope = outer_; }

std::string LaunchScope::DescribeCurrent() {
  return current_scope == nullptr ? "" : " in " + current_scope->Describe();
}

std::vector<Extent> LaunchScope::CurrentOperands() {
  return current_scope == nullptr ? std::vector<Extent>() : current_scope->Operands();
}

std::string& LaunchError() { return first_error; }

std::string TakeLaunchError() { return std::exchange(first_error, ""); }

void KeepLaunchError(std::string_view pretty_name, const Grid& grid, int threads,
                     int64_t shared_bytes, const char* error) {
  if (!first_error.empty()) return;
  first_error = ShortKernelName(pretty_name) + ": launched with a grid of " + ToString(grid) +
                ", blocks of " + std::to_string(threads) + " threads, " +
                std::to_string(shared_bytes) + " bytes of shared memory" +
                LaunchScope::DescribeCurrent() + ": " + error;
}

std::string ToString(const Grid& grid) {
  return "(" + std::to_string(grid.x) + "," + std::to_string(grid.y) + "," +
         std::to_string(grid.z) + ")";
}

// Compilers write "... [kKernel = &a::(anonymous namespace)::Name<T>]" or "... [with auto kKernel =
// a::Name<T>]". Removes every qualifier that ends in "::", also within template arguments.
std::string ShortKernelName(std::string_view pretty_name) {
  constexpr std::string_view kStart = "kKernel = ";
  const size_t start = pretty_name.find(kStart);
  if (start != std::string_view::npos) pretty_name.remove_prefix(start + kStart.size());
  if (!pretty_name.empty() && pretty_name.back() == ']') pretty_name.remove_suffix(1);
  std::string name;
  for (size_t i = 0; i < pretty_name.size(); ++i) {
    if (pretty_name.substr(i, 2) == "::") {
      constexpr std::string_view kAnonymous = "(anonymous namespace)";
      if (name.size() >= kAnonymous.size() && name.ends_with(kAnonymous)) {
        name.resize(name.size() - kAnonymous.size());
      }
      while (!name.empty() && IsIdentifier(name.back())) name.pop_back();
      ++i;
    } else if (pretty_name[i] != '&') {
      name += pretty_name[i];
    }
  }
  return name;
}

}  // namespace tessera::simt
