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
#include "convert/pickle/torch_archive.h"
#include "convert/pickle/value.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

inline constexpr std::string_view kTorch = "torch";

// Reads the tensors of files of torch.save(): one file, or the parts of one state dict.
//
// Nested dicts and lists give names with dots: "optimizer.state.3.exp_avg". A tensor that is the
// same view of the same storage as an earlier one is its alias. Tensors below "state" of a dict
// that also has "param_groups", as optimizers of torch have, are optimizer state. Plain values are
// in the tree, too. Arrays of numpy are buffers, and its scalars values. Other objects, and tensors
// that this version cannot read or that have no name of their own, are named in the notes. Keys of
// this library are removed (TakeOwnKeys()).
//
// Reads headers and pickles, but no tensor. Errors: DataLoss, naming file and tensor; Unimplemented
// for a file of a form that cannot be read, that is nested too deep, or that stands for many times
// its size; those of the storage.
absl::StatusOr<ForeignCheckpoint> ReadTorch(Storage& storage, std::span<const std::string> files);

// Finds the files for ReadTorch(): `file`, if it is not empty. Otherwise the only file of
// torch.save() that is there, or all parts of one state dict ("...-00002-of-00003.bin"), or the
// files of all ranks ("consolidated.00.pth", ...), which are not such parts. Empty if there are no
// such files. Looks at files whose names end in .pt, .pth, .bin or .ckpt; files that transformers'
// trainers keep beside a model, such as "optimizer.pt", count only without any other file or model.
// Errors: InvalidArgument, listing them, for several files; DataLoss if a part or a rank's file is
// missing; those of the storage.
absl::StatusOr<std::vector<std::string>> FindTorchFiles(Storage& storage, const std::string& file);

// Returns whether a file is one of several parts of a model by its name: "X-00002-of-00003.bin", or
// of safetensors; "consolidated.00.pth", if there is "consolidated.01.pth". Errors: the storage's.
absl::StatusOr<bool> IsPartOfModel(Storage& storage, const std::string& file);

// Returns whether transformers' trainers, or accelerate, give this name to a file beside a model.
bool IsBesideModel(const std::string& name);

// Reads the model of params.json, of which each file, in the order of Meta's tensor-parallel ranks,
// has a part of every tensor. A part's shape shows along which dim the tensor is cut into equal
// parts, or that the part is a copy: embedding tables are cut by rows since Llama 3 and by columns
// before.
//
// Errors: NotFound without params.json; DataLoss, naming file and tensor, for tensors that are not
// such a part, that only some files have, or that are missing or unknown; those of ReadTorch().
absl::StatusOr<ForeignCheckpoint> ReadMetaParts(Storage& storage,
                                                std::span<const std::string> files);

// Returns whether a value is a dict: one of Python's, or an OrderedDict or defaultdict.
bool IsTorchDict(const pickle::Value& value);

// Reads objects that are stored beside tensors, each in a file of torch.save() or a part of one.
class ObjectReader {
 public:
  // `checkpoint`, which has the tensors beside the objects, must outlive the reader.
  explicit ObjectReader(ForeignCheckpoint& checkpoint);
  ~ObjectReader();

  // Reads the values of an object that is called `name`; nullopt if it has none. Its tensors are
  // added to the checkpoint as buffers in `file`, which is open. Everything that is left out will
  // be in a note. Errors: those of the file; DataLoss for malformed tensors; Unimplemented for
  // objects that are nested too deep, or stand for many times the size of the pickle.
  absl::StatusOr<std::optional<SavedValue>> Read(const ReadableFile& open,
                                                 const TorchArchive& archive,
                                                 const std::string& file, const std::string& name);
  // Adds the notes to the checkpoint. Call once, after all objects.
  void AddNotes();

 private:
  const std::unique_ptr<class TorchCollector> collector_;
};

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_FORMATS_TORCH_READ_H_
