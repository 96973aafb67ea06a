#include "checkpoint/save/save.h"

#include <string>
#include <string_view>

#include "checkpoint/save/run_save.h"

namespace tessera::ckpt {

absl::StatusOr<SaveReport> Save(Storage& storage, std::string_view root, const Metadata& metadata,
                                const StateDict& state, ProcessGroup& group,
                                const SaveOptions& options) {
  PlanCache plan_cache;
  StagingPool staging;
  const SaveContext context = {storage,
                               std::string(root),
                               group,
                               options,
                               /*copy_ahead_threads=*/0,
                               options.plan_cache != nullptr ? *options.plan_cache : plan_cache,
                               staging};
  return RunSave(context, metadata, state, nullptr);
}

}  // namespace tessera::ckpt
