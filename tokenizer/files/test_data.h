#ifndef TESSERA_TOKENIZER_FILES_TEST_DATA_H_
#define TESSERA_TOKENIZER_FILES_TEST_DATA_H_

// The files of //tokenizer:testdata, for tests.

#include <cstdint>
#include <string>

#include "base/files.h"
#include "base/testing.h"
#include "compute/random/philox.h"
#include "nlohmann/json.hpp"

namespace tessera {

inline std::string TestFile(const std::string& name) {
  return OrFail(ReadWholeFile("tokenizer/testdata/" + name));
}

inline nlohmann::json TestJson(const std::string& name) {
  return nlohmann::json::parse(TestFile(name));
}

// Returns the number `i` of a stream of random ones, the same in each run.
inline uint32_t RandomNumber(uint64_t stream, uint64_t i) {
  return RandomWord({1, RandomUse::kSampling, stream}, i);
}

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_FILES_TEST_DATA_H_
