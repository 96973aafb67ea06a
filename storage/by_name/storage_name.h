#ifndef TESSERA_STORAGE_BY_NAME_STORAGE_NAME_H_
#define TESSERA_STORAGE_BY_NAME_STORAGE_NAME_H_

#include <string>
#include <string_view>
#include <variant>

#include "absl/status/statusor.h"
#include "storage/s3/dialect.h"

namespace tessera {

// The providers of stores that speak the S3 protocol, which differ in addresses, names of
// environment variables and dialects.
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

// Parses a name; see OpenStorage(). InvalidArgument, naming the accepted forms, for an unknown
// scheme, and for a name without a required bucket or endpoint.
absl::StatusOr<StorageName> ParseStorageName(std::string_view name);

// Returns the address of requests, with a scheme and without a path. `text` may be "host",
// "host:port" or a URL; without a scheme, it is https, except for IP addresses and localhost.
// InvalidArgument for others.
absl::StatusOr<std::string> NormalizeEndpoint(std::string_view text);

// Returns the address at which a provider's endpoint speaks the S3 protocol.
std::string S3AddressOf(S3Provider provider, const std::string& endpoint);

// Returns the region that is part of the endpoint's name: "cn-beijing" of
// "tos-cn-beijing.volces.com". Empty if the endpoint names no region.
std::string RegionOfEndpoint(S3Provider provider, std::string_view endpoint);

// Returns the dialect of the store at a normalized endpoint. Endpoints of other providers than S3
// itself are recognised by their names, in any name of a storage.
s3::Dialect DialectOf(S3Provider provider, std::string_view endpoint);

// Returns whether the bucket is part of the host's name. `endpoint` is normalized.
bool UsesVirtualHosts(S3Provider provider, std::string_view endpoint, std::string_view bucket);

}  // namespace tessera

#endif  // TESSERA_STORAGE_BY_NAME_STORAGE_NAME_H_
