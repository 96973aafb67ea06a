// Preloaded into a rank of a run to break its network. From the BROKEN_NETWORK_FROM-th long message
// on, one bit of each message that rank BROKEN_NETWORK_RANK sends is flipped.

#include <dlfcn.h>
#include <mpi/mpi.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr int kLongBytes = 4096;

int Setting(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? -1 : std::atoi(value);
}

const void* Break(const void* data, int bytes) {
  // MPI reads the copy until the message is complete.
  auto* const copy = new std::vector<char>(bytes);
  std::memcpy(copy->data(), data, bytes);
  (*copy)[2] ^= 0x20;  // a high bit of the mantissa of a number
  return copy->data();
}

}  // namespace

extern "C" int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag,
                         MPI_Comm comm, MPI_Request* request) {
  static const bool broken = Setting("BROKEN_NETWORK_RANK") == Setting("OMPI_COMM_WORLD_RANK");
  static const int from = Setting("BROKEN_NETWORK_FROM");
  static int sent = 0;
  if (type == MPI_BYTE && count >= kLongBytes && broken && ++sent >= from)
    data = Break(data, count);
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}
