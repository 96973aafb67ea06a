#include "storage/s3/testing/s3_server.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <pugixml.hpp>
#include <system_error>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/crc32c.h"
#include "storage/s3/testing/vendor_rules.h"

namespace tessera::s3 {
namespace {

// Bytes [begin, end) of the chunks.
std::vector<BodyPiece> Pieces(const std::vector<std::shared_ptr<const std::string>>& chunks,
                              uint64_t begin, uint64_t end) {
  std::vector<BodyPiece> pieces;
  uint64_t at = 0;
  for (const auto& chunk : chunks) {
    const uint64_t from = std::max(begin, at), to = std::min<uint64_t>(end, at + chunk->size());
    if (from < to) pieces.push_back({chunk, from - at, to - from});
    at += chunk->size();
  }
  return pieces;
}

void FlipBit(std::string& bytes) {
  if (!bytes.empty()) bytes[bytes.size() / 2] ^= 4;
}

// The first of the bytes that were asked for alone.
void ShortenRange(HttpMessage& request) {
  const std::string begin = Header(request, "range").substr(6);
  request.headers["range"] = absl::StrCat("bytes=", begin.substr(0, begin.find('-')), "-",
                                          begin.substr(0, begin.find('-')));
}

std::map<std::string, std::string> MetadataOf(const HttpMessage& request) {
  std::map<std::string, std::string> metadata;
  for (const auto& [name, value] : request.headers) {
    if (name.starts_with("x-amz-meta-") || name.starts_with("x-goog-meta-")) metadata[name] = value;
  }
  return metadata;
}

}  // namespace

S3Server::S3Server(S3ServerOptions options)
    : options_(std::move(options)),
      credentials_(options_.credentials),
      http_(options_.listens ? std::make_unique<HttpServer>(
                                   [this](HttpMessage& request) { return Handle(request); },
                                   options_.certificate)
                             : nullptr) {}

S3Server::~S3Server() = default;

ClientOptions S3Server::ForClient() const {
  const Dialect dialects[] = {kAmazon, kVolcano, kAliyun, kGoogle};
  // A name that every label can stand before.
  const bool virtual_host = NeedsVirtualHost(options_.vendor);
  return {.endpoint = virtual_host ? absl::StrReplaceAll(endpoint(), {{"127.0.0.1", "localhost"}})
                                   : endpoint(),
          .bucket = options_.bucket,
          .region = options_.region,
          .credentials = options_.credentials,
          .virtual_host = virtual_host,
          .dialect = dialects[static_cast<int>(options_.vendor)],
          .min_backoff = absl::Milliseconds(1),
          .max_backoff = absl::Milliseconds(20)};
}

ClientOptions S3Server::ForImpatientClient() const {
  ClientOptions options = ForClient();
  options.min_backoff = options.max_backoff = 4 * options.timeout;
  return options;
}

void S3Server::SetCredentials(Credentials credentials) {
  const MutexLock lock(&mutex_);
  credentials_ = std::move(credentials);
}

void S3Server::AddFault(Fault fault) {
  const MutexLock lock(&mutex_);
  faults_.push_back(std::move(fault));
}

int S3Server::fault_count() const {
  const MutexLock lock(&mutex_);
  return fault_count_;
}

void S3Server::ClearFaults() {
  const MutexLock lock(&mutex_);
  faults_.clear();
  fault_count_ = 0;
}

std::vector<std::string> S3Server::keys() const {
  const MutexLock lock(&mutex_);
  std::vector<std::string> keys;
  for (const auto& [key, object] : objects_) keys.push_back(key);
  return keys;
}

std::string S3Server::contents(const std::string& key) const {
  const MutexLock lock(&mutex_);
  const auto found = objects_.find(key);
  if (found == objects_.end()) return "(no such object)";
  std::string contents;
  for (const auto& chunk : found->second.chunks) contents += *chunk;
  return contents;
}

void S3Server::PutObject(const std::string& key, std::string contents) {
  const MutexLock lock(&mutex_);
  Store(key, MakeObject({std::make_shared<std::string>(std::move(contents))}));
}

void S3Server::Store(const std::string& key, Object object) {
  if (!options_.mirror.empty() && !key.ends_with('/')) {
    namespace fs = std::filesystem;
    const fs::path path = fs::path(options_.mirror) / key, temporary = options_.mirror + ".part";
    std::error_code ignored;
    fs::create_directories(path.parent_path(), ignored);
    std::ofstream file(temporary, std::ios::binary);
    for (const auto& chunk : object.chunks) file << *chunk;
    file.close();
    fs::rename(temporary, path, ignored);
  }
  objects_[key] = std::move(object);
}

void S3Server::Erase(const std::string& key) {
  objects_.erase(key);
  if (options_.mirror.empty()) return;
  std::error_code error;
  const std::filesystem::path root(options_.mirror);
  // Stops at the first folder that is not empty.
  for (std::filesystem::path path = root / key; path != root && !error; path = path.parent_path()) {
    std::filesystem::remove(path, error);
  }
}

size_t S3Server::upload_count() const {
  const MutexLock lock(&mutex_);
  return uploads_.size();
}

void S3Server::AgeUploads(absl::Duration age) {
  const MutexLock lock(&mutex_);
  for (auto& [id, upload] : uploads_) upload.initiated -= age;
}

std::vector<std::string> S3Server::requests() const {
  const MutexLock lock(&mutex_);
  return requests_;
}

std::vector<std::string> S3Server::hosts() const {
  const MutexLock lock(&mutex_);
  return hosts_;
}

S3Server::Object S3Server::MakeObject(std::vector<std::shared_ptr<const std::string>> chunks) {
  Object object = {.etag = absl::StrCat("\"", ++last_id_, "\""),
                   .generation = absl::StrCat(1'700'000'000'000'000 + last_id_)};
  for (const auto& chunk : chunks) object.size_bytes += chunk->size();
  object.chunks = std::move(chunks);
  return object;
}

const Fault* S3Server::FindFault(const HttpMessage& request, const std::string& key) {
  for (Fault& fault : faults_) {
    if (fault.times == 0 || (!fault.method.empty() && fault.method != request.method)) continue;
    if (!absl::StrContains(key, fault.key_part)) continue;
    if (!fault.query.empty() && request.query.count(fault.query) == 0) continue;
    if (fault.skip-- > 0) continue;
    fault.skip = fault.period - 1;
    --fault.times;
    ++fault_count_;
    current_fault_ = fault;
    return &current_fault_;
  }
  return nullptr;
}

std::optional<std::string> S3Server::KeyOf(const HttpMessage& request) const {
  if (Header(request, "host").starts_with(options_.bucket + ".")) {
    return DecodePercent(request.path.substr(1));
  }
  const std::string bucket = absl::StrCat("/", options_.bucket, "/");
  if (!request.path.starts_with(bucket)) return std::nullopt;
  return DecodePercent(request.path.substr(bucket.size()));
}

HttpReply S3Server::Handle(HttpMessage& request) {
  {
    const MutexLock lock(&mutex_);
    ++in_flight_;
  }
  HttpReply reply = Answer(request);
  const MutexLock lock(&mutex_);
  --in_flight_;
  idle_.NotifyAll();
  return reply;
}

void S3Server::WaitUntilIdle() {
  const MutexLock lock(&mutex_);
  while (in_flight_ > 0) idle_.Wait(&mutex_);
}

HttpReply S3Server::Answer(HttpMessage& request) {
  const std::optional<std::string> found = KeyOf(request);
  const bool has_bucket = found.has_value();
  const std::string key = found.value_or("");
  MutexLock lock(&mutex_);
  const Credentials credentials = credentials_;
  lock.Unlock();
  const HttpReply checked = Check(request, credentials);
  lock.Lock();
  hosts_.push_back(Header(request, "host"));
  requests_.push_back(absl::StrCat(request.method, " ", key, request.query.empty() ? "" : "?",
                                   EncodeQuery(request.query)));
  const Fault* fault = FindFault(request, key);
  if (fault != nullptr && fault->meanwhile) {
    const std::function<void()> meanwhile = fault->meanwhile;
    lock.Unlock();
    meanwhile();
    lock.Lock();
    fault = nullptr;
  }
  HttpReply reply;
  if (fault != nullptr && (fault->kind == FaultKind::kDrop || fault->kind == FaultKind::kStall)) {
    reply.drop = fault->kind == FaultKind::kDrop;
    reply.stall = fault->kind == FaultKind::kStall;
    return reply;
  }
  if (fault != nullptr && fault->kind == FaultKind::kDamageRequest) {
    FlipBit(*request.body);
    reply = Check(request, credentials);
  } else if (fault != nullptr && fault->kind == FaultKind::kRefuse) {
    reply = ErrorReply(fault->status, fault->code);
  } else {
    reply = checked;
  }
  if (reply.status == 200 && !has_bucket) reply = ErrorReply(404, "NoSuchBucket");
  if (reply.status == 200) {
    if (fault != nullptr && fault->kind == FaultKind::kDamageStored) FlipBit(*request.body);
    if (fault != nullptr && fault->kind == FaultKind::kShortenRange) ShortenRange(request);
    reply = Dispatch(request, key);
  }
  reply.headers["date"] = absl::FormatTime(
      "%a, %d %b %Y %H:%M:%S GMT", absl::Now() + options_.clock_offset, absl::UTCTimeZone());
  if (fault != nullptr && fault->kind == FaultKind::kDamageAnswer && !reply.body.empty()) {
    BodyPiece& piece = reply.body.front();
    auto damaged = std::make_shared<std::string>(*piece.bytes, piece.offset, piece.size);
    FlipBit(*damaged);
    piece = {std::move(damaged), 0, piece.size};
  }
  if (fault != nullptr) {
    reply.drop = fault->kind == FaultKind::kLoseAnswer;
    reply.tear = fault->kind == FaultKind::kTear;
    reply.slow = fault->kind == FaultKind::kSlow;
  }
  return reply;
}

std::map<std::string, std::string> S3Server::HeadersOf(const Object& object) const {
  std::map<std::string, std::string> headers = object.metadata;
  headers["etag"] = object.etag;
  if (options_.vendor == Vendor::kGoogle) headers["x-goog-generation"] = object.generation;
  return headers;
}

HttpReply S3Server::Dispatch(const HttpMessage& request, const std::string& key) {
  const auto has = [&](const char* name) { return request.query.count(name) > 0; };
  if (key.empty()) {
    if (request.method == "GET" && has("uploads")) return ListUploads(request);
    if (request.method == "GET" && has("list-type")) return List(request);
    if (request.method == "POST" && has("delete")) return DeleteMany(request);
  } else if (request.method == "GET" || request.method == "HEAD") {
    return Get(request, key);
  } else if (request.method == "PUT") {
    if (has("uploadId")) return PutPart(request);
    return Put(request, key);
  } else if (request.method == "POST") {
    return has("uploads") ? CreateUpload(request, key) : CompleteUpload(request);
  } else if (request.method == "DELETE") {
    if (has("uploadId")) {
      return uploads_.erase(Parameter(request, "uploadId")) > 0 ? EmptyReply(204)
                                                                : ErrorReply(404, "NoSuchUpload");
    }
    HttpReply refused = CheckCondition(request, key);
    if (refused.status != 200) return refused;
    Erase(key);
    return EmptyReply(204);
  }
  return ErrorReply(405, "MethodNotAllowed");
}

HttpReply S3Server::Get(const HttpMessage& request, const std::string& key) {
  const auto found = objects_.find(key);
  if (found == objects_.end()) return ErrorReply(404, "NoSuchKey");
  const Object& object = found->second;
  const std::string match = Header(request, "if-match"),
                    generation = Header(request, "x-goog-if-generation-match");
  if ((!match.empty() && match != object.etag) ||
      (!generation.empty() && generation != object.generation)) {
    return ErrorReply(412, "PreconditionFailed");
  }
  HttpReply reply;
  reply.headers = HeadersOf(object);
  const uint64_t size = object.size_bytes;
  if (request.method == "HEAD") {
    reply.headers["content-length"] = absl::StrCat(size);
    return reply;
  }
  const std::string range = Header(request, "range");
  if (!range.starts_with("bytes=")) {
    reply.body = Pieces(object.chunks, 0, size);
    return reply;
  }
  const std::vector<std::string> ends = absl::StrSplit(range.substr(6), '-');
  const uint64_t begin = std::strtoull(ends[0].c_str(), nullptr, 10);
  const uint64_t last = std::min<uint64_t>(std::strtoull(ends[1].c_str(), nullptr, 10), size - 1);
  if (begin >= size) return ErrorReply(416, "InvalidRange");
  reply.status = 206;
  reply.body = Pieces(object.chunks, begin, last + 1);
  reply.headers["content-range"] = absl::StrCat("bytes ", begin, "-", last, "/", size);
  return reply;
}

HttpReply S3Server::Put(const HttpMessage& request, const std::string& key) {
  HttpReply reply = CheckCondition(request, key);
  if (reply.status != 200) return reply;
  Object object = MakeObject({request.body});
  if (options_.keeps_metadata) object.metadata = MetadataOf(request);
  reply.headers = HeadersOf(object);
  AddChecksum(options_.vendor, *request.body, options_.verify, reply);
  Store(key, std::move(object));
  return reply;
}

HttpReply S3Server::CreateUpload(const HttpMessage& request, const std::string& key) {
  const std::string id = absl::StrCat("upload+", ++last_id_);
  uploads_[id] = {key, MetadataOf(request), {}, absl::Now() + options_.clock_offset};
  return XmlReply(absl::StrCat("<InitiateMultipartUploadResult><UploadId>", id,
                               "</UploadId></InitiateMultipartUploadResult>"));
}

HttpReply S3Server::PutPart(const HttpMessage& request) {
  const auto upload = uploads_.find(Parameter(request, "uploadId"));
  if (upload == uploads_.end()) return ErrorReply(404, "NoSuchUpload");
  const int number = std::atoi(Parameter(request, "partNumber").c_str());
  if (number < 1 || number > 10'000) return ErrorReply(400, "InvalidArgument");
  Object part = MakeObject({request.body});
  if (options_.verify && options_.vendor == Vendor::kAmazon) {
    part.checksum = ChecksumHeader(Crc32c(*request.body));
  }
  upload->second.parts[number] = part;
  HttpReply reply;
  reply.headers["etag"] = part.etag;
  AddChecksum(options_.vendor, *request.body, options_.verify, reply);
  return reply;
}

HttpReply S3Server::CompleteUpload(const HttpMessage& request) {
  const auto upload = uploads_.find(Parameter(request, "uploadId"));
  if (upload == uploads_.end()) return ErrorReply(404, "NoSuchUpload");
  pugi::xml_document document;
  document.load_string(request.body->c_str());
  std::vector<std::shared_ptr<const std::string>> chunks;
  int last = 0;
  for (pugi::xml_node node : document.child("CompleteMultipartUpload").children("Part")) {
    const int number = node.child("PartNumber").text().as_int();
    const auto part = upload->second.parts.find(number);
    if (number <= last) return ErrorReply(400, "InvalidPartOrder");
    const bool same = part != upload->second.parts.end() &&
                      part->second.etag == node.child("ETag").text().as_string() &&
                      (!options_.verify ||
                       part->second.checksum == node.child("ChecksumCRC32C").text().as_string());
    if (!same) return ErrorReply(400, "InvalidPart");
    if (node.next_sibling("Part") && part->second.size_bytes < options_.min_part_bytes) {
      return ErrorReply(400, "EntityTooSmall");
    }
    chunks.push_back(part->second.chunks.front());
    last = number;
  }
  if (last == 0) return ErrorReply(400, "MalformedXML");
  Object object = MakeObject(std::move(chunks));
  if (options_.keeps_metadata) object.metadata = upload->second.metadata;
  const std::string key = upload->second.key;
  uploads_.erase(upload);
  const std::string etag = object.etag;
  Store(key, std::move(object));
  return XmlReply(absl::StrCat("<CompleteMultipartUploadResult><ETag>", etag,
                               "</ETag></CompleteMultipartUploadResult>"));
}

HttpReply S3Server::List(const HttpMessage& request) const {
  const std::string prefix = Parameter(request, "prefix");
  const bool delimiter = Parameter(request, "delimiter") == "/";
  const std::string token = absl::HexStringToBytes(Parameter(request, "continuation-token"));
  const std::string wanted = Parameter(request, "max-keys");
  const int max_keys =
      wanted.empty() ? options_.max_keys : std::min(std::atoi(wanted.c_str()), options_.max_keys);
  std::string entries, last;
  int count = 0;
  bool truncated = false;
  for (auto object = objects_.lower_bound(prefix);
       object != objects_.end() && object->first.starts_with(prefix); ++object) {
    const std::string& key = object->first;
    const size_t slash = delimiter ? key.find('/', prefix.size()) : key.npos;
    const std::string name = slash == key.npos ? key : key.substr(0, slash + 1);
    if (name == last || name <= token) continue;
    if (count++ == max_keys) {
      truncated = true;
      break;
    }
    last = name;
    const std::string encoded = UriEncode(name, true);
    if (slash == key.npos) {
      absl::StrAppend(&entries, "<Contents><Key>", encoded, "</Key><Size>",
                      object->second.size_bytes, "</Size></Contents>");
    } else {
      absl::StrAppend(&entries, "<CommonPrefixes><Prefix>", encoded, "</Prefix></CommonPrefixes>");
    }
  }
  return XmlReply(absl::StrCat("<ListBucketResult><EncodingType>url</EncodingType><IsTruncated>",
                               truncated ? "true" : "false",
                               "</IsTruncated><NextContinuationToken>",
                               truncated ? absl::BytesToHexString(last) : "",
                               "</NextContinuationToken>", entries, "</ListBucketResult>"));
}

HttpReply S3Server::ListUploads(const HttpMessage& request) const {
  const std::string prefix = Parameter(request, "prefix"), after = Parameter(request, "key-marker"),
                    after_id = Parameter(request, "upload-id-marker");
  std::vector<std::pair<std::string, std::string>> sorted;
  for (const auto& [id, upload] : uploads_) {
    if (upload.key.starts_with(prefix)) sorted.emplace_back(upload.key, id);
  }
  std::ranges::sort(sorted);
  std::erase_if(sorted, [&](const auto& entry) {
    return !after.empty() && entry <= std::pair(after, after_id);
  });
  const bool truncated = sorted.size() > static_cast<size_t>(options_.max_keys);
  if (truncated) sorted.resize(options_.max_keys);
  std::string entries;
  for (const auto& [key, id] : sorted) {
    absl::StrAppend(
        &entries, "<Upload><Key>", UriEncode(key, true), "</Key><UploadId>", id,
        "</UploadId><Initiated>",
        absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", uploads_.at(id).initiated, absl::UTCTimeZone()),
        "</Initiated></Upload>");
  }
  return XmlReply(
      absl::StrCat("<ListMultipartUploadsResult><EncodingType>url</EncodingType>"
                   "<IsTruncated>",
                   truncated ? "true" : "false", "</IsTruncated><NextKeyMarker>",
                   truncated ? UriEncode(sorted.back().first, true) : "",
                   "</NextKeyMarker><NextUploadIdMarker>", truncated ? sorted.back().second : "",
                   "</NextUploadIdMarker>", entries, "</ListMultipartUploadsResult>"));
}

HttpReply S3Server::DeleteMany(const HttpMessage& request) {
  if (Header(request, "content-md5").empty()) return ErrorReply(400, "MissingContentMD5");
  pugi::xml_document document;
  document.load_string(request.body->c_str());
  int count = 0;
  for (pugi::xml_node node : document.child("Delete").children("Object")) {
    Erase(node.child("Key").text().as_string());
    ++count;
  }
  if (count == 0 || count > 1000) return ErrorReply(400, "MalformedXML");
  return XmlReply("<DeleteResult></DeleteResult>");
}

}  // namespace tessera::s3
