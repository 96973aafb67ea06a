#ifndef TESSERA_TESTS_DEVICE_CHECK_PROGRAM_CHECKS_H_
#define TESSERA_TESTS_DEVICE_CHECK_PROGRAM_CHECKS_H_

// Checks that are programs of their own.

#include <filesystem>
#include <string>
#include <vector>

#include "tests/device/check/check.h"

namespace tessera::testing {

// Runs each program in `programs`, tests in GoogleTest's form: all must pass, and none may skip a
// case. Skipped where the folder has none.
CheckOutcome RunTestPrograms(const std::filesystem::path& programs,
                             const std::filesystem::path& scratch);

// Runs `command` under one tool of compute-sanitizer ("memcheck", "racecheck"), which must find
// nothing. Skipped where there is no compute-sanitizer in $PATH or with the CUDA toolkit.
CheckOutcome RunSanitizer(const std::string& tool, const std::vector<std::string>& command,
                          const std::filesystem::path& scratch);

// The path of the program in $PATH or in one of `folders`; empty if they do not have it.
std::string FindProgram(const std::string& name, const std::vector<std::string>& folders);

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_DEVICE_CHECK_PROGRAM_CHECKS_H_
