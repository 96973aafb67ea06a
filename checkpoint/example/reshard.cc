// A program that saves its own state and loads it back under another sharding, with nothing but the
// library's public interface.
//   reshard DIRECTORY

#include <cstdio>
#include <string>
#include <vector>

#include "checkpoint/collective/process_group.h"
#include "checkpoint/layout/box.h"
#include "checkpoint/load/load.h"
#include "checkpoint/plan/state_dict.h"
#include "checkpoint/save/save.h"
#include "checkpoint/storage/posix_storage.h"

namespace ckpt = tessera::ckpt;

// Rows [begin, begin + rows) of an 8 x 4 matrix, in memory of our own.
ckpt::LocalShard RowsOf(std::vector<float>& memory, int64_t begin, int64_t rows) {
  memory.resize(rows * 4);
  return {.box = {.global_offset = {begin, 0}, .shape = {rows, 4}}, .data = memory.data()};
}

int Fail(const char* what, const absl::Status& status) {
  std::fprintf(stderr, "%s: %s\n", what, std::string(status.message()).c_str());
  return 1;
}

int main(int argc, char** argv) {
  if (argc != 2) return Fail("usage", absl::InvalidArgumentError("reshard DIRECTORY"));
  const auto storage = ckpt::OpenPosixStorage(argv[1], {.create_root = true});
  if (!storage.ok()) return Fail("open", storage.status());
  ckpt::SingleProcessGroup group;  // a program of many processes brings its own

  // The state: one logical tensor, held in two shards.
  std::vector<float> top, bottom;
  ckpt::ShardedTensor weight;
  weight.name = "weight";
  weight.role = ckpt::WEIGHT;
  weight.dtype = ckpt::F32;
  weight.global_shape = {8, 4};
  weight.shards = {RowsOf(top, 0, 3), RowsOf(bottom, 3, 5)};
  for (int i = 0; i < 12; ++i) top[i] = static_cast<float>(i);
  for (int i = 0; i < 20; ++i) bottom[i] = static_cast<float>(12 + i);

  ckpt::Metadata metadata;
  metadata.mutable_trainer()->set_step(100);
  const auto saved = ckpt::Save(**storage, "run", metadata, {{weight}}, group, {});
  if (!saved.ok()) return Fail("save", saved.status());

  // Load columns 1 and 2 of it, transposed in memory: any box, any strides.
  std::vector<float> columns(2 * 8, -1);
  weight.shards = {{.box = {.global_offset = {0, 1}, .shape = {8, 2}},
                    .data = columns.data(),
                    .strides = {1, 8}}};
  ckpt::StateDict wanted = {{weight}};
  const auto loaded = ckpt::Load(**storage, saved->directory, wanted, group, {});
  if (!loaded.ok()) return Fail("load", loaded.status());
  for (int row = 0; row < 8; ++row) {
    if (columns[row] != row * 4 + 1 || columns[8 + row] != row * 4 + 2) {
      return Fail("compare", absl::DataLossError("not what was saved"));
    }
  }
  std::printf("%s: %llu bytes saved in two shards, two columns loaded\n", saved->directory.c_str(),
              static_cast<unsigned long long>(saved->bytes_written));
  return 0;
}
