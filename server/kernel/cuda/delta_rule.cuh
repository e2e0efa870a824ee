// A Gated DeltaNet layer between its projections (DeltaRule). An item is 32 values of a value head; 128 threads have one:
// thread = (value, quarter of the keys), with its part of the memory S in registers.
//
// When the last cycle kept rows, S is read, written with these folded in, and read again from the L2 cache for this cycle's
// rows. Folding repeats the very operations that computed the rows, so S has the bits that it would have without rejected
// rows.

constexpr u32 SLICES = (STATE + BLOCK - 1) / BLOCK;
constexpr u32 KEY_WIDTH = KEY_HEADS * STATE;
constexpr u32 ITEM_THREADS = 128;
constexpr float QUERY_SCALE = (float)inverse_square_root(STATE);
constexpr u32 ROW_CHUNK = 8;              // rows that are prepared at a time
constexpr u32 KEY_QUADS = STATE / 16;     // a thread has keys 16 j + 4 quarter .. + 3, j < KEY_QUADS
static_assert(STATE % 16 == 0, "the keys of a head are shared by four threads, four at a time");

// What a group of threads keeps in shared memory.
struct DeltaArea {
  alignas(16) float query_key[ROW_CHUNK][2][STATE];
  alignas(16) float folded_key[ROW_CHUNK][STATE];
  float folded_delta[ROW_CHUNK][BLOCK];
  float value[ROW_CHUNK][BLOCK];
  float out[ROW_CHUNK][BLOCK];
  float folded_decay[ROW_CHUNK], decay[ROW_CHUNK], beta[ROW_CHUNK];
};
constexpr u32 DELTA_GROUPS = AREA_BYTES / sizeof(DeltaArea) < 3 ? AREA_BYTES / sizeof(DeltaArea) : 3;
static_assert(DELTA_GROUPS > 0, "an item of the delta rule must fit into the activations' shared memory");

// S of a thread: [j][4 keys].
typedef float Memory[KEY_QUADS][4];

DEVICE void load_keys(float (&k)[KEY_QUADS][4], const float* row, u32 quarter) {
#pragma unroll
  for (u32 j = 0; j < KEY_QUADS; ++j) {
    Quad quad = load_quad(row + j * 16 + quarter * 4);
#pragma unroll
    for (u32 e = 0; e < 4; ++e) k[j][e] = quad.v[e];
  }
}

DEVICE void load_memory(Memory& s, const float* stored) {
#pragma unroll
  for (u32 j = 0; j < KEY_QUADS; ++j) {
    Words4 w = fresh_words4(stored + j * 16);
    s[j][0] = as_float(w.x), s[j][1] = as_float(w.y), s[j][2] = as_float(w.z), s[j][3] = as_float(w.w);
  }
}

DEVICE void decay_memory(Memory& s, float decay) {
#pragma unroll
  for (u32 j = 0; j < KEY_QUADS; ++j)
#pragma unroll
    for (u32 e = 0; e < 4; ++e) s[j][e] = s[j][e] * decay;
}

// S (decayed) + k delta
DEVICE void add_to_memory(Memory& s, const float (&k)[KEY_QUADS][4], float delta) {
#pragma unroll
  for (u32 j = 0; j < KEY_QUADS; ++j)
#pragma unroll
    for (u32 e = 0; e < 4; ++e) s[j][e] = multiply_add(delta, k[j][e], s[j][e]);
}

// The sum over keys of S x, in all four threads of a value.
DEVICE float recall(const Memory& s, const float (&x)[KEY_QUADS][4]) {
  float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
  for (u32 j = 0; j < KEY_QUADS; ++j)
#pragma unroll
    for (u32 e = 0; e < 4; ++e) sum[e] = multiply_add(s[j][e], x[j][e], sum[e]);
  float total = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  total += shuffle_xor(total, 1);
  return total + shuffle_xor(total, 2);
}

DEVICE float softplus(float x) { return x > 20.0f ? x : logarithm1p(exponential(x)); }

struct DeltaItem {
  const Instruction& i;
  DeltaArea& area;
  u32 thread, barrier;   // within the group
  u32 head, key_head, slice, width, length, rows, folded;

  DEVICE void sync() const { sync_threads(barrier, ITEM_THREADS); }
  DEVICE static u32 slot(u32 position) { return position % RING; }

  // k, delta and e^g of up to ROW_CHUNK rows from position `from` on, to shared memory.
  DEVICE void stage_fold(u32 from, u32 count) const {
    float key[KEY_QUADS], delta[2], decay = 0.0f;
#pragma unroll
    for (u32 n = 0; n < KEY_QUADS; ++n) {
      u32 at = thread + n * ITEM_THREADS, row = at / STATE;
      key[n] = row < count ? load_fresh(i.keys + (slot(from + row) * KEY_HEADS + key_head) * STATE + at % STATE) : 0.0f;
    }
#pragma unroll
    for (u32 n = 0; n < 2; ++n) {
      u32 row = thread / BLOCK + 4 * n, v = thread % BLOCK;
      bool there = row < count && v < width;
      delta[n] = there ? load_fresh(i.deltas + (slot(from + row) * VALUE_HEADS + head) * STATE + slice * BLOCK + v) : 0.0f;
    }
    if (thread < count) decay = load_fresh(i.decays + slot(from + thread) * VALUE_HEADS + head);
#pragma unroll
    for (u32 n = 0; n < KEY_QUADS; ++n) (&area.folded_key[0][0])[thread + n * ITEM_THREADS] = key[n];
#pragma unroll
    for (u32 n = 0; n < 2; ++n) area.folded_delta[thread / BLOCK + 4 * n][thread % BLOCK] = delta[n];
    if (thread < count) area.folded_decay[thread] = decay;
  }

  // Convolution and SiLU of this item's channels (query, key, value), and the gates, of `count` rows from `first` on.
  // together: rounds of channels that are on their way at the same time.
  static constexpr u32 CHANNELS = 2 * STATE + BLOCK, ROUNDS = (CHANNELS + ITEM_THREADS - 1) / ITEM_THREADS;
  template <u32 together> DEVICE void stage_rows(u32 first, u32 count) const {
    float beta = 0.0f, alpha = 0.0f, log_decay = 0.0f, bias = 0.0f;
    if (thread < count) {
      const float* gates = i.gates + (first + thread) * 2 * VALUE_HEADS + head;
      beta = load_fresh(gates);
      alpha = load_fresh(gates + VALUE_HEADS);
      log_decay = i.log_decay[head];
      bias = i.time_bias[head];
    }
#pragma unroll 1
    for (u32 round = 0; round < ROUNDS; round += together) stage_channels<together>(first, count, round * ITEM_THREADS);
    if (thread < count) {
      area.beta[thread] = sigmoid(beta);
      float decay = exponential(log_decay * softplus(alpha + bias));
      area.decay[thread] = decay;
      if (slice == 0) i.decays[slot(length + first + thread) * VALUE_HEADS + head] = decay;
    }
  }

  template <u32 rounds> DEVICE void stage_channels(u32 first, u32 count, u32 from) const {
    constexpr u32 WINDOW = ROW_CHUNK + CONV_TAPS - 1;
    float tap[rounds][CONV_TAPS], window[rounds][WINDOW];
#pragma unroll
    for (u32 n = 0; n < rounds; ++n) {
      u32 c = from + thread + n * ITEM_THREADS;
#pragma unroll
      for (u32 k = 0; k < CONV_TAPS; ++k) tap[n][k] = c < 2 * STATE + width ? i.taps[channel(c) * CONV_TAPS + k] : 0.0f;
    }
#pragma unroll
    for (u32 n = 0; n < rounds; ++n) {
      u32 c = from + thread + n * ITEM_THREADS;
      const float* ring = i.conv + channel(c);
#pragma unroll
      for (u32 j = 0; j < WINDOW; ++j) {
        bool there = j < count + CONV_TAPS - 1 && c < 2 * STATE + width;
        window[n][j] = there ? load_fresh(ring + slot(length + first + j - (CONV_TAPS - 1)) * CONV_CHANNELS) : 0.0f;
      }
    }
#pragma unroll
    for (u32 n = 0; n < rounds; ++n) {
      u32 c = from + thread + n * ITEM_THREADS;
      if (c >= 2 * STATE + width) continue;
#pragma unroll
      for (u32 row = 0; row < ROW_CHUNK; ++row) {
        if (row >= count) break;
        float x = window[n][row] * tap[n][0];
#pragma unroll
        for (u32 k = 1; k < CONV_TAPS; ++k) x = multiply_add(window[n][row + k], tap[n][k], x);
        x = silu(x);
        if (c < 2 * STATE) area.query_key[row][c / STATE][c % STATE] = x;
        else area.value[row][c - 2 * STATE] = x;
      }
    }
  }

  // The convolution's channel of this item's c-th: query, key, value.
  DEVICE u32 channel(u32 c) const {
    u32 part = c / STATE, value = 2 * KEY_WIDTH + head * STATE + slice * BLOCK + (c - 2 * STATE);
    return part < 2 ? part * KEY_WIDTH + key_head * STATE + c % STATE : value;
  }

  // l2 norm of queries and keys, a vector by eight lanes; one item of each key head leaves the keys in the ring.
  DEVICE void normalise(u32 first, u32 count) const {
    u32 row = thread / 16, which = thread / 8 % 2, lane = thread % 8;
    bool there = row < count;
    constexpr u32 QUADS = (STATE + 31) / 32;
    float x[QUADS][4], sum = 0.0f;
#pragma unroll
    for (u32 n = 0; n < QUADS; ++n) {
      Quad quad = {};
      u32 at = lane * 4 + n * 32;
      if (there && at < STATE) quad = load_quad(&area.query_key[row][which][at]);
#pragma unroll
      for (u32 e = 0; e < 4; ++e) {
        x[n][e] = quad.v[e];
        sum = multiply_add(x[n][e], x[n][e], sum);
      }
    }
#pragma unroll
    for (u32 mask = 4; mask > 0; mask >>= 1) sum += shuffle_xor(sum, mask);
    float factor = inverse_root(sum + 1e-6f);
    if (which == 0) factor = factor * QUERY_SCALE;
    bool keeps = which == 1 && slice == 0 && head == key_head;
#pragma unroll
    for (u32 n = 0; n < QUADS; ++n) {
      u32 at = lane * 4 + n * 32;
      if (!there || at >= STATE) continue;
      float a = x[n][0] * factor, b = x[n][1] * factor, c = x[n][2] * factor, d = x[n][3] * factor;
      store_quad(&area.query_key[row][which][at], a, b, c, d);
      if (keeps) store_quad(i.keys + (slot(length + first + row) * KEY_HEADS + key_head) * STATE + at, a, b, c, d);
    }
  }

  // Rows are prepared and computed ROW_CHUNK at a time.
  // Folds the rows that the last cycle kept into S. Nothing of it comes from this launch.
  DEVICE void fold() const {
    if (folded == 0) return;
    Memory s;
    stage_fold(length - folded, chunk(folded));
    load_memory(s, stored());
    sync();
    fold_rows(s);
  }

  DEVICE void run() const {
    Memory s;
    float z[2];
    const float weight = thread % 32 < width ? i.gate_norm[slice * BLOCK + thread % 32] : 0.0f;
    stage<ROUNDS>(0, z);
    load_memory(s, stored());  // from the L2 cache, where this thread left it
    sync();
    normalise(0, chunk(rows));
    sync();
    compute(s, 0, z, weight);
    if constexpr (ROW_TILES * 8 > ROW_CHUNK) {
      for (u32 first = ROW_CHUNK; first < rows; first += ROW_CHUNK) {
        stage<1>(first, z);  // S needs the registers
        sync();
        normalise(first, chunk(rows - first));
        sync();
        compute(s, first, z, weight);
      }
    }
  }

  DEVICE static u32 chunk(u32 left) { return left < ROW_CHUNK ? left : ROW_CHUNK; }
  DEVICE u32 value() const { return thread / 4; }
  DEVICE u32 quarter() const { return thread % 4; }
  // This thread's part of S; of a value that isn't there, another one's.
  DEVICE float* stored() const {
    return i.memory + ((u64)head * STATE + slice * BLOCK + (value() < width ? value() : 0)) * STATE + quarter() * 4;
  }

  template <u32 together> DEVICE void stage(u32 first, float (&z)[2]) const {
    u32 count = chunk(rows - first);
#pragma unroll
    for (u32 n = 0; n < 2; ++n) {
      u32 row = thread / 32 + 4 * n, v = thread % 32;
      bool there = row < count && v < width;
      z[n] = there ? load_fresh(i.z + (first + row) * (VALUE_HEADS * STATE) + head * STATE + slice * BLOCK + v) : 0.0f;
    }
    stage_rows<together>(first, count);
  }

  DEVICE void compute(Memory& s, u32 first, const float (&z)[2], float weight) const {
    u32 count = chunk(rows - first);
    for (u32 row = 0; row < count; ++row) {
      float x[KEY_QUADS][4];
      decay_memory(s, area.decay[row]);
      load_keys(x, area.query_key[row][1], quarter());
      float delta = area.beta[row] * (area.value[row][value()] - recall(s, x));
      add_to_memory(s, x, delta);
      load_keys(x, area.query_key[row][0], quarter());
      float out = recall(s, x);
      if (value() < width && quarter() == 0) {
        area.out[row][value()] = out;
        u32 at = slot(length + first + row);
        i.deltas[(at * VALUE_HEADS + head) * STATE + slice * BLOCK + value()] = delta;
      }
    }
    sync();
#pragma unroll
    for (u32 n = 0; n < 2; ++n) {
      u32 row = thread / 32 + 4 * n, v = thread % 32;
      if (row < count) hand_on(first + row, v < width ? area.out[row][v] : 0.0f, weight, z[n]);
    }
  }

  DEVICE void fold_rows(Memory& s) const {
    for (u32 first = 0; first < folded; first += ROW_CHUNK) {
      u32 count = chunk(folded - first);
      if (first != 0) {
        sync();
        stage_fold(length - folded + first, count);
        sync();
      }
      for (u32 row = 0; row < count; ++row) {
        float k[KEY_QUADS][4];
        load_keys(k, area.folded_key[row], quarter());
        decay_memory(s, area.folded_decay[row]);
        add_to_memory(s, k, area.folded_delta[row][value()]);
      }
    }
    if (value() >= width) return;
    float* to = stored();
#pragma unroll
    for (u32 j = 0; j < KEY_QUADS; ++j) store_quad(to + j * 16, s[j][0], s[j][1], s[j][2], s[j][3]);
  }

  // o w silu(z) of a row as int8, and the sum of o^2: by a warp.
  DEVICE void hand_on(u32 row, float o, float weight, float z) const {
    u32 block = head * SLICES + slice;
    quantise_block(o * weight * silu(z), i.output, block, row, rows);
    float squares = warp_sum(o * o);
    if (lane_index() == 0) i.output_squares[row * (VALUE_HEADS * SLICES) + block] = squares;
  }
};

// Folding needs nothing from the instructions before, so it is done while other SMs are still at them; this SM's own math
// warps must have left the area, though.
ROLE void delta_rule(const Instruction& i, const Launch& l, u32 index, u32 rows) {
  sync_threads(10, WORKERS);
  u32 group = thread_index() / ITEM_THREADS;
  if (group >= DELTA_GROUPS) return;
  Range range = my_range(i);
  DeltaArea& area = shared<DeltaArea>(AREA_OFFSET)[group];
  u32 length = length_of(i), fold = fold_of(i);
  for (u32 item = range.start + group; item < range.stop; item += DELTA_GROUPS) {
    u32 head = item / SLICES, slice = item % SLICES;
    u32 width = STATE - slice * BLOCK < BLOCK ? STATE - slice * BLOCK : BLOCK;
    const DeltaItem it{i, area, thread_index() % ITEM_THREADS, 2 + group, head, head % KEY_HEADS, slice, width, length, rows, fold};
    it.fold();
    barrier_wait(Barriers::go(), index & 1, l, AT_GO);
    it.run();
  }
}
