#include "storage/by_name/credentials.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/files.h"
#include "base/program.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

struct Variables {
  const char* id;
  const char* secret;
  const char* token = nullptr;
};

std::vector<Variables> VariablesOf(S3Provider provider) {
  constexpr Variables kAny = {"ACCESS_KEY", "SECRET_ACCESS_KEY"};
  switch (provider) {
    case S3Provider::kS3:
      return {{"S3_ACCESS_KEY_ID", "S3_SECRET_ACCESS_KEY_ID"},
              {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"},
              kAny};
    case S3Provider::kVolcano:
      return {{"VOLC_ACCESS_KEY_ID", "VOLC_SECRET_ACCESS_KEY_ID"}, kAny};
    case S3Provider::kAliyun:
      return {{"ALI_ACCESS_KEY_ID", "ALI_SECRET_ACCESS_KEY_ID"},
              {"OSS_ACCESS_KEY_ID", "OSS_ACCESS_KEY_SECRET"},
              kAny};
    case S3Provider::kGoogle:
      return {{"GS_ACCESS_KEY_ID", "GS_SECRET_ACCESS_KEY"}, kAny};
  }
  return {};
}

// Reads the settings of a profile in a file of sections, "name = value" a line; nullopt without
// such a section. A section is called "[profile NAME]" in one of the two files, "[NAME]" in the
// other.
std::optional<Profile> ReadProfile(const std::string& path, const std::string& name) {
  const std::string contents = ReadWholeFile(path).value_or("");
  std::optional<Profile> profile;
  bool inside = false;
  for (const absl::string_view line : absl::StrSplit(contents, '\n')) {
    const std::string text(absl::StripAsciiWhitespace(line));
    if (text.starts_with('[')) {
      inside = text == absl::StrCat("[", name, "]") || text == absl::StrCat("[profile ", name, "]");
      if (inside && !profile.has_value()) profile.emplace();
      continue;
    }
    const size_t equals = text.find('=');
    // Indented lines belong to a setting of several parts.
    if (!inside || equals == text.npos || absl::ascii_isspace(line[0])) continue;
    const std::string key(absl::StripAsciiWhitespace(text.substr(0, equals)));
    (*profile)[absl::AsciiStrToLower(key)] =
        std::string(absl::StripAsciiWhitespace(text.substr(equals + 1)));
  }
  return profile;
}

struct ProfileFiles {
  std::string name, credentials_path, config_path;
  Profile settings;  // from both files
  bool found = false;
};

ProfileFiles ReadProfileFiles(const Environment& environment) {
  const std::string home = absl::StrCat(environment("HOME").value_or(""), "/.aws/");
  ProfileFiles files = {
      .name = environment("AWS_PROFILE").value_or("default"),
      .credentials_path =
          environment("AWS_SHARED_CREDENTIALS_FILE").value_or(absl::StrCat(home, "credentials")),
      .config_path = environment("AWS_CONFIG_FILE").value_or(absl::StrCat(home, "config"))};
  for (const std::string& path : {files.credentials_path, files.config_path}) {
    const std::optional<Profile> profile = ReadProfile(path, files.name);
    if (!profile.has_value()) continue;
    files.found = true;
    files.settings.insert(profile->begin(), profile->end());
  }
  return files;
}

std::string Setting(const ProfileFiles& files, const std::string& name) {
  const auto found = files.settings.find(name);
  return found == files.settings.end() ? "" : found->second;
}

// Returns whether the variables are set; an error if only one is.
absl::StatusOr<bool> FromEnvironment(const Variables& variables, const Environment& environment,
                                     s3::Credentials& credentials) {
  const std::optional<std::string> id = environment(variables.id),
                                   secret = environment(variables.secret);
  if (id.has_value() != secret.has_value()) {
    return absl::UnauthenticatedError(
        absl::StrCat(id.has_value() ? variables.id : variables.secret, " is set, but ",
                     id.has_value() ? variables.secret : variables.id, " is not"));
  }
  if (!id.has_value()) return false;
  const std::string token =
      variables.token == nullptr ? "" : environment(variables.token).value_or("");
  credentials = {*id, *secret, token};
  return true;
}

absl::Status NothingFound(S3Provider provider, const ProfileFiles& files) {
  std::vector<std::string> pairs;
  for (const Variables& variables : VariablesOf(provider)) {
    pairs.push_back(absl::StrCat(variables.id, " and ", variables.secret));
  }
  std::string message =
      absl::StrCat("there are no credentials: set ", absl::StrJoin(pairs, ", or "));
  if (provider == S3Provider::kS3) {
    absl::StrAppend(&message, ", or add the profile \"", files.name, "\" (AWS_PROFILE) with ",
                    "aws_access_key_id and aws_secret_access_key to ", files.credentials_path,
                    "; this machine has no role either");
  }
  return absl::UnauthenticatedError(message);
}

}  // namespace

std::optional<std::string> ProcessEnvironment(const std::string& name) {
  std::string value = EnvironmentVariable(name);
  return value.empty() ? std::nullopt : std::optional(std::move(value));
}

absl::StatusOr<S3Account> FindAccount(S3Provider provider, const Environment& environment,
                                      s3::HttpClient& http) {
  S3Account account;
  ProfileFiles files;
  if (provider == S3Provider::kS3) {
    files = ReadProfileFiles(environment);
    if (!files.found && environment("AWS_PROFILE").has_value()) {
      return absl::UnauthenticatedError(
          absl::StrCat("AWS_PROFILE=", files.name, ": there is no such profile in ",
                       files.credentials_path, " or ", files.config_path));
    }
    account.region =
        environment("AWS_REGION")
            .value_or(environment("AWS_DEFAULT_REGION").value_or(Setting(files, "region")));
    account.endpoint =
        environment("AWS_ENDPOINT_URL_S3")
            .value_or(environment("AWS_ENDPOINT_URL").value_or(Setting(files, "endpoint_url")));
  }
  bool found = false;
  for (const Variables& variables : VariablesOf(provider)) {
    if (!found) {
      TESSERA_ASSIGN_OR_RETURN(found, FromEnvironment(variables, environment, account.credentials));
    }
    // Files come before the names that other programs may use for something else.
    const bool is_aws = variables.token != nullptr;
    if (found || !is_aws || Setting(files, "aws_access_key_id").empty()) continue;
    account.credentials = {Setting(files, "aws_access_key_id"),
                           Setting(files, "aws_secret_access_key"),
                           Setting(files, "aws_session_token")};
    found = !account.credentials.secret_access_key.empty();
  }
  if (!found && provider == S3Provider::kS3) {
    TESSERA_ASSIGN_OR_RETURN(
        const std::optional<s3::Credentials> of_role,
        FindRoleCredentials(environment, files.settings,
                            account.region.empty() ? kDefaultRegion : account.region, http));
    if (of_role.has_value()) account.credentials = *of_role;
    found = of_role.has_value();
  }
  if (!found) return NothingFound(provider, files);
  return account;
}

}  // namespace tessera
