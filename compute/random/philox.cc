#include "compute/random/philox.h"

#include <cmath>
#include <cstddef>
#include <numbers>

#include "compute/random/fixed_math.h"

namespace tessera {
namespace {

// Returns the finaliser of splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
// generators", OOPSLA 2014).
uint64_t SplitMix(uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// Two normals from two words. Half a unit is added so that the logarithm is finite; with all 32
// bits of the radius the tails reach 6.7 sigma. Computed in double.
struct NormalPair {
  float cosine;
  float sine;
};

NormalPair BoxMuller(uint32_t radius_word, uint32_t angle_word) {
  constexpr double kUnit = 0x1p-32;
  const double radius = std::sqrt(-2.0 * FixedLog((radius_word + 0.5) * kUnit));
  const double angle = 2.0 * std::numbers::pi * kUnit * angle_word;
  return {static_cast<float>(radius * FixedCos(angle)),
          static_cast<float>(radius * FixedSin(angle))};
}

std::array<float, 4> NormalBlock(const RandomStream& stream, uint64_t block) {
  const PhiloxBlock words = RandomBlock(stream, block);
  const NormalPair low = BoxMuller(words[0], words[1]);
  const NormalPair high = BoxMuller(words[2], words[3]);
  return {low.cosine, low.sine, high.cosine, high.sine};
}

}  // namespace

uint64_t MixCoordinates(uint64_t a, uint64_t b) { return SplitMix(SplitMix(a) + b); }

uint64_t HashName(std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3;
  return SplitMix(hash);
}

PhiloxBlock RandomBlock(const RandomStream& stream, uint64_t block) {
  const uint64_t key = MixCoordinates(stream.seed, static_cast<uint32_t>(stream.use));
  return Philox4x32(
      {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
       static_cast<uint32_t>(stream.stream), static_cast<uint32_t>(stream.stream >> 32)},
      static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32));
}

uint32_t RandomWord(const RandomStream& stream, uint64_t element) {
  return RandomBlock(stream, element / 4)[element % 4];
}

float RandomUniform(const RandomStream& stream, uint64_t element) {
  return static_cast<float>(RandomWord(stream, element) >> 8) * 0x1p-24f;
}

void FillRandomNormal(const RandomStream& stream, uint64_t first_element, std::span<float> out) {
  size_t i = 0;
  while (i < out.size()) {
    const uint64_t element = first_element + i;
    const std::array<float, 4> normals = NormalBlock(stream, element / 4);
    for (uint64_t lane = element % 4; lane < 4 && i < out.size(); ++lane) out[i++] = normals[lane];
  }
}

}  // namespace tessera
