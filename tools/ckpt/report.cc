#include "tools/ckpt/report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text.h"
#include "base/units.h"

namespace tessera::ckpt {

void PrintJson(const nlohmann::ordered_json& json, std::ostream& out) {
  out << json.dump(2, ' ', /*ensure_ascii=*/false, nlohmann::ordered_json::error_handler_t::replace)
      << "\n";
}

void PrintNotes(const std::vector<std::string>& notes, std::ostream& out) {
  for (const std::string& note : notes) out << "note: " << PrintableInLine(note) << "\n";
}

void PrintDamage(const std::vector<Damage>& damage, std::string_view indent, std::ostream& out) {
  for (const Damage& place : damage) {
    std::string line;
    if (place.message.find(place.file) == std::string::npos) {
      absl::StrAppend(&line, place.file, " at offset ", place.offset_bytes, ": ");
    }
    if (!place.tensor.empty()) absl::StrAppend(&line, "tensor ", place.tensor, ": ");
    out << indent << PrintableInLine(line + place.message) << "\n";
  }
}

std::string MissingDigests(const VerifyReport& report) {
  if (report.digests_missing == 0) return "";
  return absl::StrCat("; ", Counted(report.digests_missing, "tensor"),
                      report.digests_missing == 1 ? " has no digest" : " have no digest");
}

std::string Proof(const NamedCheckpoint& named, const VerifyReport& report, bool digests) {
  if (named.seal.has_value()) {
    std::string text = absl::StrCat(
        "every byte of ", Counted(named.seal->seal->files_size(), "file"), " is what it was when ",
        named.seal->Describe(), " was written: sizes, CRC-32C and SHA-256",
        named.seal->file.empty() ? "; no file was added" : "");
    if (digests) {
      absl::StrAppend(&text, "; the digests in it match the contents of ",
                      Counted(report.digests_verified, "tensor"));
    }
    return text;
  }
  if (!named.format.empty()) {
    const auto [tensors, proven] = named.foreign->proof();
    const auto& unread = named.foreign->unread();
    std::string read = "every byte can be read, and every element is there once; ";
    if (!unread.empty()) {
      read = absl::StrCat("every byte of the tensors that are read can be read; ",
                          Counted(unread.size(), "tensor"), unread.size() == 1 ? " is" : " are",
                          " not read, such as ", unread.begin()->first, " (",
                          unread.begin()->second, "); ");
    }
    if (tensors == 0) return read.substr(0, read.size() - 2);
    if (proven == 0) {
      return read + "these files (" + named.format +
             ") have no checksums, so damage to the contents cannot be detected (ckpt seal "
             "writes checksums beside them)";
    }
    read += "the stored CRC-32s match the contents of ";
    if (proven == tensors) return read + Counted(tensors, "tensor");
    return absl::StrCat(read, proven, " of ", tensors, " tensors, the others have none");
  }
  std::string text = "every byte, header and shard matches the manifest";
  if (!digests) return text;
  return absl::StrCat(text, "; the digests computed when they were saved match the contents of ",
                      Counted(report.digests_verified, "tensor"), ", however they are sharded",
                      MissingDigests(report));
}

PrintableStream::Buffer::int_type PrintableStream::Buffer::overflow(int_type c) {
  const char character = traits_type::to_char_type(c);
  return xsputn(&character, 1) == 1 ? c : traits_type::eof();
}

std::streamsize PrintableStream::Buffer::xsputn(const char* text, std::streamsize size) {
  text_.append(text, static_cast<size_t>(size));
  return Pass(text_.rfind('\n') + 1) ? size : 0;  // npos + 1 is 0
}

int PrintableStream::Buffer::sync() {
  const bool passed = Pass(text_.size());
  return passed && to_.flush().good() ? 0 : -1;
}

bool PrintableStream::Buffer::Pass(size_t size) {
  to_ << Printable(std::string_view(text_).substr(0, size));
  text_.erase(0, size);
  return to_.good();
}

void Table::AddRow(std::vector<std::string> cells) {
  for (std::string& cell : cells) cell = PrintableInLine(cell);
  rows_.push_back(std::move(cells));
}

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

namespace {

constexpr int kBarWidth = 40;

}  // namespace

ProgressBar::~ProgressBar() {
  if (drawn_) *stream_ << "\r\033[K" << std::flush;
}

void ProgressBar::Update(uint64_t done, uint64_t total) {
  const absl::Duration now = SteadyNow();
  if (stream_ == nullptr || (drawn_ && now - last_ < absl::Milliseconds(100))) return;
  drawn_ = true;
  last_ = now;
  const double seconds = absl::ToDoubleSeconds(now - start_);
  const double part = total == 0 ? 1 : static_cast<double>(done) / total;
  const int filled = static_cast<int>(part * kBarWidth);
  *stream_ << absl::StreamFormat("\r[%s%s] %3.0f%%  %s  %s left \033[K", std::string(filled, '#'),
                                 std::string(kBarWidth - filled, ' '), part * 100,
                                 HumanRate(done, seconds),
                                 HumanSeconds(part > 0 ? seconds / part - seconds : -1))
           << std::flush;
}

}  // namespace tessera::ckpt
