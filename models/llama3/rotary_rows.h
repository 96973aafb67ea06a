#ifndef TESSERA_MODELS_LLAMA3_ROTARY_ROWS_H_
#define TESSERA_MODELS_LLAMA3_ROTARY_ROWS_H_

#include <cstdint>
#include <string>

#include "models/foreign_files/parameter.h"

namespace tessera::llama3 {

// Some of the heads of a query's or a key's logical matrix.
struct HeadRows {
  int64_t row = 0;  // the first
  int64_t heads = 0;
  int64_t head_size = 0;
  int64_t columns = 0;
};

// Adds to the parameter, from its row `foreign_row` on, heads whose rows alternate between the
// halves that the rotary embedding pairs: row 2i + j is row i + j * head_size / 2 here.
void AddPairedRows(const std::string& logical_name, const HeadRows& rows, int64_t foreign_row,
                   ForeignParameter& parameter);

}  // namespace tessera::llama3

#endif  // TESSERA_MODELS_LLAMA3_ROTARY_ROWS_H_
