#ifndef TESSERA_CHECKPOINT_LOAD_COMPARE_H_
#define TESSERA_CHECKPOINT_LOAD_COMPARE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/elements/digest_elements.h"
#include "checkpoint/include/device_memory.h"
#include "checkpoint/include/load_options.h"
#include "checkpoint/include/manifest.pb.h"
#include "checkpoint/include/state_dict.h"
#include "checkpoint/plan/load_plan.h"
#include "layout/elements/copy_elements.h"

namespace tessera::ckpt {

// The destination of a wanted box in memory.
struct Destination {
  Box box;
  std::byte* data;
  std::vector<int64_t> strides;
  size_t element_bytes;
  CopyElements copy;  // from the saved dtype
  DType dtype;        // wanted
  // Finds elements of the saved dtype that `copy` or the device would make infinite; null: none are
  // looked for.
  FindOverflow find_overflow = nullptr;
  // Computes the digest while elements are placed; null: no digest.
  std::shared_ptr<PlacedDigest> digest = nullptr;

  // If a device has the memory, `strides` are contiguous, and `copy` makes the elements of
  // `host_dtype` that the device gets, which it may have to convert.
  std::shared_ptr<DeviceMemory> device = nullptr;
  void* handle = nullptr;
  DType host_dtype = DType::kUnspecified;
  bool device_converts = false;
};

// One process's wanted state, compared with the saved one.
struct Comparison {
  // The boxes to read once all ranks agree, and their destinations, as parallel vectors.
  std::vector<WantedBox> wanted;
  std::vector<Destination> destinations;

  std::vector<std::string> mismatches;  // one line each, naming the tensor and both sides
  std::vector<std::string> missing;     // only if missing tensors are allowed
  std::vector<std::string> from_master;
  std::vector<bool> used;  // by saved tensor
};

// Compares the wanted state with the saved one. Preconditions: a valid manifest,
// CheckStateDict(state).
Comparison Compare(const Manifest& manifest, const StateDict& state, const LoadOptions& options);

// Returns the names of the saved tensors that no rank uses, without aliases.
std::vector<std::string> UnexpectedTensors(const Manifest& manifest, const std::vector<bool>& used);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_LOAD_COMPARE_H_
