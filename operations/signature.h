#ifndef TESSERA_OPERATIONS_SIGNATURE_H_
#define TESSERA_OPERATIONS_SIGNATURE_H_

// Signatures of checkpoints: Ed25519 (RFC 8032), of the bytes of a manifest or of a seal. The
// signature of manifest.pb is in manifest.sig, the signature of tessera.seal in tessera.seal.sig:
// one line,
//
//   ed25519 <public key> <signature>
//
// with the 32 and 64 bytes of both in base64. The key in the file is not trusted; it distinguishes
// a checkpoint that another key has signed from one that has changed since.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "operations/named_checkpoint.h"
#include "storage/storage.h"

namespace tessera::ckpt {

// The signed file of a checkpoint, and the place of its signature.
struct SignedFile {
  std::shared_ptr<Storage> storage;
  std::string path;            // in the storage
  std::string signature_path;  // in the storage
};

// Returns the manifest in a directory of a storage.
SignedFile SignedManifest(std::shared_ptr<Storage> storage, const std::string& directory);

// Returns the manifest, or the seal of another framework's checkpoint. FailedPrecondition if that
// is not sealed.
absl::StatusOr<SignedFile> FindSignedFile(const NamedCheckpoint& named);

// Signs a file with the private key in a PEM file, as `openssl genpkey -algorithm ed25519` writes
// it. Returns the public key, in base64. Errors: AlreadyExists (there is a signature, and not
// `overwrite`); InvalidArgument for the key; those of the storage.
absl::StatusOr<std::string> Sign(const SignedFile& file, const std::string& key_path,
                                 bool overwrite);

// Checks that a file, as it is now, was signed with the private key that belongs to the public key
// in a PEM file, as `openssl pkey -pubout` writes it. Returns the public key, in base64. Errors,
// each with one sentence: DataLoss if there is no signature, if it was made with another key, and
// if the file or the signature has changed; InvalidArgument for the key.
absl::StatusOr<std::string> CheckSignature(const SignedFile& file, const std::string& key_path);

}  // namespace tessera::ckpt

#endif  // TESSERA_OPERATIONS_SIGNATURE_H_
