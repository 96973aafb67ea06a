// Every file of every format is lost in every way in which files get lost, and every folder. The
// error, or a note, names it, and no checkpoint opens with less in it without a word.

#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "checkpoint/include/checkpoint.h"
#include "convert/core/digests.h"
#include "convert/core/saved_values.h"
#include "convert/open_foreign.h"
#include "gtest/gtest.h"
#include "operations/named_checkpoint.h"
#include "operations/sealing.h"
#include "storage/testing/fault_storage.h"
#include "tests/interop/foreign_run.h"
#include "tests/support/command.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Lets permissions apply to this thread, and to threads that it starts, although it is root's.
class ScopedPermissions {
 public:
  ScopedPermissions() {
    EXPECT_EQ(syscall(SYS_capget, &header_, before_), 0);
    __user_cap_data_struct now[2] = {before_[0], before_[1]};
    now[0].effective &= ~(1U << CAP_DAC_OVERRIDE | 1U << CAP_DAC_READ_SEARCH);
    EXPECT_EQ(syscall(SYS_capset, &header_, now), 0);
  }
  ~ScopedPermissions() { EXPECT_EQ(syscall(SYS_capset, &header_, before_), 0); }
  ScopedPermissions(const ScopedPermissions&) = delete;
  ScopedPermissions& operator=(const ScopedPermissions&) = delete;

 private:
  __user_cap_header_struct header_ = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct before_[2] = {};
};

struct FileFault {
  std::string name;
  std::function<void(const fs::path& file)> apply;
};

const std::vector<FileFault>& Faults() {
  const auto cut = [](const fs::path& file, uint64_t size) { fs::resize_file(file, size); };
  static const std::vector<FileFault> faults = {
      {"removed", [](const fs::path& file) { fs::remove(file); }},
      {"empty", [=](const fs::path& file) { cut(file, 0); }},
      {"half", [=](const fs::path& file) { cut(file, fs::file_size(file) / 2); }},
      {"short",
       [=](const fs::path& file) { cut(file, std::max<uint64_t>(fs::file_size(file), 1) - 1); }},
      {"folder",
       [](const fs::path& file) {
         fs::remove(file);
         fs::create_directory(file);
       }},
      {"dangling",
       [](const fs::path& file) {
         fs::remove(file);
         fs::create_symlink("nowhere", file);
       }},
      {"unreadable", [](const fs::path& file) { fs::permissions(file, fs::perms::none); }},
  };
  return faults;
}

// What a checkpoint has: its description, the contents of its tensors, its values and notes.
struct Contents {
  std::string text;
  std::string notes;
};

absl::StatusOr<Contents> Read(const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(const ckpt::NamedCheckpoint named, ckpt::FindCheckpoint(path, {}));
  TESSERA_RETURN_IF_ERROR(named.opened.status());
  TESSERA_RETURN_IF_ERROR(named.CheckOtherRecords());
  TESSERA_ASSIGN_OR_RETURN(const auto digests, ckpt::convert::ReadDigests(*named.opened, {}));
  ckpt::Manifest manifest = named.opened->manifest();
  manifest.clear_files();
  for (ckpt::LogicalTensor& tensor : *manifest.mutable_tensors()) tensor.clear_shards();
  Contents contents = {manifest.DebugString(), absl::StrJoin(named.notes, "\n")};
  for (const auto& [name, digest] : digests) {
    absl::StrAppend(&contents.text, name, " ", digest.lo, " ", digest.hi, "\n");
  }
  for (const auto& [name, value] : ckpt::convert::ValuesByName(named.state)) {
    absl::StrAppend(&contents.text, name, " ", ckpt::convert::ValueToPlainJson(*value).dump(),
                    "\n");
  }
  return contents;
}

// A checkpoint below tests/interop/, and what it is converted to first, if anything.
struct FaultCase {
  std::string fixture;
  std::vector<std::string> convert = {};
};

// The fixture, or the flags of the conversion.
std::string NameOf(const FaultCase& each) {
  return each.convert.empty() ? each.fixture : absl::StrJoin(each.convert, " ");
}

std::ostream& operator<<(std::ostream& out, const FaultCase& each) { return out << NameOf(each); }

std::vector<FaultCase> FaultCases() {
  std::vector<FaultCase> cases;
  const auto add = [&](const std::string& folder, const std::vector<std::string>& names) {
    for (const std::string& name : names) cases.push_back({folder + "/" + name});
  };
  add("deepspeed", {"bf16_optimizer", "universal", "universal_zero1", "universal_zero3", "zero1",
                    "zero2_bf16", "zero3", "zero3_bf16", "zero3_bf16_gqa"});
  add("infinitrain",
      {"gpt2_adam", "gpt2_dp2", "gpt2_dp2_tp2_pp2", "gpt2_sgd", "llama3", "llama3_dp2_tp2_pp2"});
  add("internevo", {"llama_fp32", "llama_tp2_zo2", "llama_universal", "pp2_vpp2", "tp1",
                    "tp2_pp2_zo2", "wp2", "zo2"});
  add("megatron",
      {"buckets_llama3_bf16_dp2_pp2_vpp2", "flat_gpt2_dp2_tp2", "gathered_llama3_bf16_dp2_tp2_pp2",
       "gpt2_tp2_pp2", "legacy_gpt2_tp2_pp2", "legacy_llama3_bf16_dp2_pp2_vpp2",
       "legacy_llama3_untied_dp2_tp2", "llama3_untied_single"});
  add("paddle/testdata",
      {"auto_llama_4", "dp", "gpt_dp", "mp2", "mp2_pp2_vpp2", "mp2_pp2_sharding2_v2_meta",
       "sharded_llama_3", "sharding2_stage3", "sharding2_v1", "sharding2_v1_meta", "sharding2_v2",
       "sharding2_v2_meta", "sharding3_stage2"});
  add("state_dict", {"accelerate", "gpt2", "llama_meta", "llama_ranks", "nanogpt", "numbered_dcp",
                     "titan", "titan_sharded", "trainer"});
  add("pytorch", {"gpt2.hf", "llama3_tied.hf"});
  add("../../convert/formats/dcp/testdata", {"fsdp", "one", "sharded", "blobs_of_safetensors"});
  add("../../convert/formats/gguf/testdata", {"gpt2", "llama3_untied"});
  const std::string state = "megatron/llama3_untied_single";
  for (const char* const format : {"hf", "megatron", "dcp", "paddle"}) {
    cases.push_back({state, {absl::StrCat("--to=", format), "--max-file-size=8KB"}});
  }
  cases.push_back({state, {"--to=torch"}});
  cases.push_back({"megatron/gpt2_tp2_pp2", {"--to=llmc"}});
  return cases;
}

// Losses that are not named, because nothing tells that there ever was such a file, or because the
// message names something else. `cases` and `file` are patterns; `faults` lists names.
struct Exception {
  std::string cases, file, faults, reason;
};

const std::vector<Exception>& Exceptions() {
  static const std::string recognised = "the format is recognised by this file";
  static const std::vector<Exception> exceptions = {
      {"deepspeed/*", "config.json", "removed folder", "without it, names are DeepSpeed's"},
      {"deepspeed/*", "latest*", "removed empty half folder dangling",
       "the newest step's folder is taken instead, as a note says"},
      {"deepspeed/*", "*_states.pt", "removed folder",
       "the message names the ranks that are missing, or a file that counts them"},
      {"infinitrain/*", "*model.ckpt", "removed empty dangling", recognised},
      {"infinitrain/*", "*optimizer.ckpt", "removed dangling", "some optimizers have no state"},
      {"infinitrain/*", "iter_000000?", "lost", recognised},
      {"infinitrain/*", "checkpoint_step_00000?", "lost", recognised},
      {"infinitrain/*", "*rank_000000", "lost", recognised},
      {"infinitrain/gpt2_dp2", "*rank_000001", "lost", "without metadata.json, ranks are counted"},
      {"internevo/*", "optimizer", "lost", "a model alone has none"},
      {"internevo/*", "optimizer_*.pt", "removed", "a model alone has none"},
      {"internevo/*", "model_tp0_pp0.pt", "removed folder", recognised},
      {"internevo/llama_universal", "model/.metadata", "removed dangling", recognised},
      {"internevo/llama_universal", "model_config.pt", "removed", recognised},
      {"megatron/legacy*", "*model_optim_rng.pt", "removed dangling", recognised},
      {"megatron/legacy*", "iter_0000007", "lost", "the message names the file that names it"},
      {"paddle/*", "dist_ckpt", "lost", "the message names the files that are there"},
      {"paddle/*", "trainer_state.json", "removed folder",
       "a note says that nothing tells the step"},
      {"paddle/*", "model_state.pdparams", "removed folder",
       "the message names the optimizer's file, which needs it"},
      {"paddle/*", "optimizer*.pdopt", "removed folder",
       "a message or a note says which states are missing"},
      {"state_dict/gpt2", "config.json", "removed dangling", "without it, names are the files'"},
      {"state_dict/gpt2", "pytorch_model.bin", "removed", recognised},
      {"state_dict/llama_*", "params.json", "removed empty half dangling",
       "without it, names are the files', as a note says if it is damaged"},
      {"state_dict/llama_*", "consolidated*", "removed folder",
       "nothing counts the files: the message names a tensor that is not whole"},
      {"state_dict/accelerate", "config.json", "removed", "without it, names are the files'"},
      {"state_dict/accelerate", "model.safetensors", "removed folder",
       "a note says that the model's tensors are not there"},
      {"state_dict/accelerate", "optimizer.bin", "removed folder", "a model alone has none"},
      {"state_dict/nanogpt", "ckpt.pt", "removed", recognised},
      {"state_dict/trainer", "config.json", "removed folder",
       "the message names the files that are there"},
      {"state_dict/trainer", "model.safetensors", "removed folder",
       "the message names the files that are there"},
      {"state_dict/trainer", "optimizer.pt", "removed folder", "a model alone has none"},
      {"state_dict/trainer", "scheduler.pt", "removed folder", "a model alone has none"},
      {"state_dict/trainer", "trainer_state.json", "removed folder", "a model alone has none"},
      {"pytorch/*", "*", "removed", recognised},
      {"--to=paddle*", "trainer_state.json", "removed folder",
       "a note says that nothing tells the step"},
      {"--to=hf*", "config.json", "removed", "without it, names are the files'"},
      {"--to=torch", "checkpoint.pt", "removed", recognised},
      {"--to=llmc", "model_*.bin", "removed", recognised},
      {"*gguf/testdata/*", "model.gguf", "removed", recognised},
  };
  return exceptions;
}

bool Applies(const Exception& exception, const std::string& name, const std::string& file,
             const std::string& fault) {
  const std::vector<std::string> faults = absl::StrSplit(exception.faults, ' ');
  return MatchesGlob(exception.cases, name) && MatchesGlob(exception.file, file) &&
         std::ranges::count(faults, fault) > 0;
}

class FileFaultsTest : public testing::ForeignTest,
                       public ::testing::WithParamInterface<FaultCase> {
 protected:
  // Returns the name of the folder.
  std::string Make(const FaultCase& made) {
    const std::string fixture = "tests/interop/" + made.fixture;
    if (made.convert.empty()) return CopyOf(fixture, "checkpoint");
    const std::string folder = In("checkpoint");
    fs::remove_all(folder);
    std::vector<std::string> arguments = {"convert", fixture, folder};
    arguments.insert(arguments.end(), made.convert.begin(), made.convert.end());
    EXPECT_EQ(Run(arguments), 0) << err_;
    return folder;
  }

  // Returns the files; of those whose names differ in their numbers alone, the first, one in the
  // middle and the last.
  static std::set<fs::path> FilesOf(const fs::path& folder) {
    std::map<std::string, std::set<fs::path>> alike;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      std::string name = entry.path().filename();
      std::erase_if(name, absl::ascii_isdigit);
      if (entry.is_regular_file()) alike[name].insert(entry.path());
    }
    std::set<fs::path> files;
    for (const auto& [name, paths] : alike) {
      const auto middle = std::next(paths.begin(), static_cast<int>(paths.size() / 2));
      files.insert({*paths.begin(), *middle, *paths.rbegin()});
    }
    return files;
  }

  static std::set<fs::path> FoldersOf(const fs::path& folder) {
    std::set<fs::path> folders;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (entry.is_directory()) folders.insert(entry.path());
    }
    return folders;
  }

  // Changes the file, and returns what is wrong with what is said then; "" if nothing is.
  static std::string Try(const std::string& folder, const fs::path& file, const FileFault& fault,
                         const Contents& intact) {
    const std::string bytes = ReadFile(file);
    fault.apply(file);
    absl::StatusOr<Contents> found = absl::UnknownError("");
    {
      const ScopedPermissions permissions;
      found = Read(folder);
    }
    fs::remove_all(file);
    WriteFile(file, bytes);
    return Judge(found, file.filename().string(), intact);
  }

  // Does the same for a folder that is lost with all that is in it.
  std::string TryWithout(const std::string& folder, const fs::path& inner, const Contents& intact) {
    const fs::path away = In("away");
    fs::rename(inner, away);
    const absl::StatusOr<Contents> found = Read(folder);
    fs::rename(away, inner);
    return Judge(found, inner.filename().string(), intact);
  }

 private:
  static std::string Judge(const absl::StatusOr<Contents>& found, const std::string& name,
                           const Contents& intact) {
    if (found.ok()) {
      if (found->text == intact.text) return "";
      if (found->notes != intact.notes && found->notes.find(name) != found->notes.npos) return "";
      return "reads otherwise; notes: " + found->notes;
    }
    const std::string message(found.status().message());
    return message.find(name) == message.npos ? message : "";
  }
};

TEST_P(FileFaultsTest, EveryLossIsNamed) {
  const std::string name = NameOf(GetParam());
  const std::string folder = Make(GetParam());
  const absl::StatusOr<Contents> intact = Read(folder);
  ASSERT_TRUE(intact.ok()) << intact.status();
  std::vector<std::string> wrong;
  const auto judge = [&](const fs::path& path, const std::string& fault,
                         const std::string& problem) {
    const std::string relative = path.lexically_relative(folder).string();
    const bool is_exception = std::ranges::any_of(Exceptions(), [&](const Exception& exception) {
      return Applies(exception, name, relative, fault);
    });
    if (problem.empty() || is_exception) return;
    wrong.push_back(absl::StrCat(relative, " | ", fault, " | ", problem));
  };
  for (const fs::path& file : FilesOf(folder)) {
    for (const FileFault& fault : Faults()) {
      judge(file, fault.name, Try(folder, file, fault, *intact));
    }
  }
  for (const fs::path& inner : FoldersOf(folder)) {
    judge(inner, "lost", TryWithout(folder, inner, *intact));
  }
  EXPECT_TRUE(wrong.empty()) << wrong.size() << ":\n" << absl::StrJoin(wrong, "\n");
}

// One call that opens a file or lists a folder fails, and its error is the one that is told.
TEST_P(FileFaultsTest, NoErrorOfTheStorageIsALoss) {
  const std::string folder =
      OrFail(ckpt::convert::FindForeign(Make(GetParam()), std::nullopt, {})).name;
  // An export beside the state, which has less.
  if (NameOf(GetParam()) == "--to=torch") {
    fs::copy("tests/interop/pytorch/gpt2.hf/model.safetensors", folder);
  }
  ASSERT_EQ(Run({"seal", folder}), 0) << err_;
  const auto seal = OrFail(ckpt::convert::FindSeal(folder, {}));
  ASSERT_TRUE(seal.has_value());
  const ckpt::convert::OpenForeignOptions options = {.seal = &*seal->seal};
  // Returns how many operations there are, of which this one fails.
  const auto open_without = [&](int lost) {
    const auto broken = std::make_shared<FaultInjectingStorage>(*seal->folder);
    int seen = 0;
    std::string where;
    broken->FailWhere(
        [&](const Operation& operation) {
          if (operation.kind == OperationKind::kReadAt || seen++ != lost) return false;
          where = ToString(operation);
          return true;
        },
        absl::UnavailableError("broken on purpose"));
    const absl::Status opened = ckpt::convert::OpenForeignFolder(broken, options).status();
    EXPECT_EQ(opened.code(), where.empty() ? absl::StatusCode::kOk : absl::StatusCode::kUnavailable)
        << where << ": " << opened;
    return seen;
  };
  const int count = open_without(-1), stride = 1 + count / 20;
  for (int lost = static_cast<int>(TestSeed() % stride); lost < count; lost += stride) {
    open_without(lost);
  }
}

INSTANTIATE_TEST_SUITE_P(All, FileFaultsTest, ::testing::ValuesIn(FaultCases()),
                         [](const auto& info) {
                           std::string name = NameOf(info.param);
                           std::ranges::replace_if(
                               name, [](char c) { return !absl::ascii_isalnum(c); }, '_');
                           return name;
                         });

}  // namespace
}  // namespace tessera
