#ifndef TESSERA_TRAINER_STATE_LEDGER_H_
#define TESSERA_TRAINER_STATE_LEDGER_H_

// The ledger of a run: a chain of digests over everything that its steps have computed.
//
// The chain is a function of the training alone. Saves do not enter the chain, because a save in
// the background learns the digest of its state only after later steps: two runs of one computation
// have one chain, whatever their intervals. A checkpoint keeps the head of the chain at its step,
// and a resume continues from it, so that in EXACT numerics an interrupted run has the chain of an
// undisturbed one, on every topology.
//
// A save adds a record of its own: the chain's head at that step and the digest of the saved state,
// bound together by a third digest.
//
// Every digest is the SHA-256 of a text, in hexadecimal digits, which sha256sum computes, too. The
// hash is libcrypto's, which signatures and object stores use already; the digests of the
// checkpoint format find damage, but do not resist an adversary.

#include <cstdint>
#include <string>
#include <string_view>

#include "checkpoint/include/manifest.h"
#include "trainer/config/config.pb.h"

namespace tessera {

// One step of the chain.
struct LedgerStep {
  int64_t step = 0;  // completed steps, this one included
  double loss = 0;
  double grad_norm = 0;
  double learning_rate = 0;
  int64_t first_sample = 0;
  int64_t end_sample = 0;  // after the last one
};

// Returns the head of the chain after `step`. `previous` is the head before it; empty at the
// beginning of a chain. The text is "tessera ledger 1", `previous`, `settings`, and the step in one
// line, each ended by a newline: "STEP LOSS NORM RATE FIRST_SAMPLE END_SAMPLE", where the three
// numbers are their 64 bits as 16 hexadecimal digits, or "none" if they are not finite.
std::string NextLink(std::string_view previous, std::string_view settings, const LedgerStep& step);

// Returns whether a text can be the head of a chain.
bool IsLedgerDigest(std::string_view text);

// Returns the digest of the settings on which the bits of an EXACT run depend
// (DeterminingSettings()), and of the seed of the samples' order. Topology, paths, intervals and
// reports do not enter it, nor does the identity of the data, whose samples show in the losses.
std::string SettingsDigest(const TrainConfig& config, uint64_t seed, uint64_t data_seed);

// Returns the digest of all tensors of a checkpoint: names, roles, dtypes, shapes and logical
// digests, in the order of the names, so that it does not depend on the topology that saved them.
std::string StateDigest(const ckpt::Manifest& manifest);

// Returns the digest that binds the chain's head at a save and the digest of the saved state.
std::string SaveDigest(int64_t step, std::string_view head, std::string_view state);

}  // namespace tessera

#endif  // TESSERA_TRAINER_STATE_LEDGER_H_
