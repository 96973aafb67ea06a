// Saving and loading the full training state of GPT-2 124M (bf16 weights; fp32 master weights and
// two moments) in an object store on this machine. It is compared with libcurl alone, which sends
// and fetches as many bytes, in objects of the size of a part, over as many connections. The store
// is the tests' own, in this process, and checks nothing. Each round measures all of it. Prints
//   figure s3.save.ratio <value> ratio             and likewise s3.load.ratio
//   figure s3.save.processor_ratio <value> ratio   in bytes per second of processors, which other
//                                                  load on the machine changes less
// and the rates behind them. Medians over the rounds. The store's work is part of both sides. It
// keeps the memory of what is deleted or replaced: new pages can cost as much as sending the bytes,
// and libcurl alone, which replaces its own objects, needs fewer of them.

#include <curl/curl.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "base/status_macros.h"
#include "checkpoint/include/checkpoint.h"
#include "storage/s3/http.h"
#include "storage/s3/s3_storage.h"
#include "storage/s3/testing/s3_server.h"
#include "tests/perf/gpt2_run.h"
#include "tests/perf/harness.h"

ABSL_FLAG(int, rounds, 5, "how often everything is measured");
ABSL_FLAG(int, io_threads, 4, "of the checkpoint engine, each with two connections");
ABSL_FLAG(int, connections, 8, "of libcurl alone");

namespace tessera {
namespace {

constexpr size_t kObjectBytes = size_t{8} << 20;
using CurlLong = long;  // NOLINT(google-runtime-int): what libcurl takes and gives
constexpr auto kBufferBytes = static_cast<CurlLong>(s3::kHttpBufferBytes);

// One connection that moves one object at a time.
class Connection {
 public:
  explicit Connection(std::string url) : url_(std::move(url)), handle_(curl_easy_init()) {}
  ~Connection() { curl_easy_cleanup(handle_); }

  bool Put(size_t object, std::span<const char> bytes) {
    from_ = bytes;
    Prepare(object);
    curl_easy_setopt(handle_, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(handle_, CURLOPT_UPLOAD_BUFFERSIZE, kBufferBytes);
    curl_easy_setopt(handle_, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(bytes.size()));
    curl_easy_setopt(handle_, CURLOPT_READFUNCTION, &Connection::Send);
    curl_easy_setopt(handle_, CURLOPT_READDATA, this);
    return Perform();
  }

  bool Get(size_t object, std::span<char> bytes) {
    to_ = bytes;
    Prepare(object);
    curl_easy_setopt(handle_, CURLOPT_BUFFERSIZE, kBufferBytes);
    curl_easy_setopt(handle_, CURLOPT_WRITEFUNCTION, &Connection::Receive);
    curl_easy_setopt(handle_, CURLOPT_WRITEDATA, this);
    return Perform() && to_.empty();
  }

 private:
  void Prepare(size_t object) {
    curl_easy_reset(handle_);
    curl_easy_setopt(handle_, CURLOPT_URL, absl::StrCat(url_, object).c_str());
    curl_easy_setopt(handle_, CURLOPT_NOSIGNAL, 1L);
  }

  bool Perform() {
    curl_slist* const headers = curl_slist_append(nullptr, "Expect:");
    curl_easy_setopt(handle_, CURLOPT_HTTPHEADER, headers);
    const CURLcode code = curl_easy_perform(handle_);
    CurlLong status = 0;
    curl_easy_getinfo(handle_, CURLINFO_RESPONSE_CODE, &status);
    curl_slist_free_all(headers);
    return code == CURLE_OK && status == 200;
  }

  static size_t Send(char* out, size_t size, size_t count, void* user) {
    std::span<const char>& from = static_cast<Connection*>(user)->from_;
    const size_t bytes = std::min(size * count, from.size());
    std::memcpy(out, from.data(), bytes);
    from = from.subspan(bytes);
    return bytes;
  }

  static size_t Receive(char* data, size_t size, size_t count, void* user) {
    std::span<char>& to = static_cast<Connection*>(user)->to_;
    const size_t bytes = size * count;
    if (bytes > to.size()) return 0;
    std::memcpy(to.data(), data, bytes);
    to = to.subspan(bytes);
    return bytes;
  }

  const std::string url_;
  CURL* const handle_;
  std::span<const char> from_;
  std::span<char> to_;
};

// Bytes per second, of time and of processors.
struct Rates {
  double of_time = 0, of_processors = 0;
};

class Stopwatch {
 public:
  Rates Stop(uint64_t bytes) const {
    return {bytes / (Now() - start_), bytes / (ProcessorSeconds() - processors_)};
  }

 private:
  const double start_ = Now(), processors_ = ProcessorSeconds();
};

// Moves `memory` object by object over several connections. 0 where anything failed.
Rates RawRates(const std::string& url, std::span<char> memory, bool put) {
  std::atomic<size_t> next = 0;
  std::atomic<bool> failed = false;
  const size_t objects = CeilDivide(memory.size(), kObjectBytes);
  const Stopwatch watch;
  std::vector<std::thread> threads;
  for (int t = 0; t < absl::GetFlag(FLAGS_connections); ++t) {
    threads.emplace_back([&] {
      Connection connection(url);
      for (size_t i = next++; i < objects; i = next++) {
        const size_t begin = i * kObjectBytes, end = std::min(memory.size(), begin + kObjectBytes);
        const std::span<char> bytes = memory.subspan(begin, end - begin);
        if (!(put ? connection.Put(i, bytes) : connection.Get(i, bytes))) failed = true;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return failed ? Rates() : watch.Stop(memory.size());
}

absl::Status Measure() {
  TESSERA_ASSIGN_OR_RETURN(Gpt2State state, Gpt2State::Create());
  std::vector<char> memory(state.bytes, 'x');
  std::printf("state: %zu tensors, %.1f MB\n", state.dict.tensors.size(), state.bytes / 1e6);
  const s3::S3Server server({.verify = false});
  TESSERA_ASSIGN_OR_RETURN(
      const std::unique_ptr<Storage> storage,
      OpenS3Storage({.client = server.ForClient(), .prefix = "runs", .create_root = true}));
  const ckpt::CheckpointFolder folder(*storage);
  const int io_threads = absl::GetFlag(FLAGS_io_threads);
  const std::string raw_url = absl::StrCat(server.endpoint(), "/bucket/raw/");
  Pairs save, load, save_processors, load_processors;
  TESSERA_RETURN_IF_ERROR(ForEachRound(absl::GetFlag(FLAGS_rounds), [&](int round) -> absl::Status {
    const Rates raw_put = RawRates(raw_url, memory, /*put=*/true);
    const Stopwatch saving;
    TESSERA_ASSIGN_OR_RETURN(const ckpt::SaveReport saved,
                             folder.Save(round + 1, state.dict, {.io_threads = io_threads}));
    const Rates put = saving.Stop(saved.bytes_written);
    TESSERA_ASSIGN_OR_RETURN(const ckpt::Checkpoint checkpoint, folder.At(round + 1));
    const Rates raw_get = RawRates(raw_url, memory, /*put=*/false);
    const Stopwatch loading;
    TESSERA_ASSIGN_OR_RETURN(const ckpt::LoadReport loaded,
                             checkpoint.Load(state.dict, {.io_threads = io_threads}));
    const Rates get = loading.Stop(loaded.bytes_read);
    if (raw_put.of_time == 0 || raw_get.of_time == 0) {
      return absl::InternalError("libcurl alone failed");
    }
    save.Add(put.of_time, raw_put.of_time);
    load.Add(get.of_time, raw_get.of_time);
    save_processors.Add(put.of_processors, raw_put.of_processors);
    load_processors.Add(get.of_processors, raw_get.of_processors);
    return storage->DeleteTree(saved.directory);
  }));
  save.PrintRates("s3.save", "ratio", "libcurl alone");
  load.PrintRates("s3.load", "ratio", "libcurl alone");
  PrintFigure("s3.save.processor_ratio", save_processors.Ratio());
  PrintFigure("s3.load.processor_ratio", load_processors.Ratio());
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
  return tessera::RunProgram("s3", tessera::Measure);
}
