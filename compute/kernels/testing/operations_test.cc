// The table of operations on every variant of a backend. Results are close to the reference. They
// have the same bits in every order, and on every instruction set that promises it. Each row has
// the same bits whichever others are computed with it, at any address. The last is the basis of
// results that do not depend on the topology.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "compute/kernels/backend.h"
#include "compute/kernels/testing/kernel_test.h"
#include "compute/kernels/testing/operation_cases.h"
#include "compute/kernels/testing/random_tensors.h"
#include "layout/dtype.h"
#include "tensor/tensor.h"

namespace tessera {
namespace {

using testing::CaseOperand;
using testing::CaseViews;
using testing::Cloned;
using testing::Converted;
using testing::ExpectBitwiseEqual;
using testing::OperationCase;

// Records the names of the operations that it is asked for.
class RecordingBackend final : public Backend {
 public:
  RecordingBackend(Backend& backend, std::set<std::string>& names)
      : backend_(backend), names_(names) {}

  Device device() const override { return backend_.device(); }

 protected:
  TESSERA_OPERATIONS(TESSERA_FORWARD_RUN)

 private:
  template <typename Op, typename Call>
  auto Forward(const Op& /*op*/, const char* name, const Call& call) -> decltype(call()) {
    names_.insert(name);
    return call();
  }

  Backend& backend_;
  std::set<std::string>& names_;
};

class OperationsTest : public KernelTest {
 protected:
  using Memory = std::vector<Tensor>;

  static std::vector<TensorView> ViewsOf(const Memory& memory) {
    return {memory.begin(), memory.end()};
  }

  static Memory Copies(const OperationCase& one) {
    Memory memory;
    for (const CaseOperand& operand : one.operands) memory.push_back(Cloned(operand.value));
    return memory;
  }

  static void Run(const OperationCase& one, Backend& backend, const std::vector<TensorView>& views,
                  int64_t first_row = 0) {
    one.run(backend, CaseViews(one.operands, views), first_row);
    ASSERT_EQ(backend.Synchronize(), absl::OkStatus());
  }

  Memory RunReference(const OperationCase& one) {
    Memory memory;
    for (const CaseOperand& operand : one.operands) {
      const bool ids = operand.value.view().dtype() == DType::kI32;
      memory.push_back(Converted(operand.value, ids ? DType::kI32 : DType::kF64));
    }
    Run(one, *reference_, ViewsOf(memory));
    return memory;
  }

  void ExpectOutputsClose(const OperationCase& one, const Memory& actual, const Memory& expected,
                          const std::string& variant) {
    if (one.compared == OperationCase::kNever) return;
    if (one.compared == OperationCase::kInF32 && dtype() == DType::kBF16) return;
    for (size_t i = 0; i < actual.size(); ++i) {
      const CaseOperand& operand = one.operands[i];
      if (operand.slack == 0) continue;
      testing::ExpectClose(actual[i], expected[i],
                           ToleranceOf(operand.value.view().dtype(), operand.slack),
                           operand.name + " on " + variant);
    }
  }

  static void ExpectSameOutputs(const OperationCase& one, const std::vector<TensorView>& actual,
                                const std::vector<TensorView>& expected, const std::string& what) {
    for (size_t i = 0; i < actual.size(); ++i) {
      ExpectBitwiseEqual(actual[i], expected[i], one.operands[i].name + " " + what);
    }
  }

  // `whole`: after a run of all rows.
  static void ExpectSameByRow(const OperationCase& one, Backend& backend, const Memory& whole) {
    ExpectSameFromParts(one, backend, whole);
    const auto in_matrix = [](const CaseOperand& operand) {
      return operand.extent == CaseOperand::kMatrix;
    };
    if (std::ranges::none_of(one.operands, in_matrix)) return;
    Memory wider;
    std::vector<TensorView> views;
    for (const CaseOperand& operand : one.operands) {
      const TensorView& from = operand.value;
      if (operand.extent != CaseOperand::kMatrix) {
        wider.push_back(Cloned(from));
        views.push_back(wider.back());
        continue;
      }
      wider.emplace_back(from.dtype(), Shape{from.dim(0), from.dim(1) + 21});
      views.push_back(wider.back().view().Slice(1, 3, from.dim(1) + 3));
      backend.Copy({from, views.back()});
    }
    Run(one, backend, views);
    ExpectSameOutputs(one, views, ViewsOf(whole), "in wider rows");
  }

  // Parts of the rows, each at other addresses.
  static void ExpectSameFromParts(const OperationCase& one, Backend& backend, const Memory& whole) {
    const auto has_rows = [](const CaseOperand& operand) {
      return operand.extent == CaseOperand::kRows || operand.extent == CaseOperand::kMatrix;
    };
    const int64_t rows = std::ranges::find_if(one.operands, has_rows)->value.view().dim(0);
    struct Part {
      int64_t begin, end, shift;
    };
    std::set<std::tuple<int64_t, int64_t, bool>> done;
    for (const Part& part : {Part{0, rows, 1}, Part{rows / 2, rows, 7}, Part{0, 1, 32},
                             Part{rows / 3, rows / 2 + 1, 32}, Part{rows - 1, rows, 0}}) {
      if (!done.emplace(part.begin, part.end, part.shift % 32 == 0).second) continue;
      Memory rooms;
      std::vector<TensorView> views, expected;
      for (size_t i = 0; i < one.operands.size(); ++i) {
        const bool cut = has_rows(one.operands[i]);
        const auto rows_of = [&](const TensorView& x) {
          return cut ? x.Slice(0, part.begin, part.end) : x;
        };
        const TensorView from = rows_of(one.operands[i].value);
        rooms.emplace_back(from.dtype(), Shape{from.elements() + part.shift});
        views.push_back(rooms.back()
                            .view()
                            .Slice(0, part.shift, part.shift + from.elements())
                            .Reshape(from.shape()));
        backend.Copy({from, views.back()});
        expected.push_back(cut || part.end - part.begin == rows ? rows_of(whole[i]) : views.back());
      }
      Run(one, backend, views, part.begin);
      ExpectSameOutputs(
          one, views, expected,
          absl::StrCat("of rows ", part.begin, " to ", part.end, ", moved by ", part.shift));
    }
  }
};

TEST_P(OperationsTest, EveryOperation) {
  std::set<std::string> recorded;
  const std::vector<BackendVariant> variants = VariantsUnderTest();
  for (const OperationCase& one : testing::OperationCases(dtype(), random_)) {
    SCOPED_TRACE(one.name);
    const Memory expected = RunReference(one);
    Memory first;
    for (const BackendVariant& variant : variants) {
      const std::unique_ptr<Backend> backend = variant.make();
      RecordingBackend recording(*backend, recorded);
      Memory memory = Copies(one);
      Run(one, recording, ViewsOf(memory));
      if (first.empty() || !variant.same_bits) {
        ExpectOutputsClose(one, memory, expected, variant.name);
      } else {
        ExpectSameOutputs(one, ViewsOf(memory), ViewsOf(first), "on " + variant.name);
      }
      if (first.empty()) first = std::move(memory);
    }
    if (one.by_row) ExpectSameByRow(one, *variants[1].make(), first);
  }
#define TESSERA_EXPECT_RECORDED(Result, Name) \
  EXPECT_TRUE(recorded.contains(#Name)) << #Name << " is in no case";
  TESSERA_OPERATIONS(TESSERA_EXPECT_RECORDED)
#undef TESSERA_EXPECT_RECORDED
}

INSTANTIATE_TEST_SUITE_P(DTypes, OperationsTest, ::testing::Values(DType::kF32, DType::kBF16),
                         DTypeParamName);

}  // namespace
}  // namespace tessera
