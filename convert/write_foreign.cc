#include "convert/write_foreign.h"

#include <google/protobuf/message.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "base/text.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/include/manifest.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/models.h"
#include "convert/core/reading.h"
#include "convert/core/saved_values.h"
#include "convert/core/saved_weights.h"
#include "convert/formats.h"
#include "convert/open_foreign.h"
#include "convert/source_place.h"
#include "models/model_config.h"
#include "storage/lock/local_folder.h"
#include "storage/read_only_storage.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {
namespace {

// A folder as its readers will find it once its last files have been published: read-only. Files
// that are not in the storage yet are in memory.
class UnpublishedFolder final : public ReadOnlyStorage {
 public:
  // Shows `files`, contents by name, directly inside the root of `base`, beside its other files.
  UnpublishedFolder(std::shared_ptr<Storage> base, std::map<std::string, std::string> files)
      : ReadOnlyStorage("this view is read-only"),
        base_(std::move(base)),
        files_(std::move(files)) {}

  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(std::string_view path) override {
    const auto file = files_.find(std::string(path));
    if (file == files_.end()) return base_->Open(path);
    return std::make_unique<BytesFile>(Describe(path), file->second);
  }
  absl::StatusOr<std::vector<std::string>> List(std::string_view path) override {
    TESSERA_ASSIGN_OR_RETURN(std::vector<std::string> names, base_->List(path));
    if (!path.empty()) return names;
    std::set<std::string> all(names.begin(), names.end());
    for (const auto& [name, contents] : files_) all.insert(name);
    return std::vector<std::string>(all.begin(), all.end());
  }
  std::string Describe(std::string_view path) const override { return base_->Describe(path); }

 private:
  const std::shared_ptr<Storage> base_;
  const std::map<std::string, std::string> files_;
};

// Keeps two writers to one place of an object store apart.
std::string UnfinishedName(const std::string& file) {
  return file.empty() ? "unfinished" : file + ".unfinished";
}

absl::Status ExistsUnfinished(const ForeignObject& place) {
  const std::string what =
      place.file.empty()
          ? absl::StrCat("delete all objects below ", place.folder,
                         "/ (for example: aws s3 rm --recursive)")
          : absl::StrCat("delete ", place.file, " and ", UnfinishedName(place.file), " there");
  return AlreadyExists(
      place.folder, " has an object \"", UnfinishedName(place.file),
      "\": another conversion is writing there, or was killed; if none is running, ", what,
      " and try again");
}

// InvalidArgument, naming the first field, where what was written is another model. Files of torch
// may describe none.
absl::Status CheckModel(const ModelProto& written, const ModelProto& source) {
  const absl::StatusOr<ModelConfig> found = ConfigOf(written), wanted = ConfigOf(source);
  if (!found.ok() || !wanted.ok()) return absl::OkStatus();
  const std::vector<FieldDifference> differences = FunctionDifferences(*found, *wanted);
  if (differences.empty()) return absl::OkStatus();
  return InvalidArgument("the format does not keep the model: ", Describe(differences[0]));
}

// Reads back what was written, as any other program would find it.
absl::Status CheckWritten(const Checkpoint& source, std::shared_ptr<Storage> folder,
                          const std::string& file, const DigestsByName& written,
                          const WriteForeignOptions& options) {
  const std::string place = folder->Describe(file);
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ForeignStorage> storage,
                           OpenForeignFolder(std::move(folder), {.format = options.format}, file));
  TESSERA_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(*storage, ""));
  TESSERA_RETURN_IF_ERROR(
      In(place, CheckModel(checkpoint.manifest().model(), source.manifest().model())));
  TESSERA_ASSIGN_OR_RETURN(const DigestsByName found, ReadDigests(checkpoint, options.io));
  for (const auto& [name, digest] : written) {
    const auto at = found.find(name);
    if (at != found.end() && at->second == digest) continue;
    return DataLoss(
        place, ": tensor ", name,
        at == found.end() ? ": is not in what was written" : ": differs from what was written");
  }
  return absl::OkStatus();
}

// Compares digests with the source. Returns the number of tensors that have one of the same
// elements there. DataLoss if it differs.
absl::StatusOr<int64_t> CompareWithSource(const Checkpoint& source,
                                          const std::vector<OutputFile>& files,
                                          const DigestsByName& written) {
  std::map<std::string, const LogicalTensor*> saved;
  for (const LogicalTensor& tensor : source.manifest().tensors()) saved[tensor.name()] = &tensor;
  std::set<std::string_view> compared;  // a tensor may be written in several parts
  for (const OutputFile& file : files) {
    for (const OutputTensor& tensor : file.tensors) {
      const auto at = saved.find(tensor.source_name);
      const bool is_comparable = at != saved.end() && at->second->has_digest() &&
                                 FromProto(at->second->dtype()) == tensor.dtype;
      if (!is_comparable) continue;
      if (written.at(tensor.name) != FromProto(at->second->digest())) {
        return Damaged(source.storage(), source.directory(), "tensor ", tensor.source_name,
                       ": its contents do not match its digest");
      }
      compared.insert(tensor.name);
    }
  }
  return static_cast<int64_t>(compared.size());
}

absl::StatusOr<WriteForeignReport> WriteAndCheck(const Checkpoint& source,
                                                 const std::vector<OutputFile>& files,
                                                 LocalFolder& place, bool is_file,
                                                 const WriteForeignOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const DigestsByName written, WriteOutput(source, files, place.storage(),
                                                                    place.temporary(), options.io));
  WriteForeignReport report = {.tensors = static_cast<int64_t>(written.size())};
  TESSERA_ASSIGN_OR_RETURN(report.digests_compared, CompareWithSource(source, files, written));
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<Storage> folder, OpenStorage(place.temporary_path()));
  const std::string file = is_file ? place.name() : "";
  TESSERA_RETURN_IF_ERROR(CheckWritten(source, std::move(folder), file, written, options));
  TESSERA_RETURN_IF_ERROR(is_file ? place.PublishFile() : place.Publish());
  report.removed = place.removed();
  return report;
}

absl::StatusOr<WriteForeignReport> WriteLocal(const Checkpoint& source,
                                              std::vector<OutputFile>& files, bool is_file,
                                              const std::string& folder, const std::string& local,
                                              const WriteForeignOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(LocalFolder place, LocalFolder::Create(local, folder));
  if (is_file) files[0].name = place.name();
  absl::StatusOr<WriteForeignReport> report = WriteAndCheck(source, files, place, is_file, options);
  if (!report.ok()) place.Abandon();
  return report;
}

// Names cannot be given to folders of an object store: everything is written in its place, and the
// files that make it a checkpoint last. Those alone replace nothing. Adds the files that are this
// conversion's to `own`, also before an error.
absl::StatusOr<WriteForeignReport> WriteObjects(const Checkpoint& source,
                                                const std::vector<OutputFile>& files,
                                                const std::shared_ptr<Storage>& storage,
                                                const std::string& single_file,
                                                const WriteForeignOptions& options,
                                                std::vector<std::string>& own) {
  std::vector<OutputFile> first;
  std::map<std::string, std::string> last;
  for (const OutputFile& file : files) {
    if (file.commits) last[file.name] = file.header;
    if (!file.commits) first.push_back(file);
  }
  TESSERA_ASSIGN_OR_RETURN(const DigestsByName written,
                           WriteOutput(source, first, *storage, "", options.io));
  for (const OutputFile& file : first) own.push_back(file.name);
  WriteForeignReport report = {.tensors = static_cast<int64_t>(written.size())};
  TESSERA_ASSIGN_OR_RETURN(report.digests_compared, CompareWithSource(source, files, written));
  TESSERA_RETURN_IF_ERROR(CheckWritten(source, std::make_shared<UnpublishedFolder>(storage, last),
                                       single_file, written, options));
  for (const auto& [name, contents] : last) {
    TESSERA_RETURN_IF_ERROR(storage->Write(name, contents, {}).status());
    own.push_back(name);
  }
  return report;
}

// AlreadyExists if the place is taken: by the file, or by anything in the folder but the mark.
absl::Status CheckFree(Storage& storage, const ForeignObject& place) {
  const absl::StatusOr<std::vector<std::string>> names = storage.List("");
  if (absl::IsNotFound(names.status())) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(names.status());
  const bool is_taken = std::ranges::any_of(*names, [&](const std::string& name) {
    return place.file.empty() ? name != UnfinishedName("") : name == place.file;
  });
  if (!is_taken) return absl::OkStatus();
  return AlreadyExists(place.folder, place.file.empty() ? "" : "/", place.file,
                       " exists, and nothing is ever overwritten");
}

// Marks the place as this conversion's. Looks before, to leave what is there alone, and afterwards:
// another conversion may have come to its end in between.
absl::Status Claim(Storage& storage, const ForeignObject& place) {
  const std::string unfinished = UnfinishedName(place.file);
  const absl::StatusOr<std::vector<std::string>> names = storage.List("");
  if (names.ok() && Has(*names, unfinished)) return ExistsUnfinished(place);
  TESSERA_RETURN_IF_ERROR(CheckFree(storage, place));
  const absl::Status alone = storage.Write(unfinished, RandomHex(16) + "\n", {}).status();
  if (absl::IsAlreadyExists(alone)) return ExistsUnfinished(place);
  TESSERA_RETURN_IF_ERROR(alone);
  const absl::Status is_free = CheckFree(storage, place);
  if (!is_free.ok()) storage.Delete(unfinished).IgnoreError();
  return is_free;
}

// A file is written into a folder that may have others, all else into a new one.
absl::StatusOr<WriteForeignReport> WriteToStore(const Checkpoint& source,
                                                const std::vector<OutputFile>& files,
                                                const ForeignObject& place,
                                                const WriteForeignOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Storage> storage,
                           OpenStorage(place.folder, options.stores.ForWriting()));
  TESSERA_RETURN_IF_ERROR(Claim(*storage, place));
  std::vector<std::string> own;
  absl::StatusOr<WriteForeignReport> report =
      WriteObjects(source, files, storage, place.file, options, own);
  // The file that commits goes first: it may be there although its request has failed.
  for (const bool commits : {true, false}) {
    for (const OutputFile& file : files) {
      // Another program may have made the file in the meantime, and other files, too.
      const bool may_be_others = absl::IsAlreadyExists(report.status()) && !Has(own, file.name);
      if (report.ok() || may_be_others || file.commits != commits) continue;
      storage->Delete(file.name).IgnoreError();
    }
  }
  const absl::Status finished = storage->Delete(UnfinishedName(place.file));
  if (report.ok()) TESSERA_RETURN_IF_ERROR(finished);
  return report;
}

absl::StatusOr<WriteForeignReport> WriteFiles(const Checkpoint& source,
                                              std::vector<OutputFile>& files, bool is_file,
                                              const std::string& name,
                                              const WriteForeignOptions& options) {
  const std::optional<std::string> local = LocalPathOfName(name);
  if (local.has_value()) return WriteLocal(source, files, is_file, name, *local, options);
  if (!is_file) return WriteToStore(source, files, {name, ""}, options);
  const std::optional<ForeignObject> place = FindObject(name);
  if (!place.has_value() || !place->file.ends_with(".gguf")) {  // others may be folders
    return InvalidArgument(name, ": in an object store, a GGUF file's name has to end in .gguf");
  }
  files[0].name = place->file;
  return WriteToStore(source, files, *place, options);
}

absl::Status CheckTokenizer(const PlanOptions& options, const Format& format,
                            const ModelProto& model) {
  if (options.tokenizer == nullptr) return absl::OkStatus();
  if (format.without_tokenizer.empty()) {
    return InvalidArgument("a tokenizer is written in the formats ",
                           absl::StrJoin(FormatsWithTokenizer(), " and "), ", not in ",
                           format.name);
  }
  const absl::StatusOr<ModelConfig> config = ConfigOf(model);
  if (!config.ok()) {
    return InvalidArgument("the checkpoint does not say how many ids its model has");
  }
  const int64_t ids = options.tokenizer->vocab_size();
  if (ids <= config->vocab_size()) return absl::OkStatus();
  return InvalidArgument(options.tokenizer_path, " has ", ids, " ids, but the model has only ",
                         config->vocab_size(), ": it belongs to another model");
}

// FailedPrecondition if files without tensors and values are all that is left to write: a reader
// would not take them for a checkpoint.
absl::Status CheckHolds(const Checkpoint& source, const std::vector<OutputFile>& files,
                        const PlanOptions& options) {
  const auto has_tensors = [](const OutputFile& file) { return !file.tensors.empty(); };
  const bool has_values = !options.weights_only && !IsEmpty(*options.state);
  if (has_values || std::ranges::any_of(files, has_tensors)) return absl::OkStatus();
  return FailedPrecondition(
      source.storage().Describe(source.directory()), " has neither ",
      options.weights_only ? "weights nor buffers to convert" : "tensors nor values to convert");
}

// Makes master weights the sources of weights that were not saved.
void TakeWeights(const std::map<std::string, std::string>& masters,
                 std::vector<OutputFile>& files) {
  for (OutputFile& file : files) {
    for (OutputTensor& tensor : file.tensors) {
      const auto master = masters.find(tensor.source_name);
      if (master == masters.end()) continue;
      tensor.source_name = master->second;
      tensor.role = TensorRole::kMasterWeight;
    }
  }
}

// Adds the tensors that are not written, or otherwise than they were saved.
void AddLeftOutTensors(const Manifest& manifest, const std::vector<OutputFile>& files,
                       const PlanOptions& options, LeftOut& left_out) {
  std::map<std::string, DType> written;
  std::map<std::string, std::set<std::string>> copies;
  for (const OutputFile& file : files) {
    for (const OutputTensor& tensor : file.tensors) {
      written[tensor.source_name] = tensor.dtype;
      copies[tensor.source_name].insert(tensor.name);
    }
  }
  const auto is_wanted = [&](const LogicalTensor& tensor) {
    return !options.weights_only || !BelongsToOptimizer(FromProto(tensor.role()));
  };
  for (const LogicalTensor& tensor : manifest.tensors()) {
    const std::string& name = tensor.alias_of().empty() ? tensor.name() : tensor.alias_of();
    const auto at = written.find(name);
    if (at == written.end()) {
      if (is_wanted(tensor)) left_out.tensors.push_back(tensor.name());
    } else if (at->second != FromProto(tensor.dtype()) && options.dtype == DType::kUnspecified) {
      left_out.dtypes.push_back(tensor.name());
    }
    if (!tensor.alias_of().empty() && copies[name].size() > 1)
      left_out.ties.push_back(tensor.name());
  }
}

// Adds the values and the state of the trainer and the optimizer that the format has no place for.
void AddLeftOutState(const Manifest& manifest, const Format& format, const SavedValue& state,
                     LeftOut& left_out) {
  left_out.simplified.clear();  // none of the values is written
  std::ranges::move(KeysOf(ValuesByName(state)), std::back_inserter(left_out.values));
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  manifest.trainer().GetReflection()->ListFields(manifest.trainer(), &fields);
  for (const google::protobuf::FieldDescriptor* const field : fields) {
    const bool is_held =
        (field->name() == "step" && format.holds != Holds::kWeights) ||
        (field->name() == "data" && format.holds == Holds::kProgress) ||
        (field->name() == "best_loss" && std::isinf(manifest.trainer().best_loss()));
    if (!is_held && field->name() != "extra") left_out.trainer.push_back(field->name());
  }
  std::set<std::string> options_of_groups;
  for (const ParameterGroup& group : manifest.optimizer().groups()) {
    for (const auto& [name, value] : group.options()) options_of_groups.insert(name);
  }
  left_out.optimizer.assign(options_of_groups.begin(), options_of_groups.end());
  for (const auto& [name, bytes] : manifest.trainer().extra()) {
    if (IsValuesEntry(name) || name == kUnknownStepEntry || Has(left_out.trainer, name)) continue;
    left_out.trainer.push_back(name);
  }
}

// `masters` are the parameters that master weights stand for.
std::vector<std::string> NotesOf(const LeftOut& left_out, const std::vector<std::string>& masters,
                                 std::string_view format) {
  std::vector<std::string> notes;
  const auto add = [&](const std::string& what, const std::vector<std::string>& names) {
    if (!names.empty()) notes.push_back(absl::StrCat(what, ": ", JoinFirst(names, ", "), "."));
  };
  const std::string as_the_format = absl::StrCat(", as the format ", View(format));
  const std::string no_place = absl::StrCat("Left out", as_the_format, " has no place for ");
  add(no_place + "these tensors", left_out.tensors);
  add(no_place + "these values", left_out.values);
  add(no_place + "this state of the trainer", left_out.trainer);
  add(no_place + "these settings of the optimizer", left_out.optimizer);
  add("Written with another dtype" + as_the_format + " demands", left_out.dtypes);
  add("No longer tied" + as_the_format + " has no tied tensors", left_out.ties);
  add("Written with a simpler type, such as a tuple for a namedtuple", left_out.simplified);
  add("Made from the master weights, since the weights were not saved", masters);
  return notes;
}

}  // namespace

std::vector<std::string> WrittenFormatNames() {
  return NamesOfFormats([](const Format& format) { return format.plan != nullptr; });
}

absl::Status CheckIsWritten(const std::string& format, const std::string& others) {
  const std::vector<std::string> written = WrittenFormatNames();
  if (Has(written, format)) return absl::OkStatus();
  return InvalidArgument(IsFormatName(format) ? "only read is the" : "unknown", " format \"",
                         format, "\"; written are ", absl::StrJoin(written, ", "), others);
}

std::vector<std::string> FormatsWithTokenizer() {
  return NamesOfFormats([](const Format& format) { return !format.without_tokenizer.empty(); });
}

absl::StatusOr<WriteForeignReport> WriteForeign(const Checkpoint& checkpoint,
                                                const std::string& folder,
                                                const WriteForeignOptions& options) {
  const absl::Duration start = SteadyNow();
  TESSERA_RETURN_IF_ERROR(CheckIsWritten(options.format));
  const auto format = std::ranges::find(Formats(), options.format, &Format::name);
  const Checkpoint source = WithStatesNamedByMapping(checkpoint);
  SavedState saved;
  PlanOptions plan = options.plan;
  if (plan.state == nullptr) {
    saved = StateOf(source.manifest());
    plan.state = &saved.root;
  }
  LeftOut left_out = {.values = std::move(saved.left_out),
                      .simplified = std::move(saved.simplified)};
  plan.left_out = &left_out.values;
  TESSERA_RETURN_IF_ERROR(CheckTokenizer(plan, *format, source.manifest().model()));
  TESSERA_ASSIGN_OR_RETURN(
      std::vector<OutputFile> files,
      In(source.storage().Describe(source.directory()), format->plan(source.manifest(), plan)));
  TESSERA_RETURN_IF_ERROR(CheckHolds(source, files, plan));
  const std::map<std::string, std::string> masters = MastersWithoutWeights(source.manifest());
  TakeWeights(masters, files);
  TESSERA_ASSIGN_OR_RETURN(WriteForeignReport report,
                           WriteFiles(source, files, format->is_file, folder, options));
  AddLeftOutTensors(source.manifest(), files, plan, left_out);
  if (!plan.weights_only && format->holds != Holds::kEverything) {
    AddLeftOutState(source.manifest(), *format, *plan.state, left_out);
  }
  report.left_out = std::move(left_out);
  report.notes = NotesOf(report.left_out, KeysOf(masters), format->name);
  if (plan.tokenizer == nullptr && !format->without_tokenizer.empty()) {
    report.notes.emplace_back(format->without_tokenizer);
  }
  for (const OutputFile& file : files) {
    report.files.push_back(file.name);
    report.bytes += file.size_bytes;
  }
  report.duration = SteadyNow() - start;
  return report;
}

}  // namespace tessera::ckpt::convert
