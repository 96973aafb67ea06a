#ifndef TESSERA_TESTS_INTEROP_CHANGED_COPIES_H_
#define TESSERA_TESTS_INTEROP_CHANGED_COPIES_H_

// Changes of a copy of a checkpoint, for tests of what readers refuse.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_replace.h"
#include "base/testing.h"
#include "convert/testing/string_file.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/interop/foreign_run.h"
#include "tests/support/command.h"

namespace tessera::testing {

// What is done to the copy of a checkpoint.
using Change = std::function<void(const std::filesystem::path& copy)>;

inline constexpr auto kReplace =
    std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing;

inline Change Remove(const std::vector<std::string>& names) {
  return [names](const std::filesystem::path& copy) {
    for (const std::string& name : names)
      EXPECT_GT(std::filesystem::remove_all(copy / name), 0) << name;
  };
}

// Copies a file or folder of another fixture, or of the copy itself.
inline Change CopyFrom(const std::string& fixture, const std::string& to) {
  return [=](const std::filesystem::path& copy) {
    std::filesystem::copy(Fixture(fixture), copy / to, kReplace);
  };
}
inline Change CopyWithin(const std::string& from, const std::string& to) {
  return [=](const std::filesystem::path& copy) {
    std::filesystem::copy(copy / from, copy / to, kReplace);
  };
}

inline Change Exchange(const std::string& a, const std::string& b) {
  return [=](const std::filesystem::path& copy) {
    std::filesystem::rename(copy / a, copy / "exchanged");
    std::filesystem::rename(copy / b, copy / a);
    std::filesystem::rename(copy / "exchanged", copy / b);
  };
}

inline Change Write(const std::string& name, const std::string& contents) {
  return [=](const std::filesystem::path& copy) { WriteFile(copy / name, contents); };
}

// Changes the contents of a file, whose checksums are then left out where it has some.
inline Change Edit(const std::string& name,
                   const std::function<void(std::string& contents)>& edit) {
  return [=](const std::filesystem::path& copy) {
    std::string contents = ReadFile(copy / name);
    const std::string before = contents;
    edit(contents);
    EXPECT_NE(contents, before) << name;
    Write(name, ckpt::convert::WithoutChecksums(std::move(contents)))(copy);
  };
}

inline Change Replace(const std::string& name, const std::string& from, const std::string& to) {
  return Edit(name, [=](std::string& contents) {
    contents = absl::StrReplaceAll(contents, {{from, to}});
  });
}

inline Change EditJson(const std::string& name,
                       const std::function<void(nlohmann::json& json)>& edit) {
  return Edit(name, [=](std::string& contents) {
    nlohmann::json json = nlohmann::json::parse(contents);
    edit(json);
    contents = json.dump();
  });
}

// Flips a bit of the elements of a tensor, which are found by their bytes.
inline Change FlipTensor(const std::string& name, const std::string& oracle,
                         const std::string& tensor) {
  return Edit(name, [=](std::string& contents) {
    ASSERT_OK_AND_ASSIGN(const auto state, ReadFp32State(Fixture(oracle)));
    const auto& bytes = state.at(tensor).bytes;
    const size_t at =
        contents.find(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    ASSERT_NE(at, contents.npos);
    contents[at] ^= 1;
  });
}

// Sets a small number, which follows its name in a pickle.
inline Change SetNumber(const std::string& name, const std::string& key, char from, char to) {
  return Edit(name, [=](std::string& contents) {
    const size_t value = contents.find(std::string("K") + from, contents.find(key));
    ASSERT_NE(value, contents.npos);
    contents[value + 1] = to;
  });
}

// A size of a bucket without padding, which releases up to 0.10 need.
inline Change SetBucketSize(uint16_t size) {
  return Edit("__0_0.distcp", [=](std::string& contents) {
    const std::string stored("\x80\x04M\x18\x04M\x40\x04", 8);  // of 1152, 1048, 1088
    const size_t at = contents.find(stored);
    ASSERT_NE(at, contents.npos);
    contents[at] = static_cast<char>(size & 0xff);
    contents[at + 1] = static_cast<char>(size >> 8);
  });
}

inline Change All(const std::vector<Change>& changes) {
  return [changes](const std::filesystem::path& copy) {
    for (const Change& change : changes) change(copy);
  };
}

// A change that a reader must refuse.
struct Refusal {
  std::string name;
  std::string checkpoint;  // below tests/interop/
  Change change;
  std::vector<std::string> said;  // parts of the message
};

inline std::ostream& operator<<(std::ostream& out, const Refusal& refusal) {
  return out << refusal.name;
}

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_INTEROP_CHANGED_COPIES_H_
