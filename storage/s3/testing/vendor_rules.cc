#include "storage/s3/testing/vendor_rules.h"

#include <openssl/evp.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/crc32c.h"
#include "storage/s3/testing/signature_check.h"

namespace tessera::s3 {
namespace {

constexpr char kChecksum[] = "x-amz-checksum-crc32c";

// What is like this in one store and like that in another.
struct VendorRules {
  SignatureRules signature;
  bool path_style = true;
  const char* forbid_overwrite = "";
  const char* taken = "";  // what is answered to it
};
const VendorRules& RulesOf(Vendor vendor) {
  static const VendorRules amazon,
      volcano = {{}, false, "x-tos-forbid-overwrite", "ObjectAlreadyExists"},
      aliyun = {{}, false, "x-oss-forbid-overwrite", "FileAlreadyExists"},
      google = {{"GOOG4", "storage", "goog4_request", "x-goog-"}};
  switch (vendor) {
    case Vendor::kAmazon:
      return amazon;
    case Vendor::kVolcano:
      return volcano;
    case Vendor::kAliyun:
      return aliyun;
    case Vendor::kGoogle:
      return google;
  }
  return amazon;
}

std::string Md5Of(const std::string& bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EVP_Digest(bytes.data(), bytes.size(), digest, &size, EVP_md5(), nullptr);
  return absl::Base64Escape(std::string(reinterpret_cast<const char*>(digest), size));
}

std::string CrcOf(const std::string& bytes) { return ChecksumHeader(Crc32c(bytes)); }

}  // namespace

bool NeedsVirtualHost(Vendor vendor) { return !RulesOf(vendor).path_style; }

std::string Header(const HttpMessage& request, const std::string& name) {
  const auto found = request.headers.find(name);
  return found == request.headers.end() ? "" : found->second;
}

std::string Parameter(const HttpMessage& request, const std::string& name) {
  const auto found = request.query.find(name);
  return found == request.query.end() ? "" : found->second;
}

HttpReply XmlReply(const std::string& body) {
  HttpReply reply;
  reply.headers["content-type"] = "application/xml";
  auto text = std::make_shared<std::string>(
      absl::StrCat("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n", body));
  const size_t size = text->size();
  reply.body = {{std::move(text), 0, size}};
  return reply;
}

HttpReply ErrorReply(int status, const std::string& code) {
  HttpReply reply = XmlReply(
      absl::StrCat("<Error><Code>", code, "</Code><Message>about ", code, "</Message></Error>"));
  reply.status = status;
  return reply;
}

HttpReply EmptyReply(int status) {
  HttpReply reply;
  reply.status = status;
  return reply;
}

void AddChecksum(Vendor vendor, const std::string& body, bool verify, HttpReply& reply) {
  if (!verify) return;
  if (vendor == Vendor::kAmazon) reply.headers[kChecksum] = CrcOf(body);
  // In two lines of one name.
  if (vendor == Vendor::kGoogle) {
    reply.headers["x-goog-hash"] =
        absl::StrCat("crc32c=", CrcOf(body), "\r\nx-goog-hash: md5=", Md5Of(body));
  }
}

// Status 200 for a request that is signed and whole.
HttpReply S3Server::Check(const HttpMessage& request, const Credentials& credentials) const {
  if (!options_.denied_method.empty() && request.method == options_.denied_method) {
    return ErrorReply(403, "AccessDenied");
  }
  if (!options_.verify) return EmptyReply(200);
  const VendorRules& rules = RulesOf(options_.vendor);
  const std::string& own = rules.signature.headers;
  const bool in_host = Header(request, "host").starts_with(options_.bucket + ".");
  if (!rules.path_style && !in_host) return ErrorReply(403, "SecondLevelDomainForbidden");
  if (own != "x-amz-" && std::ranges::any_of(request.headers, [](const auto& header) {
        return header.first.starts_with("x-amz-");
      })) {
    return ErrorReply(400, "InvalidArgument");
  }
  const std::string token = Header(request, own + "security-token");
  if (!token.empty() && token != credentials.session_token) return ErrorReply(400, "ExpiredToken");
  absl::Time date;
  std::string ignored;
  if (!absl::ParseTime("%E4Y%m%dT%H%M%SZ", Header(request, own + "date"), &date, &ignored)) {
    return ErrorReply(403, "AccessDenied");
  }
  if (absl::AbsDuration(absl::Now() + options_.clock_offset - date) > absl::Minutes(15)) {
    return ErrorReply(403, "RequestTimeTooSkewed");
  }
  const std::string authorization = Header(request, "authorization");
  if (!absl::StrContains(authorization,
                         absl::StrCat("Credential=", credentials.access_key_id, "/"))) {
    return ErrorReply(403, "InvalidAccessKeyId");
  }
  const std::string scope = absl::StrCat("/", options_.region, "/", rules.signature.service, "/");
  if (!absl::StrContains(authorization, scope)) {
    HttpReply reply = ErrorReply(400, "AuthorizationHeaderMalformed");
    reply.headers["x-amz-bucket-region"] = options_.region;
    return reply;
  }
  if (!CheckSignature(request, credentials.secret_access_key, rules.signature).empty()) {
    return ErrorReply(403, "SignatureDoesNotMatch");
  }
  const std::string hash = Header(request, own + "content-sha256");
  if (hash != kUnsignedPayload && hash != HexSha256(*request.body)) {
    return ErrorReply(400, "XAmzContentSHA256Mismatch");
  }
  const std::string crc = Header(request, kChecksum), md5 = Header(request, "content-md5"),
                    of_google = Header(request, "x-goog-hash");
  if (!crc.empty() && crc != CrcOf(*request.body)) return ErrorReply(400, "BadDigest");
  if (!of_google.empty() && of_google != "crc32c=" + CrcOf(*request.body)) {
    return ErrorReply(400, "BadDigest");
  }
  if (!md5.empty() && md5 != Md5Of(*request.body)) return ErrorReply(400, "InvalidDigest");
  // Without a checksum that the store knows, a body that is not signed is not protected.
  const std::string checksum = options_.vendor == Vendor::kAmazon   ? crc
                               : options_.vendor == Vendor::kGoogle ? of_google
                                                                    : md5;
  if (checksum.empty() && hash == kUnsignedPayload) return ErrorReply(400, "MissingChecksum");
  return EmptyReply(200);
}

HttpReply S3Server::CheckCondition(const HttpMessage& request, const std::string& key) const {
  const auto there = objects_.find(key);
  const bool exists = there != objects_.end(), writes = request.method == "PUT";
  const std::string match = Header(request, "if-match"), none = Header(request, "if-none-match"),
                    generation = Header(request, "x-goog-if-generation-match");
  const VendorRules& rules = RulesOf(options_.vendor);
  if (*rules.forbid_overwrite != '\0') {
    const std::string forbid = Header(request, rules.forbid_overwrite);
    if (options_.vendor == Vendor::kAliyun && !(match + none).empty()) {
      return ErrorReply(501, "NotImplemented");
    }
    const bool taken = forbid == "true" && exists && !options_.ignores_conditions;
    return taken ? ErrorReply(409, rules.taken) : EmptyReply(200);
  }
  if (options_.vendor == Vendor::kGoogle) {
    const std::string now = exists ? there->second.generation : "0";
    const bool ignored = generation == "0" ? options_.ignores_conditions : options_.ignores_matches;
    const bool is_number = generation.find_first_not_of("0123456789") == generation.npos;
    if (!is_number) return ErrorReply(400, "InvalidArgument");
    const bool failed = !generation.empty() && !ignored && generation != now;
    return failed ? ErrorReply(412, "PreconditionFailed") : EmptyReply(200);
  }
  if (none == "*" && exists && !options_.ignores_conditions) {
    return ErrorReply(412, "PreconditionFailed");
  }
  if (match.empty() || options_.ignores_matches) return EmptyReply(200);
  if (!exists) return writes ? ErrorReply(404, "NoSuchKey") : EmptyReply(200);
  return there->second.etag == match ? EmptyReply(200) : ErrorReply(412, "PreconditionFailed");
}

}  // namespace tessera::s3
