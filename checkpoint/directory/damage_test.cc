// A status keeps which parts are damaged, through agreements and whatever else it says.

#include "checkpoint/internal/damage.h"

#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"

namespace tessera::ckpt {
namespace {

using Parts = std::vector<DamagedPart>;

const absl::Status kLoss = absl::DataLossError("a wrong checksum");

// The status of damage, with other text in the place of its parts.
absl::Status WithText(const std::string& text) {
  absl::Status changed = WithDamagedParts(kLoss, {});
  std::string key;
  changed.ForEachPayload(
      [&](absl::string_view name, const absl::Cord&) { key = std::string(name); });
  changed.SetPayload(key, absl::Cord(text));
  return changed;
}

TEST(DamageTest, TheStatusKeepsItsPartsAndItsText) {
  const Parts parts = {{"model-1", 4096, 8192}, {"model-2", 0, 0}};
  for (const absl::Status& status : {kLoss, absl::NotFoundError("no such file")}) {
    const absl::Status damaged = WithDamagedParts(status, parts);
    EXPECT_EQ(damaged.code(), status.code());
    EXPECT_EQ(damaged.message(), status.message());
    EXPECT_EQ(FindDamagedParts(damaged), parts);
    EXPECT_EQ(WithDamagedParts(damaged, {{"model-3", 1, 2}}), damaged) << "the first ones stay";
    EXPECT_EQ(FindDamagedParts(status), std::nullopt);
  }
}

TEST(DamageTest, AnErrorThatIsNoDamageGetsNoParts) {
  for (const absl::Status& status : {absl::OkStatus(), absl::UnavailableError("no answer")}) {
    EXPECT_FALSE(MayBeDamage(status));
    EXPECT_EQ(WithDamagedParts(status, {{"model-1", 1, 2}}), status);
    EXPECT_EQ(FindDamagedParts(status), std::nullopt);
  }
}

TEST(DamageTest, AnUnknownPlaceIsAPartWithoutAFile) {
  EXPECT_EQ(FindDamagedParts(WithDamagedParts(kLoss, {})), Parts{DamagedPart()});
}

TEST(DamageTest, TheFirstEightPartsAreKept) {
  Parts parts;
  for (uint64_t i = 0; i < 8; ++i) parts.push_back({"model", i, i + 1});
  const Parts eight = parts;
  EXPECT_EQ(FindDamagedParts(WithDamagedParts(kLoss, eight)), eight);
  parts.push_back({"model", 8, 9});
  EXPECT_EQ(FindDamagedParts(WithDamagedParts(kLoss, parts)), eight);
}

// Each agreement of ranks puts a number in front.
TEST(DamageTest, TheLastAgreementIsTheOuterOne) {
  EXPECT_EQ(FindDamagedParts(WithText("3 4096 8192 model\n7 3 0 1 other")),
            (Parts{{"model", 4096, 8192, 3}, {"other", 0, 1, 3}}));
}

TEST(DamageTest, OtherTextHasNoParts) {
  for (const char* const text : {"", "model", "8192 model", "x 8192 model", "4096 x model",
                                 "x 4096 8192 model", "0 4096 8192 model\nmodel"}) {
    EXPECT_EQ(FindDamagedParts(WithText(text)), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace tessera::ckpt
