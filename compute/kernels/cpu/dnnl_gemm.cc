#include "compute/kernels/cpu/dnnl_gemm.h"

#include <glog/logging.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <dnnl.hpp>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/no_memory.h"
#include "base/program.h"
#include "base/text.h"
#include "layout/dtype.h"

namespace tessera {
namespace {

using dnnl::memory;

memory::data_type ToDnnl(DType dtype) {
  CHECK(dtype == DType::kF32 || dtype == DType::kBF16) << DTypeName(dtype);
  return dtype == DType::kF32 ? memory::data_type::f32 : memory::data_type::bf16;
}

memory::desc MatrixDesc(int64_t rows, int64_t columns, DType dtype, int64_t leading,
                        bool transposed) {
  const memory::dims strides = transposed ? memory::dims{1, leading} : memory::dims{leading, 1};
  return memory::desc({rows, columns}, ToDnnl(dtype), strides);
}

// While a product runs, other threads use this one's variables: nothing can be unwound.
[[noreturn]] void EndWithoutMemory() {
  const absl::Status status =
      NoMemoryStatus(NoMemory("oneDNN cannot run a matrix product"), "compute");
  Print(absl::StrCat(status.message(), "\n"), stderr);
  _exit(1);
}

// Many threads run one product concurrently, so its scratch memory is passed in and its arguments
// are created per thread.
class DnnlGemm final : public Gemm {
 public:
  DnnlGemm(const GemmShape& shape, const dnnl::engine& engine,
           const std::vector<dnnl::stream>& streams, Workspace& scratch)
      : streams_(streams), scratch_(scratch) {
    CHECK_EQ(shape.terms, 1);
    const memory::desc a = MatrixDesc(shape.m, shape.k, shape.input, shape.lda, shape.a_transposed);
    const memory::desc b =
        shape.b_packed ? memory::desc({shape.k, shape.n}, memory::data_type::bf16,
                                      memory::format_tag::BA16a64b2a)
                       : MatrixDesc(shape.k, shape.n, shape.input, shape.ldb, shape.b_transposed);
    const memory::desc c = MatrixDesc(shape.m, shape.n, shape.output, shape.ldc, false);
    const memory::desc bias = MatrixDesc(1, shape.n, shape.input, shape.n, false);
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (shape.accumulate) {
      dnnl::post_ops post_ops;
      post_ops.append_sum(1.0f);
      attributes.set_post_ops(post_ops);
    }
    const dnnl::matmul::desc description =
        shape.bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
    const dnnl::matmul::primitive_desc primitive(description, attributes, engine);
    matmul_ = dnnl::matmul(primitive);
    scratch_bytes_ = static_cast<int64_t>(primitive.scratchpad_desc().get_size());
    arguments_.resize(streams.size());
    for (Arguments& arguments : arguments_) {
      arguments.Add(DNNL_ARG_SRC, a, engine);
      arguments.Add(DNNL_ARG_WEIGHTS, b, engine);
      arguments.Add(DNNL_ARG_DST, c, engine);
      arguments.Add(DNNL_ARG_SCRATCHPAD, primitive.scratchpad_desc(), engine);
      if (shape.bias) arguments.Add(DNNL_ARG_BIAS, bias, engine);
    }
    scratch.ReservePerThread(scratch_bytes_);
  }

  void Run(int thread, std::span<const GemmOperands> terms, void* c,
           const void* bias) const override {
    const Arguments& arguments = arguments_[thread];
    arguments.memories[0].set_data_handle(const_cast<void*>(terms[0].a));
    arguments.memories[1].set_data_handle(const_cast<void*>(terms[0].b));
    arguments.memories[2].set_data_handle(c);
    arguments.memories[3].set_data_handle(scratch_.OfThread<char>(thread, scratch_bytes_));
    if (bias != nullptr) arguments.memories[4].set_data_handle(const_cast<void*>(bias));
    const dnnl_status_t status =
        dnnl_primitive_execute(matmul_.get(), streams_[thread].get(),
                               static_cast<int>(arguments.list.size()), arguments.list.data());
    if (status == dnnl_out_of_memory) EndWithoutMemory();
    CHECK_EQ(status, dnnl_success) << "oneDNN could not run a matrix product";
  }

 private:
  struct Arguments {
    void Add(int index, const memory::desc& desc, const dnnl::engine& engine) {
      memories.push_back(memory(desc, engine, DNNL_MEMORY_NONE));
      list.push_back({index, memories.back().get()});
    }
    std::vector<memory> memories;
    std::vector<dnnl_exec_arg_t> list;
  };

  const std::vector<dnnl::stream>& streams_;
  Workspace& scratch_;
  dnnl::matmul matmul_;
  int64_t scratch_bytes_ = 0;
  std::vector<Arguments> arguments_;
};

dnnl::engine MakeEngine() {
  LimitDnnlIsa();
  return dnnl::engine(dnnl::engine::kind::cpu, 0);
}

}  // namespace

struct DnnlGemms::Threads {
  Threads(int count, Workspace& scratch) : engine(MakeEngine()), scratch(scratch) {
    for (int i = 0; i < count; ++i) streams.emplace_back(engine);
  }

  dnnl::engine engine;
  std::vector<dnnl::stream> streams;
  Workspace& scratch;
};

DnnlGemms::DnnlGemms(int threads, Workspace& scratch)
    : threads_(std::make_unique<Threads>(threads, scratch)) {}

DnnlGemms::~DnnlGemms() = default;

std::unique_ptr<Gemm> DnnlGemms::Make(const GemmShape& shape) const {
  try {
    return std::make_unique<DnnlGemm>(shape, threads_->engine, threads_->streams,
                                      threads_->scratch);
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_out_of_memory) throw NoMemory("oneDNN cannot make a matrix product");
    LOG(FATAL) << "oneDNN has no " << DTypeName(shape.input) << " matrix product [" << shape.m
               << "," << shape.k << "] x [" << shape.k << "," << shape.n
               << "] for this processor: " << error.what();
  }
}

// oneDNN takes its fast path with b packed, or one that is a thousand times slower than any other.
bool DnnlGemms::HasPackedKernels() const {
  try {
    const auto desc = [](memory::format_tag tag) {
      return memory::desc({64, 64}, memory::data_type::bf16, tag);
    };
    const dnnl::matmul::desc description(desc(memory::format_tag::ab),
                                         desc(memory::format_tag::BA16a64b2a),
                                         desc(memory::format_tag::ab));
    const dnnl::matmul::primitive_desc primitive(description, threads_->engine);
    return std::string_view(primitive.impl_info_str()).starts_with("brg:");
  } catch (const dnnl::error&) {
    return false;
  }
}

std::string DnnlDescription() {
  const std::string_view isa = DnnlIsaName();
  const dnnl_version_t& version = *dnnl_version();
  return absl::StrCat("oneDNN ", version.major, ".", version.minor, ".", version.patch, " ",
                      View(isa));
}

}  // namespace tessera
