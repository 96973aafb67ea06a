#ifndef TESSERA_CONVERT_FORMATS_TORCH_READ_H_
#define TESSERA_CONVERT_FORMATS_TORCH_READ_H_

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/value.h"
#include "convert/pickle/value.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

inline constexpr std::string_view kTorch = "torch";

// The tensors of files that torch.save() wrote: one file, or the parts of one state dict. `folder`
// is inside `storage`, the files are inside the folder.
//
// Dicts and lists inside each other give names with dots: "optimizer.state.3.exp_avg". A tensor
// that is the same view of the same storage as an earlier one is its alias. Tensors below "state"
// of a dict that has "param_groups", too, as optimizers of torch have, are optimizer state.
// Plain values are in the tree with them. Other objects, and tensors that this version cannot read,
// are named in the notes. Keys of this library are taken out (TakeOwnKeys()).
//
// Reads headers and pickles, no tensor. Errors: DataLoss, naming file and tensor; Unimplemented for
// a file of a form that cannot be read; those of the storage.
absl::StatusOr<ForeignCheckpoint> ReadTorch(Storage& storage, std::string_view folder,
                                            std::span<const std::string> files);

// What ReadTorch() is to read: `file`, or, where that is empty, the one file of torch.save() in the
// folder, or all parts of one state dict, whose names end in "-00002-of-00003.bin", or the files of
// all ranks ("consolidated.00.pth", ...), which are not parts of one state dict. Empty if it finds
// none. Looks at files whose names end in .pt, .pth, .bin or .ckpt; those that trainers of
// transformers keep beside a model, such as "optimizer.pt", count only where there is nothing else.
// Errors: InvalidArgument, listing them, where there are several; DataLoss where a rank's is
// missing; those of the storage.
absl::StatusOr<std::vector<std::string>> FindTorchFiles(Storage& storage, std::string_view folder,
                                                        const std::string& file);

// Whether a value is a dict: one of Python's, or an OrderedDict or defaultdict.
bool IsTorchDict(const pickle::Value& value);

// Reads pickles of objects that stand beside tensors, each in a file or a part of one.
class ObjectReader {
 public:
  // `checkpoint`, which gets notes, must outlive the reader.
  explicit ObjectReader(ForeignCheckpoint& checkpoint);
  ~ObjectReader();

  // The values of a pickle that is called `name`; nullopt if it has none. Everything that is left
  // out will be in a note. Errors: those of the file; DataLoss if objects are nested too deep, or
  // stand for many times the size of the pickle.
  absl::StatusOr<std::optional<SavedValue>> Read(const ReadableFile& file,
                                                 const pickle::Pickle& contents,
                                                 const std::string& name);
  // Call once, after all objects.
  void AddNotes();

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_FORMATS_TORCH_READ_H_
