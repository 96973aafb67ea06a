// GELU and SwiGLU in EXACT numerics.

#include <tuple>

#include "compute/kernels/cuda/device_kernels.h"
#include "compute/kernels/cuda/exact_math.h"
#include "compute/kernels/cuda/operation.h"
#include "compute/kernels/cuda/simt.h"
#include "tensor/tensor.h"

namespace tessera::cuda {
namespace {

struct ExactGelu {
  TESSERA_DEVICE void operator()(float& x) const { x = exact::Gelu(x); }
};

struct ExactGeluGradient {
  TESSERA_DEVICE void operator()(float& gradient, float x) const {
    gradient = exact::GeluGradient(gradient, x);
  }
};

struct ExactSwiGlu {
  TESSERA_DEVICE void operator()(float& gate, float up) const { gate = exact::SwiGlu(gate, up); }
};

struct ExactSwiGluGradient {
  TESSERA_DEVICE void operator()(float& gate, float& up, float gradient) const {
    const float g = gate, u = up;
    exact::SwiGluGradient(gradient, g, u, &gate, &up);
  }
};

}  // namespace

void DeviceKernels::RunExact(const ops::GeluForward& op) {
  const Operation here(*this, "GeluForward", op.x, op.out);
  LaunchMap(stream(), ExactGelu(), std::tuple(AsRows<float>(op.x)),
            std::tuple(AsRows<float>(op.out)));
}

void DeviceKernels::RunExact(const ops::GeluBackward& op) {
  const Operation here(*this, "GeluBackward", op.d_out, op.x, op.d_x);
  LaunchMap(stream(), ExactGeluGradient(), std::tuple(AsRows<float>(op.d_out), AsRows<float>(op.x)),
            std::tuple(AsRows<float>(op.d_x)));
}

void DeviceKernels::RunExact(const ops::SwiGluForward& op) {
  const Operation here(*this, "SwiGluForward", op.gate_up, op.out);
  LaunchMap(stream(), ExactSwiGlu(),
            std::tuple(HalfOf<float>(op.gate_up, 0), HalfOf<float>(op.gate_up, 1)),
            std::tuple(AsRows<float>(op.out)));
}

void DeviceKernels::RunExact(const ops::SwiGluBackward& op) {
  const Operation here(*this, "SwiGluBackward", op.d_out, op.gate_up, op.d_gate_up);
  LaunchMap(stream(), ExactSwiGluGradient(),
            std::tuple(HalfOf<float>(op.gate_up, 0), HalfOf<float>(op.gate_up, 1),
                       AsRows<float>(op.d_out)),
            std::tuple(HalfOf<float>(op.d_gate_up, 0), HalfOf<float>(op.d_gate_up, 1)));
}

}  // namespace tessera::cuda
