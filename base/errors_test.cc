// Tests of the errors that are made of parts.

#include "base/errors.h"

#include <string>

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(Errors, MessagesAreMadeOfParts) {
  EXPECT_EQ(DataLoss("file ", std::string_view("of "), std::string("parts"), ": ", 3),
            absl::DataLossError("file of parts: 3"));
  EXPECT_EQ(InvalidArgument("a", 1), absl::InvalidArgumentError("a1"));
  EXPECT_EQ(Unimplemented("a", 1), absl::UnimplementedError("a1"));
  EXPECT_EQ(FailedPrecondition("a", 1), absl::FailedPreconditionError("a1"));
  EXPECT_EQ(NotFound("a", 1), absl::NotFoundError("a1"));
  EXPECT_EQ(AlreadyExists("a", 1), absl::AlreadyExistsError("a1"));
}

}  // namespace
}  // namespace tessera
