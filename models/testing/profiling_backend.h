#ifndef TESSERA_MODELS_TESTING_PROFILING_BACKEND_H_
#define TESSERA_MODELS_TESTING_PROFILING_BACKEND_H_

#include <glog/logging.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "compute/kernels/backend.h"
#include "tensor/tensor.h"

namespace tessera::testing {

// Forwards every call to another backend, and adds up the time of operations by name, and of matrix
// products by name and sizes.
class ProfilingBackend : public Backend {
 public:
  explicit ProfilingBackend(Backend& backend) : backend_(backend) {}

  struct Total {
    double seconds = 0;
    int64_t calls = 0;
    double flops = 0;  // of matrix products and attention
  };
  // Returns the totals of all calls since the last Take().
  std::map<std::string, Total> Take() { return std::exchange(totals_, {}); }

  absl::Status Synchronize() override { return backend_.Synchronize(); }
  Device device() const override { return backend_.device(); }
  bool takes_any_operands() const override { return backend_.takes_any_operands(); }
  void Upload(const void* host, TensorView to) override { backend_.Upload(host, to); }
  void Download(TensorView from, void* host) override { backend_.Download(from, host); }

 protected:
  TESSERA_OPERATIONS(TESSERA_FORWARD_RUN)

 private:
  template <typename Op, typename Call>
  auto Forward(const Op& op, const char* name, const Call& call) -> decltype(call()) {
    Total& total = totals_[absl::StrCat(name, SizesOf(op))];
    total.flops += FlopsOf(op);
    ++total.calls;
    const Timer timer(*this, total);
    return call();
  }

  // Adds the time from its construction until its destruction, when all queued work has run.
  class Timer {
   public:
    Timer(ProfilingBackend& owner, Total& total) : owner_(owner), total_(total) {}
    ~Timer() {
      CHECK_EQ(owner_.backend_.Synchronize(), absl::OkStatus());
      total_.seconds += SecondsSince(start_);
    }

   private:
    ProfilingBackend& owner_;
    Total& total_;
    const absl::Duration start_ = SteadyNow();
  };

  // Returns " M x K x N", and which operands are transposed.
  static std::string Sizes(const TensorView& a, const TensorView& b) {
    return absl::StrCat(" ", a.dim(0), " x ", a.dim(1), " x ", b.dim(1),
                        a.stride(1) == 1 ? " A" : " A'", b.stride(1) == 1 ? "B" : "B'");
  }
  template <typename Op>
  static std::string SizesOf(const Op& /*op*/) {
    return "";
  }
  static std::string SizesOf(const ops::MatMul& op) { return Sizes(op.a, op.b); }
  static std::string SizesOf(const ops::MatMulGelu& op) { return Sizes(op.a, op.b); }
  static std::string SizesOf(const ops::MatMulGeluBackward& op) { return Sizes(op.a, op.b); }
  static std::string SizesOf(const ops::MatMulSums& op) { return Sizes(op.a, op.b); }
  static std::string SizesOf(const ops::MatMulTree& op) {
    return absl::StrCat(" ", op.products.size(), " *", Sizes(op.products[0].a, op.products[0].b));
  }

  static double Flops(const TensorView& a, const TensorView& b) {
    return 2.0 * static_cast<double>(a.dim(0) * a.dim(1) * b.dim(1));
  }
  // Returns the operations of one product over the lower triangle; q [B,T,H,D].
  static double TriangleFlops(const TensorView& q) {
    const int64_t pairs = q.dim(1) * (q.dim(1) + 1) / 2;
    return 2.0 * static_cast<double>(q.dim(0) * q.dim(2) * q.dim(3) * pairs);
  }
  template <typename Op>
  static double FlopsOf(const Op& /*op*/) {
    return 0;
  }
  static double FlopsOf(const ops::MatMul& op) { return Flops(op.a, op.b); }
  static double FlopsOf(const ops::MatMulGelu& op) { return Flops(op.a, op.b); }
  static double FlopsOf(const ops::MatMulGeluBackward& op) { return Flops(op.a, op.b); }
  static double FlopsOf(const ops::MatMulSums& op) { return Flops(op.a, op.b); }
  static double FlopsOf(const ops::MatMulTree& op) {
    return static_cast<double>(op.products.size()) * Flops(op.products[0].a, op.products[0].b);
  }
  // Counts the products of scores and of values.
  static double FlopsOf(const ops::AttentionForward& op) { return 2 * TriangleFlops(op.q); }
  // Counts the gradients of queries, keys, values and probabilities, but not the scores, which are
  // computed again.
  static double FlopsOf(const ops::AttentionBackward& op) { return 4 * TriangleFlops(op.q); }

  Backend& backend_;
  std::map<std::string, Total> totals_;
};

}  // namespace tessera::testing

#endif  // TESSERA_MODELS_TESTING_PROFILING_BACKEND_H_
