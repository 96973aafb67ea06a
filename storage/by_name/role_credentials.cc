#include <optional>
#include <pugixml.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/errno_status.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "storage/by_name/credentials.h"

namespace tessera {
namespace {

constexpr int kAttempts = 3;
constexpr absl::Duration kPause = absl::Milliseconds(300);
constexpr absl::Duration kTimeout = absl::Seconds(10);
constexpr absl::Duration kMetadataTimeout = absl::Seconds(1);

constexpr char kContainerHost[] = "http://169.254.170.2";
constexpr char kMetadataHost[] = "http://169.254.169.254";
constexpr char kMetadataRoles[] = "/latest/meta-data/iam/security-credentials/";

// Returns the response of `service`. Retries failures that may pass, and returns the last one.
absl::StatusOr<s3::HttpResponse> Send(const std::string& service, const s3::HttpRequest& request,
                                      s3::HttpClient& http) {
  for (int attempt = 1;; ++attempt) {
    s3::HttpResponse response;
    absl::Status status = http.Perform(request, response);
    if (status.ok() && response.status != 429 && response.status < 500) return response;
    if (status.ok()) status = absl::UnavailableError(absl::StrCat("answers ", response.status));
    if (attempt == kAttempts || !absl::IsUnavailable(status)) {
      return WithMessage(status,
                         absl::StrCat(service, " at ", request.url, ": ", status.message()));
    }
    absl::SleepFor(kPause * attempt);
  }
}

absl::StatusOr<std::string> Fetch(const std::string& service, const s3::HttpRequest& request,
                                  s3::HttpClient& http) {
  TESSERA_ASSIGN_OR_RETURN(s3::HttpResponse response, Send(service, request, http));
  if (response.status == 200) return std::move(response.body);
  return absl::PermissionDeniedError(
      absl::StrCat(service, " at ", request.url, ": answers ", response.status, " (",
                   absl::CHexEscape(response.body.substr(0, 300)), ")"));
}

absl::StatusOr<s3::Credentials> Complete(const std::string& service, s3::Credentials credentials,
                                         const std::string& expiration) {
  std::string error;
  const bool has_time = expiration.empty() || absl::ParseTime(absl::RFC3339_full, expiration,
                                                              &credentials.expiration, &error);
  if (has_time && !credentials.access_key_id.empty() && !credentials.secret_access_key.empty()) {
    return credentials;
  }
  return absl::UnavailableError(absl::StrCat(service, " sends no credentials that can be used"));
}

// Parses the response of the container's or the metadata service.
absl::StatusOr<s3::Credentials> ParseJson(const std::string& service, const std::string& body) {
  const nlohmann::json answer = nlohmann::json::parse(body, nullptr, /*allow_exceptions=*/false);
  const auto text = [&](const char* name) {
    const bool there = answer.is_object() && answer.contains(name) && answer.at(name).is_string();
    return there ? answer.at(name).get<std::string>() : std::string();
  };
  return Complete(service, {text("AccessKeyId"), text("SecretAccessKey"), text("Token")},
                  text("Expiration"));
}

absl::StatusOr<std::string> ReadToken(const std::string& variable, const std::string& path) {
  const std::string contents = ReadWholeFile(path).value_or("");
  const std::string token(absl::StripAsciiWhitespace(contents));
  if (!token.empty()) return token;
  return absl::UnauthenticatedError(
      absl::StrCat(variable, "=", path, ": the file is missing or empty"));
}

// Returns "a=b%20c": a field of a form.
std::string Field(const char* name, const std::string& value) {
  return absl::StrCat(name, "=", s3::UriEncode(value, /*keep_slashes=*/false));
}

absl::StatusOr<s3::Credentials> AssumeRole(const std::string& token_file, const std::string& role,
                                           const Environment& environment,
                                           const std::string& region, s3::HttpClient& http) {
  TESSERA_ASSIGN_OR_RETURN(const std::string token,
                           ReadToken("AWS_WEB_IDENTITY_TOKEN_FILE", token_file));
  const std::string amazon = absl::StrCat("https://sts.", region, ".amazonaws.com",
                                          region.starts_with("cn-") ? ".cn" : "");
  const std::string session = environment("AWS_ROLE_SESSION_NAME").value_or("tessera");
  const std::string form =
      absl::StrCat("Action=AssumeRoleWithWebIdentity&Version=2011-06-15&", Field("RoleArn", role),
                   "&", Field("RoleSessionName", session), "&", Field("WebIdentityToken", token));
  const s3::HttpRequest request = {
      .method = "POST",
      .url = environment("AWS_ENDPOINT_URL_STS")
                 .value_or(environment("AWS_ENDPOINT_URL").value_or(amazon)),
      .headers = {{"content-type", "application/x-www-form-urlencoded"}},
      .body = std::as_bytes(std::span<const char>(form)),
      .timeout = kTimeout};
  const std::string service = "AssumeRoleWithWebIdentity";
  TESSERA_ASSIGN_OR_RETURN(const std::string body, Fetch(service, request, http));
  pugi::xml_document document;
  document.load_buffer(body.data(), body.size());
  const pugi::xml_node found = document.child("AssumeRoleWithWebIdentityResponse")
                                   .child("AssumeRoleWithWebIdentityResult")
                                   .child("Credentials");
  const auto text = [&](const char* name) { return found.child(name).text().as_string(); };
  return Complete(service, {text("AccessKeyId"), text("SecretAccessKey"), text("SessionToken")},
                  text("Expiration"));
}

// Returns false for an address at which others could read the response, or the token.
bool IsTrusted(const std::string& url) {
  if (url.starts_with("https://")) return true;
  if (url.find('@') != url.npos) return false;  // another host may be behind it
  for (const char* host : {kContainerHost, "http://169.254.170.23", "http://[fd00:ec2::23]",
                           "http://localhost", "http://127.0.0.1", "http://[::1]"}) {
    if (!url.starts_with(host)) continue;
    const std::string rest = url.substr(std::string_view(host).size());
    if (rest.empty() || rest[0] == '/' || rest[0] == ':') return true;
  }
  return false;
}

absl::StatusOr<s3::Credentials> OfContainer(const std::string& url, const Environment& environment,
                                            s3::HttpClient& http) {
  if (!IsTrusted(url)) {
    return absl::FailedPreconditionError(
        absl::StrCat("AWS_CONTAINER_CREDENTIALS_FULL_URI=", url,
                     ": neither https nor an address of this machine or its container service"));
  }
  s3::HttpRequest request = {.method = "GET", .url = url, .timeout = kTimeout, .use_proxy = false};
  const auto token_file = environment("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
  std::string token = environment("AWS_CONTAINER_AUTHORIZATION_TOKEN").value_or("");
  if (token_file.has_value()) {
    TESSERA_ASSIGN_OR_RETURN(token,
                             ReadToken("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", *token_file));
  }
  if (token.find_first_of("\r\n") != token.npos) {
    return absl::FailedPreconditionError(
        "AWS_CONTAINER_AUTHORIZATION_TOKEN has more than one line");
  }
  if (!token.empty()) request.headers["authorization"] = token;
  const std::string service = "the container's credential service";
  TESSERA_ASSIGN_OR_RETURN(const std::string body, Fetch(service, request, http));
  return ParseJson(service, body);
}

absl::StatusOr<std::optional<s3::Credentials>> OfInstance(const Environment& environment,
                                                          s3::HttpClient& http) {
  std::string host = environment("AWS_EC2_METADATA_SERVICE_ENDPOINT").value_or(kMetadataHost);
  while (host.ends_with('/')) host.pop_back();
  s3::HttpRequest request = {.method = "PUT",
                             .url = host + "/latest/api/token",
                             .headers = {{"x-aws-ec2-metadata-token-ttl-seconds", "21600"}},
                             .connect_timeout = kMetadataTimeout,
                             .timeout = kMetadataTimeout,
                             .use_proxy = false};
  s3::HttpResponse session;
  // Most machines have no such service, and some forbid its use.
  if (!http.Perform(request, session).ok() || session.status / 100 == 4) return std::nullopt;
  const std::string service = "the metadata service";
  std::string token = session.body;
  if (session.status != 200) {
    TESSERA_ASSIGN_OR_RETURN(token, Fetch(service, request, http));
  }
  request.method = "GET";
  request.headers = {{"x-aws-ec2-metadata-token", token}};
  request.timeout = kTimeout;
  request.url = host + kMetadataRoles;
  TESSERA_ASSIGN_OR_RETURN(const s3::HttpResponse roles, Send(service, request, http));
  if (roles.status != 200) return std::nullopt;  // an instance without a role
  const std::string& names = roles.body;
  const std::string role(absl::StripAsciiWhitespace(names.substr(0, names.find('\n'))));
  request.url += s3::UriEncode(role, /*keep_slashes=*/false);
  TESSERA_ASSIGN_OR_RETURN(const std::string body, Fetch(service, request, http));
  return ParseJson(service, body);
}

}  // namespace

absl::StatusOr<std::optional<s3::Credentials>> FindRoleCredentials(const Environment& environment,
                                                                   const Profile& profile,
                                                                   const std::string& region,
                                                                   s3::HttpClient& http) {
  const auto setting = [&](const char* variable, const char* name) {
    const auto found = profile.find(name);
    return environment(variable).value_or(found == profile.end() ? "" : found->second);
  };
  const std::string token_file = setting("AWS_WEB_IDENTITY_TOKEN_FILE", "web_identity_token_file");
  const std::string role = setting("AWS_ROLE_ARN", "role_arn");
  if (!token_file.empty() && !role.empty()) {
    return AssumeRole(token_file, role, environment, region, http);
  }
  if (const auto path = environment("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"); path.has_value()) {
    return OfContainer(kContainerHost + *path, environment, http);
  }
  if (const auto url = environment("AWS_CONTAINER_CREDENTIALS_FULL_URI"); url.has_value()) {
    return OfContainer(*url, environment, http);
  }
  const std::string disabled = environment("AWS_EC2_METADATA_DISABLED").value_or("");
  if (absl::AsciiStrToLower(disabled) == "true") return std::nullopt;
  return OfInstance(environment, http);
}

}  // namespace tessera
