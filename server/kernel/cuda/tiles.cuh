// One tile of weights times the activations of its columns, by one warp, for each type of weights.
//
// A lane is 4 g + t: it has rows g and g + 8 of the tile, and columns 2t, 2t + 1 of the product (rows of activations).
// Every block of 32 weights has scales of its own on both sides, so each tensor-core product of a block is multiplied
// by both and added in float. Which rows of activations there are changes no bit of the others.
//
// Most integers become floats without conversion instructions: a sum c added to the bits of 1.5 * 2^23 is the float
// 1.5 * 2^23 + c; a byte put below the exponent of 2^23 is 2^23 + byte, below that of 2^19 it is 2^19 + byte / 16.

constexpr u32 SUM_BITS = 0x4B400000;  // 1.5 * 2^23
constexpr float SUM_BASE = 12582912.0f;
constexpr u32 POWER_23 = 0x4B000000, POWER_19 = 0x49000000;  // 2^23, 2^19

// Constants of the inner loop.
struct Constants {
  u32 sum_bits[4], power_23, power_19;
  DEVICE Constants() {
    for (u32 i = 0; i < 4; ++i) sum_bits[i] = in_register(SUM_BITS);
    power_23 = in_register(POWER_23), power_19 = in_register(POWER_19);
  }
};

// The activations of one window: where this lane's part of them lies in shared memory. Columns that are no rows of
// activations are read all the same (it is some other memory): they change nothing in the others and are never used.
struct Window {
  u32 values, low;  // [blocks][rows][32] of both planes: 8 bytes of row g
  u32 scales;       // [blocks][COLUMNS]: of rows 2t and 2t + 1
  u32 sums;         // [blocks][COLUMNS]: of row g
  u32 rows;
  u32 block;        // that the window begins with

  DEVICE Words2 operand(u32 at, u32 n) const { return shared_words2(values + at * rows * 32 + n * 256); }
  DEVICE Words2 low_operand(u32 at, u32 n) const { return shared_words2(low + at * rows * 32 + n * 256); }
  DEVICE void scale(u32 at, u32 n, float (&to)[2]) const {
    const Words2 both = shared_words2(scales + at * COLUMNS * 4 + n * 32);
    to[0] = as_float(both.x), to[1] = as_float(both.y);
  }
  DEVICE u32 sum(u32 at, u32 n) const { return shared_word(sums + at * COLUMNS * 4 + n * 32); }
};

typedef float Products[ROW_TILES][4];  // (row g, columns 2t, 2t + 1), (row g + 8, the same)

DEVICE float byte_above(u32 word, u32 byte, u32 base) { return as_float(permute(word, base, 0x7540 | byte)); }
DEVICE u32 pick(const Words4& w, u32 index) { return index == 0 ? w.x : index == 1 ? w.y : index == 2 ? w.z : w.w; }

// Types whose products are int8: Q4_K, Q5_K, Q6_K, Q8_0. A tile is four pairs of blocks of 32 columns; Q6_K's blocks have
// two halves with scales of their own.
template <u32 type> struct Sums {
  static constexpr u32 HALVES = type == Q6_K ? 2 : 1;
  i32 c[2][ROW_TILES][HALVES][4];  // [block of the pair]
};

// What a lane reads for a pair of blocks.
template <u32 type, bool two_planes> struct Pair {
  Words4 weights[type == Q8_0 ? 2 : 1];
  Words2 high;  // Q6_K: two bits more of each weight
  Words2 operand[2][ROW_TILES], low_operand[2][ROW_TILES];
  float column[2][ROW_TILES][2];

  DEVICE void read(u32 tile, const Window& x, u32 at, u32 p) {
    const u32 lane = thread_index() & 31;
    weights[0] = shared_words4(tile + (type == Q8_0 ? 1024 : 512) * p + lane * 16);
    if (type == Q8_0) weights[type == Q8_0] = shared_words4(tile + 1024 * p + 512 + lane * 16);
    if (type == Q6_K) high = shared_words2(tile + 2048 + p * 256 + lane * 8);
#pragma unroll
    for (u32 odd = 0; odd < 2; ++odd)
#pragma unroll
      for (u32 n = 0; n < ROW_TILES; ++n) {
        operand[odd][n] = x.operand(at + 2 * p + odd, n);
        if (two_planes) low_operand[odd][n] = x.low_operand(at + 2 * p + odd, n);
        x.scale(at + 2 * p + odd, n, column[odd][n]);
      }
  }

  // Weights of a block as the four words of a product's first operand. fifth: bits of Q5_K.
  DEVICE Words4 unpacked(u32 odd, u32 fifth) const {
    const Words4& w = weights[0];
    if constexpr (type == Q8_0) {
      return weights[odd];
    } else if constexpr (type == Q6_K) {
      // 4 times the weight, as signed bytes: 6 bits at the top.
      const u32 bits = odd ? high.y : high.x, middle = 0x3C3C3C3C, top = 0xC0C0C0C0;
      return {((odd ? w.x >> 2 : w.x << 2) & middle) | (bits << 6 & top), ((odd ? w.y >> 2 : w.y << 2) & middle) | (bits << 4 & top),
              ((odd ? w.z >> 2 : w.z << 2) & middle) | (bits << 2 & top), ((odd ? w.w >> 2 : w.w << 2) & middle) | (bits & top)};
    } else if constexpr (type == Q5_K) {
      const u32 nibble = 0x0F0F0F0F, bit = 0x10101010;
      if (odd)
        return {(w.x >> 4 & nibble) | (fifth & bit), (w.y >> 4 & nibble) | (fifth >> 1 & bit),
                (w.z >> 4 & nibble) | (fifth >> 2 & bit), (w.w >> 4 & nibble) | (fifth >> 3 & bit)};
      return {(w.x & nibble) | (fifth << 4 & bit), (w.y & nibble) | (fifth << 3 & bit), (w.z & nibble) | (fifth << 2 & bit),
              (w.w & nibble) | (fifth << 1 & bit)};
    } else {
      // The high nibbles stay where they are: 16 times the weight.
      const u32 nibble = odd ? 0xF0F0F0F0 : 0x0F0F0F0F;
      return {w.x & nibble, w.y & nibble, w.z & nibble, w.w & nibble};
    }
  }

  DEVICE void multiply(Sums<type>& sums, Sums<type>& low, u32 fifth, const Constants& k) const {
#pragma unroll
    for (u32 odd = 0; odd < 2; ++odd) {
      const Words4 a = unpacked(odd, fifth);
#pragma unroll
      for (u32 n = 0; n < ROW_TILES; ++n) {
        multiply(sums.c[odd][n], a, operand[odd][n], k);
        if (two_planes) multiply(low.c[odd][n], a, low_operand[odd][n], k);
      }
    }
  }
  DEVICE static void multiply(i32 (&c)[Sums<type>::HALVES][4], const Words4& a, const Words2& b, const Constants& k) {
    if constexpr (type == Q6_K) {
      const u32 none[4] = {0, 0, 0, 0};
      mma_s8s8_k16(c[0], a.x, a.y, b.x, none);
      mma_s8s8_k16(c[1], a.z, a.w, b.y, none);
    } else if constexpr (type == Q8_0) {
      mma_s8s8(c[0], a.x, a.y, a.z, a.w, b.x, b.y, k.sum_bits);
    } else {
      mma_u8s8(c[0], a.x, a.y, a.z, a.w, b.x, b.y, k.sum_bits);
    }
  }

  // to += sums * (scale of row) * (scale of column), the second plane's sums at 1 / 254.
  DEVICE void add_scaled(Products& to, const Sums<type>& sums, const Sums<type>& low, const Words4& scales0,
                         const Words4& scales1, u32 p, const Constants& k) const {
#pragma unroll
    for (u32 odd = 0; odd < 2; ++odd) {
      if constexpr (type == Q6_K) {
        add_halves(to, sums, low, pick(scales0, p), pick(scales1, p), odd);
        continue;
      }
      const float row0 = row_scale(scales0, p, odd, k), row1 = row_scale(scales1, p, odd, k);
      const float base0 = -SUM_BASE * row0, base1 = -SUM_BASE * row1;
#pragma unroll
      for (u32 n = 0; n < ROW_TILES; ++n)
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
          const float row = i < 2 ? row0 : row1, base = i < 2 ? base0 : base1;
          const float factor = column[odd][n][i & 1];
          // Exact: what stands above the sum is taken away within one multiplication and addition.
          to[n][i] = multiply_add(multiply_add(as_float((u32)sums.c[odd][n][0][i]), row, base), factor, to[n][i]);
          if (two_planes)
            to[n][i] = multiply_add(multiply_add(as_float((u32)low.c[odd][n][0][i]), row, base),
                                    factor * (1.0f / 254.0f), to[n][i]);
        }
    }
  }

  // Q6_K: two halves of a block, each with a scale of its own (a byte with a sign) for a row; exact as integers.
  DEVICE void add_halves(Products& to, const Sums<type>& sums, const Sums<type>& low, u32 bytes0, u32 bytes1, u32 odd) const {
    const i32 scale[2][2] = {{signed_byte(bytes0, 2 * odd), signed_byte(bytes0, 2 * odd + 1)},
                             {signed_byte(bytes1, 2 * odd), signed_byte(bytes1, 2 * odd + 1)}};
#pragma unroll
    for (u32 n = 0; n < ROW_TILES; ++n)
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
        const auto& s = scale[i / 2];
        const auto& c = sums.c[odd][n];
        const auto& d = low.c[odd][n];
        float sum = (float)(c[0][i] * s[0] + c[Sums<type>::HALVES - 1][i] * s[1]);
        if (two_planes)
          sum = multiply_add((float)(d[0][i] * s[0] + d[Sums<type>::HALVES - 1][i] * s[1]), 1.0f / 254.0f, sum);
        to[n][i] = multiply_add(sum, column[odd][n][i & 1], to[n][i]);
      }
  }

  // The scale of this lane's row of a block; scales: of all the row's.
  DEVICE static float row_scale(const Words4& scales, u32 p, u32 odd, const Constants& k) {
    if constexpr (type == Q8_0) return half_to_float((u16)(pick(scales, p) >> 16 * odd));
    else if (type == Q4_K && odd) return byte_above(p < 2 ? scales.x : scales.y, 2 * (p & 1) + 1, k.power_19) - 524288.0f;
    else return byte_above(p < 2 ? scales.x : scales.y, 2 * (p & 1) + odd, k.power_23) - 8388608.0f;
  }
};

DEVICE void arrive_together(u32 barrier) {
  sync_warp();
  if ((thread_index() & 31) == 0) barrier_arrive(barrier);
}

// to += the four pairs of a tile. What a pair reads is asked for two pairs before, and where registers allow it the next
// pair's products are begun before this one's are used: a scheduler of the SM has only three math warps to choose from. The
// stage is given back as soon as the last pair is read.
template <u32 type, bool two_planes>
DEVICE void add_pairs(Products& to, u32 tile, const Window& x, u32 at, const Words4& scales0, const Words4& scales1,
                      const Words4& fifth, const Constants& k, u32 read) {
  constexpr bool early = ROW_TILES == 1 && !two_planes;
  Pair<type, two_planes> pair[3];
  Sums<type> sums[2], low[2];
  pair[0].read(tile, x, at, 0);
  pair[1].read(tile, x, at, 1);
  if (early) pair[0].multiply(sums[0], low[0], fifth.x, k);
#pragma unroll
  for (u32 p = 0; p < 4; ++p) {
    if (!early) pair[p % 3].multiply(sums[p & 1], low[p & 1], pick(fifth, p), k);
    else if (p < 3) pair[(p + 1) % 3].multiply(sums[p + 1 & 1], low[p + 1 & 1], pick(fifth, p + 1), k);
    if (p < 2) pair[(p + 2) % 3].read(tile, x, at, p + 2);
    if (p == 1) arrive_together(read);
    pair[p % 3].add_scaled(to, sums[p & 1], low[p & 1], scales0, scales1, p, k);
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

DEVICE Words4 flipped(const Words4& v) { return {v.x ^ 0x80808080, v.y ^ 0x80808080, v.z ^ 0x80808080, v.w ^ 0x80808080}; }

// tile: an offset into shared memory. at: its first block within the window.
// read: the barrier at which the warp arrives when it has read all of the tile.
template <u32 type, bool two_planes>
DEVICE void add_tile(Products& to, u32 tile, const Window& x, u32 at, const Constants& k, u32 read) {
  const u32 lane = thread_index() & 31, g = lane >> 2, t = lane & 3;
  if constexpr (type == Q4_K || type == Q5_K) {
    constexpr u32 scales_at = type == Q4_K ? 2048 : 2560;
    const Words4 scales = shared_words4(tile + scales_at + g * 16);
    Words4 fifth{};
    if (type == Q5_K) fifth = shared_words4(tile + 2048 + lane * 16);
    const u32 least = shared_word(tile + scales_at + 128 + lane * 4);
    const Words2 d = shared_words2(tile + scales_at + 256 + g * 8);
    Products scaled, minima;
    clear(scaled);
    minima_products(minima, x, at, t, least);
    add_pairs<type, two_planes>(scaled, tile, x, at, {scales.x, scales.y}, {scales.z, scales.w}, fifth, k, read);
    finish_with_minima(to, scaled, minima, d);
  } else if constexpr (type == Q6_K) {
    // Stored with 128 added.
    const Words4 scales0 = flipped(shared_words4(tile + 3072 + g * 16)), scales1 = flipped(shared_words4(tile + 3200 + g * 16));
    const u32 d = shared_word(tile + 3328 + g * 4);
    Products scaled;
    clear(scaled);
    add_pairs<type, two_planes>(scaled, tile, x, at, scales0, scales1, {}, k, read);
    // The weights were four times theirs.
    const float d0 = half_to_float((u16)d) * 0.25f, d1 = half_to_float((u16)(d >> 16)) * 0.25f;
#pragma unroll
    for (u32 n = 0; n < ROW_TILES; ++n)
#pragma unroll
      for (u32 i = 0; i < 4; ++i) to[n][i] = multiply_add(i < 2 ? d0 : d1, scaled[n][i], to[n][i]);
  } else if constexpr (type == Q8_0) {
    const Words4 scales0 = shared_words4(tile + 4096 + g * 32), scales1 = shared_words4(tile + 4096 + g * 32 + 16);
    add_pairs<type, two_planes>(to, tile, x, at, scales0, scales1, {}, k, read);
  } else {
    // Weights in floating point: the int8 activations are exact in half precision and in bfloat16.
    constexpr u32 blocks = type == F32 ? 2 : 4;
#pragma unroll
    for (u32 b = 0; b < blocks; ++b) {
#pragma unroll
      for (u32 n = 0; n < ROW_TILES; ++n) {
        float column[2];
        x.scale(at + b, n, column);
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
              for (u32 i = 0; i < 4; ++i) v[i] = byte_above(bytes, i, k.power_23) - 8388736.0f;
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
            float factor = column[i & 1];
            if (plane) factor *= 1.0f / 254.0f;
            to[n][i] = multiply_add(c[i], factor, to[n][i]);
          }
        }
      }
    }
    arrive_together(read);
  }
}
