#include "tokenizer/sentencepiece/sentencepiece_training.h"

#include <sentencepiece_trainer.h>

#include <cstddef>
#include <unordered_map>

namespace tessera {
namespace {

class VectorIterator : public sentencepiece::SentenceIterator {
 public:
  explicit VectorIterator(const std::vector<std::string>& sentences) : sentences_(sentences) {}

  bool done() const override { return next_ == sentences_.size(); }
  void Next() override { ++next_; }
  const std::string& value() const override { return sentences_[next_]; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  const std::vector<std::string>& sentences_;
  size_t next_ = 0;
};

}  // namespace

bool TrainSentencePieceModel(const std::vector<std::string>& sentences, int64_t vocab_size,
                             std::string* model, std::string* error) {
  const std::unordered_map<std::string, std::string> options = {
      {"model_type", "bpe"},
      {"vocab_size", std::to_string(vocab_size)},
      {"hard_vocab_limit", "false"},
      {"byte_fallback", "true"},
      {"normalization_rule_name", "identity"},
      {"remove_extra_whitespaces", "false"},
      {"add_dummy_prefix", "false"},
      {"allow_whitespace_only_pieces", "true"},
      {"unk_id", "0"},
      {"eos_id", "1"},
      {"bos_id", "-1"},
      {"pad_id", "-1"},
      {"eos_piece", "<|endoftext|>"},
      {"num_threads", "1"},
      {"input_sentence_size", "0"},
      {"shuffle_input_sentence", "false"},
      {"self_test_sample_size", "0"},
      {"minloglevel", "2"},  // the caller reports warnings and progress
  };
  VectorIterator iterator(sentences);
  const sentencepiece::util::Status status =
      sentencepiece::SentencePieceTrainer::Train(options, &iterator, model);
  if (status.ok()) return true;
  *error = status.message();
  return false;
}

}  // namespace tessera
