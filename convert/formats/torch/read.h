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

// Reads the tensors of files of torch.save(): one file, or the parts of one state dict. `folder` is
// inside `storage`, the files are inside the folder.
//
// Nested dicts and lists give names with dots: "optimizer.state.3.exp_avg". A tensor that is the
// same view of the same storage as an earlier one is its alias. Tensors below "state" of a dict
// that also has "param_groups", as optimizers of torch have, are optimizer state. Plain values are
// in the tree, too. Other objects, and tensors that this version cannot read, are named in the
// notes. Keys of this library are removed (TakeOwnKeys()).
//
// Reads headers and pickles, but no tensor. Errors: DataLoss, naming file and tensor; Unimplemented
// for a file of a form that cannot be read; those of the storage.
absl::StatusOr<ForeignCheckpoint> ReadTorch(Storage& storage, std::string_view folder,
                                            std::span<const std::string> files);

// Finds the files for ReadTorch(): `file` or, if it is empty, the only file of torch.save() in the
// folder, or all parts of one state dict, whose names end in "-00002-of-00003.bin", or the files of
// all ranks ("consolidated.00.pth", ...), which are not parts of one state dict. Empty if there are
// no such files. Looks at files whose names end in .pt, .pth, .bin or .ckpt; files that
// transformers' trainers keep beside a model, such as "optimizer.pt", count only if there is
// nothing else. Errors: InvalidArgument, listing them, for several files; DataLoss if a rank's file
// is missing; those of the storage.
absl::StatusOr<std::vector<std::string>> FindTorchFiles(Storage& storage, std::string_view folder,
                                                        const std::string& file);

// Returns whether a value is a dict: one of Python's, or an OrderedDict or defaultdict.
bool IsTorchDict(const pickle::Value& value);

// Reads pickles of objects that are stored beside tensors, each in a file or a part of one.
class ObjectReader {
 public:
  // `checkpoint`, which gets notes, must outlive the reader.
  explicit ObjectReader(ForeignCheckpoint& checkpoint);
  ~ObjectReader();

  // Reads the values of a pickle that is called `name`; nullopt if it has none. Everything that is
  // left out will be in a note. Errors: those of the file; DataLoss if objects are nested too deep,
  // or stand for many times the size of the pickle.
  absl::StatusOr<std::optional<SavedValue>> Read(const ReadableFile& file,
                                                 const pickle::Pickle& contents,
                                                 const std::string& name);
  // Adds the notes to the checkpoint. Call once, after all objects.
  void AddNotes();

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_FORMATS_TORCH_READ_H_
