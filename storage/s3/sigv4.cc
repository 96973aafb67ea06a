#include "storage/s3/sigv4.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera::s3 {
namespace {

std::string HmacSha256(std::string_view key, std::string_view data) {
  std::array<uint8_t, SHA256_DIGEST_LENGTH> mac;
  unsigned int size = mac.size();
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const uint8_t*>(data.data()), data.size(), mac.data(), &size);
  return std::string(mac.begin(), mac.end());
}

std::string ToHex(std::string_view bytes) { return absl::BytesToHexString(std::string(bytes)); }

std::string SignedHeaderNames(const SignedParts& parts) {
  return absl::StrJoin(parts.headers, ";",
                       [](std::string* out, const auto& header) { out->append(header.first); });
}

std::string Algorithm(const Dialect& dialect) {
  return std::string(dialect.signature) + "-HMAC-SHA256";
}

// Returns "20130524/us-east-1/s3/aws4_request"
std::string Scope(std::string_view region, std::string_view amz_date, const Dialect& dialect) {
  const std::string parts[] = {std::string(amz_date.substr(0, 8)), std::string(region),
                               std::string(dialect.service), std::string(dialect.terminator)};
  return absl::StrJoin(parts, "/");
}

}  // namespace

std::string UriEncode(std::string_view text, bool keep_slashes) {
  constexpr char kHex[] = "0123456789ABCDEF";
  std::string encoded;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    const bool unreserved = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                            (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_' || c == '~';
    if (unreserved || (keep_slashes && c == '/')) {
      encoded += c;
    } else {
      encoded += '%';
      encoded += kHex[byte >> 4];
      encoded += kHex[byte & 15];
    }
  }
  return encoded;
}

std::string EncodeQuery(const std::map<std::string, std::string>& query) {
  std::vector<std::pair<std::string, std::string>> encoded;
  for (const auto& [name, value] : query) {
    encoded.emplace_back(UriEncode(name, false), UriEncode(value, false));
  }
  std::ranges::sort(encoded);
  return absl::StrJoin(encoded, "&", absl::PairFormatter("="));
}

std::string HexSha256(std::span<const std::byte> data) {
  std::array<uint8_t, SHA256_DIGEST_LENGTH> digest;
  SHA256(reinterpret_cast<const uint8_t*>(data.data()), data.size(), digest.data());
  return ToHex(std::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
}

std::string HexSha256(std::string_view data) {
  return HexSha256(std::as_bytes(std::span<const char>(data)));
}

std::string AmzDate(absl::Time time) {
  return absl::FormatTime("%Y%m%dT%H%M%SZ", time, absl::UTCTimeZone());
}

std::string CanonicalRequest(const SignedParts& parts) {
  std::string headers;
  for (const auto& [name, value] : parts.headers) absl::StrAppend(&headers, name, ":", value, "\n");
  return absl::StrCat(parts.method, "\n", parts.path, "\n", EncodeQuery(parts.query), "\n", headers,
                      "\n", SignedHeaderNames(parts), "\n", parts.payload_hash);
}

std::string Sign(const SignedParts& parts, const Credentials& credentials, std::string_view region,
                 std::string_view amz_date, const Dialect& dialect) {
  const std::string text =
      absl::StrCat(Algorithm(dialect), "\n", std::string(amz_date), "\n",
                   Scope(region, amz_date, dialect), "\n", HexSha256(CanonicalRequest(parts)));
  std::string key = HmacSha256(std::string(dialect.signature) + credentials.secret_access_key,
                               amz_date.substr(0, 8));
  for (const std::string_view part : {region, dialect.service, dialect.terminator}) {
    key = HmacSha256(key, part);
  }
  return ToHex(HmacSha256(key, text));
}

std::string AuthorizationHeader(const SignedParts& parts, const Credentials& credentials,
                                std::string_view region, std::string_view amz_date,
                                const Dialect& dialect) {
  return absl::StrCat(Algorithm(dialect), " Credential=", credentials.access_key_id, "/",
                      Scope(region, amz_date, dialect), ",SignedHeaders=", SignedHeaderNames(parts),
                      ",Signature=", Sign(parts, credentials, region, amz_date, dialect));
}

}  // namespace tessera::s3
