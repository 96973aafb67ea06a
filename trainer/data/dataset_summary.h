#ifndef TESSERA_TRAINER_DATA_DATASET_SUMMARY_H_
#define TESSERA_TRAINER_DATA_DATASET_SUMMARY_H_

// The file dataset.json, prepare_data's description of the files that it wrote.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera {

inline constexpr std::string_view kDatasetFileName = "dataset.json";

// Counts of one side of the split.
struct SplitSummary {
  int64_t documents = 0;
  int64_t text_bytes = 0;
  int64_t tokens = 0;
};

struct DatasetSummary {
  // Hash of the options and the documents' contents, in hexadecimal; empty while files are being
  // replaced.
  std::string request;
  std::string tokenizer;
  int64_t vocab_size = 0;
  int64_t end_of_text = 0;
  std::string format;
  std::string split;
  SplitSummary train;
  SplitSummary validation;
  // Nats per token of a unigram model, which knows only how frequent each token is, on the
  // validation tokens (on the training tokens if the data has no validation tokens). The
  // frequencies come from the training tokens, each count plus one, since a token never seen would
  // have an infinite cost.
  double unigram_nats_per_token = 0;

  struct File {
    std::string name;
    int64_t size_bytes = 0;
  };
  std::vector<File> files;
};

// Reads dataset.json. Errors: NotFound; DataLoss, naming the file and field.
absl::StatusOr<DatasetSummary> ReadDatasetSummary(const std::string& directory);
absl::Status WriteDatasetSummary(const DatasetSummary& summary, const std::string& directory);

}  // namespace tessera

#endif  // TESSERA_TRAINER_DATA_DATASET_SUMMARY_H_
