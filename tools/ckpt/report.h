#ifndef TESSERA_TOOLS_CKPT_REPORT_H_
#define TESSERA_TOOLS_CKPT_REPORT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <ostream>
#include <streambuf>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/steady_time.h"
#include "checkpoint/include/checkpoint.h"
#include "nlohmann/json.hpp"
#include "operations/named_checkpoint.h"
#include "tools/ckpt/commands.h"

namespace tessera::ckpt {

// Prints JSON. Bytes that are not UTF-8, which paths and names may contain, are replaced.
void PrintJson(const nlohmann::ordered_json& json, std::ostream& out);

// Returns a value for JSON; null if it is unknown.
template <typename T>
nlohmann::ordered_json KnownOrNull(bool is_known, T value) {
  if (!is_known) return nullptr;
  return value;
}

// Prints the notes of a command about another framework's checkpoint, a line each.
void PrintNotes(const std::vector<std::string>& notes, std::ostream& out);

// Prints a line for each damaged place. The message of a file that cannot be read at all already
// names the file.
void PrintDamage(const std::vector<Damage>& damage, std::string_view indent, std::ostream& out);

// Returns "; 2 tensors have no digest"; empty if all have one.
std::string MissingDigests(const VerifyReport& report);

// Returns a sentence on what a verification without findings has proven.
std::string Proof(const NamedCheckpoint& named, const VerifyReport& report, bool digests);

// A stream that passes text on to another one, line by line, as Printable() shows it, since names
// in a checkpoint may be anything.
class PrintableStream : public std::ostream {
 public:
  explicit PrintableStream(std::ostream& to) : std::ostream(nullptr), buffer_(to) {
    rdbuf(&buffer_);
  }
  // Passes on the last line, even without a line break.
  ~PrintableStream() override { flush(); }

 private:
  class Buffer : public std::streambuf {
   public:
    explicit Buffer(std::ostream& to) : to_(to) {}

   protected:
    int_type overflow(int_type c) override;
    std::streamsize xsputn(const char* text, std::streamsize size) override;
    int sync() override;

   private:
    bool Pass(size_t size);

    std::ostream& to_;
    std::string text_;
  };

  Buffer buffer_;
};

// A table of text, with columns as wide as their widest cell.
class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // Adds a row. Precondition: one cell per column. A name with a line break stays within its cell.
  void AddRow(std::vector<std::string> cells);

  // Returns the table with a line of titles; every line is indented by two spaces and ends in a
  // newline.
  std::string ToString() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// A line that is redrawn at most ten times a second, and erased at the end.
class ProgressBar {
 public:
  // If `stream` is null, nothing is shown.
  explicit ProgressBar(std::ostream* stream) : stream_(stream), start_(SteadyNow()) {}
  ~ProgressBar();

  void Update(uint64_t done, uint64_t total);
  // Calls Update(). The bar must outlive it.
  std::function<void(uint64_t done, uint64_t total)> callback() {
    return [this](uint64_t done, uint64_t total) { Update(done, total); };
  }

 private:
  std::ostream* const stream_;
  const absl::Duration start_;
  absl::Duration last_;
  bool drawn_ = false;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_TOOLS_CKPT_REPORT_H_
