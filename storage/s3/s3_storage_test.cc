#include "storage/s3/s3_storage.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/checked_math.h"
#include "base/crc32c.h"
#include "base/testing.h"
#include "base/text.h"
#include "base/threads.h"
#include "gtest/gtest.h"
#include "storage/s3/s3_file.h"
#include "storage/s3/testing/s3_server.h"
#include "storage/testing/storage_conformance.h"

namespace tessera {
namespace {

using s3::Fault;
using s3::FaultKind;
using s3::S3Server;
using s3::S3ServerOptions;
using s3::Vendor;

constexpr FixtureTraits kObjectStore = {.has_directories = false,
                                        .files_change_after_sync = false,
                                        .readers_keep_replaced_files = false};

StorageFixture OnServer(std::string name, const S3ServerOptions& options, const std::string& prefix,
                        const std::vector<Fault>& faults = {}) {
  struct Owner {
    explicit Owner(const S3ServerOptions& options) : server(options) {}
    S3Server server;
    std::unique_ptr<Storage> storage;
  };
  const auto make = [options, prefix, faults]() -> std::shared_ptr<Storage> {
    auto owner = std::make_shared<Owner>(options);
    auto storage =
        OpenS3Storage({.client = owner->server.ForClient(), .prefix = prefix, .create_root = true});
    EXPECT_OK(storage);
    if (!storage.ok()) return nullptr;
    owner->storage = *std::move(storage);
    for (const Fault& fault : faults) owner->server.AddFault(fault);
    return {owner, owner->storage.get()};
  };
  return {.name = std::move(name), .make = make, .traits = kObjectStore};
}

// Failures that pass, of every kind, at requests of every kind.
std::vector<Fault> Storm() {
  constexpr int kAlways = 1 << 30;
  return {{.kind = FaultKind::kRefuse,
           .status = 503,
           .code = "SlowDown",
           .period = 7,
           .times = kAlways},
          {.kind = FaultKind::kRefuse, .status = 500, .period = 11, .times = kAlways},
          {.kind = FaultKind::kDrop, .period = 13, .times = kAlways},
          {.kind = FaultKind::kLoseAnswer, .period = 17, .times = kAlways},
          {.kind = FaultKind::kTear, .period = 19, .times = kAlways},
          {.kind = FaultKind::kDamageRequest, .method = "PUT", .period = 5, .times = kAlways}};
}

INSTANTIATE_TEST_SUITE_P(S3, StorageConformance,
                         testing::Values(OnServer("S3", {}, "runs/a"),
                                         OnServer("S3WholeBucketSmallPages", {.max_keys = 2}, ""),
                                         OnServer("S3Stormy", {}, "runs/a", Storm())),
                         StorageFixtureName);

// Stores of others, by their rules.
std::vector<StorageFixture> OfVendors() {
  std::vector<StorageFixture> fixtures;
  const std::pair<Vendor, std::string> vendors[] = {
      {Vendor::kVolcano, "Volcano"}, {Vendor::kAliyun, "Aliyun"}, {Vendor::kGoogle, "Google"}};
  for (const auto& [vendor, name] : vendors) {
    for (const bool storm : {false, true}) {
      fixtures.push_back(OnServer(name + (storm ? "Stormy" : ""), {.vendor = vendor}, "runs/a",
                                  storm ? Storm() : std::vector<Fault>()));
      fixtures.back().traits.honors_conditions = vendor == Vendor::kGoogle;
    }
  }
  return fixtures;
}

INSTANTIATE_TEST_SUITE_P(OthersThanAmazon, StorageConformance, testing::ValuesIn(OfVendors()),
                         StorageFixtureName);

std::string StoredPattern(size_t size) {
  std::string text(size, '\0');
  for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * 0x9E3779B97F4A7C15u >> 56);
  return text;
}

class S3StorageTest : public testing::Test {
 protected:
  S3StorageTest() { Open({}); }

  // Part sizes as small as S3 allows.
  void Open(S3StorageOptions options) {
    options.client = server_.ForClient();
    options.prefix = "run";
    options.part_bytes = s3::kMinPartBytes;
    ASSERT_OK_AND_ASSIGN(auto storage, OpenS3Storage(options));
    storage_ = std::move(storage);
  }

  int CountRequests(const std::string& beginning) const {
    int count = 0;
    for (const std::string& request : server_.requests()) count += request.starts_with(beginning);
    return count;
  }

  S3Server server_;
  std::unique_ptr<Storage> storage_;
};

// Four threads write and read pieces in any order.
TEST_F(S3StorageTest, ALargeFileIsUploadedInParts) {
  constexpr size_t kPiece = (size_t{1} << 20) + 13;
  constexpr int kPieces = 22, kStep = 7;  // in the order 0, 7, 14, 21, 6, ...
  const std::string contents = StoredPattern(kPiece * kPieces - 5);
  ASSERT_OK_AND_ASSIGN(auto file, storage_->Create("file", contents.size()));
  const auto in_threads = [&](const auto& piece) {
    return RunTasks(4, kPieces, [&](int, size_t i) {
      const size_t offset = i * kStep % kPieces * kPiece;
      return piece(offset, std::min(kPiece, contents.size() - offset));
    });
  };
  EXPECT_EQ(in_threads([&](size_t offset, size_t size) {
              return file->WriteAt(offset, AsBytes(contents).subspan(offset, size));
            }),
            absl::OkStatus());
  EXPECT_TRUE(server_.keys().empty()) << "it does not exist before it is complete";
  ASSERT_OK(file->Sync());
  EXPECT_TRUE(server_.contents("run/file") == contents);
  ASSERT_OK(file->Close());
  EXPECT_EQ(CountRequests("PUT run/file?partNumber="), 5);
  ASSERT_OK_AND_ASSIGN(const auto reader, storage_->Open("file"));
  std::string found(contents.size(), '\0');
  EXPECT_EQ(in_threads([&](size_t offset, size_t size) {
              return reader->ReadAt(offset,
                                    std::as_writable_bytes(std::span(found)).subspan(offset, size));
            }),
            absl::OkStatus());
  EXPECT_TRUE(found == contents);
}

TEST_F(S3StorageTest, AWriteOfWholePartsAndGapsIsPutTogether) {
  const std::string contents = StoredPattern(2 * s3::kMinPartBytes);
  // Leaves a buffer with other bytes in PartMemory, which gives it to part 3.
  ASSERT_OK(WriteAll(*storage_, "before", contents.substr(1, s3::kMinPartBytes - 1)));
  ASSERT_OK_AND_ASSIGN(auto file, storage_->Create("file", 0));
  // Parts 1 and 2 at once; nothing of part 0; a byte of part 3; part 4 up to a byte in the middle.
  ASSERT_OK(file->WriteAt(s3::kMinPartBytes, AsBytes(contents)));
  ASSERT_OK(file->WriteAt(3 * s3::kMinPartBytes + 9, AsBytes("y")));
  ASSERT_OK(file->WriteAt(4 * s3::kMinPartBytes + 99, AsBytes("x")));
  ASSERT_OK(file->Close());
  std::string expected(4 * s3::kMinPartBytes + 100, '\0');
  expected.replace(s3::kMinPartBytes, contents.size(), contents).back() = 'x';
  expected[3 * s3::kMinPartBytes + 9] = 'y';
  EXPECT_TRUE(server_.contents("run/file") == expected);
  // Nothing is behind the last part.
  ASSERT_OK(WriteAll(*storage_, "whole", contents));
  EXPECT_EQ(CountRequests("PUT run/whole?partNumber="), 2);
}

TEST_F(S3StorageTest, ASmallFileIsOneRequest) {
  ASSERT_OK(WriteAll(*storage_, "d/file", "contents"));
  EXPECT_EQ(server_.requests(), std::vector<std::string>({"PUT run/d/file"}));
}

TEST_F(S3StorageTest, AFileThatIsNotClosedLeavesNothing) {
  const std::string part = StoredPattern(s3::kMinPartBytes);
  {
    auto file = storage_->Create("file", 0);
    ASSERT_OK((*file)->WriteAt(0, AsBytes(part)));
    EXPECT_EQ(server_.upload_count(), 1);
  }
  EXPECT_EQ(server_.upload_count(), 0);
  EXPECT_TRUE(server_.keys().empty());
}

TEST_F(S3StorageTest, AFailedFileLeavesNothing) {
  const std::string part = StoredPattern(s3::kMinPartBytes);
  server_.AddFault({.kind = FaultKind::kRefuse,
                    .status = 403,
                    .code = "AccessDenied",
                    .query = "partNumber",
                    .skip = 1});
  {
    auto file = storage_->Create("file", 0);
    ASSERT_OK((*file)->WriteAt(0, AsBytes(part)));
    const absl::Status failed = (*file)->WriteAt(part.size(), AsBytes(part));
    EXPECT_EQ(failed.code(), absl::StatusCode::kPermissionDenied) << failed;
    EXPECT_EQ((*file)->Sync().code(), absl::StatusCode::kPermissionDenied) << "errors are final";
    EXPECT_EQ((*file)->Close().code(), absl::StatusCode::kPermissionDenied);
  }
  EXPECT_EQ(server_.upload_count(), 0);
  EXPECT_TRUE(server_.keys().empty());
  server_.AddFault(
      {.kind = FaultKind::kRefuse, .status = 403, .code = "AccessDenied", .method = "PUT"});
  ASSERT_OK_AND_ASSIGN(const auto small, storage_->Create("small", 0));
  ASSERT_OK(small->WriteAt(0, AsBytes("x")));
  EXPECT_EQ(small->Sync().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(small->Close().code(), absl::StatusCode::kPermissionDenied) << "what it had is gone";
  EXPECT_TRUE(server_.keys().empty());
}

TEST_F(S3StorageTest, MemoryForIncompletePartsIsBounded) {
  Open({.max_buffered_bytes = 3000});
  auto file = storage_->Create("file", 0);
  const std::string piece(1000, 'x');
  for (uint64_t part = 0; part < 3; ++part) {
    ASSERT_OK((*file)->WriteAt(part * s3::kMinPartBytes, AsBytes(piece)));
  }
  const absl::Status status = (*file)->WriteAt(3 * s3::kMinPartBytes, AsBytes(piece));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  file->reset();
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK(WriteAll(*storage_, "file", piece + piece)) << "what it held is free again";
  }
}

TEST(PartMemoryTest, KeepsBuffersOfOneSize) {
  s3::PartMemory memory(/*limit_bytes=*/0, /*buffer_bytes=*/8192);
  AlignedBuffer kept = *memory.TakeBuffer(8192);
  const std::byte* const data = kept.data();
  memory.ReturnBuffer(std::move(kept));
  memory.ReturnBuffer(*memory.TakeBuffer(4096));
  EXPECT_EQ(memory.TakeBuffer(16'384)->size_bytes(), 16'384);
  EXPECT_EQ(memory.TakeBuffer(8192)->data(), data);
}

// The store refuses bytes that are not those of the checksum, from whoever computed it.
TEST_F(S3StorageTest, AKnownChecksumGoesWithThePart) {
  const uint64_t part = s3::kMinPartBytes;
  const std::string contents = StoredPattern(2 * part);
  const auto crcs_of = [&](uint64_t chunk_bytes) {
    std::vector<uint32_t> crcs;
    for (uint64_t at = 0; at < contents.size(); at += chunk_bytes) {
      crcs.push_back(Crc32c(std::string_view(contents).substr(at, chunk_bytes)));
    }
    return crcs;
  };
  const auto write = [&](uint64_t chunk_bytes, const std::vector<uint32_t>& crcs) {
    const auto storage =
        *OpenS3Storage({.client = server_.ForImpatientClient(), .part_bytes = part});
    const auto file = *storage->Create("file", contents.size());
    const absl::Status written = file->WriteCheckedAt(0, AsBytes(contents), {chunk_bytes, crcs});
    return written.ok() ? file->Close() : written;
  };
  for (const uint64_t chunk : {part, part / 5, uint64_t{1} << 20}) {
    std::vector<uint32_t> crcs = crcs_of(chunk);
    EXPECT_OK(write(chunk, crcs));
    EXPECT_EQ(server_.contents("file"), contents);
    crcs[crcs.size() / 2] ^= 1;  // of the second part
    EXPECT_TRUE(absl::IsUnavailable(write(chunk, crcs))) << chunk;
  }
  // They say nothing of parts that begin or end within a chunk, or are not covered.
  EXPECT_OK(write(3 << 20, {1, 2, 3, 4}));
  EXPECT_OK(write(1 << 20, {}));
  EXPECT_EQ(server_.contents("file"), contents);
}

TEST_F(S3StorageTest, WritesOfThePreferredSizeNeedNoMemoryForParts) {
  Open({.max_buffered_bytes = 3000});
  const uint64_t size = storage_->Traits().preferred_write_bytes;
  const std::string bytes = StoredPattern(size);
  const auto file = storage_->Create("file", 2 * size);
  ASSERT_OK((*file)->WriteAt(size, AsBytes(bytes)));
  ASSERT_OK((*file)->WriteAt(0, AsBytes(bytes)));
  ASSERT_OK((*file)->Close());
  EXPECT_EQ(*ReadAll(*storage_, "file", 2 * size), bytes + bytes);
}

TEST_F(S3StorageTest, DeletingATreeAndMakingADirectoryAbortTheUploadsInside) {
  const std::string part = StoredPattern(s3::kMinPartBytes);
  for (const auto abort : {&Storage::DeleteTree, &Storage::MakeDirectory}) {
    auto inside = storage_->Create("step/file", 0), beside = storage_->Create("steps/file", 0);
    ASSERT_OK((*inside)->WriteAt(0, AsBytes(part)));
    ASSERT_OK((*beside)->WriteAt(0, AsBytes(part)));
    ASSERT_OK(storage_->MakeDirectory(""));
    EXPECT_EQ(server_.upload_count(), 2);
    ASSERT_OK(((*storage_).*abort)("step"));
    EXPECT_EQ(server_.upload_count(), 1);
    EXPECT_EQ(storage_->DeleteTree("step").code(), absl::StatusCode::kNotFound);
    EXPECT_FALSE((*inside)->Close().ok()) << "its writer notices";
    ASSERT_OK((*beside)->Close());
    EXPECT_EQ(server_.keys(), std::vector<std::string>({"run/steps/file"}));
  }
}

TEST_F(S3StorageTest, WritingANewFileIsOneConditionalRequest) {
  ASSERT_OK(storage_->Write("d/file", "first", {}));
  EXPECT_EQ(server_.requests(), std::vector<std::string>({"PUT run/d/file"}));
  server_.AddFault({.kind = FaultKind::kLoseAnswer, .method = "PUT"});
  EXPECT_OK(storage_->Write("d/other", "x", {})) << "it is this call's own";
  const absl::Status second = storage_->Write("d/file", "second", {}).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kAlreadyExists) << second;
  EXPECT_EQ(server_.contents("run/d/file"), "first");
}

// What a repetition finds after a lost answer, in a store that answers 409 and one of generations.
TEST(S3VendorTest, ANewFileReplacesNothingAndIsKnownAsOnesOwn) {
  for (const Vendor vendor : {Vendor::kVolcano, Vendor::kAliyun, Vendor::kGoogle}) {
    S3Server server({.vendor = vendor});
    ASSERT_OK_AND_ASSIGN(auto storage, OpenS3Storage({.client = server.ForClient(),
                                                      .prefix = "run",
                                                      .name = "x://bucket",
                                                      .create_root = true}));
    server.AddFault({.kind = FaultKind::kLoseAnswer, .method = "PUT"});
    EXPECT_OK(storage->Write("d/file", "first", {}));
    const size_t before = server.requests().size();
    const absl::Status again = storage->Write("d/file", "second", {}).status();
    EXPECT_EQ(again,
              absl::AlreadyExistsError("Write x://bucket/run/d/file: another object is there"));
    EXPECT_EQ(server.requests().size(), before + 2) << "it is not repeated";
    EXPECT_EQ(server.contents("run/d/file"), "first");
    // Parts, each with its checksum.
    const std::string part = StoredPattern(s3::ChoosePartBytes(0, 0));
    server.AddFault({.kind = FaultKind::kDamageRequest, .query = "partNumber"});
    ASSERT_OK(WriteAll(*storage, "large", part + part + "end"));
    EXPECT_TRUE(server.contents("run/large") == part + part + "end");
  }
}

// A small file is read by one request; the version that it returns is the one that is replaced.
TEST(S3VendorTest, AVersionIsReplacedOnlyByThoseWhoHaveReadIt) {
  S3Server oss({.vendor = Vendor::kAliyun}), gcs({.vendor = Vendor::kGoogle});
  const auto none = OpenS3Storage({.client = oss.ForClient(), .prefix = ""});
  EXPECT_FALSE((*none)->Traits().replaces_versions);
  ASSERT_OK((*none)->Write("lease", "x", {}));
  const absl::Status status = (*none)->Write("lease", "y", {.version = "\"1\""}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
  EXPECT_EQ(oss.contents("lease"), "x");

  const auto storage = OpenS3Storage({.client = gcs.ForClient(), .prefix = ""});
  EXPECT_TRUE((*storage)->Traits().replaces_versions);
  ASSERT_OK_AND_ASSIGN(const auto first, (*storage)->Write("lease", "first", {}));
  const size_t before = gcs.requests().size();
  EXPECT_EQ((*storage)->Read("lease", 100)->version, first);
  EXPECT_EQ(gcs.requests().size(), before + 1);
  ASSERT_OK_AND_ASSIGN(const auto second, (*storage)->Write("lease", "second", {.version = first}));
  EXPECT_TRUE(absl::IsAlreadyExists((*storage)->Write("lease", "third", {}).status()));
  for (const std::string version : {first.c_str(), "\"0000\""}) {
    const absl::Status refused = (*storage)->Write("lease", "third", {.version = version}).status();
    EXPECT_TRUE(absl::IsAborted(refused)) << version << ": " << refused;
  }
  EXPECT_EQ(gcs.contents("lease"), "second");
  const size_t proven = gcs.requests().size();
  ASSERT_OK((*storage)->Write("lease", "third", {.version = second}));
  EXPECT_EQ(gcs.requests().size(), proven + 1) << "the store has proved already that it obeys";
  ASSERT_OK((*storage)->Delete("lease"));
  EXPECT_TRUE(absl::IsAborted((*storage)->Write("lease", "fourth", {.version = second}).status()));
}

TEST_F(S3StorageTest, ReadsSmallFilesOfAnySizeUpToTheLimit) {
  for (const size_t size : {0, 1, 65'535, 65'536, 65'537, 5'000'000}) {
    server_.PutObject("run/file", StoredPattern(size));
    ASSERT_OK_AND_ASSIGN(const auto found, storage_->Read("file", size));
    EXPECT_EQ(found.contents, StoredPattern(size));
    if (size == 0) continue;
    const absl::Status longer = storage_->Read("file", size - 1).status();
    EXPECT_TRUE(absl::IsResourceExhausted(longer)) << longer;
  }
  server_.AddFault({.status = 403, .code = "AccessDenied", .skip = 1});
  EXPECT_TRUE(absl::IsPermissionDenied(storage_->Read("file", 5'000'000).status()))
      << "of the rest";
  EXPECT_TRUE(absl::IsNotFound(storage_->Read("none", 10).status()));
}

TEST_F(S3StorageTest, OldUploadsOfItsOwnAreRemovedWhenTheStorageIsOpenedForWriting) {
  s3::S3Client client(server_.ForClient());
  for (const std::string key : {"mine-1", "other", "deep/mine-1"}) {
    for (const std::string prefix : {"", "run/"}) ASSERT_OK(client.CreateUpload(prefix + key));
  }
  server_.AgeUploads(absl::Hours(25));
  auto recent = storage_->Create("mine-2", 0);
  ASSERT_OK((*recent)->WriteAt(0, AsBytes(StoredPattern(s3::kMinPartBytes))));
  const auto open = [&](const char* prefix, bool create_root, const char* own) {
    ASSERT_OK(OpenS3Storage({.client = server_.ForClient(),
                             .prefix = prefix,
                             .create_root = create_root,
                             .own_uploads = own}));
  };
  open("", true, "");
  open("", false, "mine-.*");
  EXPECT_EQ(server_.upload_count(), 7);
  open("", true, "mine-.*");
  open("run", true, "mine-.*");
  std::vector<std::string> left;
  const auto uploads = client.ListUploads("");
  for (const auto& upload : *uploads) left.push_back(upload.key);
  EXPECT_EQ(left, std::vector<std::string>(
                      {"deep/mine-1", "other", "run/deep/mine-1", "run/mine-2", "run/other"}));
  EXPECT_OK((*recent)->Close());
}

TEST_F(S3StorageTest, PartsGrowWithTheFile) {
  EXPECT_EQ(s3::ChoosePartBytes(1, 0), s3::kMinPartBytes);
  EXPECT_EQ(s3::ChoosePartBytes(8 << 20, 1 << 30), 8 << 20);
  for (const uint64_t size : {uint64_t{100} << 30, uint64_t{1} << 40, s3::kMaxObjectBytes}) {
    const uint64_t part_bytes = s3::ChoosePartBytes(8 << 20, size);
    EXPECT_LE(CeilDivide(size, part_bytes), s3::kMaxParts) << size;
    EXPECT_LE(part_bytes, (size / s3::kMaxParts) + (uint64_t{2} << 20)) << size;
  }
}

}  // namespace
}  // namespace tessera
