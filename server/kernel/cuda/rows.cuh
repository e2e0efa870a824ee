// Rows of the embedding as inputs (Embed, MtpInput), the choice among the SMs' best rows, and the end of a cycle (Verify).
// Behind them the small functions that several instructions share: sums over a warp, rounding 32 values to int8.

DEVICE u32 worker_warp() { return thread_index() >> 5; }
DEVICE u32 lane_index() { return thread_index() & 31; }
constexpr u32 WORKER_WARPS = WORKERS / 32;
constexpr u32 HIDDEN_BLOCKS = (HIDDEN + BLOCK - 1) / BLOCK;
DEVICE float negative_infinity() { return as_float(0xff800000); }
// The compiler's own: x^(-1/2).
DEVICE constexpr double inverse_square_root(double x) {
  double root = x > 1 ? x : 1;
  for (int n = 0; n < 100; ++n) root = (root + x / root) / 2;
  return 1 / root;
}

// 16 bytes at a time, at addresses that are multiples of 16.
struct alignas(16) Quad { float v[4]; };
struct alignas(16) WordQuad { u32 v[4]; };
DEVICE Quad load_quad(const float* p) { return *(const Quad*)p; }
DEVICE WordQuad load_quad(const u32* p) { return *(const WordQuad*)p; }
DEVICE void store_quad(float* to, float a, float b, float c, float d) { *(Quad*)to = {a, b, c, d}; }
DEVICE void store_quad(u32* to, u32 a, u32 b, u32 c, u32 d) { *(WordQuad*)to = {a, b, c, d}; }

// Over all lanes of a warp, every lane gets the result; the order doesn't depend on anything.
DEVICE float warp_sum(float x) {
#pragma unroll
  for (u32 mask = 16; mask > 0; mask >>= 1) x += shuffle_xor(x, mask);
  return x;
}
DEVICE float warp_max(float x) {
#pragma unroll
  for (u32 mask = 16; mask > 0; mask >>= 1) x = maximum(x, shuffle_xor(x, mask));
  return x;
}

DEVICE float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }
DEVICE float silu(float x) { return x / (1.0f + exponential(-x)); }

// Where value k of a block of 32 stands.
DEVICE u32 place(u32 k) { return ((k & 12) << 1) | ((k & 16) >> 2) | (k & 3); }

// x of the 32 lanes (0 behind a row's end) as int8 with one scale.
struct Quantised {
  i32 value;    // this lane's
  float scale;
  i32 sum;      // of the lanes' values
};
DEVICE Quantised quantised(float x) {
  Quantised q;
  // Floats without a sign are in the order of their bits.
  q.scale = as_float(greatest_of_lanes(as_bits(x) & 0x7fffffff)) / 127.0f;
  q.value = q.scale > 0.0f ? round_to_int(x / q.scale) : 0;
  q.sum = sum_of_lanes(q.value);
  return q;
}
// A float as two bfloat16: the high part in the low 16 bits, and what it left.
DEVICE u32 split_sum(float sum) {
  const float high = as_float(float_to_bfloat2(sum, 0.0f) << 16);
  return float_to_bfloat2(sum, sum - high);
}
// By a whole warp.
DEVICE void quantise_block(float x, i8* values, float* scale, u32* sum) {
  const u32 lane = lane_index();
  const Quantised q = quantised(x);
  values[place(lane)] = (i8)q.value;
  if (lane == 0) {
    *scale = q.scale;
    *sum = split_sum(q.scale * (float)q.sum);
  }
}

// The same for block `block` of row `row`, of `rows` rows in all.
DEVICE void quantise_block(float x, const Int8Rows& to, u32 block, u32 row, u32 rows) {
  const u32 at = block * COLUMNS + row;
  quantise_block(x, to.values + (block * rows + row) * BLOCK, to.scales + at, to.sums + at);
}

// ---- one weight of a row as it lies in a GGUF file. All products here are exact in float32.
DEVICE u16 half_at(const u8* p) { return *(const u16*)p; }

// 6-bit scale and minimum of sub-block j of a Q4_K or Q5_K block, from its 12 bytes.
DEVICE void six_bits(const u8* s, u32 j, float* scale, float* minimum) {
  u32 a, b;
  if (j < 4) {
    a = s[j] & 63;
    b = s[j + 4] & 63;
  } else {
    a = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    b = (s[j + 4] >> 4) | (s[j] >> 6) << 4;
  }
  *scale = (float)a;
  *minimum = (float)b;
}

// Q4_K; with the fifth bits at `fifths`, Q5_K.
DEVICE float k_quant_value(const u8* block, const u8* fifths, const u8* nibbles, u32 e) {
  u32 j = e >> 5, n = nibbles[(e >> 6) * 32 + (e & 31)];
  n = (j & 1) != 0 ? n >> 4 : n & 15;
  if (fifths != nullptr) n |= ((fifths[e & 31] >> j) & 1) << 4;
  float scale, minimum;
  six_bits(block + 4, j, &scale, &minimum);
  float d = half_to_float(half_at(block)), dmin = half_to_float(half_at(block + 2));
  return multiply_add(d * scale, (float)n, -(dmin * minimum));
}

DEVICE float q6_value(const u8* block, u32 e) {
  u32 half = e >> 7, l = e & 31, c = (e >> 5) & 3;
  u32 low = block[half * 64 + (c & 1) * 32 + l];
  low = c < 2 ? low & 15 : low >> 4;
  u32 high = (block[128 + half * 32 + l] >> (2 * c)) & 3;
  float scale = (float)(i8)block[192 + (e >> 4)];
  return half_to_float(half_at(block + 208)) * scale * (float)((i32)(low | high << 4) - 32);
}

DEVICE float table_value(const u8* row, u64 type, u32 column) {
  u32 e = column & 255;
  switch (type) {
    case F32:
      return ((const float*)row)[column];
    case F16:
      return half_to_float(((const u16*)row)[column]);
    case BF16:
      return as_float((u32)((const u16*)row)[column] << 16);
    case Q8_0: {
      const u8* block = row + (u64)(column >> 5) * 34;
      return half_to_float(half_at(block)) * (float)(i8)block[2 + (column & 31)];
    }
    case Q4_K: {
      const u8* block = row + (u64)(column >> 8) * 144;
      return k_quant_value(block, nullptr, block + 16, e);
    }
    case Q5_K: {
      const u8* block = row + (u64)(column >> 8) * 176;
      return k_quant_value(block, block + 16, block + 48, e);
    }
    default:
      return q6_value(row + (u64)(column >> 8) * 210, e);
  }
}

// ---- tokens

// The token with the greatest value among the SMs' [SMs][value, token], the first of equals: by a whole warp. (If no
// value is a number it is the first SM's: some row of the table.)
DEVICE i32 best_token(const float* best) {
  u32 sms = sm_count(), sm = 0;
  float value = negative_infinity();
  for (u32 s = lane_index(); s < sms; s += 32) {
    float v = load_fresh(best + 2 * s);
    if (v > value) {
      value = v;
      sm = s;
    }
  }
#pragma unroll
  for (u32 mask = 16; mask > 0; mask >>= 1) {
    float v = shuffle_xor(value, mask);
    u32 s = shuffle_xor(sm, mask);
    if (v > value || (v == value && s < sm)) {
      value = v;
      sm = s;
    }
  }
  return (i32)load_fresh(best + 2 * sm + 1);
}

ROLE void embed(const Instruction& i, const Launch& l, u32 rows) {
  i32* tokens = shared<i32>(AREA_OFFSET);
  bool external = l.counts[EXTERNAL] != 0 || rows != 1 + i.drafts;
  for (u32 row = worker_warp(); row < rows; row += WORKER_WARPS) {
    i32 token;
    if (row == 0)
      token = l.accepted[l.counts[BEHIND_COUNT] - 1];
    else if (external)
      token = l.given[row - 1];
    else
      token = best_token(i.draft_best + (row - 1) * i.draft_best_stride);
    if (lane_index() == 0) {
      tokens[row] = token;
      if (sm_index() == 0) i.tokens[row] = token;
    }
  }
  sync_threads(2, WORKERS);
  Range range = my_range(i);
  u32 jobs = (range.stop - range.start) * rows;
  for (u32 job = worker_warp(); job < jobs; job += WORKER_WARPS) {
    u32 block = range.start + job / rows, row = job % rows, column = block * BLOCK + lane_index();
    float x = 0.0f, weighted = 0.0f;
    if (column < HIDDEN) {
      const float weight = i.norm[column];
      x = table_value(i.table + (u64)tokens[row] * i.table_row_bytes, i.table_type, column);
      i.x[row * HIDDEN + column] = x;
      weighted = x * weight;
    }
    quantise_block(weighted, i.output, block, row, rows);
    float squares = warp_sum(x * x);
    if (lane_index() == 0) i.output_squares[row * HIDDEN_BLOCKS + block] = squares;
  }
}

ROLE void mtp_input(const Instruction& i, const Launch& l, u32 rows) {
  i32* tokens = shared<i32>(AREA_OFFSET);
  if (worker_warp() == 0) {
    i32 token = 0;
    if (i.step != 0)
      token = best_token(i.draft_best);
    else if (lane_index() < rows)
      token = l.accepted[rows - 1 - lane_index()];
    if (lane_index() < rows) tokens[lane_index()] = token;
  }
  sync_threads(2, WORKERS);
  Range range = my_range(i);
  u32 jobs = (range.stop - range.start) * rows;
  for (u32 job = worker_warp(); job < jobs; job += WORKER_WARPS) {
    u32 block = range.start + job / rows, row = job % rows;
    bool hidden = block >= HIDDEN_BLOCKS;
    u32 column = (hidden ? block - HIDDEN_BLOCKS : block) * BLOCK + lane_index();
    float x = 0.0f, weighted = 0.0f;
    if (column < HIDDEN) {
      const float weight = (hidden ? i.norm2 : i.norm)[column];
      if (!hidden)
        x = table_value(i.table + (u64)tokens[row] * i.table_row_bytes, i.table_type, column);
      else if (i.step != 0)
        x = load_fresh(l.mtp_hidden + column);
      else
        x = l.hidden[(rows - 1 - row) * HIDDEN + column];
      weighted = x * weight;
    }
    quantise_block(weighted, i.output, block, row, rows);
    float squares = warp_sum(x * x);
    if (lane_index() == 0) i.output_squares[row * (2 * HIDDEN_BLOCKS) + block] = squares;
  }
}

ROLE void verify(const Instruction& i, const Launch& l, u32 rows) {
  Range range = my_range(i);
  if (range.start == range.stop) return;
  i32* best = shared<i32>(AREA_OFFSET);
  for (u32 row = worker_warp(); row < rows; row += WORKER_WARPS) {
    i32 token = best_token(i.best + (u64)row * 2 * sm_count());
    if (lane_index() == 0) {
      best[row] = token;
      l.accepted[row] = token;
    }
  }
  sync_threads(2, WORKERS);
  if (thread_index() != 0) return;
  u32 kept = 1;
  while (kept < rows && best[kept - 1] == load_fresh(i.tokens + kept)) ++kept;
  l.counts[LENGTH] += (i32)kept;
  l.counts[FOLD] = (i32)kept;
  l.counts[BEHIND_COUNT] = (i32)kept;
}
