#include "tests/worlds/jobs/site.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/include/checkpoint.h"
#include "storage/posix_storage.h"
#include "storage/s3/http.h"
#include "storage/s3/s3_storage.h"
#include "storage/tiered/staging_folder.h"
#include "storage/tiered/tiered_storage.h"
#include "tests/worlds/jobs/faults.h"
#include "tests/worlds/jobs/scheduler.h"

namespace tessera::simulation {
namespace {

using s3::HttpMessage;
using s3::HttpReply;
using s3::HttpRequest;
using s3::HttpResponse;

// "http://store/bucket/key?a=b"
HttpMessage ToMessage(const HttpRequest& request) {
  HttpMessage message = {.method = request.method};
  const size_t path = request.url.find('/', request.url.find("://") + 3);
  ParseTarget(request.url.substr(path), message);
  message.headers["host"] =
      request.url.substr(request.url.find("://") + 3, path - request.url.find("://") - 3);
  for (const auto& [name, value] : request.headers) {
    message.headers[absl::AsciiStrToLower(name)] = value;
  }
  message.body = std::make_shared<std::string>(reinterpret_cast<const char*>(request.body.data()),
                                               request.body.size());
  return message;
}

void Receive(const HttpReply& reply, const HttpRequest& request, HttpResponse& response) {
  response.status = reply.status;
  for (const auto& [name, value] : reply.headers) {
    response.headers[absl::AsciiStrToLower(name)] = value;
  }
  const bool fills_sink = reply.status == request.sink_status && !request.sink.empty();
  for (const s3::BodyPiece& piece : reply.body) {
    const char* const bytes = piece.bytes->data() + piece.offset;
    if (!fills_sink) {
      response.body.append(bytes, piece.size);
      continue;
    }
    std::memcpy(request.sink.data() + response.sink_bytes, bytes, piece.size);
    response.sink_bytes += piece.size;
  }
}

HttpReply Refusal(int status, std::string_view code) {
  HttpReply reply = {.status = status};
  auto text = std::make_shared<std::string>(
      absl::StrCat("<Error><Code>", std::string(code), "</Code></Error>"));
  const size_t size = text->size();
  reply.body = {{std::move(text), 0, size}};
  return reply;
}

HttpReply Answer(s3::S3Server& store, HttpMessage message) {
  const Uninterrupted uninterrupted;
  return store.Handle(message);
}

// Sends at once what it is to start.
class OneAfterAnother final : public s3::HttpBatch {
 public:
  explicit OneAfterAnother(s3::HttpClient& client) : client_(client) {}

  void Start(size_t id, HttpRequest request, HttpResponse& response) override {
    finished_.push_back({id, client_.Perform(request, response)});
  }
  std::optional<Finished> Wait(absl::Duration /*timeout*/) override {
    if (finished_.empty()) return std::nullopt;
    Finished first = std::move(finished_.front());
    finished_.pop_front();
    return first;
  }

 private:
  s3::HttpClient& client_;
  std::deque<Finished> finished_;
};

// A client whose requests go to a store in memory. On their way they are delayed, lost, repeated,
// answered with errors, or arrive after the client has given up. The store must outlive it.
class SimulatedClient final : public s3::HttpClient {
 public:
  explicit SimulatedClient(s3::S3Server& store) : store_(store) {}

  absl::Status Perform(const HttpRequest& request, HttpResponse& response) override {
    response = HttpResponse();
    HttpMessage message = ToMessage(request);
    const FaultSet possible = Only(FaultKind::kError) | Only(FaultKind::kLostReply) |
                              Only(FaultKind::kTwice) | Only(FaultKind::kLate) |
                              Only(FaultKind::kDenied);
    const std::string what =
        absl::StrCat(message.method, " ", message.path,
                     message.query.empty() ? "" : absl::StrCat("?", message.query.begin()->first));
    const FaultKind fault = Faults::Get().Next(what, possible);
    switch (fault) {
      case FaultKind::kError:
        if (Hash(message.path.size(), Scheduler::Get().Draw()) % 2 == 0) {
          return absl::UnavailableError("connection refused");
        }
        Receive(Refusal(503, "SlowDown"), request, response);
        return absl::OkStatus();
      case FaultKind::kDenied:
        Receive(Refusal(403, "AccessDenied"), request, response);
        return absl::OkStatus();
      case FaultKind::kLate:
        return SendLate(std::move(message), request);
      case FaultKind::kTwice:
        Handle(message);
        break;
      default:
        break;
    }
    const HttpReply reply = Handle(message);
    Faults::Get().After(fault);
    Scheduler::Get().Sleep(static_cast<int64_t>(Scheduler::Get().Draw() % 20) * kMillisecond);
    if (fault == FaultKind::kLostReply) return absl::UnavailableError("connection reset");
    Receive(reply, request, response);
    if (Scheduler::Get().current().process != kWorld) {
      Journal::Get().Note(absl::StrCat(what, " = ", reply.status));
    }
    return absl::OkStatus();
  }
  std::unique_ptr<s3::HttpBatch> NewBatch() override {
    return std::make_unique<OneAfterAnother>(*this);
  }

 private:
  HttpReply Handle(const HttpMessage& message) { return Answer(store_, message); }

  // It arrives once the client no longer waits.
  absl::Status SendLate(HttpMessage message, const HttpRequest& request) {
    Scheduler& scheduler = Scheduler::Get();
    const int64_t delay = static_cast<int64_t>(scheduler.Draw() % 600) * kSecond + kSecond;
    scheduler.Start(kWorld, [&store = store_, delay, message = std::move(message)] {
      Scheduler::Get().Sleep(delay);
      Journal::Get().Note(absl::StrCat("arrives late: ", message.method, " ", message.path));
      Answer(store, message);
    });
    if (scheduler.Draw() % 2 == 0) Faults::Get().Die();
    const int64_t limit =
        absl::ToInt64Nanoseconds(std::min(request.timeout, request.stall_timeout));
    scheduler.Sleep(std::max<int64_t>(limit, 0));
    return absl::UnavailableError("timed out");
  }

  s3::S3Server& store_;
};

s3::Credentials WithToken(int token) {
  return {.access_key_id = "TESTKEY",
          .secret_access_key = "a/secret+key",
          .session_token = absl::StrCat("token-", token)};
}

}  // namespace

Site::Site(const Script& script, const std::string& root, Model& model)
    : script_(script), root_(root), model_(model) {
  if (script.object_store) {
    for (auto* const store : {&store_, &other_}) {
      *store = std::make_unique<s3::S3Server>(
          s3::S3ServerOptions{.credentials = WithToken(token_),
                              .keeps_metadata = !script.loses_metadata,
                              .listens = false});
    }
  }
}

absl::StatusOr<std::unique_ptr<Storage>> Site::Open(const Phase& phase, bool blind) {
  auto remote = OpenRemote(blind, /*create_root=*/true);
  if (!remote.ok() || !phase.staging_tier) return remote;
  auto staging = OpenPosixStorage(root_ + "/nearby", {.create_root = true});
  if (!staging.ok()) return staging;
  auto tiered = std::make_unique<TieredStorage>(*std::move(staging), *std::move(remote));
  TESSERA_RETURN_IF_ERROR(DeleteStagedFilesBut(*tiered->staging(), ""));
  return tiered;
}

Model::View Site::Look() {
  const Frozen frozen;
  const auto storage = OpenRemote(/*blind=*/false, /*create_root=*/false);
  const absl::StatusOr<Model::View> view =
      storage.ok() ? LookAround(**storage) : absl::StatusOr<Model::View>(storage.status());
  if (!view.ok()) {
    Journal::Get().Finding("unreadable", std::string(view.status().message()));
    return {};
  }
  model_.Look(*view);
  for (const Sighting& sighting : *view) {
    if (!sighting.committed || !sighting.complete || !model_.IsSound(sighting.id)) continue;
    const std::string wrong = ReadBack(**storage, sighting);
    if (!wrong.empty()) {
      Journal::Get().Finding("mixed", absl::StrCat(sighting.directory, ": ", wrong));
    }
  }
  return *view;
}

void Site::MakeStale(const std::string& newest) {
  const Frozen frozen;
  if (script_.object_store) {
    for (const std::string& key : store_->keys()) {
      if (!absl::StrContains(key, newest)) other_->PutObject(key, store_->contents(key));
    }
    return;
  }
  namespace fs = std::filesystem;
  std::error_code ignored;
  fs::copy(root_ + "/saves", root_ + "/other",
           fs::copy_options::recursive | fs::copy_options::overwrite_existing, ignored);
  fs::remove_all(absl::StrCat(root_, "/other/", newest), ignored);
}

void Site::DeleteTree(const std::string& directory) {
  const Frozen frozen;
  const auto storage = OpenRemote(/*blind=*/false, /*create_root=*/false);
  if (storage.ok()) (*storage)->DeleteTree(directory).IgnoreError();
}
void Site::Rot(const std::string& directory) {
  const Frozen frozen;
  const auto storage = OpenRemote(/*blind=*/false, /*create_root=*/false);
  const auto manifest = ckpt::ReadManifest(**storage, directory);
  if (!manifest.ok()) return;
  const std::string path = ckpt::JoinPath(directory, manifest->files(0).path());
  auto bytes = ReadAll(**storage, path, 1 << 20);
  if (!bytes.ok() || bytes->empty()) return;
  bytes->back() = static_cast<char>(bytes->back() ^ 1);
  if (WriteAll(**storage, path, *bytes).ok()) Journal::Get().Note("rots: " + path);
}

void Site::ExpireToken(int64_t outage_ns) {
  readable_at_ns_ = std::max(readable_at_ns_, Scheduler::Get().now_ns() + outage_ns);
  ++token_;
  Journal::Get().Note(absl::StrCat("tokens expire, for ", outage_ns / kSecond, " s"));
  const Uninterrupted uninterrupted;
  for (auto* const store : {&store_, &other_}) (*store)->SetCredentials(WithToken(token_));
}

void Site::WriteStopFile(bool is_there) {
  const Uninterrupted uninterrupted;
  std::filesystem::remove(StopFile());
  if (is_there) std::ofstream(StopFile()) << "1\n";
}

absl::StatusOr<std::unique_ptr<Storage>> Site::OpenRemote(bool blind, bool create_root) {
  if (!script_.object_store) {
    return OpenPosixStorage(root_ + (blind ? "/other" : "/saves"), {.create_root = create_root});
  }
  s3::S3Server& store = blind ? *other_ : *store_;
  S3StorageOptions options = {.client = store.ForClient(), .prefix = "saves"};
  options.client.http = std::make_shared<SimulatedClient>(store);
  const auto read = [this] {
    const bool is_world = Scheduler::Get().current().process == kWorld;
    const bool is_new = is_world || Scheduler::Get().now_ns() >= readable_at_ns_;
    return WithToken(is_new ? token_ : token_ - 1);
  };
  options.client.credentials = read();
  // Otherwise a refusal has no cure.
  if (std::ranges::any_of(script_.phases, &Phase::token_expires)) {
    options.client.read_credentials = read;
  }
  options.client.timeout = absl::Minutes(5);
  options.client.stall_timeout = absl::Seconds(30);
  options.client.min_backoff = absl::Milliseconds(200);
  options.client.max_backoff = absl::Seconds(10);
  options.create_root = create_root;
  return OpenS3Storage(options);
}

namespace fs = std::filesystem;

Disk& Disk::Get() {
  static auto* const disk = new Disk;
  return *disk;
}

void Disk::Begin(const std::string& root, const std::vector<std::string>& folders,
                 const Options& options) {
  root_ = root;
  options_ = options;
  fs::remove_all(root);
  for (const std::string& folder : folders) fs::create_directories(absl::StrCat(root, "/", folder));
  files_ = std::make_unique<DurableFiles>(root);
}

void Disk::LosePower(uint64_t seed) {
  const Uninterrupted uninterrupted;
  const DurableFiles::Live live = files_->Look();
  std::set<DurableFiles::Doubt> survivors;
  // By the order in which they are found: numbers of nodes differ from run to run. A rename is
  // atomic.
  std::map<std::pair<DurableFiles::NodeId, bool>, uint64_t> numbers;
  const uint64_t mode = Hash(seed, 0) % 4;  // nothing, everything, or some survive
  for (const DurableFiles::Doubt& doubt : files_->FindDoubts(live)) {
    const auto key = std::pair(files_->NodeOf(live, doubt), doubt.name.has_value());
    const uint64_t number = numbers.emplace(key, numbers.size() + 1).first->second;
    if (mode == 0 || (mode > 1 && Hash(seed, number) % 2 == 0)) survivors.insert(doubt);
  }
  using Lost = DurableFiles::Lost;
  Lost lost = Hash(seed, 0, 1) % 2 == 0 ? Lost::kZeros : Lost::kDurable;
  if (Hash(seed, 0, 2) % 2 == 0) lost = Lost::kTorn;
  const FileImage image = files_->MakeImage(live, survivors, lost, Hash(seed, 0, 3));
  files_ = nullptr;
  fs::remove_all(root_);
  fs::create_directories(root_);
  for (const auto& [name, contents] : image) {
    const std::string path = absl::StrCat(root_, "/", name);
    if (name.ends_with('/')) {
      fs::create_directories(path);
    } else {
      std::ofstream(path, std::ios::binary) << contents;
    }
  }
  files_ = std::make_unique<DurableFiles>(root_);
}

void Disk::CloseFilesOf(int process) {
  const Uninterrupted uninterrupted;
  std::vector<int> fds;
  for (const auto& [fd, file] : open_) {
    if (file.process == process) fds.push_back(fd);
  }
  for (const int fd : fds) close(fd);
}

std::optional<std::string> Disk::NameOf(int directory, const char* path) const {
  if (root_.empty() || path == nullptr) return std::nullopt;
  const std::string name = path;
  if (name.starts_with('/')) {
    if (!name.starts_with(root_ + "/")) return std::nullopt;
    return name.substr(root_.size() + 1);
  }
  const auto folder = open_.find(directory);
  if (folder == open_.end()) return std::nullopt;
  return name == "." || name.empty() ? folder->second.name
                                     : absl::StrCat(folder->second.name, "/", name);
}

std::optional<std::string> Disk::NameOf(int fd) const {
  const auto file = open_.find(fd);
  return file == open_.end() ? std::nullopt : std::optional(file->second.name);
}

void Disk::Opened(int fd, std::string name) {
  open_[fd] = {.process = Scheduler::Get().current().process, .name = std::move(name)};
}

void Disk::Synced(int fd) {
  const Uninterrupted uninterrupted;
  files_->MakeDurable(fd);
}

uint64_t Disk::FreeBytes() const {
  const Uninterrupted uninterrupted;
  uint64_t used = 0;
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(root_, error)) {
    used += entry.is_regular_file(error) ? entry.file_size(error) : 0;
  }
  return used >= options_.capacity_bytes ? 0 : options_.capacity_bytes - used;
}

}  // namespace tessera::simulation
