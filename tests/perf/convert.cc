// `ckpt convert` from a checkpoint of this library, and from another framework's files to one,
// against what the same disk does with direct I/O and nothing else. The disk reads as many bytes as
// are written, writes them, and reads as many again. The second read stands for the command's
// proof, without which no conversion ends: it reads back what it has written or, with --to=tessera,
// reads the source, which has no digests, a second time. Each round measures all of it. Prints
//   figure convert.<format>.disk_ratio <value> ratio
//   figure convert.<format>.disk_ratio_without_proof <value> ratio   without the second read of the
//                                                                    disk, but with the command's
// for each format that is written, and the rates behind them. Medians over the rounds.
//
// <format> alone: the training state of GPT-2 124M (fp32 weights and two moments), from llm.c's
// files. Its matrices are transposed on the way to and from llm.c and Megatron. <format>_llama: the
// fp32 weights of a Llama of 340 million parameters, from Hugging Face's files. Nothing of it is
// transposed; Megatron's queries, keys and values of each group of heads are one tensor.

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "convert/write_foreign.h"
#include "tests/perf/foreign_folders.h"
#include "tests/perf/harness.h"
#include "tests/perf/raw_disk.h"
#include "tools/ckpt/commands.h"

ABSL_FLAG(std::string, directory, "", "where to write about 9 GB; default: a new one under /tmp");
ABSL_FLAG(int, rounds, 2, "how often everything is measured");
ABSL_FLAG(std::vector<std::string>, formats, {}, "to write; default: all");

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr char kGpt2[] =
    "num_layers: 12 hidden_size: 768 num_attention_heads: 12 vocab_size: 50257 "
    "max_position_embeddings: 1024";

constexpr std::string_view kLlamaSuffix = "_llama";
constexpr char kLlama[] =
    "architecture: LLAMA3 num_layers: 18 hidden_size: 1024 ffn_hidden_size: 4096 "
    "num_attention_heads: 16 num_query_groups: 4 vocab_size: 32000 "
    "max_position_embeddings: 2048 untie_embeddings_and_output_weights: true "
    "use_rope_scaling: false";  // Paddle has no scaled frequencies

// Some formats are one file.
uint64_t BytesIn(const std::string& path) {
  if (fs::is_regular_file(path)) return fs::file_size(path);
  uint64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    if (entry.is_regular_file()) bytes += entry.file_size();
  }
  return bytes;
}

absl::StatusOr<double> ConvertSeconds(const std::string& from, const std::string& to,
                                      const std::string& format) {
  std::ostringstream out, err;
  const double start = Now();
  const int exit_code = ckpt::RunCkpt({"convert", from, to, "--to=" + format}, {out, err, nullptr});
  if (exit_code == ckpt::kExitOk) return Now() - start;
  return absl::InternalError(absl::StrCat("convert --to=", format, ": ", err.str()));
}

class Measurement {
 public:
  explicit Measurement(const std::string& directory) : directory_(directory) {}

  absl::Status Run() {
    std::vector<std::string> formats = absl::GetFlag(FLAGS_formats);
    if (formats.empty()) {
      formats = ckpt::convert::WrittenFormatNames();
      formats.emplace_back("tessera");
      for (size_t i = 0, count = formats.size(); i < count; ++i) {
        formats.push_back(absl::StrCat(formats[i], std::string(kLlamaSuffix)));
      }
    }
    TESSERA_RETURN_IF_ERROR(MakeSources(formats));
    sync();  // nothing of it is written while something is measured
    TESSERA_ASSIGN_OR_RETURN(best_, FindRawDiskShapes(directory_, source_bytes_));
    TESSERA_ASSIGN_OR_RETURN(RawDiskFile raw, RawDiskFile::Create(directory_, source_bytes_));
    TESSERA_RETURN_IF_ERROR(ForEachRound(absl::GetFlag(FLAGS_rounds), [&](int) -> absl::Status {
      for (const std::string& format : formats) {
        std::fprintf(stderr, "  %s\n", format.c_str());
        TESSERA_RETURN_IF_ERROR(MeasureFormat(format, raw));
      }
      return absl::OkStatus();
    }));
    for (const auto& [format, ratios] : ratios_) {
      PrintFigure(absl::StrCat("convert.", format, ".disk_ratio"), Median(ratios));
      PrintFigure(absl::StrCat("convert.", format, ".disk_ratio_without_proof"),
                  Median(ratios_without_proof_[format]));
    }
    return absl::OkStatus();
  }

 private:
  std::string In(const std::string& name) const { return directory_ + "/" + name; }

  absl::Status MakeSources(const std::vector<std::string>& formats) {
    const bool llama = std::ranges::any_of(formats, IsLlama);
    if (llama) {
      fs::create_directories(In("hf"));
      TESSERA_RETURN_IF_ERROR(WriteHuggingFaceFolder(In("hf"), kLlama));
      source_bytes_ = BytesIn(In("hf"));
      TESSERA_RETURN_IF_ERROR(ConvertSeconds(In("hf"), In("source_llama"), "tessera").status());
    }
    if (std::ranges::all_of(formats, IsLlama)) return absl::OkStatus();
    fs::create_directories(In("llmc"));
    TESSERA_RETURN_IF_ERROR(WriteLlmcFolder(In("llmc"), kGpt2, /*random_values=*/true));
    source_bytes_ = std::max(source_bytes_, BytesIn(In("llmc")));
    return ConvertSeconds(In("llmc"), In("source"), "tessera").status();
  }

  static bool IsLlama(const std::string& format) { return format.ends_with(kLlamaSuffix); }

  absl::Status MeasureFormat(const std::string& format, RawDiskFile& raw) {
    TESSERA_ASSIGN_OR_RETURN(const double raw_write, raw.WriteOnce(best_.write));
    TESSERA_ASSIGN_OR_RETURN(const double raw_read, raw.ReadOnce(best_.read));
    const bool llama = IsLlama(format);
    const std::string name = llama ? format.substr(0, format.size() - kLlamaSuffix.size()) : format;
    const std::string foreign = In(llama ? "hf" : "llmc");
    const std::string from = name == "tessera" ? foreign : In(llama ? "source_llama" : "source");
    const std::string to = In("converted");
    const double processors = ProcessorSeconds();
    TESSERA_ASSIGN_OR_RETURN(const double seconds, ConvertSeconds(from, to, name));
    const double busy = ProcessorSeconds() - processors;
    const uint64_t bytes = BytesIn(to);
    fs::remove_all(to);
    const double once = static_cast<double>(bytes) * (1 / raw_read + 1 / raw_write);
    const double raw_seconds = once + static_cast<double>(bytes) / raw_read;
    std::printf(
        "%s: %.0f MB written in %.2f s, %.2f s of processors; raw disk: reading %.0f MB/s, writing "
        "%.0f MB/s\n",
        format.c_str(), static_cast<double>(bytes) / 1e6, seconds, busy, raw_read / 1e6,
        raw_write / 1e6);
    std::fflush(stdout);
    ratios_[format].push_back(raw_seconds / seconds);
    ratios_without_proof_[format].push_back(once / seconds);
    return absl::OkStatus();
  }

  const std::string directory_;
  uint64_t source_bytes_ = 0;
  RawDiskShapes best_;
  std::map<std::string, std::vector<double>> ratios_, ratios_without_proof_;  // by format
};

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return tessera::RunProgram("convert", [] {
    return tessera::WithFolder(absl::GetFlag(FLAGS_directory), [](const std::string& folder) {
      return tessera::Measurement(folder).Run();
    });
  });
}
