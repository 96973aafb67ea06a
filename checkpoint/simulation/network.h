#ifndef TESSERA_CHECKPOINT_SIMULATION_NETWORK_H_
#define TESSERA_CHECKPOINT_SIMULATION_NETWORK_H_

#include <memory>

#include "checkpoint/storage/s3/http.h"
#include "checkpoint/storage/s3/testing/s3_server.h"

namespace tessera::simulation {

// A client whose requests go to a store in memory. On their way they are delayed, lost, repeated,
// answered with errors, or arrive after the client has given up. The store must outlive it.
std::shared_ptr<ckpt::s3::HttpClient> MakeSimulatedClient(ckpt::s3::S3Server& store);

}  // namespace tessera::simulation

#endif  // TESSERA_CHECKPOINT_SIMULATION_NETWORK_H_
