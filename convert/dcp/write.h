#ifndef TESSERA_CONVERT_DCP_WRITE_H_
#define TESSERA_CONVERT_DCP_WRITE_H_

#include <cstdint>
#include <vector>

#include "checkpoint/format/manifest.pb.h"
#include "convert/core/output.h"
#include "convert/torch/write.h"

namespace tessera::ckpt::convert {

struct DcpOutputOptions {
  TorchOutputOptions tensors;
  // The most bytes that one file of data has, unless a single tensor is larger.
  uint64_t max_file_bytes = 5'000'000'000;
};

// The files of a folder that torch.distributed.checkpoint loads: .metadata, and files of data in
// which each tensor is one chunk. Tied tensors share their chunk.
std::vector<OutputFile> PlanDcp(const Manifest& manifest, const DcpOutputOptions& options);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_DCP_WRITE_H_
