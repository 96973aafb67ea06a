#ifndef TESSERA_CONVERT_LLMC_PIECES_H_
#define TESSERA_CONVERT_LLMC_PIECES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "convert/core/foreign_checkpoint.h"
#include "convert/core/model_rules.h"

namespace tessera::ckpt::convert {

struct LlmcPlace {
  bool is_vector = false;    // the logical tensor has one dim
  size_t element_bytes = 0;  // as stored
  std::string file;
};

// Adds the pieces of a logical tensor that elements [begin, end) of its matrix in a llm.c file are,
// where element `begin` is at byte `begin_bytes`. Padding is in no piece. Precondition: the range
// lies inside the matrix.
void AddLlmcPieces(const LlmcTensorDescription& tensor, const LlmcPlace& place, int64_t begin,
                   int64_t end, uint64_t begin_bytes, std::vector<StoredPiece>& pieces);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_LLMC_PIECES_H_
