#ifndef TESSERA_TRAINER_CONFIG_DEPENDENTS_H_
#define TESSERA_TRAINER_CONFIG_DEPENDENTS_H_

// Settings that have an effect only beside others, as their declarations say (`needs` in
// base/flag_options.proto).

#include "trainer/config/config.pb.h"
#include "trainer/config/problems.h"

namespace tessera {

// Compares the settings that are set with those that they need. A setting is set if it differs from
// its default, and it is on if it and all that it needs are neither false, 0, empty nor the first
// value of their type.
//
// A setting from the config file whose need a flag has switched off is cleared: the flag takes its
// dependents along. So does enable_save_ckpt=false, wherever it stands, unless a flag sets the
// dependent. Every other setting without what it needs is a problem, which names both.
//
// Precondition: `save` is set, if only to "" (a run that names no folder does not save).
void SettleDependents(const Origins& origins, TrainConfig* config, Problems* problems);

}  // namespace tessera

#endif  // TESSERA_TRAINER_CONFIG_DEPENDENTS_H_
