#ifndef TESSERA_CHECKPOINT_CONVERT_DCP_WRITE_H_
#define TESSERA_CHECKPOINT_CONVERT_DCP_WRITE_H_

#include <cstdint>
#include <vector>

#include "checkpoint/convert/output.h"
#include "checkpoint/convert/torch/write.h"
#include "checkpoint/format/manifest.pb.h"

namespace tessera::ckpt::convert {

struct DcpOutputOptions {
  TorchOutputOptions tensors;
  // Of one file of data, unless a single tensor is larger.
  uint64_t max_file_bytes = 5'000'000'000;
};

// The files of a folder that torch.distributed.checkpoint loads: .metadata, and files of data in
// which each tensor is one chunk. Tied tensors share their chunk.
std::vector<OutputFile> PlanDcp(const Manifest& manifest, const DcpOutputOptions& options);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CHECKPOINT_CONVERT_DCP_WRITE_H_
