#ifndef TESSERA_OPERATIONS_SIGNATURE_H_
#define TESSERA_OPERATIONS_SIGNATURE_H_

// Signatures of checkpoints: Ed25519 (RFC 8032), of the bytes of a manifest or of a seal. Beside
// manifest.pb stands manifest.sig, beside tessera.seal tessera.seal.sig: one line,
//
//   ed25519 <public key> <signature>
//
// with the 32 and 64 bytes of both in base64. The key there is not trusted: it tells a checkpoint
// that another key has signed from one that has changed since.

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "operations/named_checkpoint.h"
#include "storage/storage.h"

namespace tessera::ckpt {

// What of a checkpoint is signed, and where its signature is.
struct SignedFile {
  std::shared_ptr<Storage> storage;
  std::string path;            // in the storage
  std::string signature_path;  // likewise
};

// The manifest in a directory of a storage.
SignedFile SignedManifest(std::shared_ptr<Storage> storage, const std::string& directory);

// The manifest, or another framework's seal. FailedPrecondition where that is not sealed.
absl::StatusOr<SignedFile> FindSignedFile(const NamedCheckpoint& named);

// Signs it with the private key in a PEM file, as `openssl genpkey -algorithm ed25519` writes it.
// Returns the public key, in base64. Errors: AlreadyExists (a signature is there, unless
// `overwrite`); InvalidArgument for the key; those of the storage.
absl::StatusOr<std::string> Sign(const SignedFile& file, const std::string& key_path,
                                 bool overwrite);

// That the private half of the public key in a PEM file, as `openssl pkey -pubout` writes it, has
// signed what is there now. Returns the key, in base64. Errors, each with one sentence: DataLoss
// where there is no signature, where it is another key's, and where the file or the signature has
// changed; InvalidArgument for the key.
absl::StatusOr<std::string> CheckSignature(const SignedFile& file, const std::string& key_path);

}  // namespace tessera::ckpt

#endif  // TESSERA_OPERATIONS_SIGNATURE_H_
