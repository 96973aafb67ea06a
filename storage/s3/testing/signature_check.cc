#include "storage/s3/testing/signature_check.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace tessera::s3 {
namespace {

std::string Keyed(const std::string& key, const std::string& text) {
  unsigned char mac[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(), mac, &size);
  return std::string(reinterpret_cast<const char*>(mac), size);
}

std::string Digest(const std::string& text) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EVP_Digest(text.data(), text.size(), digest, &size, EVP_sha256(), nullptr);
  return absl::BytesToHexString(std::string(reinterpret_cast<const char*>(digest), size));
}

// Everything but A-Z, a-z, 0-9 and `plain` as %XX.
std::string Escape(const std::string& text, const std::string& plain) {
  std::string escaped;
  for (const char c : text) {
    char code[4];
    std::snprintf(code, sizeof(code), "%%%02X", static_cast<unsigned char>(c));
    const bool is_plain = absl::ascii_isalnum(c) || plain.find(c) != plain.npos;
    escaped += is_plain ? std::string(1, c) : code;
  }
  return escaped;
}

std::string Unescape(const std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_code = text[i] == '%' && i + 2 < text.size();
    plain += is_code ? absl::HexStringToBytes(text.substr(i + 1, 2)) : text.substr(i, 1);
    if (is_code) i += 2;
  }
  return plain;
}

}  // namespace

std::string CheckSignature(const HttpMessage& request, const std::string& secret,
                           const SignatureRules& rules) {
  const auto header = [&](const std::string& name) {
    const auto found = request.headers.find(name);
    return found == request.headers.end() ? "" : found->second;
  };
  // ALGORITHM Credential=ID/DAY/REGION/SERVICE/END,SignedHeaders=a;b,Signature=HEX
  const std::vector<std::string> words =
      absl::StrSplit(header("authorization"), absl::ByAnyChar(", "), absl::SkipEmpty());
  if (words.empty() || words[0] != rules.begin + "-HMAC-SHA256") return "the algorithm";
  std::map<std::string, std::string> fields;
  for (size_t i = 1; i < words.size(); ++i) {
    fields.insert(
        std::pair<std::string, std::string>(absl::StrSplit(words[i], absl::MaxSplits('=', 1))));
  }
  std::vector<std::string> scope = absl::StrSplit(fields["Credential"], '/');
  const std::string date = header(rules.headers + "date");
  if (scope.size() != 5 || scope[1] != date.substr(0, 8) || scope[3] != rules.service ||
      scope[4] != rules.end) {
    return "the scope";
  }
  scope.erase(scope.begin());
  const std::vector<std::string> names = absl::StrSplit(fields["SignedHeaders"], ';');
  const auto is_signed = [&](const std::string& name) {
    return std::ranges::find(names, name) != names.end();
  };
  if (!std::ranges::is_sorted(names) || !is_signed("host")) return "the signed headers";
  std::string headers;
  for (const std::string& name : names) absl::StrAppend(&headers, name, ":", header(name), "\n");
  for (const auto& [name, value] : request.headers) {
    if (name.starts_with(rules.headers) && !is_signed(name)) return name + " is not signed";
  }
  std::vector<std::string> parameters;
  for (const auto& [name, value] : request.query) {
    parameters.push_back(absl::StrCat(Escape(name, "-._~"), "=", Escape(value, "-._~")));
  }
  std::ranges::sort(parameters);
  const std::string canonical =
      absl::StrCat(request.method, "\n", Escape(Unescape(request.path), "-._~/"), "\n",
                   absl::StrJoin(parameters, "&"), "\n", headers, "\n", fields["SignedHeaders"],
                   "\n", header(rules.headers + "content-sha256"));
  const std::string text =
      absl::StrCat(words[0], "\n", date, "\n", absl::StrJoin(scope, "/"), "\n", Digest(canonical));
  std::string key = rules.begin + secret;
  for (const std::string& part : scope) key = Keyed(key, part);
  const bool is_right = absl::BytesToHexString(Keyed(key, text)) == fields["Signature"];
  return is_right ? "" : "the signature";
}

}  // namespace tessera::s3
