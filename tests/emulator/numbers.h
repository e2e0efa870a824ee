// Half precision and bfloat16 as bits, rounded to nearest even as a GPU does.

#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace emulator {

inline uint32_t bits_of(float v) { uint32_t b; memcpy(&b, &v, 4); return b; }
inline float float_of(uint32_t b) { float v; memcpy(&v, &b, 4); return v; }

// The nearest number with `fraction` bits behind the point and exponents from `least` to `most`, as bits.
inline uint16_t narrowed(double x, int fraction, int least, int most) {
  uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  uint16_t infinity = (uint16_t)((most - least + 2) << fraction);
  if (std::isnan(x)) return 0x7fff;
  double size = std::fabs(x);
  if (std::isinf(size)) return sign | infinity;
  if (size == 0) return sign;
  int exponent;
  std::frexp(size, &exponent);
  exponent = exponent - 1 < least ? least : exponent - 1;
  double whole = std::nearbyint(std::ldexp(size, fraction - exponent));
  if (exponent > most || std::ldexp(whole, exponent - fraction) >= std::ldexp(1.0, most + 1)) return sign | infinity;
  int64_t number = (int64_t)whole, one = 1ll << fraction;
  return sign | (uint16_t)(number < one ? number : ((int64_t)(exponent - least + 1) << fraction) + number - one);
}
inline uint16_t half_of(double x) { return narrowed(x, 10, -14, 15); }
inline uint16_t bfloat_of(double x) { return narrowed(x, 7, -126, 127); }

inline float half_value(uint16_t h) {
  static float* table = nullptr;
  if (!table) {
    table = new float[65536];
    for (int i = 0; i < 65536; i++) {
      int exponent = (i >> 10) & 31, fraction = i & 1023;
      double size = exponent == 0    ? std::ldexp(fraction, -24)
                    : exponent < 31  ? std::ldexp(1024 + fraction, exponent - 25)
                    : fraction == 0  ? INFINITY
                                     : NAN;
      table[i] = (float)(i & 0x8000 ? -size : size);
    }
  }
  return table[h];
}
inline float bfloat_value(uint16_t h) { return float_of((uint32_t)h << 16); }

// a * b + c as a double that rounds to fewer bits as the exact result would: where the sum isn't exact its last bit is
// made odd. a * b must be exact.
inline double odd_sum(double product, double c) {
  double sum = product + c;
  if (!std::isfinite(sum)) return sum;
  double rest = std::fabs(product) >= std::fabs(c) ? c - (sum - product) : product - (sum - c);
  int64_t bits;
  memcpy(&bits, &sum, 8);
  if (rest != 0 && !(bits & 1)) bits += (rest > 0) == (sum > 0) ? 1 : -1;
  memcpy(&sum, &bits, 8);
  return sum;
}

}  // namespace emulator
