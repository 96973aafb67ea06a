#include "tools/ckpt/table.h"

#include <algorithm>

namespace tessera::ckpt {

std::string Table::ToString() const {
  std::vector<size_t> widths;
  for (size_t c = 0; c < columns_.size(); ++c) {
    size_t width = columns_[c].title.size();
    for (const auto& row : rows_) width = std::max(width, row[c].size());
    widths.push_back(width);
  }
  std::string text;
  const auto append = [&](const auto& cell_of) {
    std::string line;
    for (size_t c = 0; c < columns_.size(); ++c) {
      const std::string& cell = cell_of(c);
      const std::string padding(widths[c] - cell.size(), ' ');
      line += "  ";
      line += columns_[c].align == Align::kRight ? padding + cell : cell + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  append([&](size_t c) -> const std::string& { return columns_[c].title; });
  for (const auto& row : rows_) append([&](size_t c) -> const std::string& { return row[c]; });
  return text;
}

}  // namespace tessera::ckpt
