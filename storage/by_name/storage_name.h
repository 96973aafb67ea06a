#ifndef TESSERA_STORAGE_BY_NAME_STORAGE_NAME_H_
#define TESSERA_STORAGE_BY_NAME_STORAGE_NAME_H_

#include <string>
#include <string_view>
#include <variant>

#include "absl/status/statusor.h"
#include "storage/s3/dialect.h"

namespace tessera {

// Stores that speak the S3 protocol, and differ in addresses, names of environment variables and
// dialects.
enum class S3Provider { kS3, kVolcano, kAliyun, kGoogle };

struct LocalName {
  std::string path;
};

struct S3Name {
  S3Provider provider = S3Provider::kS3;
  std::string bucket;
  std::string endpoint;  // as in the name; empty: not in it
  std::string prefix;    // without '/' at either end
};

using StorageName = std::variant<LocalName, S3Name>;

// Takes a name apart; see OpenStorage(). InvalidArgument, naming the accepted forms, for an unknown
// scheme, and for a name without a bucket or an endpoint where it must have one.
absl::StatusOr<StorageName> ParseStorageName(std::string_view name);

// Where requests go: with a scheme and without a path. `text` may be "host", "host:port" or a URL;
// without a scheme, it is https, except for IP addresses and localhost. InvalidArgument for others.
absl::StatusOr<std::string> NormalizeEndpoint(std::string_view text);

// The address at which a provider's endpoint speaks the S3 protocol.
std::string S3AddressOf(S3Provider provider, const std::string& endpoint);

// The region that is part of the endpoint's name: "cn-beijing" of "tos-cn-beijing.volces.com".
// Empty if the endpoint names no region.
std::string RegionOfEndpoint(S3Provider provider, std::string_view endpoint);

// The dialect of the store at a normalized endpoint. An endpoint of another provider than S3 itself
// is known by its name, whatever name of a storage it is in.
s3::Dialect DialectOf(S3Provider provider, std::string_view endpoint);

// Whether the bucket is part of the host's name. `endpoint` is normalized.
bool UsesVirtualHosts(S3Provider provider, std::string_view endpoint, std::string_view bucket);

}  // namespace tessera

#endif  // TESSERA_STORAGE_BY_NAME_STORAGE_NAME_H_
