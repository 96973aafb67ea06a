#include "convert/core/foreign_storage.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstring>
#include <random>
#include <span>
#include <utility>

#include "base/status_macros.h"
#include "base/testing.h"
#include "checkpoint/elements/strided_read.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/include/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/dtype.h"
#include "storage/forwarding_storage.h"
#include "storage/testing/memory_storage.h"

namespace tessera::ckpt::convert {
namespace {

using testing::HasSubstr;

// Counts what is read from the files of another storage.
class CountingStorage final : public ForwardingStorage {
 public:
  class File final : public ReadableFile {
   public:
    File(CountingStorage& counts, std::unique_ptr<ReadableFile> file)
        : counts_(counts), file_(std::move(file)) {}
    absl::Status ReadAt(uint64_t offset_bytes, std::span<std::byte> out) const override {
      ++counts_.reads;
      counts_.bytes += out.size();
      counts_.largest = std::max<uint64_t>(counts_.largest, out.size());
      return file_->ReadAt(offset_bytes, out);
    }
    std::unique_ptr<PendingIo> StartReadAt(uint64_t offset_bytes, std::span<std::byte> out,
                                           bool original) const override {
      ++counts_.started;
      return ReadableFile::StartReadAt(offset_bytes, out, original);
    }
    uint64_t size_bytes() const override { return file_->size_bytes(); }

   private:
    CountingStorage& counts_;
    std::unique_ptr<ReadableFile> file_;
  };

  CountingStorage() : CountingStorage(std::make_unique<MemoryStorage>()) {}

  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(std::string_view path) override {
    TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<ReadableFile> file, base().Open(path));
    return std::make_unique<File>(*this, std::move(file));
  }

  MemoryStorage& memory;
  uint64_t reads = 0, bytes = 0;
  std::atomic<uint64_t> largest = 0, started = 0;

 private:
  explicit CountingStorage(std::unique_ptr<MemoryStorage> files)
      : ForwardingStorage(*files), memory(*files), files_(std::move(files)) {}

  const std::unique_ptr<MemoryStorage> files_;
};

std::string Pattern(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random() >> 56);
  return bytes;
}

// Calls fn(global index, row-major element number) for every element of a tensor.
template <typename Function>
void ForEachElement(const Shape& shape, Function&& fn) {
  std::vector<int64_t> index(shape.size(), 0);
  for (int64_t n = 0; n < ElementCount(shape); ++n) {
    fn(index, n);
    for (size_t d = shape.size(); d-- > 0;) {
      if (++index[d] < shape[d]) break;
      index[d] = 0;
    }
  }
}

// A tensor in random pieces with random layouts, the files that hold them, and its true contents.
struct RandomTensor {
  ForeignTensor tensor;
  std::map<std::string, std::string> files;
  std::string expected;
};

class Generator {
 public:
  explicit Generator(uint64_t seed) : random_(seed) {}

  int64_t Below(int64_t bound) {
    return std::uniform_int_distribution<int64_t>(0, bound - 1)(random_);
  }

  RandomTensor Make(const std::string& name) {
    constexpr DType kDTypes[] = {DType::kU8, DType::kBF16, DType::kF32, DType::kI64};
    RandomTensor made;
    made.tensor = {.name = name, .dtype = kDTypes[Below(4)]};
    for (int64_t rank = Below(5); rank > 0; --rank) made.tensor.shape.push_back(1 + Below(9));
    std::vector<Box> boxes = {WholeBox(made.tensor.shape)};
    for (int64_t cuts = Below(6); cuts > 0 && !made.tensor.shape.empty(); --cuts) Cut(boxes);
    for (Box& box : boxes) Store(std::move(box), made);
    const size_t size = ElementSize(made.tensor.dtype);
    made.expected.resize(static_cast<size_t>(ElementCount(made.tensor.shape)) * size);
    ForEachElement(made.tensor.shape, [&](const std::vector<int64_t>& index, int64_t n) {
      const std::string_view element = Find(made, index, size);
      std::memcpy(made.expected.data() + n * static_cast<int64_t>(size), element.data(), size);
    });
    return made;
  }

 private:
  void Cut(std::vector<Box>& boxes) {
    Box& box = boxes[Below(static_cast<int64_t>(boxes.size()))];
    const size_t dim = Below(static_cast<int64_t>(box.shape.size()));
    if (box.shape[dim] < 2) return;
    const int64_t first = 1 + Below(box.shape[dim] - 1);
    Box rest = box;
    rest.global_offset[dim] += first;
    rest.shape[dim] -= first;
    box.shape[dim] = first;
    boxes.push_back(std::move(rest));
  }

  // Dims in a random order, each a slice with a random step of a longer one.
  void Store(Box box, RandomTensor& made) {
    const size_t size = ElementSize(made.tensor.dtype);
    std::vector<size_t> order(box.shape.size());
    for (size_t d = 0; d < order.size(); ++d) order[d] = d;
    std::shuffle(order.begin(), order.end(), random_);
    std::vector<int64_t> strides(order.size());
    int64_t stride = 1;
    for (const size_t d : order) {
      const int64_t step = 1 + Below(3);
      strides[d] = stride * step;
      stride *= box.shape[d] * step + Below(3);
    }
    const std::string file = "file-" + std::to_string(Below(3));
    std::string& contents = made.files[file];
    const uint64_t offset = contents.size() + Below(40);
    contents = Pattern(offset + stride * size + Below(9), random_());
    made.tensor.pieces.push_back({std::move(box), file, offset, std::move(strides)});
  }

  static std::string_view Find(const RandomTensor& made, const std::vector<int64_t>& index,
                               size_t size) {
    const Box element = {index, Shape(index.size(), 1)};
    for (const StoredPiece& piece : made.tensor.pieces) {
      if (!Contains(piece.box, element)) continue;
      int64_t at = 0;
      for (size_t d = 0; d < index.size(); ++d) {
        at += (index[d] - piece.box.global_offset[d]) * piece.strides[d];
      }
      return std::string_view(made.files.at(piece.file))
          .substr(piece.offset_bytes + at * size, size);
    }
    return {};
  }

  std::mt19937_64 random_;
};

std::shared_ptr<CountingStorage> StoreFiles(const std::map<std::string, std::string>& files) {
  auto storage = std::make_shared<CountingStorage>();
  for (const auto& [name, contents] : files) EXPECT_OK(WriteAll(*storage, name, contents));
  return storage;
}

absl::StatusOr<std::unique_ptr<ForeignStorage>> CreateStorage(
    const std::map<std::string, std::string>& files, std::vector<ForeignTensor> tensors) {
  return ForeignStorage::Create(StoreFiles(files),
                                {.format = "test", .tensors = std::move(tensors)});
}

void ExpectError(const absl::Status& status, absl::StatusCode code, const std::string& message) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
}

// A [4,6] tensor of bytes in one file of 24 bytes.
ForeignTensor StoredMatrix() {
  return {.name = "w",
          .dtype = DType::kU8,
          .shape = {4, 6},
          .pieces = {{WholeBox({4, 6}), "a", 0, {6, 1}}}};
}

TEST(ForeignStorageTest, AnyPartOfAnyLayoutIsWhatTheOracleHas) {
  const uint64_t seed = TestSeed();
  Generator generator(seed);
  for (int round = 0; round < 400; ++round) {
    const RandomTensor made = generator.Make("w");
    ASSERT_OK_AND_ASSIGN(const auto storage, CreateStorage(made.files, {made.tensor}));
    ASSERT_OK_AND_ASSIGN(const auto file, storage->Open("tensor-00000"));
    ASSERT_EQ(file->size_bytes(), made.expected.size());
    for (int part = 0; part < 8; ++part) {
      const auto total = static_cast<int64_t>(made.expected.size());
      const int64_t begin = part == 0 ? 0 : generator.Below(total + 1);
      const int64_t size = part == 0 ? total : generator.Below(total - begin + 1);
      std::string found(size, 'x');
      const std::span out = std::as_writable_bytes(std::span(found));
      ASSERT_OK(part % 2 == 0 ? file->ReadAt(begin, out)
                              : file->StartReadAt(begin, out, false)->Wait());
      ASSERT_EQ(found, made.expected.substr(begin, size)) << "round " << round;
    }
    std::byte beyond[1];
    EXPECT_EQ(file->ReadAt(made.expected.size(), beyond).code(), absl::StatusCode::kDataLoss);
  }
}

// What is together in a foreign file is in flight before it is awaited, and needs no copy where it
// lies in a page as it does in the file.
TEST(ForeignStorageTest, RangesOfAFileAreReadInFlight) {
  const std::string contents = Pattern(1000, 1);
  const auto base = StoreFiles({{"a", contents}});
  ASSERT_OK_AND_ASSIGN(const auto storage,
                       ForeignStorage::Create(
                           base, {.format = "test",
                                  .tensors = {{.name = "w",
                                               .dtype = DType::kU8,
                                               .shape = {4, 6},
                                               .pieces = {{{{0, 0}, {2, 6}}, "a", 100, {6, 1}},
                                                          {{{2, 0}, {2, 6}}, "a", 30, {1, 2}}}}}}));
  ASSERT_OK_AND_ASSIGN(const auto file, storage->Open("tensor-00000"));
  EXPECT_EQ(file->OffsetInPage(3), 103);
  std::string found(9, 'x');
  const std::span out = std::as_writable_bytes(std::span(found));
  const auto read = file->StartReadAt(3, out, false);
  EXPECT_EQ(base->started, 1);
  EXPECT_OK(read->Wait());
  EXPECT_EQ(found, contents.substr(103, 9));
  EXPECT_OK(file->StartReadAt(4, out, false)->Wait());  // of both pieces
  EXPECT_EQ(base->started, 1);
  EXPECT_EQ(found, contents.substr(104, 8) + contents[30]);
}

// 16 MiB that are stored transposed: few reads, none larger than the buffer, and little more than
// the file's bytes, although whole rows are wanted.
TEST(ForeignStorageTest, TransposedTensorsAreReadInCoveringRanges) {
  const Shape shape = {2048, 2048};
  const std::string contents = Pattern(size_t{2048} * 2048 * 4, 1);
  const auto base = StoreFiles({{"a", contents}});
  ASSERT_OK_AND_ASSIGN(
      const auto storage,
      ForeignStorage::Create(base,
                             {.format = "test",
                              .tensors = {{.name = "w",
                                           .dtype = DType::kF32,
                                           .shape = shape,
                                           .pieces = {{WholeBox(shape), "a", 0, {1, 2048}}}}}}));
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, Checkpoint::Open(*storage, ""));
  base->reads = base->bytes = 0;
  std::vector<float> found(size_t{2048} * 2048);
  ASSERT_OK(checkpoint.LoadTensor("w", Shard::Of(found, WholeBox(shape)), {.io_threads = 1}));
  EXPECT_LE(base->largest, kStridedBufferBytes);
  EXPECT_LE(base->bytes, contents.size() * 4 + (1 << 20));
  EXPECT_LE(base->reads, 64);
  const auto* stored = reinterpret_cast<const uint32_t*>(contents.data());
  for (int64_t i = 0; i < 2048; i += 17) {
    for (int64_t j = 0; j < 2048; ++j) {
      ASSERT_EQ(std::bit_cast<uint32_t>(found[i * 2048 + j]), stored[j * 2048 + i])
          << i << " " << j;
    }
  }
}

// Elements far apart are not fetched with everything between them, close ones are.
TEST(ForeignStorageTest, SparseElementsAreReadInSmallRanges) {
  const auto base = StoreFiles({{"a", Pattern(size_t{8} << 20, 1)}});
  ASSERT_OK_AND_ASSIGN(const auto storage,
                       ForeignStorage::Create(
                           base, {.format = "test",
                                  .tensors = {{.name = "far",
                                               .dtype = DType::kU8,
                                               .shape = {8},
                                               .pieces = {{WholeBox({8}), "a", 3, {1 << 20}}}},
                                              {.name = "near",
                                               .dtype = DType::kU8,
                                               .shape = {8192},
                                               .pieces = {{WholeBox({8192}), "a", 0, {1024}}}}}}));
  std::string found(8192, 'x');
  base->reads = base->bytes = 0;
  ASSERT_OK((*storage->Open("tensor-00000"))
                ->ReadAt(0, std::as_writable_bytes(std::span(found).first(8))));
  EXPECT_EQ(base->reads, 8);
  EXPECT_EQ(base->bytes, 8);
  base->reads = base->bytes = base->largest = 0;
  ASSERT_OK((*storage->Open("tensor-00001"))->ReadAt(0, std::as_writable_bytes(std::span(found))));
  EXPECT_LE(base->largest, kSparseReadBytes);
  EXPECT_LE(base->reads, 8192 / 64 + 1);
}

TEST(ForeignStorageTest, EveryElementIsInExactlyOnePiece) {
  const std::map<std::string, std::string> files = {{"a", Pattern(24, 1)}, {"b", Pattern(24, 2)}};
  ForeignTensor tensor = StoredMatrix();
  tensor.pieces[0].box.shape = {3, 6};
  ExpectError(CreateStorage(files, {tensor}).status(), absl::StatusCode::kDataLoss,
              "tensor w: element [3,0] is in no file");
  tensor.pieces.push_back({{{2, 0}, {2, 6}}, "b", 0, {6, 1}});
  ExpectError(CreateStorage(files, {tensor}).status(), absl::StatusCode::kDataLoss,
              "element [2,0] is in [0:3,0:6] of a and in [2:4,0:6] of b");
  tensor.pieces.back().box = {{3, 0}, {1, 6}};
  EXPECT_OK(CreateStorage(files, {tensor}));
}

TEST(ForeignStorageTest, CopiesAreCompared) {
  std::map<std::string, std::string> files = {{"a", Pattern(24, 1)}};
  files["b"] = files["a"];
  ForeignTensor tensor = StoredMatrix();
  tensor.pieces.push_back(tensor.pieces[0]);
  tensor.pieces[1].file = "b";
  EXPECT_OK(CreateStorage(files, {tensor}));
  files["b"][23] ^= 1;
  ExpectError(CreateStorage(files, {tensor}).status(), absl::StatusCode::kDataLoss,
              "tensor w: the copies of [0:4,0:6] in a and b differ");
}

TEST(ForeignStorageTest, PiecesLieInsideTheirFiles) {
  const std::map<std::string, std::string> files = {{"a", Pattern(24, 1)}};
  const auto refused = [&](const auto& change, const std::string& message) {
    ForeignTensor tensor = StoredMatrix();
    change(tensor);
    ExpectError(CreateStorage(files, {tensor}).status(), absl::StatusCode::kDataLoss, message);
  };
  refused([](ForeignTensor& t) { t.pieces[0].offset_bytes = 1; }, "ends outside, in a file of 24");
  refused([](ForeignTensor& t) { t.pieces[0].offset_bytes = ~uint64_t{0}; }, "ends outside");
  refused([](ForeignTensor& t) { t.pieces[0].strides = {7, 1}; }, "strides [7,1] ends outside");
  refused([](ForeignTensor& t) { t.pieces[0].strides = {int64_t{1} << 62, 1}; }, "ends outside");
  refused([](ForeignTensor& t) { t.pieces[0].strides = {6, -1}; }, "strides [6,-1] ends outside");
  refused([](ForeignTensor& t) { t.pieces[0].strides = {6}; }, "1 strides for 2 dims");
  refused([](ForeignTensor& t) { t.pieces[0].box.global_offset = {1, 0}; }, "a: ");
  refused([](ForeignTensor& t) { t.pieces[0].file = "../a"; }, "tensor w: ");
  refused([](ForeignTensor& t) { t.dtype = DType::kUnspecified; }, "unknown dtype");
  refused([](ForeignTensor& t) { t.shape = {int64_t{1} << 40, int64_t{1} << 40}; }, "tensor w: ");
  refused(
      [](ForeignTensor& t) {
        t.shape = {5, 6};
        t.pieces[0] = {WholeBox({5, 6}), "a", 0, {0, 1}};
      },
      "more elements than bytes");
  refused([](ForeignTensor& t) { t.alias_of = "other"; }, "alias_of other does not exist");
}

TEST(ForeignStorageTest, MissingFilesAreListedTogether) {
  ForeignTensor tensor = StoredMatrix();
  ForeignTensor other = StoredMatrix();
  tensor.pieces[0].file = "b";
  other.name = "v";
  other.pieces[0].file = "c";
  ExpectError(CreateStorage({}, {tensor, other}).status(), absl::StatusCode::kNotFound,
              ": missing: b with tensor w, c with tensor v");
}

TEST(ForeignStorageTest, PiecesMayBeInWhatAFileEncodes) {
  const std::string contents = Pattern(20, 1), decoded = Pattern(24, 2);
  const auto create = [&](uint64_t offset_bytes) {
    ForeignTensor tensor = StoredMatrix();
    tensor.pieces[0].offset_bytes = offset_bytes;
    return ForeignStorage::Create(
        StoreFiles({{"a", contents}}),
        {.format = "test", .tensors = {tensor}, .decoded = {{"a", decoded}}});
  };
  ASSERT_OK_AND_ASSIGN(const auto storage, create(20));
  ASSERT_OK_AND_ASSIGN(const auto file, storage->Open("tensor-00000"));
  std::string found(24, 'x');
  ASSERT_OK(file->ReadAt(0, std::as_writable_bytes(std::span(found))));
  EXPECT_EQ(found, decoded);
  EXPECT_TRUE(storage->Extents().empty()) << "the file has other bytes";
  ExpectError(create(21).status(), absl::StatusCode::kDataLoss, "in a file of 44 bytes");
}

TEST(ForeignStorageTest, FilesThatChangeAreNoticed) {
  const auto base = StoreFiles({{"a", Pattern(24, 1)}});
  ASSERT_OK_AND_ASSIGN(
      const auto storage,
      ForeignStorage::Create(base, {.format = "test", .tensors = {StoredMatrix()}}));
  ASSERT_OK(WriteAll(*base, "a", Pattern(23, 1)));
  ExpectError(storage->Open("tensor-00000").status(), absl::StatusCode::kDataLoss,
              "had 24 bytes, now has 23");
}

TEST(ForeignStorageTest, IsReadOnly) {
  ASSERT_OK_AND_ASSIGN(const auto storage,
                       CreateStorage({{"a", Pattern(24, 1)}}, {StoredMatrix()}));
  constexpr auto kDenied = absl::StatusCode::kPermissionDenied;
  ExpectError(storage->Create("x", 0).status(), kDenied, "read-only");
  ExpectError(storage->Delete("tensor-00000"), kDenied, "read-only");
  ExpectError(storage->DeleteTree("tensor-00000"), kDenied, "tensor w");
  ExpectError(storage->Rename("tensor-00000", "x"), kDenied, "read-only");
  ExpectError(storage->MakeDirectory("x"), kDenied, "read-only");
  ExpectError(storage->Open("x").status(), absl::StatusCode::kNotFound, "no such file x");
  ExpectError(storage->List("x").status(), absl::StatusCode::kNotFound, "no such directory x");
}

// The manifest of a foreign storage, on a disk: there it must have checksums.
TEST(ForeignStorageTest, ManifestsOnDisksNeedChecksums) {
  const auto base = StoreFiles({{"a", Pattern(24, 1)}});
  ASSERT_OK_AND_ASSIGN(
      const auto storage,
      ForeignStorage::Create(base, {.format = "test", .tensors = {StoredMatrix()}}));
  ASSERT_OK_AND_ASSIGN(const auto bytes, ReadAll(*storage, kManifestFileName, 1 << 20));
  ASSERT_OK(WriteAll(*base, "manifest.pb", bytes));
  ASSERT_OK(WriteAll(*base, "tensor-00000", Pattern(24, 1)));
  EXPECT_OK(ReadManifest(*storage, ""));
  ExpectError(ReadManifest(*base, "").status(), absl::StatusCode::kDataLoss,
              "need 1 checksums, found 0");
}

}  // namespace
}  // namespace tessera::ckpt::convert
