#ifndef TESSERA_TOOLS_CKPT_TABLE_H_
#define TESSERA_TOOLS_CKPT_TABLE_H_

#include <string>
#include <vector>

namespace tessera::ckpt {

// Lines of text in columns as wide as their widest cell.
class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // Precondition: one cell per column.
  void AddRow(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

  // With a line of titles; every line is indented by two spaces and ends in a newline.
  std::string ToString() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_TOOLS_CKPT_TABLE_H_
