#include "compute/kernels/cpu/gemm/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/kernels/cpu/gemm/kernels.cc"
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <glog/logging.h>
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "base/cpu_level.h"
#include "base/dispatch.h"
#include "compute/kernels/cpu/gemm/amx-inl.h"
#include "compute/kernels/cpu/gemm/chains-inl.h"
#include "compute/kernels/cpu/gemm/pack-inl.h"
#include "compute/kernels/cpu/gemm/registers-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::HWY_NAMESPACE {
namespace {

TESSERA_INLINE FloatRegister Plus(FloatRegister x, FloatRegister y, const float* /*dtype*/) {
  return hn::Add(x, y);
}
TESSERA_INLINE FloatRegister Plus(FloatRegister x, FloatRegister y, const BFloat16* /*dtype*/) {
  return Flushed(hn::Add(x, Flushed(y)));
}

TESSERA_INLINE FloatRegister LoadNumbers(const float* from) { return LoadFloats(from); }
TESSERA_INLINE FloatRegister LoadNumbers(const BFloat16* from) {
  const auto bits = hn::PromoteTo(WordTag(), hn::LoadU(HalfTag(), &from->bits));
  return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(bits));
}

TESSERA_INLINE void StoreNumbers(FloatRegister x, float* to) { hn::StoreU(x, FloatTag(), to); }
// Rounds as BFloat16(float) does.
TESSERA_INLINE void StoreNumbers(FloatRegister x, BFloat16* to) {
  const hn::RebindToSigned<FloatTag> words;
  const auto word = hn::BitCast(WordTag(), x);
  const auto high = hn::ShiftRight<16>(word);
  const auto odd = hn::And(high, hn::Set(WordTag(), 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(word, hn::Set(WordTag(), 0x7fff)), odd));
  const auto is_nan = hn::RebindMask(WordTag(), hn::IsNaN(x));
  const auto nan = hn::Or(high, hn::Set(WordTag(), 0x40));
  const auto half =
      hn::DemoteTo(HalfTag(), hn::BitCast(words, hn::IfThenElse(is_nan, nan, rounded)));
  hn::StoreU(half, HalfTag(), &to->bits);
}

template <typename In, typename Out>
void Finish(const float* tile, int64_t tile_stride, int64_t rows, int64_t columns, const void* bias,
            void* to, int64_t to_stride) {
  constexpr int64_t kLanes = kVectorLanes;
  for (int64_t i = 0; i < columns; i += kLanes) {
    const int64_t count = std::min(kLanes, columns - i);
    In addend[kLanes] = {};
    if (bias != nullptr) std::memcpy(addend, static_cast<const In*>(bias) + i, count * sizeof(In));
    const FloatRegister added = LoadNumbers(addend);
    Out* out = static_cast<Out*>(to) + i;
    for (int64_t row = 0; row < rows; ++row, out += to_stride) {
      FloatRegister x = LoadFloats(tile + row * tile_stride + i);
      if (bias != nullptr) x = Plus(x, added, addend);
      if (count == kLanes) {
        StoreNumbers(x, out);
      } else {
        Out last[kLanes];
        StoreNumbers(x, last);
        std::memcpy(out, last, count * sizeof(Out));
      }
    }
  }
}

#if HWY_TARGET <= HWY_AVX3
// Finish<BFloat16, BFloat16>() by VCVTNE2PS2BF16, which takes subnormals for zeros: products have
// none.
void FinishByInstruction(const float* tile, int64_t tile_stride, int64_t rows, int64_t columns,
                         const void* bias, void* to, int64_t to_stride) {
  if (columns != 2 * kVectorLanes) {
    return Finish<BFloat16, BFloat16>(tile, tile_stride, rows, columns, bias, to, to_stride);
  }
  const BFloat16 none[2 * kVectorLanes] = {};
  const auto* const addend = bias == nullptr ? none : static_cast<const BFloat16*>(bias);
  const FloatRegister low_addend = LoadNumbers(addend);
  const FloatRegister high_addend = LoadNumbers(addend + kVectorLanes);
  auto* out = static_cast<BFloat16*>(to);
  for (int64_t row = 0; row < rows; ++row, tile += tile_stride, out += to_stride) {
    FloatRegister low = LoadFloats(tile), high = LoadFloats(tile + kVectorLanes);
    if (bias != nullptr) low = hn::Add(low, low_addend), high = hn::Add(high, high_addend);
    asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(low.raw) : "v"(low.raw), "v"(high.raw));
    hn::StoreU(low, FloatTag(), reinterpret_cast<float*>(out));
  }
}
#endif

void AddLevels(const gemm::LevelSum& sum) {
  constexpr int64_t kLanes = kVectorLanes;
  for (int64_t row = 0; row < sum.rows; ++row) {
    for (int64_t i = 0; i < sum.columns; i += kLanes) {
      const int64_t at = row * sum.stride + i;
      FloatRegister x = LoadFloats(sum.tile + at);
      const float* level = sum.last_level + at;
      for (int j = 0; j < sum.levels; ++j, level -= sum.level_words) {
        x = hn::Add(LoadFloats(level), x);
      }
      float* const to = sum.to + row * sum.to_stride + i;
      if (sum.columns - i >= kLanes) {
        hn::StoreU(x, FloatTag(), to);
      } else {
        float last[kLanes];
        hn::StoreU(x, FloatTag(), last);
        std::memcpy(to, last, (sum.columns - i) * sizeof(float));
      }
    }
  }
}

template <typename Step, int... kRow>
constexpr gemm::Kernels Chains(int64_t k_per_step, gemm::PackFunction pack,
                               gemm::FinishFunction finish, gemm::FinishFunction round,
                               std::integer_sequence<int, kRow...>) {
  return {.rows = kTileRows,
          .columns = kTileVectors * kVectorLanes,
          .height = 1,
          .block = k_per_step,
          .k_per_step = k_per_step,
          .pack_rows = pack,
          .pack_columns = pack,
          .takes_columns = pack == &PackWords<float>,
          .finish = {finish, round},
          .add = AddLevels,
          .multiply = {{MultiplyChains<Step, kRow + 1, 1>, MultiplyChains<Step, kRow + 1, 2>}...}};
}

template <int... kRow>
constexpr gemm::Kernels WidenedBlocks(gemm::FinishFunction round,
                                      std::integer_sequence<int, kRow...>) {
  return {.rows = kTileRows / 2,
          .columns = kTileVectors * kVectorLanes,
          .height = 1,
          .block = gemm::kBlock,
          .k_per_step = 1,
          .pack_rows = PackWidenedBlocks,
          .pack_columns = PackWidenedBlocks,
          .most_steps = 256,
          .finish = {Finish<BFloat16, float>, round},
          .add = AddLevels,
          .multiply = {{MultiplyBlocks<kRow + 1, 1>, MultiplyBlocks<kRow + 1, 2>}...}};
}

#if HWY_TARGET <= HWY_AVX3
template <int... kRow>
constexpr gemm::Kernels PairBlocks(std::integer_sequence<int, kRow...>) {
  return {.rows = sizeof...(kRow),
          .columns = kTileVectors * kVectorLanes,
          .height = 1,
          .block = gemm::kBlock,
          .k_per_step = 2,
          .pack_rows = PackPairBlocks,
          .pack_columns = PackPairBlocks,
          .finish = {Finish<BFloat16, float>, FinishByInstruction},
          .add = AddLevels,
          .multiply = {{MultiplyInPasses<kRow + 1, 1>, MultiplyInPasses<kRow + 1, 2>}...}};
}

template <typename Unit>
constexpr gemm::Kernels Tiles(gemm::FinishFunction round) {
  return {.rows = 2 * kTile,
          .columns = 2 * kTile,
          .height = kTile,
          .block = gemm::kBlock,
          .k_per_step = 2,
          .pack_rows = PackTiles,
          .pack_columns = PackColumnTiles,
          .most_steps = 512,
          .stage_steps = 128,
          .packs_meanwhile = true,
          .finish = {Finish<BFloat16, float>, round},
          .add = AddLevels,
          .multiply = {{MultiplyTiles<Unit, false, false>, MultiplyTiles<Unit, false, true>},
                       {MultiplyTiles<Unit, true, false>, MultiplyTiles<Unit, true, true>}},
          .begin = Unit::Begin,
          .end = Unit::End};
}
#endif

const gemm::Kernels* ChooseAmx(bool modeled) {
#if HWY_TARGET <= HWY_AVX3
  static constexpr gemm::Kernels kInstructions = Tiles<Amx>(FinishByInstruction),
                                 kModel = Tiles<AmxModel>(Finish<BFloat16, BFloat16>);
  return modeled ? &kModel : &kInstructions;
#else
  static_cast<void>(modeled);
  return nullptr;
#endif
}

const gemm::Kernels& Choose(DType input, bool exact, gemm::PairSpeed pairs) {
  constexpr auto kRows = std::make_integer_sequence<int, kTileRows>();
  constexpr auto kHalf = std::make_integer_sequence<int, kTileRows / 2>();  // of two chains each
  static constexpr gemm::Kernels kFp32[] = {
      Chains<Fast>(1, PackWords<float>, Finish<float, float>, nullptr, kRows),
      Chains<Fused>(1, PackWords<float>, Finish<float, float>, nullptr, kRows)};
  if (input == DType::kF32) return kFp32[exact ? 1 : 0];
#if HWY_TARGET <= HWY_AVX3
  static constexpr gemm::Kernels kPairs[] = {
      Chains<Pairs>(2, PackWords<BFloat16>, Finish<BFloat16, float>, FinishByInstruction, kRows),
      PairBlocks(std::make_integer_sequence<int, kRowsOfPasses>())};
  static constexpr gemm::Kernels kWidenedAndRounded = WidenedBlocks(FinishByInstruction, kHalf);
  if (exact && pairs == gemm::PairSpeed::kSlow) return kWidenedAndRounded;
  if (pairs != gemm::PairSpeed::kNone) return kPairs[exact ? 1 : 0];
#else
  static_cast<void>(pairs);
#endif
  static constexpr gemm::Kernels kWidened[] = {
      Chains<Fast>(1, PackWidened, Finish<BFloat16, float>, Finish<BFloat16, BFloat16>, kRows),
      WidenedBlocks(Finish<BFloat16, BFloat16>, kHalf)};
  return kWidened[exact ? 1 : 0];
}

}  // namespace
}  // namespace tessera::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::gemm {
namespace {

#if !defined(__x86_64__)
PairSpeed SpeedOfPairs() { return PairSpeed::kNone; }
bool HasAmx() { return false; }
#else
// AVX-512's bf16 instructions, unless TESSERA_CPU limits instructions to what was before them.
bool HasBf16() {
  if (CpuLevelLimit().has_value()) return false;
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a >> 5 & 1) != 0;
}

// Processors with AVX512-FP16, Intel's since Sapphire Rapids, take two cycles for VDPBF16PS, in
// which they do twice as many multiply-adds of fp32.
PairSpeed SpeedOfPairs() {
  if (!HasBf16()) return PairSpeed::kNone;
  unsigned a = 0, b = 0, c = 0, d = 0;
  __get_cpuid_count(7, 0, &a, &b, &c, &d);
  return (d >> 23 & 1) != 0 ? PairSpeed::kSlow : PairSpeed::kFast;
}

// Returns whether AMX's bf16 instructions, and AVX-512's, can be used. The system grants a process
// AMX's registers on request.
bool HasAmx() {
  constexpr unsigned kTileState = 3u << 17, kSaved = 1u << 27, kBf16AndTiles = 5u << 22;
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!HasBf16() || __get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kSaved) == 0 ||
      __get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kBf16AndTiles) != kBf16AndTiles) {
    return false;
  }
  unsigned states = 0, high = 0;
  asm("xgetbv" : "=a"(states), "=d"(high) : "c"(0));
  return (states & kTileState) == kTileState &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

}  // namespace

const Kernels* AmxKernels(bool modeled) { return TESSERA_CHOOSE(ChooseAmx)(modeled); }

bool SameBits(const Kernels& x, const Kernels& y) {
  constexpr int64_t kSteps = 3 * kBlock / 2, kWidth = kMostRows, kSums = kWidth * kWidth;
  std::vector<uint32_t> a(kSteps * kWidth), b(kSteps * kWidth);
  std::vector<float> sums(kSums), results[2];
  std::mt19937 random(1);
  // Signs and fractions are random, exponents in a range: around 1, with subnormal results, and
  // with subnormal operands.
  struct Exponents {
    uint32_t a, b, sum, count;
  };
  for (const Exponents& from :
       {Exponents{117, 117, 117, 20}, Exponents{61, 61, 0, 5}, Exponents{0, 130, 0, 8}}) {
    const auto number = [&random, &from](uint32_t least) -> uint32_t {
      return (random() & 0x807fffff) | (least + random() % from.count) << 23;
    };
    for (uint32_t& word : a) word = number(from.a) >> 16 | (number(from.a) & 0xffff0000);
    for (uint32_t& word : b) word = number(from.b) >> 16 | (number(from.b) & 0xffff0000);
    for (float& sum : sums) sum = std::bit_cast<float>(number(from.sum));
    const std::vector<int64_t> nothing_ahead(kSteps / kStepsOfAhead);
    for (std::vector<float>& result : results) {
      const Kernels* const kernels = &result == results ? &x : &y;
      result.resize(kSums);
      const FlushSubnormals flush;
      kernels->begin();
      kernels->multiply[1][1]({.steps = kSteps,
                               .a = a.data(),
                               .b = b.data(),
                               .from = sums.data(),
                               .from_stride = kWidth,
                               .to = result.data(),
                               .to_stride = kWidth,
                               .ahead = a.data(),
                               .ahead_offsets = nothing_ahead.data()});
      kernels->end();
    }
    if (std::memcmp(results[0].data(), results[1].data(), kSums * sizeof(float)) != 0) return false;
  }
  return true;
}

const Kernels& KernelsFor(DType input, bool exact) {
  static const bool has_amx = HasAmx();
  const Kernels* const amx = AmxKernels(/*modeled=*/false);
  if (input == DType::kBF16 && has_amx && amx != nullptr) {
    static const bool is_as_documented = SameBits(*amx, *AmxKernels(/*modeled=*/true));
    if (is_as_documented) return *amx;
    LOG_FIRST_N(WARNING, 1) << "AMX on this processor does not give the bits that Intel documents: "
                               "bf16 products use AVX-512";
  }
  static const PairSpeed pairs = SpeedOfPairs();
  return TESSERA_CHOOSE(Choose)(input, exact, pairs);
}

}  // namespace tessera::gemm
#endif  // HWY_ONCE
