#ifndef TESSERA_COMM_NCCL_NCCL_API_H_
#define TESSERA_COMM_NCCL_NCCL_API_H_

#include <cstddef>
#include <string>

namespace tessera {

// The functions of NCCL that Tessera calls. Implementations: NCCL's shared library, which is opened
// at run time (nccl_library.h), and a fake one for tests. Nothing here needs NCCL's header.
//
// Communicators are non-blocking: a call may return kInProgress, and the communicator takes no
// further call until AsyncError() reports something else. NCCL moves bytes only; no reduction of
// its is used, because their order of additions depends on its choice of algorithm.
//
// Threads: calls on one communicator do not overlap, except for AsyncError() and Abort().
class NcclApi {
 public:
  // ncclResult_t.
  enum Result : int {
    kSuccess = 0,
    kUnhandledCudaError = 1,
    kSystemError = 2,
    kInternalError = 3,
    kInvalidArgument = 4,
    kInvalidUsage = 5,
    kRemoteError = 6,
    kInProgress = 7,
  };
  // ncclUniqueId.
  struct UniqueId {
    char bytes[128];
  };
  using Comm = void*;          // ncclComm_t
  using StreamHandle = void*;  // cudaStream_t

  virtual ~NcclApi() = default;

  virtual Result GetUniqueId(UniqueId* id) = 0;
  // Begins to create a communicator; returns before it is complete.
  virtual Result CommInitRank(Comm* comm, int ranks, const UniqueId& id, int rank) = 0;
  // Splits `parent`; every rank of it calls. A rank with color < 0 gets no communicator. *child is
  // valid once AsyncError() of the parent is no longer kInProgress.
  virtual Result CommSplit(Comm parent, int color, int key, Comm* child) = 0;
  virtual Result CommDestroy(Comm comm) = 0;
  // Ends the kernels of the communicator that are running or queued, and destroys it.
  virtual Result CommAbort(Comm comm) = 0;
  // Sets *state to kSuccess, kInProgress or the communicator's first error.
  virtual Result AsyncError(Comm comm, Result* state) = 0;

  // Begins a group: messages between GroupStart() and GroupEnd() run at the same time.
  virtual Result GroupStart() = 0;
  virtual Result GroupEnd() = 0;
  virtual Result Send(const void* data, size_t bytes, int peer, Comm comm, StreamHandle stream) = 0;
  virtual Result Receive(void* data, size_t bytes, int peer, Comm comm, StreamHandle stream) = 0;
  // Gathers pieces of `bytes` each. `send` may be piece rank() of `receive`.
  virtual Result AllGather(const void* send, void* receive, size_t bytes, Comm comm,
                           StreamHandle stream) = 0;
  virtual Result Broadcast(void* data, size_t bytes, int root, Comm comm, StreamHandle stream) = 0;

  virtual std::string ErrorString(Result result) = 0;
  // Returns details of the communicator's last error; may be empty.
  virtual std::string LastError(Comm comm) = 0;
};

}  // namespace tessera

#endif  // TESSERA_COMM_NCCL_NCCL_API_H_
