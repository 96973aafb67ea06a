#include "models/llama3/rotary_rows.h"

namespace tessera::llama3 {

void AddPairedRows(const std::string& logical_name, const HeadRows& rows, int64_t foreign_row,
                   ForeignParameter& parameter) {
  const int64_t half_size = rows.head_size / 2;
  for (int64_t head = 0; head < rows.heads; ++head) {
    for (int64_t half = 0; half < 2; ++half) {
      const int64_t first = head * rows.head_size;
      parameter.blocks.push_back({.name = logical_name,
                                  .offset = {rows.row + first + half * half_size, 0},
                                  .shape = {half_size, rows.columns},
                                  .foreign_offset = {foreign_row + first + half, 0},
                                  .foreign_step = {2, 1}});
    }
  }
}

}  // namespace tessera::llama3
