#include "convert/core/output.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <utility>

#include "base/no_space.h"
#include "base/testing.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/internal/known_checkpoint.h"
#include "convert/core/reading.h"
#include "gtest/gtest.h"
#include "storage/posix_storage.h"
#include "storage/testing/fault_storage.h"
#include "storage/testing/memory_storage.h"
#include "zlib.h"

namespace tessera::ckpt::convert {
namespace {

constexpr int64_t kRows = 2300, kColumns = 3700;  // 34 MB: several blocks, and never kept whole
constexpr int64_t kSmallRows = 70, kSmallColumns = 45;

// A committed checkpoint of two matrices.
class Source {
 public:
  Source() : large_(kRows * kColumns), small_(kSmallRows * kSmallColumns) {
    for (size_t i = 0; i < large_.size(); ++i) large_[i] = static_cast<float>(i * 7 % 10007);
    for (size_t i = 0; i < small_.size(); ++i) small_[i] = static_cast<float>(i);
    StateDict state;
    state.tensors = {{.name = "large",
                      .global_shape = {kRows, kColumns},
                      .shards = {Shard::Of(large_, {{0, 0}, {kRows, kColumns}})}},
                     {.name = "small",
                      .global_shape = {kSmallRows, kSmallColumns},
                      .shards = {Shard::Of(small_, {{0, 0}, {kSmallRows, kSmallColumns}})}}};
    EXPECT_OK(CheckpointFolder(storage_).Save(7, state));
    manifest_ = OrFail(ReadManifest(storage_, StepDirectoryName(7)));
  }

  Checkpoint output() { return output(storage_); }
  Checkpoint output(Storage& through) {
    return CheckpointOfManifest(through, StepDirectoryName(7), manifest_);
  }
  MemoryStorage& storage() { return storage_; }
  const std::vector<float>& large() const { return large_; }
  float Large(int64_t i, int64_t j) const { return large_[i * kColumns + j]; }
  float Small(int64_t i, int64_t j) const { return small_[i * kSmallColumns + j]; }

 private:
  MemoryStorage storage_;
  std::vector<float> large_, small_;
  Manifest manifest_;
};

OutputTensor Matrix(const std::string& name, const Shape& shape) {
  OutputTensor tensor = {
      .name = name, .source_name = name, .dtype = DType::kF32, .shape = shape, .offset_bytes = 0};
  tensor.elements = ElementCount(shape);
  tensor.pieces = [shape](int64_t begin, int64_t end) {
    return RowMajorPieces(shape, DType::kF32)(begin, end);
  };
  return tensor;
}

// The transposed matrix. A block of it is columns of the source, the first and the last of which
// may be cut.
OutputTensor Transposed(const std::string& name, const Shape& shape) {
  OutputTensor tensor = Matrix(name, shape);
  tensor.pieces = [rows = shape[0]](int64_t begin, int64_t end) {
    std::vector<StoredPiece> pieces;
    for (int64_t at = begin; at < end;) {
      const int64_t column = at / rows, row = at % rows;
      StoredPiece piece = {.offset_bytes = static_cast<uint64_t>(at - begin) * sizeof(float)};
      if (row == 0 && end - at >= rows) {
        piece.box = {{0, column}, {rows, (end - at) / rows}};
      } else {
        piece.box = {{row, column}, {std::min(rows - row, end - at), 1}};
      }
      piece.strides = {1, rows};
      at += ElementCount(piece.box.shape);
      pieces.push_back(std::move(piece));
    }
    return pieces;
  };
  return tensor;
}

// Five columns of the small matrix.
OutputTensor Columns(int64_t first) {
  OutputTensor tensor = Matrix("small", {kSmallRows, kSmallColumns});
  tensor.elements = kSmallRows * 5;
  tensor.pieces = [first](int64_t, int64_t) {
    return std::vector<StoredPiece>{{.box = {{0, first}, {kSmallRows, 5}}, .strides = {5, 1}}};
  };
  return tensor;
}

// One file with the tensors one after the other, and space for a CRC-32 behind each.
OutputFile FileOf(std::vector<OutputTensor> tensors) {
  OutputFile file = {.name = "file", .header = "header", .size_bytes = 6};
  std::vector<uint64_t> ends;
  for (OutputTensor& tensor : tensors) {
    tensor.offset_bytes = file.size_bytes;
    file.size_bytes += static_cast<uint64_t>(tensor.elements) * sizeof(float) + sizeof(uint32_t);
    ends.push_back(file.size_bytes - sizeof(uint32_t));
  }
  file.tensors = std::move(tensors);
  file.records = [ends](size_t tensor, uint32_t crc32) {
    return std::vector<OutputBytes>{
        {ends[tensor], std::string(reinterpret_cast<const char*>(&crc32), sizeof(crc32))}};
  };
  return file;
}

std::vector<OutputFile> AllFiles() {
  std::vector<OutputTensor> tensors = {Matrix("large", {kRows, kColumns}),
                                       Transposed("large", {kRows, kColumns}),
                                       Transposed("small", {kSmallRows, kSmallColumns})};
  for (int64_t first = 0; first < kSmallColumns; first += 5) tensors.push_back(Columns(first));
  // Different names: the same elements are digested several times.
  for (size_t i = 0; i < 3; ++i) tensors[i].name += std::to_string(i);
  return {FileOf(std::move(tensors))};
}

TEST(OutputTest, WritesBlocksOfAnyOrderOfElements) {
  Source source;
  MemoryStorage to;
  const std::vector<OutputFile> files = AllFiles();
  uint64_t last_done = 0, total = 0;
  const IoOptions options = {.progress = [&](uint64_t done, uint64_t of) {
    EXPECT_GE(done, last_done);
    last_done = done;
    total = of;
  }};
  ASSERT_OK_AND_ASSIGN(const auto digests, WriteOutput(source.output(), files, to, "", options));
  EXPECT_EQ(last_done, files[0].size_bytes);
  EXPECT_EQ(total, files[0].size_bytes);

  ASSERT_OK_AND_ASSIGN(const auto expected, ReadDigests(source.output(), {}));
  EXPECT_EQ(digests.at("large0"), expected.at("large"));
  EXPECT_EQ(digests.at("large1"), expected.at("large"));
  EXPECT_EQ(digests.at("small2"), expected.at("small"));
  EXPECT_EQ(digests.at("small"), expected.at("small"));

  ASSERT_OK_AND_ASSIGN(const auto file, to.Open("file"));
  ASSERT_EQ(file->size_bytes(), files[0].size_bytes);
  const auto read = [&](const OutputTensor& tensor) {
    std::vector<float> elements(tensor.elements);
    EXPECT_OK(file->ReadAt(tensor.offset_bytes, std::as_writable_bytes(std::span(elements))));
    uint32_t crc32 = 0;
    EXPECT_OK(file->ReadAt(tensor.offset_bytes + elements.size() * sizeof(float),
                           std::as_writable_bytes(std::span(&crc32, 1))));
    EXPECT_EQ(crc32, crc32_z(0, reinterpret_cast<const Bytef*>(elements.data()),
                             elements.size() * sizeof(float)))
        << tensor.name;
    return elements;
  };
  const std::vector<float> plain = read(files[0].tensors[0]), turned = read(files[0].tensors[1]);
  EXPECT_TRUE(plain == source.large());
  bool equal = true;
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t j = 0; j < kColumns; ++j) equal &= turned[j * kRows + i] == source.Large(i, j);
  }
  EXPECT_TRUE(equal);
  const std::vector<float> small = read(files[0].tensors[2]);
  for (int64_t i = 0; i < kSmallRows; ++i) {
    for (int64_t j = 0; j < kSmallColumns; ++j) {
      ASSERT_EQ(small[j * kSmallRows + i], source.Small(i, j)) << i << ", " << j;
    }
  }
  const std::vector<float> columns = read(files[0].tensors[3 + 2]);
  for (int64_t i = 0; i < kSmallRows; ++i) {
    for (int64_t j = 0; j < 5; ++j) ASSERT_EQ(columns[i * 5 + j], source.Small(i, 10 + j));
  }
}

// Whatever fails, while other blocks are in work, is what is returned; nothing happens afterwards.
TEST(OutputTest, ReturnsTheErrorOfAnyReadOrWrite) {
  Source source;
  for (const OperationKind kind :
       {OperationKind::kReadAt, OperationKind::kWriteAt, OperationKind::kSync}) {
    MemoryStorage memory;
    FaultInjectingStorage from(source.storage()), to(memory);
    FaultInjectingStorage& broken = kind == OperationKind::kReadAt ? from : to;
    broken.FailWhere(
        [&](const Operation& operation) {
          return operation.kind == kind &&
                 (kind != OperationKind::kWriteAt || operation.offset_bytes > (uint64_t{20} << 20));
        },
        absl::DataLossError("broken on purpose"));
    const auto digests = WriteOutput(source.output(from), AllFiles(), to, "", {});
    EXPECT_EQ(digests.status().code(), absl::StatusCode::kDataLoss);
    EXPECT_NE(digests.status().message().find("broken on purpose"), std::string::npos);
    if (kind == OperationKind::kReadAt) EXPECT_FALSE(ReadDigests(source.output(from), {}).ok());
  }
}

TEST(OutputTest, NeighboursShareTheReadingOfTheirChecksumChunks) {
  constexpr int64_t kTensors = 100, kElements = 5000;  // two chunks in all
  MemoryStorage storage, to;
  std::vector<std::vector<float>> values(kTensors);
  StateDict state;
  std::vector<OutputTensor> tensors;
  for (int64_t t = 0; t < kTensors; ++t) {
    const std::string name = "tensor" + std::to_string(t);
    values[t].assign(kElements, static_cast<float>(t + 1));
    state.tensors.push_back({.name = name,
                             .global_shape = {kElements},
                             .shards = {Shard::Of(values[t], {{0}, {kElements}})}});
    tensors.push_back(Matrix(name, {kElements}));
  }
  ASSERT_OK(CheckpointFolder(storage).Save(7, state));
  const std::string directory = StepDirectoryName(7);
  ASSERT_OK_AND_ASSIGN(const auto manifest, ReadManifest(storage, directory));

  std::atomic<uint64_t> bytes_read = 0;
  FaultInjectingStorage from(storage);
  from.BeforeEach([&](const Operation& operation) {
    if (operation.kind == OperationKind::kReadAt) bytes_read += operation.size_bytes;
  });
  const std::vector<OutputFile> files = {FileOf(std::move(tensors))};
  ASSERT_OK_AND_ASSIGN(
      const auto digests,
      WriteOutput(CheckpointOfManifest(from, directory, manifest), files, to, "", {}));
  EXPECT_LT(bytes_read, 2 * kTensors * kElements * sizeof(float));
  ASSERT_OK_AND_ASSIGN(const auto expected,
                       ReadDigests(CheckpointOfManifest(storage, directory, manifest), {}));
  EXPECT_EQ(digests, expected);
  ASSERT_OK_AND_ASSIGN(const auto file, to.Open("file"));
  for (int64_t t = 0; t < kTensors; ++t) {
    std::vector<float> found(kElements);
    EXPECT_OK(
        file->ReadAt(files[0].tensors[t].offset_bytes, std::as_writable_bytes(std::span(found))));
    EXPECT_EQ(found, values[t]);
  }
}

// As queries, keys and values of each head are, where they are one tensor.
TEST(OutputTest, PartsOfTensorsByTurnsAreReadAndWrittenOnce) {
  constexpr int64_t kParts = 50, kPart = 1000;
  MemoryStorage storage, to;
  std::vector<float> first(kParts * kPart, 1.0f), second(kParts * kPart, 2.0f);
  for (size_t i = 0; i < first.size(); ++i) first[i] = static_cast<float>(i);
  StateDict state;
  state.tensors = {{.name = "first",
                    .global_shape = {kParts * kPart},
                    .shards = {Shard::Of(first, {{0}, {kParts * kPart}})}},
                   {.name = "second",
                    .global_shape = {kParts * kPart},
                    .shards = {Shard::Of(second, {{0}, {kParts * kPart}})}}};
  ASSERT_OK(CheckpointFolder(storage).Save(7, state));
  const std::string directory = StepDirectoryName(7);
  ASSERT_OK_AND_ASSIGN(const auto manifest, ReadManifest(storage, directory));
  std::vector<OutputTensor> tensors;
  for (int64_t p = 0; p < kParts; ++p) {
    for (const char* name : {"first", "second"}) {
      OutputTensor part = Matrix(name, {kParts * kPart});
      part.elements = kPart;
      part.pieces = [p](int64_t begin, int64_t end) {
        return RowMajorPieces({kParts * kPart}, DType::kF32)(p * kPart + begin, p * kPart + end);
      };
      tensors.push_back(std::move(part));
    }
  }
  std::atomic<uint64_t> bytes_read = 0;
  std::atomic<int> writes = 0;
  FaultInjectingStorage from(storage), counted(to);
  const auto count = [&](const Operation& operation) {
    if (operation.kind == OperationKind::kReadAt) bytes_read += operation.size_bytes;
    if (operation.kind == OperationKind::kWriteAt) ++writes;
  };
  from.BeforeEach(count);
  counted.BeforeEach(count);
  const std::vector<OutputFile> files = {FileOf(std::move(tensors))};
  ASSERT_OK_AND_ASSIGN(
      const auto digests,
      WriteOutput(CheckpointOfManifest(from, directory, manifest), files, counted, "", {}));
  EXPECT_LT(bytes_read, 2 * files[0].size_bytes);
  EXPECT_LE(writes, 3);  // the header, the tensors with their checksums but for the last, and that
  ASSERT_OK_AND_ASSIGN(const auto expected,
                       ReadDigests(CheckpointOfManifest(storage, directory, manifest), {}));
  EXPECT_EQ(digests, expected);
  ASSERT_OK_AND_ASSIGN(const auto file, to.Open("file"));
  for (int64_t p = 0; p < kParts; ++p) {
    std::vector<float> found(kPart);
    const OutputTensor& part = files[0].tensors[2 * p];
    EXPECT_OK(file->ReadAt(part.offset_bytes, std::as_writable_bytes(std::span(found))));
    EXPECT_TRUE(std::ranges::equal(found, std::span(first).subspan(p * kPart, kPart))) << p;
  }
}

// As a tied head is, and a copy of another dtype.
TEST(OutputTest, NeighboursThatAreTheSameTensorAreAllWritten) {
  Source source;
  MemoryStorage to;
  OutputTensor tied = Matrix("small", {kSmallRows, kSmallColumns}), rounded = tied;
  tied.name = "tied";
  rounded.name = "rounded";
  rounded.dtype = DType::kBF16;
  rounded.pieces = [](int64_t begin, int64_t end) {
    return RowMajorPieces({kSmallRows, kSmallColumns}, DType::kBF16)(begin, end);
  };
  const std::vector<OutputFile> files = {
      FileOf({Matrix("small", {kSmallRows, kSmallColumns}), tied, rounded})};
  ASSERT_OK_AND_ASSIGN(const auto digests, WriteOutput(source.output(), files, to, "", {}));
  EXPECT_EQ(digests.at("tied"), digests.at("small"));
  ASSERT_OK_AND_ASSIGN(const auto file, to.Open("file"));
  std::vector<float> small(tied.elements);
  std::vector<uint16_t> halves(rounded.elements);
  for (const size_t copy : {0, 1}) {
    EXPECT_OK(file->ReadAt(files[0].tensors[copy].offset_bytes,
                           std::as_writable_bytes(std::span(small))));
    for (size_t i = 0; i < small.size(); ++i) ASSERT_EQ(small[i], static_cast<float>(i)) << copy;
  }
  EXPECT_OK(
      file->ReadAt(files[0].tensors[2].offset_bytes, std::as_writable_bytes(std::span(halves))));
  // Integers up to 256 are exact in bf16.
  for (size_t i = 0; i <= 256; ++i) {
    ASSERT_EQ(halves[i], std::bit_cast<uint32_t>(static_cast<float>(i)) >> 16);
  }
}

TEST(OutputTest, DamageIsFoundWhereDigestsAreRead) {
  Source source;
  EXPECT_OK(ReadDigests(source.output(), {}));
  Manifest manifest = source.output().manifest();
  DataFile& file = *manifest.mutable_files(0);
  file.set_chunk_crc32c(1, file.chunk_crc32c(1) + 1);
  const auto digests =
      ReadDigests(CheckpointOfManifest(source.storage(), source.output().directory(), manifest),
                  {.io_threads = 3});
  EXPECT_EQ(digests.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(digests.status().message().find("large"), std::string::npos) << digests.status();
}

TEST(OutputTest, PaddingIsZeroInATensorAndBehindIt) {
  Source source;
  MemoryStorage to;
  OutputTensor tensor = Matrix("small", {kSmallRows, kSmallColumns});
  const int64_t elements = tensor.elements;
  tensor.elements += 1000;
  tensor.pieces = [elements](int64_t begin, int64_t end) {
    return RowMajorPieces({kSmallRows, kSmallColumns}, DType::kF32)(begin, std::min(end, elements));
  };
  OutputTensor tied = tensor;
  tied.name = "tied";
  // The same thread has written other bytes before.
  std::vector<OutputFile> files = {
      FileOf({Matrix("large", {kRows, kColumns}), tensor, std::move(tied)})};
  files[0].records = nullptr;
  ASSERT_OK(WriteOutput(source.output(), files, to, "", {}));
  std::vector<float> padding(1001, 1.0f);  // and what lies between the tensors
  ASSERT_OK_AND_ASSIGN(const auto file, to.Open("file"));
  ASSERT_OK(file->ReadAt(files[0].tensors[1].offset_bytes + elements * sizeof(float),
                         std::as_writable_bytes(std::span(padding))));
  EXPECT_EQ(padding, std::vector<float>(1001));
}

// Integers up to 256 are exact in every floating-point dtype.
float SmallInteger(size_t tensor, int64_t element) {
  return static_cast<float>((tensor * 31 + static_cast<uint64_t>(element) * 7) % 257);
}

// Matrices and vectors of random sizes and dtypes, in the order of their names or of their element
// sizes, with gaps or without, from a file that is written past the page cache.
TEST(OutputTest, TensorsOfAnySizesAndDtypesAreReadBackAndGapsAreZeros) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto below = [&random](uint64_t n) { return static_cast<int64_t>(random() % n); };
  for (int round = 0; round < 4; ++round) {
    std::vector<std::vector<float>> values(1 + below(40));
    StateDict state;
    for (size_t t = 0; t < values.size(); ++t) {
      const Shape shape = {1 + below(below(3) == 0 ? 2000 : 40),
                           1 + below(below(3) == 0 ? 900 : 9)};
      for (int64_t i = 0; i < ElementCount(shape); ++i) values[t].push_back(SmallInteger(t, i));
      state.tensors.push_back({.name = "tensor" + std::to_string(t),
                               .global_shape = shape,
                               .shards = {Shard::Of(values[t], WholeBox(shape))}});
    }
    MemoryStorage saved;
    ASSERT_OK(CheckpointFolder(saved).Save(7, state));
    const std::string directory = StepDirectoryName(7);
    ASSERT_OK_AND_ASSIGN(const auto manifest, ReadManifest(saved, directory));

    std::vector<OutputTensor> tensors;
    for (const ShardedTensor& tensor : state.tensors) {
      OutputTensor output = Matrix(tensor.name, tensor.global_shape);
      if (below(2) == 0) {
        output.dtype = DType::kBF16;
        output.pieces = [shape = tensor.global_shape](int64_t begin, int64_t end) {
          return RowMajorPieces(shape, DType::kBF16)(begin, end);
        };
      }
      tensors.push_back(std::move(output));
    }
    if (below(2) == 0) std::ranges::stable_sort(tensors, std::greater(), &OutputTensor::dtype);
    OutputFile file = {.name = "file", .header = std::string(1 + below(9000), 'h')};
    const int64_t widest_gap = below(2) * (1 + below(5000));
    uint64_t end = file.header.size();
    for (OutputTensor& tensor : tensors) {
      tensor.offset_bytes = end + (widest_gap == 0 ? 0 : below(widest_gap));
      end =
          tensor.offset_bytes + static_cast<uint64_t>(tensor.elements) * ElementSize(tensor.dtype);
    }
    file.size_bytes = end;
    std::string expected(end, '\0');
    expected.replace(0, file.header.size(), file.header);
    for (const OutputTensor& tensor : tensors) {
      const size_t t = std::stoul(tensor.name.substr(6));
      char* to = expected.data() + tensor.offset_bytes;
      for (const float value : values[t]) {
        const auto bits = std::bit_cast<uint32_t>(value);
        const size_t size = ElementSize(tensor.dtype);
        std::memcpy(to, reinterpret_cast<const char*>(&bits) + sizeof(bits) - size, size);
        to += size;
      }
    }
    file.tensors = std::move(tensors);

    const TestFolder folder;
    ASSERT_OK_AND_ASSIGN(const auto to, OpenPosixStorage(folder.path(), {.direct_min_bytes = 1}));
    const Checkpoint source = CheckpointOfManifest(saved, directory, manifest);
    ASSERT_OK_AND_ASSIGN(const auto written, WriteOutput(source, {file}, *to, "", {}));
    EXPECT_EQ(written.size(), file.tensors.size());
    ASSERT_OK_AND_ASSIGN(const auto found, ReadAll(*to, "file", end + 1));
    ASSERT_EQ(found.size(), expected.size());
    const auto difference = std::ranges::mismatch(found, expected).in1;
    ASSERT_EQ(difference, found.end()) << "at byte " << difference - found.begin();

    if (file.tensors.size() < 2) continue;
    // In any other order, some would be overwritten with the zeros between others.
    const size_t swapped = below(file.tensors.size() - 1);
    std::swap(file.tensors[swapped], file.tensors[swapped + 1]);
    MemoryStorage unused;
    const absl::Status refused = WriteOutput(source, {file}, unused, "", {}).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInternal) << refused;
    EXPECT_NE(refused.message().find("tensor " + file.tensors[swapped + 1].name + " has bytes"),
              std::string::npos)
        << refused;
    EXPECT_TRUE(unused.List("")->empty());
  }
}

TEST(InTest, AFullDiskIsStillKnownAsOne) {
  EXPECT_TRUE(IsNoSpace(In("model.bin", NoSpaceError("full"))));
}

}  // namespace
}  // namespace tessera::ckpt::convert
