#include "storage/s3/s3_client.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace tessera::s3 {
namespace {

using Restart = RequestSender::Restart;

constexpr size_t kMaxDeletedAtOnce = 1000;
constexpr int kMaxDamagedTransfers = 4;
// Ranges of one object begin and end at multiples of it, so that no page has two.
constexpr uint64_t kRangeUnit = uint64_t{64} << 10;

// So many random digits make an id that no other writer has.
constexpr size_t kWriterDigits = 32;

std::string ContentMd5(std::span<const std::byte> data) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int size = 0;
  EVP_Digest(data.data(), data.size(), digest.data(), &size, EVP_md5(), nullptr);
  return absl::Base64Escape(std::string(digest.begin(), digest.begin() + size));
}

std::string RangeHeader(uint64_t offset, uint64_t size) {
  return absl::StrCat("bytes=", offset, "-", offset + size - 1);
}

}  // namespace

std::string ChecksumHeader(uint32_t crc) {
  const char bytes[] = {static_cast<char>(crc >> 24), static_cast<char>(crc >> 16),
                        static_cast<char>(crc >> 8), static_cast<char>(crc)};
  return absl::Base64Escape(std::string(bytes, sizeof(bytes)));
}

std::string S3Client::WriterHeader() const {
  return std::string(dialect().headers) + "meta-tessera-writer";
}

std::string S3Client::Checksum(std::span<const std::byte> body,
                               std::optional<uint32_t> crc32c) const {
  if (dialect().checksum.name == "content-md5") return ContentMd5(body);
  return std::string(dialect().checksum.value) +
         ChecksumHeader(crc32c.has_value() ? *crc32c : Crc32c(body));
}

std::pair<std::string, std::string> S3Client::IfVersion(const std::string& etag) const {
  // No object has the first number.
  const bool is_none = dialect().numbers_versions && etag.starts_with('"');
  return {std::string(dialect().if_version), is_none ? "1" : etag};
}

absl::StatusOr<S3Client::ObjectInfo> S3Client::Head(const std::string& key) {
  TESSERA_ASSIGN_OR_RETURN(const HttpResponse response,
                           sender_.Send({.method = "HEAD", .key = key}));
  ObjectInfo info = {.etag = Header(response, std::string(dialect().version)),
                     .writer = Header(response, WriterHeader())};
  if (!absl::SimpleAtoi(Header(response, "content-length"), &info.size_bytes)) {
    return absl::UnavailableError("the answer does not say how long the object is");
  }
  return info;
}

absl::Status S3Client::Get(const std::string& key, const std::string& etag, uint64_t offset_bytes,
                           std::span<std::byte> out) {
  const uint64_t count = std::clamp<uint64_t>(out.size() / kMinRangeBytes, 1, kMaxRanges);
  const uint64_t range_bytes = RoundUp(CeilDivide(out.size(), count), kRangeUnit);
  std::vector<Range> ranges;
  for (uint64_t at = 0; at < out.size(); at += range_bytes) {
    ranges.push_back(
        {offset_bytes + at, out.subspan(at, std::min<uint64_t>(range_bytes, out.size() - at))});
  }
  std::string wrong_range;
  for (int attempt = 0; attempt < kMaxDamagedTransfers && !ranges.empty(); ++attempt) {
    TESSERA_ASSIGN_OR_RETURN(wrong_range, GetOnce(key, etag, ranges));
  }
  return ranges.empty() ? absl::OkStatus() : absl::UnavailableError(wrong_range);
}

absl::StatusOr<std::string> S3Client::GetOnce(const std::string& key, const std::string& etag,
                                              std::vector<Range>& ranges) {
  const auto expected_range = [](const Range& range) {
    return absl::StrCat("bytes ", range.offset_bytes + range.received_bytes, "-",
                        range.offset_bytes + range.out.size() - 1, "/");
  };
  std::vector<RequestSender::Sending> all;
  for (Range& range : ranges) {
    range.received_bytes = 0;
    Request request = {.method = "GET", .key = key, .sink = range.out};
    request.headers["range"] = RangeHeader(range.offset_bytes, range.out.size());
    if (!etag.empty()) request.headers.insert(IfVersion(etag));
    const Restart go_on = [&range, &expected_range](const HttpResponse& broken, Request& next) {
      // Fetches the last byte again if nothing else is left: a request cannot ask for an empty
      // range. Bytes of another range are fetched again, too.
      uint64_t& received = range.received_bytes;
      if (Header(broken, "content-range").starts_with(expected_range(range))) {
        received += std::min<uint64_t>(broken.sink_bytes, range.out.size() - received - 1);
      }
      next.sink = range.out.subspan(received);
      next.headers["range"] = RangeHeader(range.offset_bytes + received, next.sink.size());
      return absl::OkStatus();
    };
    all.push_back({.request = std::move(request), .restart = go_on});
  }
  sender_.SendAll(all);
  std::string wrong_range;
  std::vector<Range> wrong;
  for (size_t i = 0; i < all.size(); ++i) {
    const absl::StatusOr<HttpResponse>& response = all[i].response;
    if (absl::IsAlreadyExists(response.status())) {
      return absl::UnavailableError("the object was replaced while it was read");
    }
    if (absl::IsOutOfRange(response.status())) {
      return absl::DataLossError(response.status().message());
    }
    TESSERA_RETURN_IF_ERROR(response.status());
    const std::string found = Header(*response, "content-range");
    const std::string expected = expected_range(ranges[i]);
    if (response->status == 206 && found.starts_with(expected) &&
        ranges[i].received_bytes + response->sink_bytes == ranges[i].out.size()) {
      continue;
    }
    wrong.push_back(ranges[i]);
    wrong_range = absl::StrCat("asked for ", expected.substr(0, expected.size() - 1),
                               ", the store sent ", response->status, " \"",
                               absl::CHexEscape(found), "\" with ", response->sink_bytes, " bytes");
  }
  ranges = std::move(wrong);
  return wrong_range;
}

absl::StatusOr<bool> S3Client::Holds(const std::string& key, const ObjectInfo& info,
                                     std::span<const std::byte> contents) {
  if (info.size_bytes != contents.size()) return false;
  std::vector<std::byte> there(contents.size());
  TESSERA_RETURN_IF_ERROR(Get(key, info.etag, 0, there));
  return std::ranges::equal(there, contents);
}

absl::StatusOr<S3Client::Contents> S3Client::GetContents(const std::string& key,
                                                         uint64_t max_bytes) {
  absl::StatusOr<HttpResponse> response = sender_.Send(
      {.method = "GET", .key = key, .headers = {{"range", RangeHeader(0, max_bytes)}}});
  // An empty object has no such range.
  const bool is_empty = absl::IsOutOfRange(response.status());
  if (is_empty) response = sender_.Send({.method = "HEAD", .key = key});
  TESSERA_RETURN_IF_ERROR(response.status());
  Contents found = {.etag = Header(*response, std::string(dialect().version))};
  if (is_empty) return found;
  found.bytes = response->body.substr(0, max_bytes);
  // "bytes 0-4095/100000". A store that ignores ranges sends the whole object.
  const std::string range = Header(*response, "content-range");
  found.size_bytes = response->body.size();
  const size_t slash = range.rfind('/');
  if (slash != range.npos && !absl::SimpleAtoi(range.substr(slash + 1), &found.size_bytes)) {
    return absl::UnavailableError("the answer does not say how long the object is");
  }
  const bool begins_later = slash != range.npos && !range.starts_with("bytes 0-");
  if (begins_later || found.bytes.size() != std::min(max_bytes, found.size_bytes)) {
    return absl::UnavailableError("the store sent another part of the object than was asked for");
  }
  return found;
}

absl::StatusOr<std::string> S3Client::Write(const std::string& key, std::span<const std::byte> body,
                                            const Conditions& conditions, bool replaces,
                                            const BeforeRepeating& before_repeating) {
  const std::string writer = RandomHex(kWriterDigits), checksum = Checksum(body),
                    checksum_name(dialect().checksum.name);
  Request request = {.method = "PUT", .key = key, .headers = conditions, .body = body};
  request.headers.insert({{WriterHeader(), writer}, {checksum_name, checksum}});
  Restart restart;
  if (before_repeating) restart = [&](const HttpResponse&, Request&) { return before_repeating(); };
  for (int again = 0; again < kMaxDamagedTransfers; ++again) {
    const absl::StatusOr<HttpResponse> response = sender_.Send(request, restart);
    if (response.ok()) {
      const std::string stored = Header(*response, checksum_name);
      const std::string etag = Header(*response, std::string(dialect().version));
      if (stored.empty() || absl::StrContains(stored, checksum)) return etag;
      // This call wrote the object, but its bytes were damaged on the way.
      for (const auto& [name, value] : conditions) request.headers.erase(name);
      replaces = !conditions.empty() && !etag.empty();
      if (replaces) request.headers.insert(IfVersion(etag));
      continue;
    }
    const bool refused = absl::IsAlreadyExists(response.status()) ||
                         (replaces && absl::IsNotFound(response.status()));
    if (!refused || conditions.empty()) return response.status();
    // It may be refused because an earlier answer was lost.
    const absl::StatusOr<ObjectInfo> there = Head(key);
    if (there.ok()) {
      bool own = there->writer == writer;
      if (there->writer.empty()) {
        TESSERA_ASSIGN_OR_RETURN(own, Holds(key, *there, body));
      }
      if (own) return there->etag;
      return absl::AlreadyExistsError("another object is there");
    }
    if (!absl::IsNotFound(there.status())) return there.status();
    if (replaces) return absl::NotFoundError("the object is gone");
  }
  return absl::UnavailableError("the store keeps other bytes than were sent to it");
}

absl::Status S3Client::Put(const std::string& key, std::span<const std::byte> body) {
  return Write(key, body, {}, /*replaces=*/false, nullptr).status();
}

absl::StatusOr<std::string> S3Client::PutIf(const std::string& key, std::span<const std::byte> body,
                                            const std::string& etag,
                                            const BeforeRepeating& before_repeating) {
  Conditions conditions;
  if (!etag.empty()) {
    if (!dialect().replaces_versions) {
      return absl::UnimplementedError(
          "the store has no condition under which it replaces an object");
    }
    conditions.insert(IfVersion(etag));
  } else {
    for (const auto& [name, value] : dialect().create_only) {
      if (!name.empty()) conditions.emplace(name, value);
    }
  }
  return Write(key, body, conditions, !etag.empty(), before_repeating);
}

absl::StatusOr<bool> S3Client::ObeysIfMatch(const std::string& key,
                                            std::span<const std::byte> contents) {
  if (!dialect().replaces_versions) return false;
  Request request = {.method = "PUT", .key = key, .body = contents};
  request.headers = {{std::string(dialect().checksum.name), Checksum(contents)},
                     IfVersion("\"none\"")};
  const absl::Status replaced = sender_.Send(request).status();
  if (absl::IsUnimplemented(replaced)) return false;
  if (!replaced.ok() && !absl::IsAlreadyExists(replaced)) return replaced;
  return !replaced.ok();
}

absl::StatusOr<S3Client::Upload> S3Client::CreateUpload(const std::string& key) {
  Upload upload = {.key = key, .writer = RandomHex(kWriterDigits)};
  const Restart note = [&](const HttpResponse&, Request&) {
    upload.may_have_twins = true;
    return absl::OkStatus();
  };
  std::map<std::string, std::string> headers = {{WriterHeader(), upload.writer}};
  if (dialect().has_part_checksums) headers["x-amz-checksum-algorithm"] = "CRC32C";
  TESSERA_ASSIGN_OR_RETURN(
      const HttpResponse response,
      sender_.Send({.method = "POST", .key = key, .query = {{"uploads", ""}}, .headers = headers},
                   note));
  TESSERA_ASSIGN_OR_RETURN(upload.id, ParseUploadId(response.body));
  return upload;
}

absl::StatusOr<std::vector<UploadedPart>> S3Client::UploadParts(const Upload& upload,
                                                                std::span<const PartBody> parts) {
  const std::string checksum_name(dialect().checksum.name);
  std::vector<UploadedPart> uploaded(parts.size());
  std::vector<size_t> left(parts.size());
  std::iota(left.begin(), left.end(), 0);
  for (int again = 0; again < kMaxDamagedTransfers && !left.empty(); ++again) {
    std::vector<RequestSender::Sending> all;
    for (const size_t i : left) {
      const auto prepare = [&, i](Request& request) {
        UploadedPart& part = uploaded[i];
        if (part.checksum.empty()) part.checksum = Checksum(parts[i].bytes, parts[i].crc32c);
        request.headers = {{checksum_name, part.checksum}};
      };
      all.push_back({.request = {.method = "PUT",
                                 .key = upload.key,
                                 .query = {{"partNumber", absl::StrCat(parts[i].number)},
                                           {"uploadId", upload.id}},
                                 .body = parts[i].bytes},
                     .prepare = prepare});
    }
    sender_.SendAll(all);
    std::vector<size_t> damaged;
    for (size_t n = 0; n < left.size(); ++n) {
      TESSERA_RETURN_IF_ERROR(all[n].response.status());
      const HttpResponse& response = *all[n].response;
      UploadedPart& part = uploaded[left[n]];
      part.number = parts[left[n]].number;
      part.size_bytes = parts[left[n]].bytes.size();
      part.etag = Header(response, "etag");
      const std::string stored = Header(response, checksum_name);
      if (!stored.empty() && !absl::StrContains(stored, part.checksum)) damaged.push_back(left[n]);
    }
    left = std::move(damaged);
  }
  if (left.empty()) return uploaded;
  return absl::UnavailableError("the store keeps other bytes than were sent to it");
}

absl::Status S3Client::CompleteUpload(const Upload& upload,
                                      const std::vector<UploadedPart>& parts) {
  const std::string document = CompleteUploadDocument(parts, dialect().has_part_checksums);
  const absl::StatusOr<HttpResponse> response = sender_.Send({.method = "POST",
                                                              .key = upload.key,
                                                              .query = {{"uploadId", upload.id}},
                                                              .body = AsBytes(document),
                                                              .sign_body = true,
                                                              .may_take_long = true});
  const bool says_nothing = response.ok() && !IsCompleteUploadResult(response->body);
  if (!says_nothing && !absl::IsNotFound(response.status())) return response.status();
  // The upload may be gone because an earlier answer was lost.
  const absl::StatusOr<ObjectInfo> there = Head(upload.key);
  bool own = there.ok() && there->writer == upload.writer;
  if (there.ok() && there->writer.empty()) {
    TESSERA_ASSIGN_OR_RETURN(own, HoldsParts(upload.key, *there, parts));
  }
  if (own) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(says_nothing ? "the store does not say that the upload is complete"
                                : absl::StrCat("the upload was removed by another program: ",
                                               response.status().message()),
                   "; ", there.ok() ? "another object is there" : there.status().message()));
}

absl::StatusOr<bool> S3Client::HoldsParts(const std::string& key, const ObjectInfo& info,
                                          const std::vector<UploadedPart>& parts) {
  uint64_t size_bytes = 0;
  for (const UploadedPart& part : parts) size_bytes += part.size_bytes;
  if (info.size_bytes != size_bytes) return false;
  uint64_t offset_bytes = 0;
  for (const UploadedPart& part : parts) {
    std::vector<std::byte> there(part.size_bytes);
    TESSERA_RETURN_IF_ERROR(Get(key, info.etag, offset_bytes, there));
    if (Checksum(there) != part.checksum) return false;
    offset_bytes += part.size_bytes;
  }
  return true;
}

void S3Client::AbortTwins(const Upload& upload) {
  if (!upload.may_have_twins) return;
  const auto others = ListUploads(upload.key);
  if (!others.ok()) return;
  for (const UploadsPage::Upload& other : *others) {
    if (other.key != upload.key || other.upload_id == upload.id) continue;
    AbortUpload(other.key, other.upload_id).IgnoreError();
  }
}

absl::Status S3Client::AbortUpload(const std::string& key, const std::string& upload_id) {
  const absl::Status status =
      sender_.Send({.method = "DELETE", .key = key, .query = {{"uploadId", upload_id}}}).status();
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

absl::StatusOr<std::vector<UploadsPage::Upload>> S3Client::ListUploads(const std::string& prefix) {
  std::vector<UploadsPage::Upload> uploads;
  std::map<std::string, std::string> query = {
      {"uploads", ""}, {"prefix", prefix}, {"encoding-type", "url"}};
  while (true) {
    TESSERA_ASSIGN_OR_RETURN(const HttpResponse response,
                             sender_.Send({.method = "GET", .query = query}));
    TESSERA_ASSIGN_OR_RETURN(UploadsPage page, ParseUploadsPage(response.body));
    std::ranges::move(page.uploads, std::back_inserter(uploads));
    if (page.next_key.empty()) return uploads;
    query["key-marker"] = page.next_key;
    query["upload-id-marker"] = page.next_upload_id;
  }
}

absl::StatusOr<ListPage> S3Client::List(const std::string& prefix, bool delimiter, int max_keys) {
  ListPage all;
  std::map<std::string, std::string> query = {
      {"list-type", "2"}, {"prefix", prefix}, {"encoding-type", "url"}};
  if (delimiter) query["delimiter"] = "/";
  if (max_keys > 0) query["max-keys"] = absl::StrCat(max_keys);
  while (true) {
    TESSERA_ASSIGN_OR_RETURN(const HttpResponse response,
                             sender_.Send({.method = "GET", .query = query}));
    TESSERA_ASSIGN_OR_RETURN(ListPage page, ParseListPage(response.body));
    std::ranges::move(page.objects, std::back_inserter(all.objects));
    std::ranges::move(page.prefixes, std::back_inserter(all.prefixes));
    if (page.next_token.empty() || max_keys > 0) return all;
    query["continuation-token"] = page.next_token;
  }
}

absl::Status S3Client::Delete(const std::string& key, const std::string& etag) {
  Request request = {.method = "DELETE", .key = key};
  if (!etag.empty() && dialect().replaces_versions) request.headers.insert(IfVersion(etag));
  const absl::Status status = sender_.Send(request).status();
  if (absl::IsUnimplemented(status) && !etag.empty()) return Delete(key, "");
  return absl::IsNotFound(status) || absl::IsAlreadyExists(status) ? absl::OkStatus() : status;
}

absl::Status S3Client::DeleteAll(const std::vector<std::string>& keys) {
  for (size_t begin = 0; begin < keys.size(); begin += kMaxDeletedAtOnce) {
    const size_t end = std::min(keys.size(), begin + kMaxDeletedAtOnce);
    const std::string document =
        DeleteDocument(std::vector<std::string>(keys.begin() + begin, keys.begin() + end));
    TESSERA_ASSIGN_OR_RETURN(
        const HttpResponse response,
        sender_.Send(
            {.method = "POST",
             .query = {{"delete", ""}},
             .headers = {{std::string(dialect().checksum.name), Checksum(AsBytes(document))},
                         {"content-md5", ContentMd5(AsBytes(document))}},
             .body = AsBytes(document),
             .sign_body = true}));
    const std::optional<ErrorDocument> error = ParseDeleteErrors(response.body);
    if (!error.has_value()) continue;
    const std::string reason =
        absl::StrCat("the store answers ", error->code, " for ", absl::CHexEscape(error->message));
    return error->code == "AccessDenied" ? absl::PermissionDeniedError(reason)
                                         : absl::UnavailableError(reason);
  }
  return absl::OkStatus();
}

}  // namespace tessera::s3
