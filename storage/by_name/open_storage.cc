#include "storage/open_storage.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/errno_status.h"
#include "base/status_macros.h"
#include "storage/by_name/credentials.h"
#include "storage/by_name/storage_name.h"
#include "storage/posix_storage.h"
#include "storage/s3/http.h"
#include "storage/s3/s3_client.h"
#include "storage/s3/s3_storage.h"

namespace tessera {
namespace {

const std::string& FirstOf(const std::string& a, const std::string& b) { return a.empty() ? b : a; }

std::string InName(const S3Name& name) { return absl::StrCat(name.bucket, ".", name.endpoint); }

absl::StatusOr<S3StorageOptions> Resolve(const S3Name& name, const OpenStorageOptions& options) {
  const std::shared_ptr<s3::HttpClient> http = s3::MakeHttpClient();
  TESSERA_ASSIGN_OR_RETURN(S3Account account,
                           FindAccount(name.provider, ProcessEnvironment, *http));
  S3StorageOptions resolved = {.prefix = name.prefix,
                               .create_root = options.create_root,
                               .own_uploads = options.own_uploads};
  s3::ClientOptions& client = resolved.client;
  client.bucket = name.bucket;
  client.http = http;
  client.note = options.note;
  client.credentials = std::move(account.credentials);
  client.read_credentials = [provider = name.provider, http]() -> absl::StatusOr<s3::Credentials> {
    TESSERA_ASSIGN_OR_RETURN(S3Account again, FindAccount(provider, ProcessEnvironment, *http));
    return again.credentials;
  };
  client.region = FirstOf(RegionOfEndpoint(name.provider, name.endpoint),
                          FirstOf(account.region, kDefaultRegion));
  const std::string amazon = absl::StrCat("https://s3.", client.region, ".amazonaws.com");
  std::string endpoint =
      FirstOf(name.endpoint, FirstOf(options.s3_endpoint, FirstOf(account.endpoint, amazon)));
  if (name.provider == S3Provider::kGoogle) {
    client.region = "auto";
    endpoint = "https://storage.googleapis.com";
  }
  TESSERA_ASSIGN_OR_RETURN(client.endpoint, NormalizeEndpoint(endpoint));
  client.endpoint = S3AddressOf(name.provider, client.endpoint);
  client.virtual_host = UsesVirtualHosts(name.provider, client.endpoint, client.bucket);
  client.dialect = DialectOf(name.provider, client.endpoint);
  if (name.provider == S3Provider::kVolcano) resolved.name = "volc:vc://" + InName(name);
  if (name.provider == S3Provider::kAliyun) resolved.name = "oss2:ali://" + InName(name);
  if (name.provider == S3Provider::kGoogle) resolved.name = "gs://" + name.bucket;
  return resolved;
}

}  // namespace

std::optional<std::string> LocalPathOfName(std::string_view name) {
  const absl::StatusOr<StorageName> parsed = ParseStorageName(name);
  if (!parsed.ok() || !std::holds_alternative<LocalName>(*parsed)) return std::nullopt;
  return std::get<LocalName>(*parsed).path;
}

absl::StatusOr<std::unique_ptr<Storage>> OpenStorage(std::string_view name,
                                                     const OpenStorageOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const StorageName parsed, ParseStorageName(name));
  if (const auto* local = std::get_if<LocalName>(&parsed); local != nullptr) {
    return OpenPosixStorage(local->path, {.create_root = options.create_root});
  }
  const absl::StatusOr<S3StorageOptions> resolved = Resolve(std::get<S3Name>(parsed), options);
  if (!resolved.ok()) {
    return WithMessage(resolved.status(),
                       absl::StrCat(std::string(name), ": ", resolved.status().message()));
  }
  return OpenS3Storage(*resolved);
}

}  // namespace tessera
