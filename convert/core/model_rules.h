#ifndef TESSERA_CONVERT_CORE_MODEL_RULES_H_
#define TESSERA_CONVERT_CORE_MODEL_RULES_H_

// What the convertors need to know of models. The library knows none: a program that does passes an
// implementation of ModelRules.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/format/manifest.pb.h"
#include "layout/box.h"
#include "layout/partition.h"

namespace tessera::ckpt::convert {

// A parameter of a model, under its logical name.
struct ModelParameter {
  std::string name;
  Shape shape;
  Partition partition;
  bool weight_decay = true;
  std::string tied_name;  // a second name of the same tensor, or empty
};

struct ModelDescription {
  ModelConfig config;  // as manifests have it
  std::vector<ModelParameter> parameters;
};

// A model as config.json and the names of tensors in Hugging Face's files describe it. Shapes and
// layouts are those of the logical tensors.
struct HuggingFaceDescription {
  ModelDescription model;
  std::string prefix;  // of logical names, which files of a model without its head leave out
  std::vector<std::string> computed;  // patterns of tensors that are no parameters
  std::vector<std::string> order;     // of the parameters' names in transformers' modules
};

// One tensor in the body of a llm.c file: [rows, columns], row-major; a vector is one row.
struct LlmcTensorDescription {
  std::string name;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t real_rows = 0;    // the others are padding
  bool transposed = false;  // the logical tensor is [columns, rows]
  // If not 0: in each head of this many rows, row 2i + j of the file is row i + j * size / 2 of the
  // logical tensor.
  int64_t interleaved_head_size = 0;
};

struct LlmcDescription {
  ModelDescription model;
  DType dtype = DTYPE_UNSPECIFIED;
  // In the file's order. ZeRO ranks of llm.c divide each of them.
  std::vector<LlmcTensorDescription> tensors;
};

// A model file of llm.c that is to be written.
struct LlmcOutput {
  std::string header;
  LlmcDescription description;
};

// A box of a logical tensor that a parameter of another framework contains. The parameter may have
// more dims than the tensor: the block has an extent of 1 in each of the leading ones.
struct ForeignBlock {
  std::string name;                     // of the logical tensor
  Box box;                              // of the logical tensor
  std::vector<int64_t> foreign_offset;  // of the box's first element in the parameter, one per dim
  bool transposed = false;              // the last two dims are swapped in the parameter
  // Distance in the parameter of elements that are neighbours in the block, one per dim of the
  // parameter. Empty: 1 in each. A rotary embedding that interleaves its halves has a step of 2.
  std::vector<int64_t> foreign_step;
};

// A whole parameter of another framework, as it is before ranks cut it. Elements that are in no
// block are padding and are ignored. Blocks are disjoint.
struct ForeignParameter {
  std::string name;
  Shape shape;
  int tensor_parallel_dim = -1;  // -1: every rank has all of it
  // Equal parts of that dim, of each of which a rank has its share: gate and up in one matrix.
  int64_t sections = 1;
  // Files may have more rows (dim 0) than `shape`; the others are padding. A reader sets shape[0]
  // to the number that it finds.
  bool padded = false;
  std::vector<ForeignBlock> blocks;
  std::vector<std::string> other_names;  // of copies, such as a tied head
};

class ModelRules {
 public:
  virtual ~ModelRules() = default;

  // InvalidArgument: one sentence. `tensor_count` is that of the files: a config of more layers
  // than tensors is refused before anything of its size is allocated.
  virtual absl::StatusOr<HuggingFaceDescription> ReadHuggingFaceConfig(
      std::string_view config_json, int64_t tensor_count) const = 0;

  // config.json for a model as manifests describe it, with weights of this dtype. InvalidArgument
  // where Hugging Face has no such model.
  virtual absl::StatusOr<std::string> WriteHuggingFaceConfig(const ModelConfig& model,
                                                             DType dtype) const = 0;

  // The model file whose first 1024 bytes are given. DataLoss naming `name`.
  virtual absl::StatusOr<LlmcDescription> ReadLlmcHeader(const std::string& name,
                                                         std::span<const std::byte> header,
                                                         uint64_t file_bytes) const = 0;

  // The model file of a model as manifests describe it, with weights of this dtype: F32 or BF16.
  // InvalidArgument where llm.c has no such model.
  virtual absl::StatusOr<LlmcOutput> WriteLlmcHeader(const ModelConfig& model,
                                                     DType dtype) const = 0;

  // The model that the configuration of `framework` ("megatron", "paddle", "internevo") describes,
  // given as a JSON object. `tensor_count` as in ReadHuggingFaceConfig(). InvalidArgument: one
  // sentence.
  virtual absl::StatusOr<ModelDescription> ReadForeignConfig(std::string_view framework,
                                                             std::string_view config_json,
                                                             int64_t tensor_count) const = 0;

  // The inverse, for a model as manifests describe it. InvalidArgument where the framework has no
  // such model.
  virtual absl::StatusOr<std::string> WriteForeignConfig(std::string_view framework,
                                                         const ModelConfig& model) const = 0;

  // The parameters of a model as the framework names and lays them out. Memory is proportional to
  // layers times attention heads: check the model's size against that of the files first
  // (CheckModelFits() in foreign_layout.h). InvalidArgument as above.
  virtual absl::StatusOr<std::vector<ForeignParameter>> ForeignParameters(
      std::string_view framework, const ModelConfig& model) const = 0;
};

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_MODEL_RULES_H_
