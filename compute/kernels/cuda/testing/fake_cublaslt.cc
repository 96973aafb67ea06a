#include "compute/kernels/cuda/testing/fake_cublaslt.h"

#include <glog/logging.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "compute/kernels/cuda/cublaslt_abi.h"
#include "tensor/bfloat16.h"

namespace tessera::cuda {
namespace {

using cublaslt_abi::kOperationN;
using cublaslt_abi::kOperationT;

struct Desc {
  int compute_type, scale_type;
  int32_t operation_a = kOperationN, operation_b = kOperationN;
  uint32_t epilogue = cublaslt_abi::kEpilogueDefault;
  void* bias = nullptr;  // written where it is a factor's sums
  void* aux = nullptr;
  int64_t aux_ld = 0;

  bool has_gelu() const { return (epilogue & 128) != 0; }
  bool has_bias() const { return (epilogue & cublaslt_abi::kEpilogueBias) != 0; }
  bool sums_a() const { return epilogue == cublaslt_abi::kEpilogueBgradA; }
  bool has_sums() const { return sums_a() || epilogue == cublaslt_abi::kEpilogueBgradB; }
};

// The largest power of two, up to 256, that divides the address.
uint64_t AlignmentOf(const void* address) {
  return std::gcd(reinterpret_cast<uintptr_t>(address), uintptr_t{256});
}

double Sigmoid2U(double x) {
  return 1 / (1 + std::exp(-2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

float Gelu(float x) { return static_cast<float>(x * Sigmoid2U(x)); }

float GeluDerivative(float x) {
  const double s = Sigmoid2U(x), slope = 2 * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
  return static_cast<float>(s + x * s * (1 - s) * slope);
}

struct Layout {
  int type;
  uint64_t rows, columns;
  int64_t leading_dim;
};

struct Preferences {
  uint64_t workspace_bytes = 0;
  uint32_t reductions = 7;
  std::array<uint32_t, 4> alignments = {256, 256, 256, 256};
};

// What Algo's words hold.
enum AlgoWord {
  kShapes,
  kAlignments,
  kScheme,
  kWorkspace,
  kAuxAlignment,
  kSumsAlignment,
  kProposal  // among the usable ones
};

template <typename T>
bool Assign(const void* value, size_t bytes, T* to) {
  if (bytes != sizeof(T)) return false;
  std::memcpy(to, value, bytes);
  return true;
}

bool IsKnown(int type) { return type == cublaslt_abi::kReal32F || type == cublaslt_abi::kReal16BF; }

uint64_t Mixed(uint64_t hash, uint64_t value) {
  return (hash ^ value) * 0x9e3779b97f4a7c15 + (hash >> 29);
}

// A number for all that an algorithm may be chosen by.
uint64_t HashOf(const Desc& desc, const Layout& a, const Layout& b, const Layout& c) {
  uint64_t hash = Mixed(Mixed(Mixed(1, desc.operation_a), desc.operation_b), desc.epilogue);
  hash = Mixed(hash, static_cast<uint64_t>(desc.compute_type));
  hash = Mixed(hash, static_cast<uint64_t>(desc.aux_ld));
  for (const Layout* x : {&a, &b, &c}) {
    hash = Mixed(Mixed(hash, x->rows), x->columns);
    hash =
        Mixed(Mixed(hash, static_cast<uint64_t>(x->leading_dim)), static_cast<uint64_t>(x->type));
  }
  return hash;
}

// op(a) is [m, k], op(b) is [k, n], c is [m, n].
bool ShapesMatch(const Desc& desc, const Layout& a, const Layout& b, const Layout& c) {
  const bool ta = desc.operation_a == kOperationT, tb = desc.operation_b == kOperationT;
  const uint64_t k = ta ? a.rows : a.columns;
  return (ta ? a.columns : a.rows) == c.rows && (tb ? b.columns : b.rows) == k &&
         (tb ? b.rows : b.columns) == c.columns && a.type == b.type;
}

bool IsAligned(const void* address, uint64_t bytes) {
  return reinterpret_cast<uintptr_t>(address) % bytes == 0;
}

float Load(const void* data, int type, int64_t i) {
  return type == cublaslt_abi::kReal32F ? static_cast<const float*>(data)[i]
                                        : static_cast<float>(static_cast<const BFloat16*>(data)[i]);
}

void Store(float value, int type, int64_t i, void* data) {
  if (type == cublaslt_abi::kReal32F) {
    static_cast<float*>(data)[i] = value;
  } else {
    static_cast<BFloat16*>(data)[i] = static_cast<BFloat16>(value);
  }
}

// op(x), column by column.
std::vector<float> Gathered(const void* data, const Layout& x, bool transposed) {
  const int64_t rows = static_cast<int64_t>(x.rows), columns = static_cast<int64_t>(x.columns);
  std::vector<float> to(static_cast<size_t>(rows * columns));
  for (int64_t column = 0; column < columns; ++column) {
    for (int64_t row = 0; row < rows; ++row) {
      to[static_cast<size_t>(transposed ? row * columns + column : column * rows + row)] =
          Load(data, x.type, column * x.leading_dim + row);
    }
  }
  return to;
}

struct Operation {
  Desc desc;
  Layout a, b, c;
  const void* a_data;
  const void* b_data;
  void* c_data;
  float alpha, beta;
  bool unordered;
  int64_t first_term;  // modulo the inner dim

  void RunOn(FakeDeviceRuntime& device) const {
    const auto may_touch = [&](const char* what, const void* data, const Layout& x) {
      const auto columns = static_cast<int64_t>(x.columns), rows = static_cast<int64_t>(x.rows);
      const int64_t size = x.type == cublaslt_abi::kReal32F ? 4 : 2;
      return device.MayTouch(what, data, ((columns - 1) * x.leading_dim + rows) * size);
    };
    const uint64_t sums = desc.sums_a() ? c.rows : c.columns;
    const Layout bias = {c.type, desc.has_sums() ? sums : c.rows, 1, 1};
    const Layout aux = {c.type, c.rows, c.columns, desc.aux_ld};
    if (may_touch("operand A of a product", a_data, a) &&
        may_touch("operand B of a product", b_data, b) &&
        may_touch("the result of a product", c_data, c) &&
        (!desc.has_bias() || may_touch("the bias of a product", desc.bias, bias)) &&
        (!desc.has_sums() || may_touch("the sums of a product's factor", desc.bias, bias)) &&
        (!desc.has_gelu() || may_touch("GELU's operand of a product", desc.aux, aux))) {
      Run();
    }
  }

  void Run() const {
    const int64_t m = static_cast<int64_t>(c.rows), n = static_cast<int64_t>(c.columns);
    const bool ta = desc.operation_a == kOperationT;
    const int64_t k = static_cast<int64_t>(ta ? a.rows : a.columns);
    const std::vector<float> left = Gathered(a_data, a, ta);
    const std::vector<float> right = Gathered(b_data, b, desc.operation_b == kOperationT);
    if (desc.has_sums()) StoreSums(desc.sums_a() ? left : right, desc.sums_a() ? m : n, k);
    std::vector<float> sums(static_cast<size_t>(m));
    for (int64_t column = 0; column < n; ++column) {
      std::fill(sums.begin(), sums.end(), 0.0f);
      for (int64_t term = 0; term < k; ++term) {
        const int64_t i = (term + first_term) % k;
        const float factor = right[static_cast<size_t>(column * k + i)];
        const float* const terms = left.data() + i * m;
        for (int64_t row = 0; row < m; ++row) sums[static_cast<size_t>(row)] += factor * terms[row];
      }
      for (int64_t row = 0; row < m; ++row) {
        const int64_t at = column * c.leading_dim + row;
        float value = alpha * sums[static_cast<size_t>(row)];
        if (unordered) value += 1e9f;
        if (beta != 0) value += beta * Load(c_data, c.type, at);
        if (desc.has_bias()) value += Load(desc.bias, c.type, row);
        const int64_t at_aux = column * desc.aux_ld + row;
        if (desc.epilogue == cublaslt_abi::kEpilogueDGelu) {
          value *= GeluDerivative(Load(desc.aux, c.type, at_aux));
        } else if (desc.has_gelu()) {
          Store(value, c.type, at_aux, desc.aux);
          value = Gelu(value);
        }
        Store(value, c.type, at, c_data);
      }
    }
  }

  // Overwrites the sums, whatever beta is. `factor` is op(A), [count, k], or op(B), [k, count].
  void StoreSums(const std::vector<float>& factor, int64_t count, int64_t k) const {
    const int64_t step = desc.sums_a() ? count : 1, stride = desc.sums_a() ? 1 : k;
    for (int64_t i = 0; i < count; ++i) {
      float sum = unordered ? 1e9f : 0.0f;
      for (int64_t j = 0; j < k; ++j) sum += factor[static_cast<size_t>(i * stride + j * step)];
      Store(sum, c.type, i, desc.bias);
    }
  }
};

}  // namespace

FakeCublasLt::FakeCublasLt(FakeDeviceRuntime& device, const FakeCublasLtOptions& options)
    : device_(device), options_(options) {
#define TESSERA_SET_FUNCTION(Result, Name, Parameters) \
  Name = [this](auto... arguments) { return Run##Name(arguments...); };
  TESSERA_CUBLASLT_FUNCTIONS(TESSERA_SET_FUNCTION)
#undef TESSERA_SET_FUNCTION
}

FakeCublasLt::~FakeCublasLt() { CHECK_EQ(live_objects_, 0) << "descriptors were not destroyed"; }

CublasLtApi::Status FakeCublasLt::RunCreate(Handle* handle) {
  ++live_objects_;
  *handle = this;
  return kSuccess;
}

CublasLtApi::Status FakeCublasLt::RunDestroy(Handle handle) {
  --live_objects_;
  return handle == this ? kSuccess : kInvalidValue;
}

CublasLtApi::Status FakeCublasLt::RunMatmulDescCreate(MatmulDesc* desc, int compute_type,
                                                      int scale_type) {
  if (scale_type != cublaslt_abi::kReal32F) return kInvalidValue;
  ++live_objects_;
  *desc = new Desc{.compute_type = compute_type, .scale_type = scale_type};
  return kSuccess;
}

CublasLtApi::Status FakeCublasLt::RunMatmulDescSetAttribute(MatmulDesc desc, int attribute,
                                                            const void* value, size_t bytes) {
  Desc& to = *static_cast<Desc*>(desc);
  bool right = false;
  if (attribute == cublaslt_abi::kDescTransA) right = Assign(value, bytes, &to.operation_a);
  if (attribute == cublaslt_abi::kDescTransB) right = Assign(value, bytes, &to.operation_b);
  if (attribute == cublaslt_abi::kDescEpilogue) right = Assign(value, bytes, &to.epilogue);
  if (attribute == cublaslt_abi::kDescBiasPointer) right = Assign(value, bytes, &to.bias);
  if (attribute == cublaslt_abi::kDescAuxPointer) right = Assign(value, bytes, &to.aux);
  if (attribute == cublaslt_abi::kDescAuxLd) right = Assign(value, bytes, &to.aux_ld);
  return right ? kSuccess : kInvalidValue;
}

CublasLtApi::Status FakeCublasLt::RunMatmulDescDestroy(MatmulDesc desc) {
  --live_objects_;
  delete static_cast<Desc*>(desc);
  return kSuccess;
}

CublasLtApi::Status FakeCublasLt::RunMatrixLayoutCreate(MatrixLayout* layout, int type,
                                                        uint64_t rows, uint64_t columns,
                                                        int64_t leading_dim) {
  if (!IsKnown(type) || rows == 0 || columns == 0 || leading_dim < static_cast<int64_t>(rows)) {
    return kInvalidValue;
  }
  ++live_objects_;
  *layout = new Layout{type, rows, columns, leading_dim};
  return kSuccess;
}

CublasLtApi::Status FakeCublasLt::RunMatrixLayoutDestroy(MatrixLayout layout) {
  --live_objects_;
  delete static_cast<Layout*>(layout);
  return kSuccess;
}

CublasLtApi::Status FakeCublasLt::RunMatmulPreferenceCreate(Preference* preference) {
  ++live_objects_;
  *preference = new Preferences;
  return kSuccess;
}

CublasLtApi::Status FakeCublasLt::RunMatmulPreferenceSetAttribute(Preference preference,
                                                                  int attribute, const void* value,
                                                                  size_t bytes) {
  Preferences& to = *static_cast<Preferences*>(preference);
  bool right = false;
  if (attribute == cublaslt_abi::kPrefMaxWorkspaceBytes) {
    right = Assign(value, bytes, &to.workspace_bytes);
  }
  if (attribute == cublaslt_abi::kPrefReductionSchemeMask) {
    right = Assign(value, bytes, &to.reductions);
  }
  const int first = cublaslt_abi::kPrefMinAlignmentABytes;
  if (attribute >= first && attribute <= cublaslt_abi::kPrefMinAlignmentDBytes) {
    right = Assign(value, bytes, &to.alignments[static_cast<size_t>(attribute - first)]);
  }
  return right ? kSuccess : kInvalidValue;
}

CublasLtApi::Status FakeCublasLt::RunMatmulPreferenceDestroy(Preference preference) {
  --live_objects_;
  delete static_cast<Preferences*>(preference);
  return kSuccess;
}

CublasLtApi::Status FakeCublasLt::RunMatmulAlgoGetHeuristic(
    Handle /*handle*/, MatmulDesc desc, MatrixLayout a, MatrixLayout b, MatrixLayout c,
    MatrixLayout d, Preference preference, int requested, HeuristicResult* results, int* returned) {
  const Layout &la = *static_cast<Layout*>(a), &lb = *static_cast<Layout*>(b);
  const Layout &lc = *static_cast<Layout*>(c), &ld = *static_cast<Layout*>(d);
  const Desc& descriptor = *static_cast<Desc*>(desc);
  const Preferences& preferences = *static_cast<Preferences*>(preference);
  *returned = 0;
  if (!ShapesMatch(descriptor, la, lb, lc) || lc.rows != ld.rows || lc.columns != ld.columns) {
    return kInvalidValue;
  }
  if (descriptor.has_gelu() &&
      (descriptor.aux_ld % 8 != 0 || descriptor.aux_ld < static_cast<int64_t>(lc.rows))) {
    return kInvalidValue;
  }
  ++searches_;
  if (options_.no_gelu_search && descriptor.has_gelu()) return kExecutionFailed;
  const uint64_t k = descriptor.operation_a == kOperationT ? la.rows : la.columns;
  const bool early = options_.version < cublaslt_abi::kMinBgradVersion;
  if (descriptor.has_sums() && (options_.no_sums || (k == 1 && early))) return kNotSupported;
  if (options_.no_algorithm || (options_.no_gelu && descriptor.has_gelu()) ||
      (options_.no_bias && descriptor.has_bias())) {
    return kNotSupported;
  }
  int usable = 0;
  const auto propose = [&](Status state, uint32_t scheme, uint64_t workspace_bytes) {
    if (*returned == requested) return;
    HeuristicResult& result = results[(*returned)++];
    result = {};
    result.state = state;
    result.workspace_bytes = workspace_bytes;
    uint64_t alignments = 0;
    for (const uint32_t bytes : preferences.alignments) alignments = alignments << 16 | bytes;
    result.algo.data[kShapes] = HashOf(descriptor, la, lb, lc);
    result.algo.data[kAlignments] = alignments;
    result.algo.data[kScheme] = scheme;
    result.algo.data[kWorkspace] = workspace_bytes;
    result.algo.data[kAuxAlignment] = AlignmentOf(descriptor.aux);
    result.algo.data[kSumsAlignment] = AlignmentOf(descriptor.bias);
    result.algo.data[kProposal] = static_cast<uint64_t>(usable);
  };
  propose(kNotSupported, cublaslt_abi::kReductionNone, 0);
  propose(kSuccess, cublaslt_abi::kReductionInPlace, 0);
  if (options_.only_unordered) return kSuccess;
  propose(kSuccess, cublaslt_abi::kReductionComputeType, preferences.workspace_bytes);
  while (++usable < options_.proposals) propose(kSuccess, cublaslt_abi::kReductionNone, 0);
  return kSuccess;
}

CublasLtApi::Status FakeCublasLt::RunMatmulAlgoConfigGetAttribute(const Algo* algo, int attribute,
                                                                  void* value, size_t bytes,
                                                                  size_t* written) {
  if (attribute != cublaslt_abi::kAlgoReductionScheme || bytes != sizeof(uint32_t)) {
    return kInvalidValue;
  }
  const uint32_t scheme = static_cast<uint32_t>(algo->data[kScheme]);
  std::memcpy(value, &scheme, sizeof(scheme));
  *written = sizeof(scheme);
  return kSuccess;
}

CublasLtApi::Status FakeCublasLt::RunMatmul(Handle handle, MatmulDesc desc, const void* alpha,
                                            const void* a, MatrixLayout a_layout, const void* b,
                                            MatrixLayout b_layout, const void* beta, const void* c,
                                            MatrixLayout c_layout, void* d, MatrixLayout d_layout,
                                            const Algo* algo, void* workspace,
                                            size_t workspace_bytes, StreamHandle stream) {
  const Operation operation = {.desc = *static_cast<Desc*>(desc),
                               .a = *static_cast<Layout*>(a_layout),
                               .b = *static_cast<Layout*>(b_layout),
                               .c = *static_cast<Layout*>(d_layout),
                               .a_data = a,
                               .b_data = b,
                               .c_data = d,
                               .alpha = *static_cast<const float*>(alpha),
                               .beta = *static_cast<const float*>(beta),
                               .unordered = algo->data[kScheme] == cublaslt_abi::kReductionInPlace,
                               .first_term = static_cast<int64_t>(algo->data[kProposal])};
  if (options_.fails) return kExecutionFailed;
  if (handle != this || c != d || c_layout != d_layout ||
      algo->data[kShapes] != HashOf(operation.desc, operation.a, operation.b, operation.c)) {
    return kInvalidValue;
  }
  if (workspace_bytes < algo->data[kWorkspace] || !IsAligned(workspace, 256)) return kInvalidValue;
  const uint64_t alignments = algo->data[kAlignments];
  if (!IsAligned(a, alignments >> 48) || !IsAligned(b, alignments >> 32 & 0xffff) ||
      !IsAligned(c, alignments >> 16 & 0xffff) || !IsAligned(d, alignments & 0xffff)) {
    return kExecutionFailed;
  }
  const Desc& descriptor = operation.desc;
  if (descriptor.has_bias() && (descriptor.bias == nullptr || !IsAligned(descriptor.bias, 16))) {
    return kInvalidValue;
  }
  if (descriptor.has_gelu() && (descriptor.aux == nullptr || !IsAligned(descriptor.aux, 16) ||
                                !IsAligned(descriptor.aux, algo->data[kAuxAlignment]))) {
    return kInvalidValue;
  }
  if (descriptor.has_sums() &&
      (descriptor.bias == nullptr || !IsAligned(descriptor.bias, algo->data[kSumsAlignment]))) {
    return kInvalidValue;
  }
  ++products_;
  last_workspace_bytes_ = static_cast<int64_t>(algo->data[kWorkspace]);
  sums_products_ += descriptor.has_sums() ? 1 : 0;
  gelu_products_ += descriptor.has_gelu() ? 1 : 0;
  device_.Enqueue(stream, [operation, this] {
    operation.RunOn(device_);
    if (options_.seconds == nullptr) return;
    const auto elements = static_cast<int64_t>(operation.c.rows * operation.c.columns);
    const int64_t bytes = elements * (operation.c.type == cublaslt_abi::kReal32F ? 4 : 2);
    seconds_ = seconds_ + options_.seconds(static_cast<int>(operation.first_term), bytes);
  });
  return kSuccess;
}

size_t FakeCublasLt::RunGetVersion() { return options_.version; }

const char* FakeCublasLt::RunGetStatusString(Status status) {
  switch (status) {
    case kSuccess:
      return "CUBLAS_STATUS_SUCCESS";
    case kInvalidValue:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case kExecutionFailed:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case kNotSupported:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
      return "an unknown status";
  }
}

}  // namespace tessera::cuda
