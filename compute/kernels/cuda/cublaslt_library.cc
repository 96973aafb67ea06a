#include "compute/kernels/cuda/cublaslt_library.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
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
namespace {

using Algo = CublasLtApi::Algo;
using HeuristicResult = CublasLtApi::HeuristicResult;

// Signatures of cuBLASLt's functions: enumerations are passed as int, handles as void*.
struct Functions {
  size_t (*GetVersion)() = nullptr;
  const char* (*GetStatusString)(int) = nullptr;
  int (*Create)(void**) = nullptr;
  int (*Destroy)(void*) = nullptr;
  int (*MatmulDescCreate)(void**, int, int) = nullptr;
  int (*MatmulDescSetAttribute)(void*, int, const void*, size_t) = nullptr;
  int (*MatmulDescDestroy)(void*) = nullptr;
  int (*MatrixLayoutCreate)(void**, int, uint64_t, uint64_t, int64_t) = nullptr;
  int (*MatrixLayoutDestroy)(void*) = nullptr;
  int (*PreferenceCreate)(void**) = nullptr;
  int (*PreferenceSetAttribute)(void*, int, const void*, size_t) = nullptr;
  int (*PreferenceDestroy)(void*) = nullptr;
  int (*AlgoGetHeuristic)(void*, void*, void*, void*, void*, void*, void*, int, HeuristicResult*,
                          int*) = nullptr;
  int (*AlgoConfigGetAttribute)(const Algo*, int, void*, size_t, size_t*) = nullptr;
  int (*Matmul)(void*, void*, const void*, const void*, void*, const void*, void*, const void*,
                const void*, void*, void*, void*, const Algo*, void*, size_t, void*) = nullptr;
};

template <typename Function>
void Find(const SharedLibrary& library, const char* name, Function** function,
          std::string* missing) {
  *function = reinterpret_cast<Function*>(library.Find(name));
  if (*function == nullptr && missing->empty()) *missing = name;
}

// The name of the first function that the library lacks; empty where it has all.
std::string FindAll(const SharedLibrary& library, Functions* f) {
  std::string missing;
  Find(library, "cublasLtGetVersion", &f->GetVersion, &missing);
  Find(library, "cublasLtGetStatusString", &f->GetStatusString, &missing);
  Find(library, "cublasLtCreate", &f->Create, &missing);
  Find(library, "cublasLtDestroy", &f->Destroy, &missing);
  Find(library, "cublasLtMatmulDescCreate", &f->MatmulDescCreate, &missing);
  Find(library, "cublasLtMatmulDescSetAttribute", &f->MatmulDescSetAttribute, &missing);
  Find(library, "cublasLtMatmulDescDestroy", &f->MatmulDescDestroy, &missing);
  Find(library, "cublasLtMatrixLayoutCreate", &f->MatrixLayoutCreate, &missing);
  Find(library, "cublasLtMatrixLayoutDestroy", &f->MatrixLayoutDestroy, &missing);
  Find(library, "cublasLtMatmulPreferenceCreate", &f->PreferenceCreate, &missing);
  Find(library, "cublasLtMatmulPreferenceSetAttribute", &f->PreferenceSetAttribute, &missing);
  Find(library, "cublasLtMatmulPreferenceDestroy", &f->PreferenceDestroy, &missing);
  Find(library, "cublasLtMatmulAlgoGetHeuristic", &f->AlgoGetHeuristic, &missing);
  Find(library, "cublasLtMatmulAlgoConfigGetAttribute", &f->AlgoConfigGetAttribute, &missing);
  Find(library, "cublasLtMatmul", &f->Matmul, &missing);
  return missing;
}

class CublasLtLibrary final : public CublasLtApi {
 public:
  explicit CublasLtLibrary(const Functions& functions) : lt_(functions) {}

  size_t GetVersion() override { return lt_.GetVersion(); }
  Status Create(Handle* handle) override { return lt_.Create(handle); }
  Status Destroy(Handle handle) override { return lt_.Destroy(handle); }
  Status MatmulDescCreate(MatmulDesc* desc, int compute_type, int scale_type) override {
    return lt_.MatmulDescCreate(desc, compute_type, scale_type);
  }
  Status MatmulDescSetAttribute(MatmulDesc desc, int attribute, const void* value,
                                size_t bytes) override {
    return lt_.MatmulDescSetAttribute(desc, attribute, value, bytes);
  }
  Status MatmulDescDestroy(MatmulDesc desc) override { return lt_.MatmulDescDestroy(desc); }
  Status MatrixLayoutCreate(MatrixLayout* layout, int type, uint64_t rows, uint64_t columns,
                            int64_t leading_dim) override {
    return lt_.MatrixLayoutCreate(layout, type, rows, columns, leading_dim);
  }
  Status MatrixLayoutDestroy(MatrixLayout layout) override {
    return lt_.MatrixLayoutDestroy(layout);
  }
  Status PreferenceCreate(Preference* preference) override {
    return lt_.PreferenceCreate(preference);
  }
  Status PreferenceSetAttribute(Preference preference, int attribute, const void* value,
                                size_t bytes) override {
    return lt_.PreferenceSetAttribute(preference, attribute, value, bytes);
  }
  Status PreferenceDestroy(Preference preference) override {
    return lt_.PreferenceDestroy(preference);
  }
  Status AlgoGetHeuristic(Handle handle, MatmulDesc desc, MatrixLayout a, MatrixLayout b,
                          MatrixLayout c, MatrixLayout d, Preference preference, int requested,
                          HeuristicResult* results, int* returned) override {
    return lt_.AlgoGetHeuristic(handle, desc, a, b, c, d, preference, requested, results, returned);
  }
  Status AlgoConfigGetAttribute(const Algo* algo, int attribute, void* value, size_t bytes,
                                size_t* written) override {
    return lt_.AlgoConfigGetAttribute(algo, attribute, value, bytes, written);
  }
  Status Matmul(Handle handle, MatmulDesc desc, const void* alpha, const void* a,
                MatrixLayout a_layout, const void* b, MatrixLayout b_layout, const void* beta,
                const void* c, MatrixLayout c_layout, void* d, MatrixLayout d_layout,
                const Algo* algo, void* workspace, size_t workspace_bytes,
                StreamHandle stream) override {
    return lt_.Matmul(handle, desc, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout,
                      algo, workspace, workspace_bytes, stream);
  }
  std::string StatusString(Status status) override { return lt_.GetStatusString(status); }

 private:
  const Functions lt_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CublasLtApi>> OpenCublasLt(std::span<const std::string> places) {
  const absl::StatusOr<SharedLibrary> library = OpenSharedLibrary(places);
  if (!library.ok()) {
    return absl::NotFoundError(absl::StrCat(
        "cuBLASLt (libcublasLt.so.13 or .12) is needed to train on GPUs and is ",
        library.status().message(),
        "; install it (PyTorch's CUDA packages have it) or set TESSERA_CUBLASLT to its path"));
  }
  Functions functions;
  const std::string missing = FindAll(*library, &functions);
  if (!missing.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(library->place, " has no function ", missing));
  }
  const uint64_t version = functions.GetVersion();
  if (version < cublaslt_abi::kMinVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat(library->place, " has version ", version, " of cuBLASLt; needed is ",
                     cublaslt_abi::kMinVersion, " (11.8) or later"));
  }
  return std::make_unique<CublasLtLibrary>(functions);
}

std::vector<std::string> CublasLtPlaces() {
  return LibraryPlaces({.variable = "TESSERA_CUBLASLT",
                        .files = {"libcublasLt.so.13", "libcublasLt.so.12"},
                        .package_folders = {"nvidia/cu13/lib", "nvidia/cublas/lib"}});
}

std::string DescribeCublasLt(size_t version, bool allow_tf32) {
  const char* const forced = std::getenv("NVIDIA_TF32_OVERRIDE");
  return absl::StrCat(
      "cuBLASLt ", version, allow_tf32 ? " in TF32" : "",
      forced == nullptr ? "" : " with NVIDIA_TF32_OVERRIDE=", forced == nullptr ? "" : forced);
}

}  // namespace tessera
