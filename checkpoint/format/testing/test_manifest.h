#ifndef TESSERA_CHECKPOINT_FORMAT_TESTING_TEST_MANIFEST_H_
#define TESSERA_CHECKPOINT_FORMAT_TESTING_TEST_MANIFEST_H_

#include "checkpoint/include/manifest.pb.h"

namespace tessera::ckpt {

// Returns a small valid manifest with every field of the schema set: two tensors in several shards,
// an alias, optimizer state, two files.
Manifest FullManifest();

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_FORMAT_TESTING_TEST_MANIFEST_H_
