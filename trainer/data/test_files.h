#ifndef TESSERA_TRAINER_DATA_TEST_FILES_H_
#define TESSERA_TRAINER_DATA_TEST_FILES_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "base/files.h"
#include "base/testing.h"
#include "gtest/gtest.h"

namespace tessera {

inline std::span<const uint8_t> AsBytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

inline std::string Slurp(const std::string& path) { return ReadWholeFile(path).value_or(""); }

inline std::string MessageOf(const auto& status) { return std::string(status.message()); }

// Expects an error of one line, which contains `part`.
inline void ExpectError(const absl::Status& status, absl::StatusCode code,
                        const std::string& part) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_NE(MessageOf(status).find(part), std::string::npos) << status;
  EXPECT_EQ(MessageOf(status).find('\n'), std::string::npos) << status;
}

inline std::string Int32Header(std::vector<int32_t> words) {
  words.resize(256);
  return {reinterpret_cast<const char*>(words.data()), 1024};
}

}  // namespace tessera

#endif  // TESSERA_TRAINER_DATA_TEST_FILES_H_
