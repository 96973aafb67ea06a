#include "operations/signature.h"

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/errors.h"
#include "base/file_descriptor.h"
#include "base/status_macros.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/format/manifest_codec.h"
#include "operations/sealing.h"

namespace tessera::ckpt {
namespace {

constexpr char kAlgorithm[] = "ed25519";
constexpr size_t kKeyBytes = 32, kSignatureBytes = 64;
constexpr uint64_t kMaxSignatureFileBytes = 4096;
constexpr int64_t kMaxKeyFileBytes = 1 << 20;

using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using KeyReader = EVP_PKEY* (*)(BIO*, EVP_PKEY**, pem_password_cb*, void*);

// An encrypted key is not asked about on the terminal.
int NoPassword(char*, int, int, void*) { return -1; }

absl::StatusOr<Key> ReadKey(const std::string& path, KeyReader read, std::string_view kind,
                            std::string_view command) {
  const absl::StatusOr<std::string> pem = ReadFile(path, kMaxKeyFileBytes);
  if (!pem.ok()) {
    return absl::Status(pem.status().code(),
                        absl::StrCat("cannot read the key: ", pem.status().message()));
  }
  const std::string wanted =
      absl::StrCat("expected an Ed25519 ", std::string(kind), " key in a PEM file, as \"",
                   std::string(command), "\" writes it");
  const std::unique_ptr<BIO, decltype(&BIO_free)> bio(
      BIO_new_mem_buf(pem->data(), static_cast<int>(pem->size())), BIO_free);
  Key key(read(bio.get(), nullptr, NoPassword, nullptr), EVP_PKEY_free);
  if (key == nullptr || EVP_PKEY_id(key.get()) != EVP_PKEY_ED25519) {
    const bool encrypted = pem->find("ENCRYPTED") != std::string::npos;
    return InvalidArgument(path, ": ", wanted, encrypted ? ", without a password" : "");
  }
  return key;
}

absl::StatusOr<std::string> PublicBytes(const Key& key) {
  std::string bytes(kKeyBytes, '\0');
  size_t size = bytes.size();
  if (EVP_PKEY_get_raw_public_key(key.get(), reinterpret_cast<unsigned char*>(bytes.data()),
                                  &size) != 1) {
    return absl::InternalError("OpenSSL does not return the public key");
  }
  return bytes;
}

const unsigned char* Bytes(const std::string& text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

struct Signature {
  std::string key, signature;
};

absl::StatusOr<Signature> ParseSignature(std::string_view text) {
  const std::vector<std::string> parts =
      absl::StrSplit(std::string(text.substr(0, text.size() - 1)), ' ');
  Signature parsed;
  if (!text.ends_with('\n') || parts.size() != 3 || parts[0] != kAlgorithm ||
      !absl::Base64Unescape(parts[1], &parsed.key) || parsed.key.size() != kKeyBytes ||
      !absl::Base64Unescape(parts[2], &parsed.signature) ||
      parsed.signature.size() != kSignatureBytes ||
      // Base64 leaves bits of its last letters unused: other letters would decode alike.
      absl::Base64Escape(parsed.key) != parts[1] ||
      absl::Base64Escape(parsed.signature) != parts[2]) {
    return DataLoss("it is damaged, or not a signature");
  }
  return parsed;
}

using Context = std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)>;

bool Verifies(const Key& key, const std::string& signature, const std::string& contents) {
  const Context context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  return EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, key.get()) == 1 &&
         EVP_DigestVerify(context.get(), Bytes(signature), signature.size(), Bytes(contents),
                          contents.size()) == 1;
}

}  // namespace

SignedFile SignedManifest(std::shared_ptr<Storage> storage, const std::string& directory) {
  return {std::move(storage), JoinPath(directory, kManifestFileName),
          JoinPath(directory, kManifestSignatureFileName)};
}

absl::StatusOr<SignedFile> FindSignedFile(const NamedCheckpoint& named) {
  if (named.format.empty()) return SignedManifest(named.storage, named.directory);
  if (!named.seal.has_value()) {
    return FailedPrecondition(named.Describe(), " (", named.format,
                              ") is not sealed, and what is signed is the seal: see ckpt seal");
  }
  return SignedFile{named.seal->folder, named.seal->path, named.seal->path + ".sig"};
}

absl::StatusOr<std::string> Sign(const SignedFile& file, const std::string& key_path,
                                 bool overwrite) {
  TESSERA_ASSIGN_OR_RETURN(const Key key, ReadKey(key_path, PEM_read_bio_PrivateKey, "private",
                                                  "openssl genpkey -algorithm ed25519"));
  TESSERA_ASSIGN_OR_RETURN(const std::string public_bytes, PublicBytes(key));
  TESSERA_ASSIGN_OR_RETURN(const std::string contents,
                           ReadAll(*file.storage, file.path, kMaxManifestBytes));
  std::string signature(kSignatureBytes, '\0');
  size_t size = signature.size();
  const Context context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  if (EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, key.get()) != 1 ||
      EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(signature.data()), &size,
                     Bytes(contents), contents.size()) != 1 ||
      size != signature.size()) {
    return absl::InternalError(absl::StrCat(key_path, ": OpenSSL cannot sign with this key"));
  }
  std::string name = absl::Base64Escape(public_bytes);
  TESSERA_RETURN_IF_ERROR(convert::PutBeside(
      *file.storage, file.signature_path,
      absl::StrCat(kAlgorithm, " ", name, " ", absl::Base64Escape(signature), "\n"), overwrite));
  return name;
}

absl::StatusOr<std::string> CheckSignature(const SignedFile& file, const std::string& key_path) {
  TESSERA_ASSIGN_OR_RETURN(const Key key, ReadKey(key_path, PEM_read_bio_PUBKEY, "public",
                                                  "openssl pkey -in private.pem -pubout"));
  TESSERA_ASSIGN_OR_RETURN(const std::string public_bytes, PublicBytes(key));
  TESSERA_ASSIGN_OR_RETURN(const std::string contents,
                           ReadAll(*file.storage, file.path, kMaxManifestBytes));
  const std::string place = file.storage->Describe(file.signature_path);
  const absl::StatusOr<std::string> text =
      ReadAll(*file.storage, file.signature_path, kMaxSignatureFileBytes);
  if (absl::IsNotFound(text.status())) {
    return DataLoss(file.storage->Describe(file.path), " is not signed: there is no ", place);
  }
  if (!text.ok() && !absl::IsResourceExhausted(text.status())) return text.status();
  absl::StatusOr<Signature> signature = ParseSignature(text.ok() ? *text : std::string());
  if (!signature.ok()) return DataLoss(place, ": ", signature.status().message());
  std::string name = absl::Base64Escape(public_bytes);
  if (signature->key != public_bytes) {
    return DataLoss(place, ": another key has signed, ", absl::Base64Escape(signature->key),
                    " and not ", name, " of ", key_path);
  }
  if (Verifies(key, signature->signature, contents)) return name;
  return DataLoss(place, " is not the signature of ", file.storage->Describe(file.path),
                  " as it is now: one of the two has changed since this key signed");
}

}  // namespace tessera::ckpt
