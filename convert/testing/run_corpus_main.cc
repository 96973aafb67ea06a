// Runs a libFuzzer entry point over files without libFuzzer: each file as it is, cut short, and
// with single bytes changed. Ends with status 1 where no file was found; the entry point aborts
// where it finds a fault.
//   run_corpus FOLDER...

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

// Variants of one file, at most; larger files are varied at every n-th byte.
constexpr size_t kMaxVariants = 50;

void Run(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

void RunVariants(const std::string& input) {
  Run(input);
  const size_t step = input.size() / kMaxVariants + 1;
  for (size_t i = 0; i < input.size(); i += step) {
    Run(input.substr(0, i));
    std::string changed = input;
    for (const char flip : {'\x01', '\x80'}) {
      changed[i] = static_cast<char>(input[i] ^ flip);
      Run(changed);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  size_t files = 0;
  for (int i = 1; i < argc; ++i) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[i])) {
      if (!entry.is_regular_file()) continue;
      std::ifstream stream(entry.path(), std::ios::binary);
      RunVariants({std::istreambuf_iterator<char>(stream), {}});
      ++files;
    }
  }
  std::cout << files << " files\n";
  return files > 0 ? 0 : 1;
}
