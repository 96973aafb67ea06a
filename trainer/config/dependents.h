#ifndef TESSERA_TRAINER_CONFIG_DEPENDENTS_H_
#define TESSERA_TRAINER_CONFIG_DEPENDENTS_H_

// Settings that have an effect only together with others, as their declarations say (`needs` in
// base/flag_options.proto), and settings that state the same as others.

#include <string_view>

#include "trainer/config/config.pb.h"
#include "trainer/config/problems.h"

namespace tessera {

// Returns whether the setting was given as a flag.
bool IsByFlag(const Origins& origins, std::string_view setting);

// Clears a setting of the file, such as bf16, if a flag states the same with another setting, such
// as dtype. Those of the topology have ReplaceTopologyNames() in resolve.cc.
void OverrideOtherNames(const Origins& origins, TrainConfig* config);

// Checks that settings have the other settings, or values of them, that they need. A setting is set
// if it differs from its default, and on if it and all that it needs are neither false, 0, empty
// nor the first value of their type.
//
// A setting from the config file is cleared if a flag has switched off a setting that it needs, or
// if enable_save_ckpt=false, from the file or a flag, has switched it off. A setting from a flag is
// never cleared. Any other setting that lacks one that it needs is a problem, which names both.
// A setting of the learning rate's schedule stays as it is, unless it is a flag. Records of runs
// have such ones without an effect, and a resume compares its settings with the record's.
//
// Precondition: `save` is set, if only to "" (a run that names no folder does not save).
void SettleDependents(const Origins& origins, TrainConfig* config, Problems& problems);

}  // namespace tessera

#endif  // TESSERA_TRAINER_CONFIG_DEPENDENTS_H_
