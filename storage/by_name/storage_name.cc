#include "storage/by_name/storage_name.h"

#include <algorithm>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

constexpr char kForms[] =
    "/path, local:/path, s3://bucket/prefix, boto3:s3://bucket.endpoint/prefix, "
    "volc:vc://bucket.endpoint/prefix, oss2:ali://bucket.endpoint/prefix or gs://bucket/prefix";

absl::Status Refuse(std::string_view name, std::string_view reason) {
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", std::string(name), "\" ", std::string(reason), "; a storage is named ", kForms));
}

struct Scheme {
  std::string_view begins;
  S3Provider provider;
  bool splits_bucket;  // at its first dot, into bucket and endpoint
  bool needs_endpoint;
};
constexpr Scheme kSchemes[] = {
    {"boto3:s3://", S3Provider::kS3, true, false},    {"s3://", S3Provider::kS3, false, false},
    {"volc:vc://", S3Provider::kVolcano, true, true}, {"vc://", S3Provider::kVolcano, true, true},
    {"oss2:ali://", S3Provider::kAliyun, true, true}, {"ali://", S3Provider::kAliyun, true, true},
    {"gs://", S3Provider::kGoogle, false, false},
};
// What would be a path otherwise, and is more likely to be a mistake.
constexpr std::string_view kBackends[] = {"boto3:", "volc:", "oss2:"};

// Returns "az" of "az://bucket/a".
std::optional<std::string_view> SchemeOf(std::string_view name) {
  const size_t end = name.find("://");
  if (end == name.npos || end == 0) return std::nullopt;
  const bool plain = std::ranges::all_of(name.substr(0, end), [](char c) {
    return absl::ascii_isalnum(c) || c == '+' || c == '-' || c == '.' || c == ':';
  });
  return plain ? std::optional(name.substr(0, end)) : std::nullopt;
}

bool IsBucket(std::string_view bucket) {
  return !bucket.empty() && std::ranges::all_of(bucket, [](char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '.' || c == '_';
  });
}

absl::StatusOr<StorageName> ParseS3Name(std::string_view name, const Scheme& scheme) {
  const std::string_view rest = name.substr(scheme.begins.size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  std::string_view bucket = rest.substr(0, slash), prefix = rest.substr(slash);
  S3Name parsed = {.provider = scheme.provider};
  if (const size_t dot = bucket.find('.'); scheme.splits_bucket && dot != bucket.npos) {
    parsed.endpoint = bucket.substr(dot + 1);
    bucket = bucket.substr(0, dot);
  }
  if (!IsBucket(bucket)) return Refuse(name, "names no bucket");
  if (scheme.needs_endpoint && parsed.endpoint.empty()) return Refuse(name, "names no endpoint");
  while (prefix.starts_with('/')) prefix.remove_prefix(1);
  while (prefix.ends_with('/')) prefix.remove_suffix(1);
  parsed.bucket = bucket;
  parsed.prefix = prefix;
  return parsed;
}

std::string_view HostOf(std::string_view endpoint) {
  if (const size_t end = endpoint.find("://"); end != endpoint.npos) {
    endpoint.remove_prefix(end + 3);
  }
  return endpoint.substr(0, endpoint.find(':'));
}

bool IsOnThisNetwork(std::string_view host) {
  return host == "localhost" || host.starts_with('[') ||
         std::ranges::all_of(host, [](char c) { return absl::ascii_isdigit(c) || c == '.'; });
}

}  // namespace

absl::StatusOr<StorageName> ParseStorageName(std::string_view name) {
  constexpr std::string_view kLocal = "local:";
  if (name.starts_with(kLocal)) {
    name.remove_prefix(kLocal.size());
  } else {
    for (const Scheme& scheme : kSchemes) {
      if (name.starts_with(scheme.begins)) return ParseS3Name(name, scheme);
    }
    const bool is_backend = std::ranges::any_of(
        kBackends, [&](std::string_view backend) { return name.starts_with(backend); });
    if (is_backend || SchemeOf(name).has_value()) return Refuse(name, "has an unknown scheme");
  }
  if (name.empty()) return absl::InvalidArgumentError("the name of a storage is empty");
  return LocalName{std::string(name)};
}

absl::StatusOr<std::string> NormalizeEndpoint(std::string_view text) {
  std::string_view host = text, scheme;
  if (const size_t end = text.find("://"); end != text.npos) {
    scheme = text.substr(0, end);
    host = text.substr(end + 3);
  }
  while (host.ends_with('/')) host.remove_suffix(1);
  const bool plain = !host.empty() && std::ranges::all_of(host, [](char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '.' || c == ':' || c == '[' || c == ']';
  });
  if (!plain || (!scheme.empty() && scheme != "http" && scheme != "https")) {
    return absl::InvalidArgumentError(
        absl::StrCat("the S3 endpoint \"", std::string(text),
                     "\" is not of the form host, host:port, http://host or https://host:port"));
  }
  if (scheme.empty()) scheme = IsOnThisNetwork(HostOf(host)) ? "http" : "https";
  return absl::StrCat(std::string(scheme), "://", std::string(host));
}

std::string S3AddressOf(S3Provider provider, const std::string& endpoint) {
  constexpr std::string_view kTos = "tos-", kS3 = "s3-";
  const size_t at = endpoint.find("://") == endpoint.npos ? 0 : endpoint.find("://") + 3;
  const std::string_view host = std::string_view(endpoint).substr(at);
  if (provider != S3Provider::kVolcano || !host.starts_with(kTos) ||
      host.substr(kTos.size()).starts_with(kS3)) {
    return endpoint;
  }
  std::string address = endpoint;
  return address.insert(at + kTos.size(), kS3);
}

std::string RegionOfEndpoint(S3Provider provider, std::string_view endpoint) {
  std::string_view label = HostOf(endpoint);
  if (provider == S3Provider::kAliyun && label.starts_with("s3.")) label.remove_prefix(3);
  label = label.substr(0, label.find('.'));
  const auto strip = [&](std::string_view begin) {
    if (!label.starts_with(begin)) return false;
    label.remove_prefix(begin.size());
    return true;
  };
  if (provider == S3Provider::kVolcano && (strip("tos-s3-") || strip("tos-"))) {
    return std::string(label);
  }
  if (provider == S3Provider::kAliyun && strip("oss-")) {
    return std::string(label.substr(0, label.find("-internal")));
  }
  return "";
}

s3::Dialect DialectOf(S3Provider provider, std::string_view endpoint) {
  const std::string_view host = HostOf(endpoint);
  const auto is = [&](S3Provider other, std::string_view domain) {
    return provider == other || (provider == S3Provider::kS3 && host.ends_with(domain));
  };
  if (is(S3Provider::kVolcano, ".volces.com")) return s3::kVolcano;
  if (is(S3Provider::kAliyun, ".aliyuncs.com")) return s3::kAliyun;
  if (is(S3Provider::kGoogle, ".googleapis.com")) return s3::kGoogle;
  return s3::kAmazon;
}

bool UsesVirtualHosts(S3Provider provider, std::string_view endpoint, std::string_view bucket) {
  const std::string_view host = HostOf(endpoint);
  // Not with addresses; and a certificate covers one label.
  if (IsOnThisNetwork(host) || bucket.find('.') != bucket.npos) return false;
  if (provider == S3Provider::kGoogle) return false;
  return provider != S3Provider::kS3 || host.ends_with(".amazonaws.com") ||
         host.ends_with(".aliyuncs.com") || host.ends_with(".volces.com");
}

}  // namespace tessera
