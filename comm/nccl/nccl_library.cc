#include "comm/nccl/nccl_library.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/shared_library.h"

namespace tessera {
namespace {

// Signatures of NCCL's functions: enumerations are passed as int, handles as void*.
struct Functions {
  int (*GetVersion)(int*) = nullptr;
  int (*GetUniqueId)(NcclApi::UniqueId*) = nullptr;
  int (*CommInitRankConfig)(void**, int, NcclApi::UniqueId, int, nccl_abi::Config*) = nullptr;
  int (*CommSplit)(void*, int, int, void**, nccl_abi::Config*) = nullptr;
  int (*CommDestroy)(void*) = nullptr;
  int (*CommAbort)(void*) = nullptr;
  int (*CommGetAsyncError)(void*, int*) = nullptr;
  int (*GroupStart)() = nullptr;
  int (*GroupEnd)() = nullptr;
  int (*Send)(const void*, size_t, int, int, void*, void*) = nullptr;
  int (*Recv)(void*, size_t, int, int, void*, void*) = nullptr;
  int (*AllGather)(const void*, void*, size_t, int, void*, void*) = nullptr;
  int (*Broadcast)(const void*, void*, size_t, int, int, void*, void*) = nullptr;
  const char* (*GetErrorString)(int) = nullptr;
  const char* (*GetLastError)(void*) = nullptr;
};

template <typename Function>
void Find(const SharedLibrary& library, const char* name, Function** function,
          std::string* missing) {
  *function = reinterpret_cast<Function*>(library.Find(name));
  if (*function == nullptr && missing->empty()) *missing = name;
}

// Returns the name of the first function that the library lacks; empty where it has all.
std::string FindAll(const SharedLibrary& library, Functions* functions) {
  std::string missing;
  Find(library, "ncclGetVersion", &functions->GetVersion, &missing);
  Find(library, "ncclGetUniqueId", &functions->GetUniqueId, &missing);
  Find(library, "ncclCommInitRankConfig", &functions->CommInitRankConfig, &missing);
  Find(library, "ncclCommSplit", &functions->CommSplit, &missing);
  Find(library, "ncclCommDestroy", &functions->CommDestroy, &missing);
  Find(library, "ncclCommAbort", &functions->CommAbort, &missing);
  Find(library, "ncclCommGetAsyncError", &functions->CommGetAsyncError, &missing);
  Find(library, "ncclGroupStart", &functions->GroupStart, &missing);
  Find(library, "ncclGroupEnd", &functions->GroupEnd, &missing);
  Find(library, "ncclSend", &functions->Send, &missing);
  Find(library, "ncclRecv", &functions->Recv, &missing);
  Find(library, "ncclAllGather", &functions->AllGather, &missing);
  Find(library, "ncclBroadcast", &functions->Broadcast, &missing);
  Find(library, "ncclGetErrorString", &functions->GetErrorString, &missing);
  Find(library, "ncclGetLastError", &functions->GetLastError, &missing);
  return missing;
}

class NcclLibrary final : public NcclApi {
 public:
  explicit NcclLibrary(const Functions& functions) : nccl_(functions) {}

  Result GetUniqueId(UniqueId* id) override { return Result(nccl_.GetUniqueId(id)); }
  Result CommInitRank(Comm* comm, int ranks, const UniqueId& id, int rank) override {
    nccl_abi::Config config;
    return Result(nccl_.CommInitRankConfig(comm, ranks, id, rank, &config));
  }
  Result CommSplit(Comm parent, int color, int key, Comm* child) override {
    nccl_abi::Config config;
    return Result(
        nccl_.CommSplit(parent, color < 0 ? nccl_abi::kNoColor : color, key, child, &config));
  }
  Result CommDestroy(Comm comm) override { return Result(nccl_.CommDestroy(comm)); }
  Result CommAbort(Comm comm) override { return Result(nccl_.CommAbort(comm)); }
  Result AsyncError(Comm comm, Result* state) override {
    int value = kSuccess;
    const int result = nccl_.CommGetAsyncError(comm, &value);
    *state = Result(value);
    return Result(result);
  }
  Result GroupStart() override { return Result(nccl_.GroupStart()); }
  Result GroupEnd() override { return Result(nccl_.GroupEnd()); }
  Result Send(const void* data, size_t bytes, int peer, Comm comm, StreamHandle stream) override {
    return Result(nccl_.Send(data, bytes, nccl_abi::kInt8, peer, comm, stream));
  }
  Result Receive(void* data, size_t bytes, int peer, Comm comm, StreamHandle stream) override {
    return Result(nccl_.Recv(data, bytes, nccl_abi::kInt8, peer, comm, stream));
  }
  Result AllGather(const void* send, void* receive, size_t bytes, Comm comm,
                   StreamHandle stream) override {
    return Result(nccl_.AllGather(send, receive, bytes, nccl_abi::kInt8, comm, stream));
  }
  Result Broadcast(void* data, size_t bytes, int root, Comm comm, StreamHandle stream) override {
    return Result(nccl_.Broadcast(data, data, bytes, nccl_abi::kInt8, root, comm, stream));
  }
  std::string ErrorString(Result result) override { return nccl_.GetErrorString(result); }
  std::string LastError(Comm comm) override {
    const char* const text = nccl_.GetLastError(comm);
    return text == nullptr ? "" : text;
  }

 private:
  const Functions nccl_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<NcclApi>> OpenNccl(std::span<const std::string> places) {
  const absl::StatusOr<SharedLibrary> library = OpenSharedLibrary(places);
  if (!library.ok()) {
    return absl::NotFoundError(absl::StrCat(
        "NCCL (libnccl.so.2) is needed to train on GPUs and is ", library.status().message(),
        "; install it (PyTorch's CUDA packages have it) or set TESSERA_NCCL to its path"));
  }
  Functions functions;
  const std::string missing = FindAll(*library, &functions);
  if (!missing.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(library->place, " has no function ", missing));
  }
  int version = 0;
  if (functions.GetVersion(&version) != NcclApi::kSuccess || version < nccl_abi::kMinVersion) {
    return absl::FailedPreconditionError(absl::StrCat(library->place, " has version ", version,
                                                      " of NCCL; needed is ", nccl_abi::kMinVersion,
                                                      " (2.18) or later"));
  }
  return std::make_unique<NcclLibrary>(functions);
}

std::vector<std::string> NcclPlaces() {
  return LibraryPlaces({.variable = "TESSERA_NCCL",
                        .files = {"libnccl.so.2"},
                        .package_folders = {"nvidia/nccl/lib"}});
}

}  // namespace tessera
