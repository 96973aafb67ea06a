#ifndef TESSERA_MODELS_LAYERS_DECODER_LAYOUT_H_
#define TESSERA_MODELS_LAYERS_DECODER_LAYOUT_H_

#include <cstdint>
#include <vector>

namespace tessera {

// The positions of a decoder's parameters in the flat space, which is in the order of the forward
// pass: embedding, blocks, head.
struct DecoderLayout {
  std::vector<int64_t> boundaries;  // begin of each block, and, last, of the head
  // If embedding and head of one stage accumulate into one gradient: the end of the table, which
  // comes first; otherwise 0.
  int64_t shared_table_end = 0;
};

}  // namespace tessera

#endif  // TESSERA_MODELS_LAYERS_DECODER_LAYOUT_H_
