// One tile of weights times the activations of its columns, by one warp, for each type of weights.
//
// A lane is 4 g + t: it has rows g and g + 8 of the tile, and columns 2t, 2t + 1 of the product (rows of activations).
// Every block of 32 weights has scales of its own on both sides, so each tensor-core product of a block is multiplied
// by both and added in float. Which rows of activations there are changes no bit of the others.
//
// Integers become floats without conversion instructions: a sum c added to the bits of 1.5 * 2^23 is the float
// 1.5 * 2^23 + c; a byte put below the exponent of 2^23 is 2^23 + byte, below that of 2^19 it is 2^19 + byte / 16.

constexpr u32 SUM_BITS = 0x4B400000;  // 1.5 * 2^23
constexpr float SUM_BASE = 12582912.0f;

// The activations of one window: where this lane's part of them lies in shared memory. Columns that are no rows of
// activations are read all the same (it is some other memory): they change nothing in the others and are never used.
struct Window {
  u32 values, low;  // [blocks][rows][32] of both planes: 8 bytes of row g
  u32 scales;       // [blocks][rows]: of rows 2t and 2t + 1
  u32 sums;         // [blocks][rows]: of row g
  u32 rows;
  u32 block;        // that the window begins with

  DEVICE Words2 operand(u32 at, u32 n) const { return shared_words2(values + at * rows * 32 + n * 256); }
  DEVICE Words2 low_operand(u32 at, u32 n) const { return shared_words2(low + at * rows * 32 + n * 256); }
  DEVICE float scale(u32 at, u32 n, u32 which) const { return shared_float(scales + at * rows * 4 + n * 32 + which * 4); }
  DEVICE u32 sum(u32 at, u32 n) const { return shared_word(sums + at * rows * 4 + n * 32); }
};

typedef float Products[ROW_TILES][4];  // (row g, columns 2t, 2t + 1), (row g + 8, the same)

DEVICE float byte_above(u32 word, u32 byte, u32 base) { return as_float(permute(word, base, 0x7540 | byte)); }
DEVICE u32 pick(const Words4& w, u32 index) { return index == 0 ? w.x : index == 1 ? w.y : index == 2 ? w.z : w.w; }

// to += sums * (scale of row) * (scale of column), the second plane's sums at 1 / 254.
template <bool two_planes>
DEVICE void add_scaled(float (&to)[4], const i32 (&sums)[4], const i32 (&low)[4], float row0, float row1, float column0,
                       float column1) {
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    float value = as_float((u32)sums[i]) - SUM_BASE;
    if (two_planes) value = multiply_add(as_float((u32)low[i]) - SUM_BASE, 1.0f / 254.0f, value);
    to[i] = multiply_add(value, (i < 2 ? row0 : row1) * (i & 1 ? column1 : column0), to[i]);
  }
}

DEVICE void clear_sums(i32 (&c)[4]) { c[0] = c[1] = c[2] = c[3] = (i32)SUM_BITS; }

// A block of 32 columns with one scale a row. is_signed: the weights are signed bytes.
template <bool is_signed, bool two_planes>
DEVICE void add_block(Products& to, const Window& x, u32 at, u32 a0, u32 a1, u32 a2, u32 a3, float row0, float row1) {
#pragma unroll
  for (u32 n = 0; n < ROW_TILES; ++n) {
    i32 sums[4], low[4];
    clear_sums(sums);
    Words2 b = x.operand(at, n);
    if (is_signed) mma_s8s8(sums, a0, a1, a2, a3, b.x, b.y);
    else mma_u8s8(sums, a0, a1, a2, a3, b.x, b.y);
    if (two_planes) {
      clear_sums(low);
      b = x.low_operand(at, n);
      if (is_signed) mma_s8s8(low, a0, a1, a2, a3, b.x, b.y);
      else mma_u8s8(low, a0, a1, a2, a3, b.x, b.y);
    }
    add_scaled<two_planes>(to[n], sums, low, row0, row1, x.scale(at, n, 0), x.scale(at, n, 1));
  }
}

// Minima of Q4_K and Q5_K: a product of their own, [16 rows x 8 blocks] times the sums of the activations, which are
// split in two bfloat16. minima: bytes (row g, blocks 2t, 2t + 1), (row g + 8, the same).
DEVICE void minima_products(Products& to, const Window& x, u32 at, u32 t, u32 minima) {
  u32 a0 = bfloat2_fma(permute(minima, 0x43434343, 0x4140), 0x3F803F80, 0xC300C300);
  u32 a1 = bfloat2_fma(permute(minima, 0x43434343, 0x4342), 0x3F803F80, 0xC300C300);
#pragma unroll
  for (u32 n = 0; n < ROW_TILES; ++n) {
    u32 even = x.sum(at + 2 * t, n), odd = x.sum(at + 2 * t + 1, n);
    to[n][0] = to[n][1] = to[n][2] = to[n][3] = 0;
    mma_bfloat(to[n], a0, a1, a0, a1, permute(even, odd, 0x5410), permute(even, odd, 0x7632));
  }
}

DEVICE void finish_with_minima(Products& to, const Products& scaled, const Products& minima, Words2 d) {
  float d0 = half_to_float((u16)d.x), m0 = half_to_float((u16)(d.x >> 16));
  float d1 = half_to_float((u16)d.y), m1 = half_to_float((u16)(d.y >> 16));
#pragma unroll
  for (u32 n = 0; n < ROW_TILES; ++n)
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      to[n][i] = multiply_add(i < 2 ? d0 : d1, scaled[n][i], to[n][i]);
      to[n][i] = multiply_add(-(i < 2 ? m0 : m1), minima[n][i], to[n][i]);
    }
}

DEVICE void clear(Products& p) {
#pragma unroll
  for (u32 n = 0; n < ROW_TILES; ++n)
#pragma unroll
    for (u32 i = 0; i < 4; ++i) p[n][i] = 0;
}

DEVICE u32 low_bits(u32 v) { return as_bits(as_float(v) - as_float(v & 0xFFFF0000)); }
// Floats less their first 8 significant bits (as bits).
DEVICE Words4 what_is_left(Words4 v) { return {low_bits(v.x), low_bits(v.y), low_bits(v.z), low_bits(v.w)}; }

// tile: an offset into shared memory. at: its first block within the window.
template <u32 type, bool two_planes> DEVICE void add_tile(Products& to, u32 tile, const Window& x, u32 at) {
  const u32 lane = thread_index() & 31, g = lane >> 2, t = lane & 3;
  if constexpr (type == Q4_K || type == Q5_K) {
    constexpr u32 scales_at = type == Q4_K ? 2048 : 2560;
    const Words4 scales = shared_words4(tile + scales_at + g * 16);
    Words4 fifth{};
    if (type == Q5_K) fifth = shared_words4(tile + 2048 + lane * 16);
    Products scaled, minima;
    clear(scaled);
#pragma unroll
    for (u32 p = 0; p < 4; ++p) {
      const Words4 w = shared_words4(tile + p * 512 + lane * 16);
      const u32 row0 = p < 2 ? scales.x : scales.y, row1 = p < 2 ? scales.z : scales.w, byte = 2 * p & 3;
      if (type == Q4_K) {
        const u32 low = 0x0F0F0F0F, high = 0xF0F0F0F0;
        add_block<false, two_planes>(scaled, x, at + 2 * p, w.x & low, w.y & low, w.z & low, w.w & low,
                                     byte_above(row0, byte, 0x4B000000) - 8388608.0f,
                                     byte_above(row1, byte, 0x4B000000) - 8388608.0f);
        // The high nibbles stay where they are: 16 times the weight, and a sixteenth of the scale.
        add_block<false, two_planes>(scaled, x, at + 2 * p + 1, w.x & high, w.y & high, w.z & high, w.w & high,
                                     byte_above(row0, byte + 1, 0x49000000) - 524288.0f,
                                     byte_above(row1, byte + 1, 0x49000000) - 524288.0f);
      } else {
        const u32 h = pick(fifth, p), nibble = 0x0F0F0F0F, bit = 0x10101010;
        add_block<false, two_planes>(scaled, x, at + 2 * p, (w.x & nibble) | (h << 4 & bit),
                                     (w.y & nibble) | (h << 3 & bit), (w.z & nibble) | (h << 2 & bit),
                                     (w.w & nibble) | (h << 1 & bit),
                                     byte_above(row0, byte, 0x4B000000) - 8388608.0f,
                                     byte_above(row1, byte, 0x4B000000) - 8388608.0f);
        add_block<false, two_planes>(scaled, x, at + 2 * p + 1, (w.x >> 4 & nibble) | (h & bit),
                                     (w.y >> 4 & nibble) | (h >> 1 & bit), (w.z >> 4 & nibble) | (h >> 2 & bit),
                                     (w.w >> 4 & nibble) | (h >> 3 & bit),
                                     byte_above(row0, byte + 1, 0x4B000000) - 8388608.0f,
                                     byte_above(row1, byte + 1, 0x4B000000) - 8388608.0f);
      }
    }
    minima_products(minima, x, at, t, shared_word(tile + scales_at + 128 + lane * 4));
    finish_with_minima(to, scaled, minima, shared_words2(tile + scales_at + 256 + g * 8));
  } else if constexpr (type == Q6_K) {
    const Words4 scales0 = shared_words4(tile + 3072 + g * 16), scales1 = shared_words4(tile + 3072 + g * 16 + 128);
    Products scaled;
    clear(scaled);
#pragma unroll
    for (u32 p = 0; p < 4; ++p) {
      const Words4 w = shared_words4(tile + p * 512 + lane * 16);
      const Words2 h = shared_words2(tile + 2048 + p * 256 + lane * 8);
#pragma unroll
      for (u32 odd = 0; odd < 2; ++odd) {
        // 4 times the weight, as signed bytes: 6 bits at the top.
        const u32 high = odd ? h.y : h.x, middle = 0x3C3C3C3C, top = 0xC0C0C0C0;
        const u32 a0 = ((odd ? w.x >> 2 : w.x << 2) & middle) | (high << 6 & top);
        const u32 a1 = ((odd ? w.y >> 2 : w.y << 2) & middle) | (high << 4 & top);
        const u32 a2 = ((odd ? w.z >> 2 : w.z << 2) & middle) | (high << 2 & top);
        const u32 a3 = ((odd ? w.w >> 2 : w.w << 2) & middle) | (high & top);
        // Scales of 16 columns, biased by 128, a quarter of them: below the exponent of 2^21.
        const u32 row0 = pick(scales0, p), row1 = pick(scales1, p), block = at + 2 * p + odd;
        float scale[4];
#pragma unroll
        for (u32 i = 0; i < 4; ++i)
          scale[i] = byte_above(i < 2 ? row0 : row1, 2 * odd + (i & 1), 0x4A000000) - 2097184.0f;
#pragma unroll
        for (u32 n = 0; n < ROW_TILES; ++n) {
          const Words2 b = x.operand(block, n);
          Words2 l{};
          if (two_planes) l = x.low_operand(block, n);
          const float column0 = x.scale(block, n, 0), column1 = x.scale(block, n, 1);
#pragma unroll
          for (u32 half = 0; half < 2; ++half) {
            i32 sums[4], low[4];
            clear_sums(sums);
            mma_s8s8_k16(sums, half ? a2 : a0, half ? a3 : a1, half ? b.y : b.x);
            if (two_planes) {
              clear_sums(low);
              mma_s8s8_k16(low, half ? a2 : a0, half ? a3 : a1, half ? l.y : l.x);
            }
            add_scaled<two_planes>(scaled[n], sums, low, scale[half], scale[2 + half], column0, column1);
          }
        }
      }
    }
    const u32 d = shared_word(tile + 3328 + g * 4);
    const float d0 = half_to_float((u16)d), d1 = half_to_float((u16)(d >> 16));
#pragma unroll
    for (u32 n = 0; n < ROW_TILES; ++n)
#pragma unroll
      for (u32 i = 0; i < 4; ++i) to[n][i] = multiply_add(i < 2 ? d0 : d1, scaled[n][i], to[n][i]);
  } else if constexpr (type == Q8_0) {
    const Words4 scales0 = shared_words4(tile + 4096 + g * 32), scales1 = shared_words4(tile + 4096 + g * 32 + 16);
#pragma unroll
    for (u32 b = 0; b < 8; ++b) {
      const Words4 w = shared_words4(tile + b * 512 + lane * 16);
      const u32 row0 = pick(scales0, b / 2) >> 16 * (b & 1), row1 = pick(scales1, b / 2) >> 16 * (b & 1);
      add_block<true, two_planes>(to, x, at + b, w.x, w.y, w.z, w.w, half_to_float((u16)row0), half_to_float((u16)row1));
    }
  } else {
    // Weights in floating point: the int8 activations are exact in half precision and in bfloat16.
    constexpr u32 blocks = type == F32 ? 2 : 4;
#pragma unroll
    for (u32 b = 0; b < blocks; ++b) {
#pragma unroll
      for (u32 n = 0; n < ROW_TILES; ++n) {
        const float column0 = x.scale(at + b, n, 0), column1 = x.scale(at + b, n, 1);
#pragma unroll
        for (u32 plane = 0; plane < (two_planes ? 2 : 1); ++plane) {
          const Words2 operand = plane ? x.low_operand(at + b, n) : x.operand(at + b, n);
          float c[4] = {0, 0, 0, 0};
#pragma unroll
          for (u32 half = 0; half < 2; ++half) {
            const u32 bytes = (half ? operand.y : operand.x) ^ 0x80808080;
            const u32 step = 2 * b + half;
            if constexpr (type == F16) {
              const u32 b0 = half2_fma(permute(bytes, 0x64646464, 0x4140), 0x3C003C00, 0xE480E480);
              const u32 b1 = half2_fma(permute(bytes, 0x64646464, 0x4342), 0x3C003C00, 0xE480E480);
              const Words4 w = shared_words4(tile + step * 512 + lane * 16);
              mma_half(c, w.x, w.y, w.z, w.w, b0, b1);
            } else {
              float v[4];
#pragma unroll
              for (u32 i = 0; i < 4; ++i) v[i] = byte_above(bytes, i, 0x4B000000) - 8388736.0f;
              const u32 b0 = float_to_bfloat2(v[0], v[1]), b1 = float_to_bfloat2(v[2], v[3]);
              if constexpr (type == BF16) {
                const Words4 w = shared_words4(tile + step * 512 + lane * 16);
                mma_bfloat(c, w.x, w.y, w.z, w.w, b0, b1);
              } else {
                // Three bfloat16 that add up to the float32: 8 bits of its significand each.
                Words4 w0 = shared_words4(tile + step * 1024 + lane * 16);
                Words4 w1 = shared_words4(tile + step * 1024 + 512 + lane * 16);
                u32 part[3][4];
#pragma unroll
                for (u32 i = 0; i < 3; ++i) {
                  part[i][0] = permute(w0.x, w0.y, 0x7632);
                  part[i][1] = permute(w1.x, w1.y, 0x7632);
                  part[i][2] = permute(w0.z, w0.w, 0x7632);
                  part[i][3] = permute(w1.z, w1.w, 0x7632);
                  w0 = what_is_left(w0);
                  w1 = what_is_left(w1);
                }
#pragma unroll
                for (u32 i = 3; i-- > 0;) mma_bfloat(c, part[i][0], part[i][1], part[i][2], part[i][3], b0, b1);
              }
            }
          }
#pragma unroll
          for (u32 i = 0; i < 4; ++i) {
            float factor = i & 1 ? column1 : column0;
            if (plane) factor *= 1.0f / 254.0f;
            to[n][i] = multiply_add(c[i], factor, to[n][i]);
          }
        }
      }
    }
  }
}
