
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/shared_library.h"
#include "compute/kernels/cuda/cublaslt_abi.h"
#include "compute/kernels/cuda/cublaslt_api.h"

namespace tessera {

absl::StatusOr<std::unique_ptr<CublasLtApi>> OpenCublasLt(std::span<const std::string> places) {
  const absl::StatusOr<SharedLibrary> library = OpenSharedLibrary(places);
  if (!library.ok()) {
    return absl::NotFoundError(absl::StrCat(
        "cuBLASLt (libcublasLt.so.13 or .12) is needed to train on GPUs and is ",
        library.status().message(),
        "; install it (PyTorch's CUDA packages have it) or set TESSERA_CUBLASLT to its path"));
  }
  auto api = std::make_unique<CublasLtApi>();
  std::string missing;  // the name of the first function that the library lacks
  const auto find = [&]<typename Type>(const char* name, std::function<Type>* to) {
    auto* const function = reinterpret_cast<Type*>(library->Find(name));
    if (function == nullptr && missing.empty()) missing = name;
    *to = function;
  };
#define TESSERA_FIND_FUNCTION(Result, Name, Parameters) find("cublasLt" #Name, &api->Name);
  TESSERA_CUBLASLT_FUNCTIONS(TESSERA_FIND_FUNCTION)
#undef TESSERA_FIND_FUNCTION
  if (!missing.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(library->place, " has no function ", missing));
  }
  const uint64_t version = api->GetVersion();
  if (version < cublaslt_abi::kMinVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat(library->place, " has version ", version, " of cuBLASLt; needed is ",
                     cublaslt_abi::kMinVersion, " (11.8) or later"));
  }
  return api;
}

std::vector<std::string> CublasLtPlaces() {
  return LibraryPlaces({.variable = "TESSERA_CUBLASLT",
                        .files = {"libcublasLt.so.13", "libcublasLt.so.12"},
                        .package_folders = {"nvidia/cu13/lib", "nvidia/cublas/lib"}});
}

std::string DescribeCublasLt(size_t version) {
  const char* const forced = std::getenv("NVIDIA_TF32_OVERRIDE");
  const std::string text = absl::StrCat("cuBLASLt ", version);
  return forced == nullptr ? text : absl::StrCat(text, " with NVIDIA_TF32_OVERRIDE=", forced);
}

}  // namespace tessera
