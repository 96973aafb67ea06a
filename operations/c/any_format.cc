// The part of the C interface that knows checkpoints of every format: opening, verifying, comparing
// and converting them by their names.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "base/errors.h"
#include "checkpoint/c/handles.h"
#include "checkpoint/c/tessera_checkpoint.h"
#include "convert/core/foreign_storage.h"
#include "convert/core/reading.h"
#include "convert/core/saved_values.h"
#include "convert/core/value.h"
#include "convert/write_foreign.h"
#include "layout/dtype.h"
#include "operations/diff.h"
#include "operations/named_checkpoint.h"
#include "operations/reshard.h"
#include "operations/verify.h"
#include "tokenizer/files/load_tokenizer.h"
#include "tokenizer/tokenizer.h"

namespace tessera::ckpt::c {
namespace {

using Json = nlohmann::ordered_json;

struct ReadOptions {
  SourceOptions source;
  int threads = 4;
  std::function<void(uint64_t, uint64_t)> progress;
  std::function<bool()> is_cancelled;
};

absl::StatusOr<ReadOptions> Read(const tessera_read_options* options) {
  TESSERA_ASSIGN_OR_RETURN(const tessera_read_options from, ReadStruct(options, "options"));
  ReadOptions to = {.source = {.stores = {.s3_endpoint = TextOrEmpty(from.s3_endpoint)},
                               .format = TextOrEmpty(from.format),
                               .parameter_names_file = TextOrEmpty(from.parameter_names_file)}};
  TESSERA_RETURN_IF_ERROR(SetCount(from.threads, "threads", to.threads));
  if (from.progress != nullptr) {
    to.progress = [from](uint64_t done, uint64_t total) {
      from.progress(from.progress_context, done, total);
    };
  }
  to.is_cancelled = IsSet(from.cancelled);
  return to;
}

absl::Status Open(const std::string& name, const SourceOptions& options, tessera_checkpoint** out) {
  TESSERA_ASSIGN_OR_RETURN(NamedCheckpoint named, FindCheckpoint(name, options));
  TESSERA_RETURN_IF_ERROR(named.opened.status());
  auto handle = std::unique_ptr<tessera_checkpoint>(
      new tessera_checkpoint{.storage = named.storage,
                             .checkpoint = *std::move(named.opened),
                             .notes = named.notes,
                             .format = named.format});
  if (named.foreign != nullptr) handle->foreign_names = named.foreign->foreign_names();
  for (const auto& [name, value] : convert::ValuesByName(named.state)) {
    handle->values[name] = convert::ValueToPlainJson(*value);
  }
  handle->metadata = handle->checkpoint.metadata();
  // The same entries that a conversion to this library's format would have.
  if (const convert::SavedValue* const state = named.foreign_state()) {
    Manifest manifest = handle->checkpoint.manifest();
    convert::NoteLeftOut("values with the name of another value or tensor",
                         convert::SetEntries(*state, manifest), handle->notes);
    for (auto& [entry, bytes] : *manifest.mutable_trainer()->mutable_extra()) {
      handle->metadata.entries[entry] = std::move(bytes);
    }
  }
  *out = handle.release();
  return absl::OkStatus();
}

absl::Status VerifyByName(const std::string& name, bool digests, const ReadOptions& options,
                          char** report) {
  TESSERA_ASSIGN_OR_RETURN(const NamedCheckpoint named, FindCheckpoint(name, options.source));
  TESSERA_ASSIGN_OR_RETURN(const VerifyReport found,
                           Verify(named, {.digests = digests,
                                          .io_threads = options.threads,
                                          .progress = options.progress,
                                          .is_cancelled = options.is_cancelled}));
  return GiveJson(ToJson(named, found, digests), report);
}

absl::Status DiffByName(const std::string& name_a, const std::string& name_b, bool data,
                        const ReadOptions& options, char** report) {
  TESSERA_ASSIGN_OR_RETURN(const NamedCheckpoint a, FindCheckpoint(name_a, options.source));
  TESSERA_ASSIGN_OR_RETURN(const NamedCheckpoint b, FindCheckpoint(name_b, options.source));
  TESSERA_ASSIGN_OR_RETURN(const Differences differences,
                           Diff(a, b, {.data = data, .io_threads = options.threads}));
  return GiveJson(ToJson(differences), report);
}

// Converts to another framework's format.
absl::StatusOr<Json> ExportByName(const std::string& source, const std::string& destination,
                                  const std::string& format, const ReadOptions& options,
                                  const tessera_write_options& write) {
  convert::WriteForeignOptions to = {
      .format = format,
      .plan = {.dtype = static_cast<DType>(write.dtype), .weights_only = write.weights_only != 0},
      .stores = options.source.stores,
      .io = {.io_threads = options.threads,
             .allow_overflow = write.allow_overflow != 0,
             .progress = options.progress}};
  convert::PlanOptions& plan = to.plan;
  if (write.max_file_bytes > 0) plan.max_file_bytes = write.max_file_bytes;
  if (write.dtype != 0 && (write.dtype < 0 || ElementSize(plan.dtype) == 0)) {
    return InvalidArgument("there is no dtype ", write.dtype);
  }
  std::unique_ptr<Tokenizer> tokenizer;
  if (plan.tokenizer_path = TextOrEmpty(write.tokenizer); !plan.tokenizer_path.empty()) {
    TESSERA_ASSIGN_OR_RETURN(tokenizer, LoadTokenizer(plan.tokenizer_path));
    plan.tokenizer = tokenizer.get();
  }
  TESSERA_ASSIGN_OR_RETURN(const NamedCheckpoint named, FindCheckpoint(source, options.source));
  plan.state = named.foreign_state();
  TESSERA_ASSIGN_OR_RETURN(const convert::WriteForeignReport report,
                           Export(named, destination, to));
  return Json{{"path", destination},       {"format", format},
              {"bytes", report.bytes},     {"files", report.files},
              {"tensors", report.tensors}, {"digests_compared", report.digests_compared},
              {"notes", report.notes},     {"seconds", absl::ToDoubleSeconds(report.duration)}};
}

// Converts to this library's format.
absl::StatusOr<Json> Import(const std::string& source, const std::string& destination,
                            const ReadOptions& options, const tessera_write_options& write) {
  if (write.dtype != 0 || write.allow_overflow != 0 || write.weights_only != 0 ||
      write.max_file_bytes != 0 || !TextOrEmpty(write.tokenizer).empty()) {
    return InvalidArgument(
        "dtype, allow_overflow, weights_only, max_file_bytes and tokenizer are for other formats "
        "than tessera");
  }
  ReshardRequest request = {.source = source,
                            .destination = destination,
                            .open = options.source,
                            .program = "tessera_convert",
                            .io_threads = options.threads,
                            .progress = options.progress};
  if (write.topology != nullptr) request.topology = write.topology;
  TESSERA_ASSIGN_OR_RETURN(const ReshardPlan plan, PlanReshard(request));
  TESSERA_ASSIGN_OR_RETURN(const RewriteReport report, Reshard(plan, request));
  return Json{{"path", plan.place.path()},     {"format", "tessera"},
              {"bytes", report.bytes_written}, {"digests_compared", report.digests_compared},
              {"notes", plan.source.notes},    {"seconds", absl::ToDoubleSeconds(report.duration)}};
}

}  // namespace
}  // namespace tessera::ckpt::c

using namespace tessera::ckpt::c;  // NOLINT(google-build-using-namespace)

extern "C" {

int32_t tessera_checkpoint_open_named(const char* name, const tessera_read_options* options,
                                      tessera_checkpoint** checkpoint) {
  return Run([&]() -> absl::Status {
    TESSERA_RETURN_IF_ERROR(CheckPointer(checkpoint, "checkpoint"));
    TESSERA_ASSIGN_OR_RETURN(const std::string text, Text(name, "name"));
    TESSERA_ASSIGN_OR_RETURN(const ReadOptions read, Read(options));
    return Open(text, read.source, checkpoint);
  });
}

int32_t tessera_verify(const char* name, int32_t digests, const tessera_read_options* options,
                       char** report) {
  return Run([&]() -> absl::Status {
    TESSERA_RETURN_IF_ERROR(CheckPointer(report, "report"));
    TESSERA_ASSIGN_OR_RETURN(const std::string text, Text(name, "name"));
    TESSERA_ASSIGN_OR_RETURN(const ReadOptions read, Read(options));
    return VerifyByName(text, digests != 0, read, report);
  });
}

int32_t tessera_diff(const char* a, const char* b, int32_t data,
                     const tessera_read_options* options, char** report) {
  return Run([&]() -> absl::Status {
    TESSERA_RETURN_IF_ERROR(CheckPointer(report, "report"));
    TESSERA_ASSIGN_OR_RETURN(const std::string name_a, Text(a, "a"));
    TESSERA_ASSIGN_OR_RETURN(const std::string name_b, Text(b, "b"));
    TESSERA_ASSIGN_OR_RETURN(const ReadOptions read, Read(options));
    return DiffByName(name_a, name_b, data != 0, read, report);
  });
}

int32_t tessera_convert(const char* source, const char* destination, const char* format,
                        const tessera_read_options* options,
                        const tessera_write_options* write_options, char** report) {
  return Run([&]() -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const std::string from, Text(source, "source"));
    TESSERA_ASSIGN_OR_RETURN(const std::string to, Text(destination, "destination"));
    TESSERA_ASSIGN_OR_RETURN(const std::string name, Text(format, "format"));
    TESSERA_ASSIGN_OR_RETURN(const ReadOptions read, Read(options));
    TESSERA_ASSIGN_OR_RETURN(const tessera_write_options write,
                             ReadStruct(write_options, "write_options"));
    const bool imports = name == "tessera";
    TESSERA_ASSIGN_OR_RETURN(const Json json, imports ? Import(from, to, read, write)
                                                      : ExportByName(from, to, name, read, write));
    return GiveJson(json, report);
  });
}

}  // extern "C"
