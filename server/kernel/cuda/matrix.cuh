// Phases that stream matrices: four kinds of warps walk an SM's tiles in the same order.
//
// The producer streams tiles into the ring, over the phases of the whole launch, and waits for nothing but room. The
// loader brings the phase's input, in windows of columns. Math warps take the tiles in turn and leave their sums of a
// portion in a slot. Epilogue warps add the slots up, finish groups of outputs, and hand them on.

DEVICE bool streams(const Instruction& i) { return i.kind >= PROJECT && i.kind <= HEAD; }

// Consecutive tiles of one matrix in one group.
struct Portion {
  u32 strip, matrix, group;
  u32 first, count;  // tiles within the matrix' part of the group
  u32 before;        // tiles of the range before it
  bool closes;       // its last tile is the group's last
};

// An SM's portions of an instruction, in order.
struct Portions {
  const Instruction* i;
  u32 start, at, stop;
  u32 strip = 0, strip_begin = 0, group = 0;
  u32 rest = 0, after = 0;  // tiles of the group before the newest portion, and with it
  u32 whole = 0, gate = 0;  // tiles of a group, and of its first matrix

  DEVICE Portions(const Instruction* i, Range range) : i(i), start(range.start), at(range.start), stop(range.stop) {
    if (at >= stop) return;
    measure();
    while (at >= strip_begin + whole * (u32)i->strip[strip].groups) next_strip();
    group = (at - strip_begin) / whole;
    after = at - strip_begin - group * whole;
  }

  DEVICE static u32 group_tiles(const Strip& s, u32 matrix) { return (u32)(s.row_tiles * s.matrix[matrix].column_tiles); }
  DEVICE void measure() {
    const Strip& s = i->strip[strip];
    gate = group_tiles(s, 0);
    whole = gate + (s.matrices == 2 ? group_tiles(s, 1) : 0);
  }
  DEVICE void next_strip() {
    strip_begin += whole * (u32)i->strip[strip].groups;
    ++strip;
    group = 0;
    measure();
  }

  DEVICE bool next(Portion& p) {
    if (at >= stop) return false;
    if (after == whole) {
      after = 0;
      if (++group == i->strip[strip].groups) next_strip();
    }
    rest = after;
    p.strip = strip;
    p.group = group;
    p.before = at - start;
    p.matrix = rest >= gate;
    p.first = p.matrix ? rest - gate : rest;
    const u32 room = (p.matrix ? whole : gate) - rest;
    p.count = room < stop - at ? room : stop - at;
    after = rest + p.count;
    p.closes = after == whole;
    at += p.count;
    return true;
  }
};

// How an instruction's input is cut into windows.
struct Windowing {
  u32 rows, blocks, size;  // blocks of a window: a multiple of 8
  bool low;

  DEVICE Windowing(const Instruction& i, u32 rows) : rows(rows), low(i.input_low != nullptr) {
    blocks = ((u32)i.blocks + 7) / 8 * 8;
    const u32 bytes = rows * (low ? 72 : 40);
    size = blocks * bytes <= AREA_BYTES ? blocks : AREA_BYTES / WINDOWS / bytes / 8 * 8;
  }
  DEVICE u32 offset(u32 slot) const { return AREA_OFFSET + (size == blocks ? 0 : slot * (AREA_BYTES / WINDOWS)); }
  // The window that a tile's columns are in.
  DEVICE u32 of_tile(const Strip& s, u32 matrix, u32 tile) const {
    return size == blocks ? 0 : (tile >> ((u32)s.row_tiles >> 1)) * (u32)s.matrix[matrix].tile_blocks / size;
  }
};

// ---------------------------------------------------------------- producer

// An SM's tiles of all phases of a launch, a stage at a time.
struct TileStream {
  const Launch& l;
  u32 index = 0;  // of the next instruction
  Portions portions;
  const u8* from = nullptr;
  u32 left = 0, tile_bytes = 0;  // of the portion

  DEVICE TileStream(const Launch& l) : l(l), portions(nullptr, Range{0, 0}) {}

  // The next stage's bytes; 0 at the end.
  DEVICE u32 next(const u8*& at) {
    while (!left) {
      Portion p;
      while (!portions.next(p)) {
        if (index == l.count) return 0;
        const Instruction& i = l.instructions[index++];
        if (streams(i)) portions = Portions(&i, i.ranges[sm_index()]);
      }
      const Strip& s = portions.i->strip[p.strip];
      const Matrix& m = s.matrix[p.matrix];
      tile_bytes = (u32)m.tile_bytes;
      left = p.count;
      from = m.tiles + ((u64)p.group * Portions::group_tiles(s, p.matrix) + p.first) * tile_bytes;
    }
    const u32 most = STAGE_BYTES / tile_bytes, tiles = left < most ? left : most;
    at = from;
    from += tiles * tile_bytes;
    left -= tiles;
    return tiles * tile_bytes;
  }
};

constexpr u32 AHEAD = 0;  // stages that are brought to the L2 cache beyond the ring

ROLE void produce(const Launch& l) {
  Barriers& b = barriers();
  Turn<STAGES> turn;
  const u64 policy = stream_policy();
  TileStream stream(l), ahead(l);
  const u8* from;
  for (u32 s = 0; s < STAGES; ++s) ahead.next(from);
  for (u32 s = 0; s < AHEAD; ++s)
    if (const u32 bytes = ahead.next(from)) prefetch(from, bytes);
  while (const u32 bytes = stream.next(from)) {
    barrier_wait(&b.stage_empty[turn.slot], turn.parity ^ 1, l, AT_STAGE_EMPTY);
    load_begin(&b.stage_full[turn.slot], bytes);
    load_stream(shared<u8>(RING_OFFSET + turn.slot * STAGE_BYTES), from, bytes, &b.stage_full[turn.slot], policy);
    load_end(&b.stage_full[turn.slot]);
    turn.next();
    if (AHEAD)
      if (const u32 more = ahead.next(from)) prefetch(from, more);
  }
}

constexpr u32 PREFETCH_BYTES = 65536;  // of keys and of values for one item

// ---------------------------------------------------------------- loader

struct Loader {
  Turn<WINDOWS> turn;

  DEVICE void load_input(const Instruction& i, const Launch& l, u32 rows) {
    Barriers& b = barriers();
    if (i.squares) {
      const u32 bytes = (rows * (u32)i.blocks * 4 + 15) / 16 * 16;
      load_begin(&b.squares_full, bytes);
      load(shared<u8>(SQUARES_OFFSET), i.squares, bytes, &b.squares_full);
      load_end(&b.squares_full);
    }
    const Windowing w(i, rows);
    Portions portions(&i, my_range(i));
    Portion p;
    u32 current = ~0u;
    while (portions.next(p)) {
      const Strip& s = i.strip[p.strip];
      const u32 last = w.of_tile(s, p.matrix, p.first + p.count - 1);
      for (u32 window = w.of_tile(s, p.matrix, p.first); window <= last; ++window) {
        if (window == current) continue;
        load_window(i, l, w, window);
        current = window;
      }
    }
  }

  DEVICE void load_window(const Instruction& i, const Launch& l, const Windowing& w, u32 window) {
    Barriers& b = barriers();
    const u32 begin = window * w.size, blocks = w.blocks - begin < w.size ? w.blocks - begin : w.size;
    u8* to = shared<u8>(w.offset(turn.slot));
    u64* full = &b.window_full[turn.slot];
    barrier_wait(&b.window_empty[turn.slot], turn.parity ^ 1, l, AT_WINDOW_EMPTY);
    load_begin(full, blocks * w.rows * (w.low ? 72 : 40));
    load(to, i.input.values + (u64)begin * w.rows * 32, blocks * w.rows * 32, full);
    load(to + w.size * w.rows * 32, i.input.scales + begin * w.rows, blocks * w.rows * 4, full);
    load(to + w.size * w.rows * 36, i.input.sums + begin * w.rows, blocks * w.rows * 4, full);
    if (w.low) load(to + w.size * w.rows * 40, i.input_low + (u64)begin * w.rows * 32, blocks * w.rows * 32, full);
    load_end(full);
    turn.next();
  }
};

// What the workers read first in the next instruction comes to the L2 cache meanwhile: nothing of it is written by the
// instruction at hand.
DEVICE void prefetch_state(const Instruction& i, u32 length) {
  const Range range = my_range(i);
  if (i.kind == DELTA_RULE) {
    constexpr u32 slices = (STATE + 31) / 32;
    for (u32 item = range.start; item < range.stop; ++item) {
      const u32 first = item % slices * 32, values = STATE - first < 32 ? STATE - first : 32;
      const u32 query = item / slices % KEY_HEADS * STATE, value = 2 * KEY_HEADS * STATE + item / slices * STATE + first;
      prefetch(i.taps + query * CONV_TAPS, STATE * CONV_TAPS * 4);
      prefetch(i.taps + (KEY_HEADS * STATE + query) * CONV_TAPS, STATE * CONV_TAPS * 4);
      prefetch(i.taps + value * CONV_TAPS, values * CONV_TAPS * 4);
      prefetch(i.memory + ((u64)(item / slices) * STATE + first) * STATE, values * STATE * 4);
    }
  } else if (i.kind == ATTENTION && i.queries) {
    const u32 chunk = KV_GRANULE * ((length + KV_GRANULE * PARTS) / (KV_GRANULE * PARTS));
    for (u32 item = range.start; item < range.stop; ++item) {
      const u32 first = item % PARTS * chunk;
      if (first >= length) continue;
      const u32 positions = length - first < chunk ? length - first : chunk;
      const u32 bytes = positions * HEAD_DIM * 2 < PREFETCH_BYTES ? positions * HEAD_DIM * 2 : PREFETCH_BYTES;
      const u64 at = ((u64)(item / PARTS) * i.capacity + first) * HEAD_DIM;
      prefetch(i.cache_k + at, bytes);
      prefetch(i.cache_v + at, bytes);
    }
  }
}

ROLE u32 load_input(const Instruction& i, const Launch& l, u32 rows, u32 turns) {
  Loader loader;
  loader.turn.unpack(turns);
  loader.load_input(i, l, rows);
  return loader.turn.packed();
}

// ---------------------------------------------------------------- math

struct Math {
  Turn<STAGES> stage;
  Turn<PARTIAL_SLOTS> partial;
  Turn<WINDOWS> window;  // the one that is held, or the next one
  bool holds = false;

  DEVICE explicit Math(u32 turns) {
    stage.unpack(turns);
    partial.unpack(turns >> stage.BITS);
    window.unpack(turns >> 2 * stage.BITS);
  }
  // Where the next instruction goes on.
  DEVICE u32 turns() const {
    return stage.packed() | partial.packed() << stage.BITS | window.packed() << 2 * stage.BITS;
  }

  DEVICE void multiply(const Instruction& i, const Launch& l, u32 rows) {
    const Windowing w(i, rows);
    Window x;
    x.rows = rows;
    Portions portions(&i, my_range(i));
    Portion p;
    u32 current = ~0u;
    while (portions.next(p)) {
      const Strip& s = i.strip[p.strip];
      const u32 first = w.of_tile(s, p.matrix, p.first);
      if (first != current) {
        advance(i, l, w, first, x);
        current = first;
      }
      Products sums;
      clear(sums);
      switch (s.matrix[p.matrix].type) {
#if HAS_F32
        case F32: take<F32>(i, l, w, p, x, current, sums); break;
#endif
#if HAS_F16
        case F16: take<F16>(i, l, w, p, x, current, sums); break;
#endif
#if HAS_BF16
        case BF16: take<BF16>(i, l, w, p, x, current, sums); break;
#endif
#if HAS_Q8_0
        case Q8_0: take<Q8_0>(i, l, w, p, x, current, sums); break;
#endif
#if HAS_Q4_K
        case Q4_K: take<Q4_K>(i, l, w, p, x, current, sums); break;
#endif
#if HAS_Q5_K
        case Q5_K: take<Q5_K>(i, l, w, p, x, current, sums); break;
#endif
#if HAS_Q6_K
        case Q6_K: take<Q6_K>(i, l, w, p, x, current, sums); break;
#endif
      }
      leave(sums, l);
    }
    if (holds) release();
  }

  template <u32 type>
  DEVICE void take(const Instruction& i, const Launch& l, const Windowing& w, const Portion& p, Window& x, u32& current,
                   Products& sums) {
    if (w.low) take_planes<type, true>(i, l, w, p, x, current, sums);
    else take_planes<type, false>(i, l, w, p, x, current, sums);
  }

  // This warp's tiles of a portion: the warps take an SM's tiles in turn.
  template <u32 type, bool two_planes>
  DEVICE void take_planes(const Instruction& i, const Launch& l, const Windowing& w, const Portion& p, Window& x,
                          u32& current, Products& sums) {
    constexpr u32 bytes = type == Q4_K ? 2368 : type == Q5_K ? 2880 : type == Q6_K ? 3360 : type == Q8_0 ? 4352 : 4096;
    constexpr u32 most = STAGE_BYTES / bytes, tile_blocks = type == F32 ? 2 : type == F16 || type == BF16 ? 4 : 8;
    const Strip& s = i.strip[p.strip];
    const u32 tile_shift = (u32)s.row_tiles >> 1;  // 1, 2, 4 row tiles
    Barriers& b = barriers();
    u32 mine = (thread_index() / 32 + MATH_WARPS - p.before % MATH_WARPS) % MATH_WARPS;
    for (u32 begin = 0; begin < p.count; begin += most) {
      const u32 end = begin + most < p.count ? begin + most : p.count;
      // Windows are given up by warps that have no tile there, too: the loader waits for all of them, and a ring of few
      // tiles for those that wait for the loader.
      const u32 reached = (p.first + begin >> tile_shift) * tile_blocks;
      while (reached - x.block >= w.size) advance(i, l, w, ++current, x);
      barrier_wait(&b.stage_full[stage.slot], stage.parity, l, AT_STAGE_FULL);
      for (; mine < end; mine += MATH_WARPS) {
        const u32 block = (p.first + mine >> tile_shift) * tile_blocks;
        while (block - x.block >= w.size) advance(i, l, w, ++current, x);
        add_tile<type, two_planes>(sums, RING_OFFSET + stage.slot * STAGE_BYTES + (mine - begin) * bytes, x,
                                   block - x.block);
      }
      sync_warp();
      if ((thread_index() & 31) == 0) barrier_arrive(&b.stage_empty[stage.slot]);
      stage.next();
    }
    const u32 last = w.of_tile(s, p.matrix, p.first + p.count - 1);
    while (current < last) advance(i, l, w, ++current, x);
  }

  // To the next window of the input: number `index` of the row.
  DEVICE void advance(const Instruction& i, const Launch& l, const Windowing& w, u32 index, Window& x) {
    Barriers& b = barriers();
    if (holds) release();
    if (i.segments > 1) barrier_wait(&b.window_ready[window.slot], window.parity, l, AT_WINDOW_READY);
    else barrier_wait(&b.window_full[window.slot], window.parity, l, AT_WINDOW_FULL);
    const u32 at = w.offset(window.slot);
    x.block = index * w.size;
    const u32 lane = thread_index() & 31;
    x.values = at + lane * 8;
    x.scales = at + w.size * w.rows * 32 + (lane & 3) * 8;
    x.sums = at + w.size * w.rows * 36 + (lane >> 2) * 4;
    x.low = at + w.size * w.rows * 40 + lane * 8;
    holds = true;
  }

  DEVICE void release() {
    sync_warp();
    if ((thread_index() & 31) == 0) barrier_arrive(&barriers().window_empty[window.slot]);
    window.next();
    holds = false;
  }

  // The warp's sums of a portion into its part of a slot: [column][16 rows].
  DEVICE void leave(const Products& sums, const Launch& l) {
    Barriers& b = barriers();
    const u32 lane = thread_index() & 31, g = lane >> 2, t = lane & 3;
    barrier_wait(&b.partial_empty[partial.slot], partial.parity ^ 1, l, AT_PARTIAL_EMPTY);
    float* to = shared<float>(PARTIALS_OFFSET) + (partial.slot * MATH_WARPS + thread_index() / 32) * PARTIAL_WARP;
#pragma unroll
    for (u32 n = 0; n < ROW_TILES; ++n) {
      float* column = to + (8 * n + 2 * t) * PARTIAL_STRIDE;
      column[g] = sums[n][0];
      column[PARTIAL_STRIDE + g] = sums[n][1];
      column[g + 8] = sums[n][2];
      column[PARTIAL_STRIDE + g + 8] = sums[n][3];
    }
    sync_warp();
    if (lane == 0) barrier_arrive(&b.partial_full[partial.slot]);
    partial.next();
  }
};

ROLE u32 multiply(const Instruction& i, const Launch& l, u32 rows, u32 turns) {
  Math math(turns);
  math.multiply(i, l, rows);
  return math.turns();
}

// ---------------------------------------------------------------- epilogue

// Each warp finishes every other column (row of activations) for all outputs of a group: lane = output.
struct Epilogue {
  static constexpr u32 MINE = COLUMNS / EPILOGUE_WARPS;  // columns of a warp at most
  static constexpr u32 BATCH = 4;                        // of them are finished side by side
  static_assert(MINE % BATCH == 0, "columns are finished in whole batches");

  Turn<PARTIAL_SLOTS> partial;
  Turn<WINDOWS> window;
  u32 squares_parity;
  float factor[MINE];        // of the input's norm
  float outputs[2][MINE];    // gate and up; or outputs 0 .. 31 and 32 .. 63
  float kept[MINE];          // RESIDUAL: x before it. HEAD: the greatest logit of this lane's outputs so far
  u32 best_at[MINE];         // HEAD: which it is
  float next_norm;

  DEVICE explicit Epilogue(u32 turns) {
    partial.unpack(turns);
    window.unpack(turns >> partial.BITS);
    squares_parity = turns >> 2 * partial.BITS & 1;
  }
  DEVICE u32 turns() const {
    return partial.packed() | window.packed() << partial.BITS | squares_parity << 2 * partial.BITS;
  }

  DEVICE static u32 warp() { return thread_index() / 32 - MATH_WARPS; }
  DEVICE static u32 column(u32 c) { return warp() + EPILOGUE_WARPS * c; }

  DEVICE void finish(const Instruction& i, const Launch& l, u32 index, u32 rows, u32 length) {
    forget(i.kind);
    read_factors(i, l, rows);
    if (i.kind == HEAD) begin_head(i, rows);
    const Windowing w(i, rows);
    u32 current = ~0u;
    Portions portions(&i, my_range(i));
    Portion p;
    bool begins = true, foreign = false, any = false;
    while (portions.next(p)) {
      if (!any) foreign = portions.rest != 0;
      any = true;
      pass_windows(i, l, w, p, current);
      if (begins) clear_outputs();
      // What lies in global memory is asked for while the tiles are still multiplied.
      if (i.kind == RESIDUAL && !foreign) fetch_residual(i, p.group, rows);
      if (!foreign && !p.closes && portions.at >= portions.stop) collect(i, l, p, portions, index, rows);
      gather(i, l, p);
      begins = p.closes;
      if (foreign) {
        hand_on(l, p, i.strip[p.strip], rows);
        if (p.closes || portions.at >= portions.stop) {
          signal(l, index);
          foreign = false;
        }
        continue;
      }
      if (!p.closes && portions.at < portions.stop) continue;
      conclude(i, p, rows, length);
    }
    if (i.kind == HEAD) end_head(i, rows);
  }

  // factor = 1 / sqrt(mean of x^2 + eps), of each row; of rows with several norms to shared memory.
  DEVICE void read_factors(const Instruction& i, const Launch& l, u32 rows) {
    if (!i.squares) return;
    barrier_wait(&barriers().squares_full, squares_parity, l, AT_SQUARES);
    squares_parity ^= 1;
    const u32 lane = thread_index() & 31, blocks = (u32)i.blocks, segments = (u32)i.segments, part = blocks / segments;
    const float* squares = shared<float>(SQUARES_OFFSET);
    const float width = (float)(u32)i.segment_width;
    if (segments == 1) {
#pragma unroll
      for (u32 c = 0; c < MINE; ++c) {
        float sum = 0;
        for (u32 b = lane; b < blocks; b += 32) sum += squares[column(c) * blocks + b];
        factor[c] = sum;
      }
#pragma unroll
      for (u32 m = 16; m; m >>= 1)
#pragma unroll
        for (u32 c = 0; c < MINE; ++c) factor[c] += shuffle_xor(factor[c], m);
#pragma unroll
      for (u32 c = 0; c < MINE; ++c) factor[c] = inverse_root(factor[c] / width + EPS);
      return;
    }
    float* factors = shared<float>(FACTORS_OFFSET);
    for (u32 at = thread_index() - 32 * MATH_WARPS; at < rows * segments; at += 32 * EPILOGUE_WARPS) {
      const u32 row = at / segments, segment = at - row * segments;
      float sum = 0;
      for (u32 b = 0; b < part; ++b) sum += squares[row * blocks + segment * part + b];
      factors[at] = inverse_root(sum / width + EPS);
    }
    sync_threads(8, 32 * EPILOGUE_WARPS);
  }

  // Keeps step with the windows that a portion needs; where rows have several norms, multiplies their factors in.
  DEVICE void pass_windows(const Instruction& i, const Launch& l, const Windowing& w, const Portion& p, u32& current) {
    Barriers& b = barriers();
    const Strip& s = i.strip[p.strip];
    const u32 last = w.of_tile(s, p.matrix, p.first + p.count - 1);
    const u32 segments = (u32)i.segments;
    for (u32 index = w.of_tile(s, p.matrix, p.first); index <= last; ++index) {
      if (index == current) continue;
      current = index;
      if (segments > 1) {
        barrier_wait(&b.window_full[window.slot], window.parity, l, AT_WINDOW_FULL);
        scale_window(i, w, index);
        sync_warp();
        if ((thread_index() & 31) == 0) barrier_arrive(&b.window_ready[window.slot]);
      } else if ((thread_index() & 31) == 0) {
        barrier_arrive(&b.window_ready[window.slot]);  // nobody waits for it, but it keeps step too
      }
      window.next();
    }
  }

  DEVICE void scale_window(const Instruction& i, const Windowing& w, u32 index) {
    const u32 at = w.offset(window.slot), segments = (u32)i.segments, part = (u32)i.blocks / segments;
    float* scales = shared<float>(at + w.size * w.rows * 32);
    u32* sums = shared<u32>(at + w.size * w.rows * 36);
    const float* factors = shared<float>(FACTORS_OFFSET);
    const u32 begin = index * w.size, end = begin + w.size < (u32)i.blocks ? begin + w.size : (u32)i.blocks;
    for (u32 k = thread_index() - 32 * MATH_WARPS; k < (end - begin) * w.rows; k += 32 * EPILOGUE_WARPS) {
      const u32 block = k / w.rows, row = k - block * w.rows;
      const float f = factors[row * segments + (begin + block) / part];
      scales[k] *= f;
      const float sum = (as_float(sums[k] << 16) + as_float(sums[k] & 0xFFFF0000)) * f;
      sums[k] = split_sum(sum);
    }
  }

  // Nothing lives on from the instruction before: registers are short.
  DEVICE void forget(u64 kind) {
    clear_outputs();
#pragma unroll
    for (u32 c = 0; c < MINE; ++c) {
      factor[c] = 1;
      kept[c] = kind == HEAD ? -as_float(0x7F800000) : 0;
      best_at[c] = 0;
    }
    next_norm = 0;
  }

  DEVICE void clear_outputs() {
#pragma unroll
    for (u32 c = 0; c < MINE; ++c) outputs[0][c] = outputs[1][c] = 0;
  }

  // Adds the math warps' sums of a portion, in the order of its tiles' warps.
  DEVICE void gather(const Instruction& i, const Launch& l, const Portion& p) {
    Barriers& b = barriers();
    const Strip& s = i.strip[p.strip];
    barrier_wait(&b.partial_full[partial.slot], partial.parity, l, AT_PARTIAL_FULL);
    const float* from = shared<float>(PARTIALS_OFFSET) + partial.slot * MATH_WARPS * PARTIAL_WARP;
    const bool second = s.matrices == 2 && p.matrix;
    if (s.row_tiles == 4) gather_tiles<4>(p, from, second);
    else if (s.row_tiles == 2) gather_tiles<2>(p, from, second);
    else gather_tiles<1>(p, from, second);
    sync_warp();
    if ((thread_index() & 31) == 0) barrier_arrive(&b.partial_empty[partial.slot]);
    partial.next();
  }

  // Tile n of a portion is row tile (first + n) % tiles, and (before + n) % MATH_WARPS is its warp. All columns are added
  // up, also those that are no rows: what one does while it waits, the others can use.
  template <u32 tiles> DEVICE void gather_tiles(const Portion& p, const float* from, bool second) {
    const u32 lane = thread_index() & 31;
#pragma unroll
    for (u32 half = 0; half < (tiles == 4 ? 2 : 1); ++half) {
      const u32 tile = 2 * half + lane / 16, first = (tile + tiles - p.first % tiles + p.before % tiles) % tiles;
#pragma unroll
      for (u32 c = 0; c < MINE; ++c) {
        const float* at = from + first * PARTIAL_WARP + column(c) * PARTIAL_STRIDE + (lane & 15);
        float sum = at[0];
#pragma unroll
        for (u32 w = tiles; w < MATH_WARPS; w += tiles) sum += at[w * PARTIAL_WARP];
        if (half || second) outputs[1][c] += sum;
        else outputs[0][c] += sum;
      }
    }
  }

  // Sums of a group that another SM began: [half or matrix][column][32 outputs].
  DEVICE static float* sums_of(const Launch& l, u32 sm, u32 half, u32 column) {
    return l.sums + ((u64)(sm * 2 + half) * MAX_ROWS + column) * 32 + (thread_index() & 31);
  }
  DEVICE void hand_on(const Launch& l, const Portion& p, const Strip& s, u32 rows) {
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
      if (s.matrices == 2 && half != p.matrix) continue;
#pragma unroll
      for (u32 c = 0; c < MINE; ++c)
        if (column(c) < rows) *sums_of(l, sm_index(), half, column(c)) = outputs[half][c];
    }
  }
  DEVICE void signal(const Launch& l, u32 index) {
    sync_threads(8, 32 * EPILOGUE_WARPS);
    if (thread_index() == 32 * MATH_WARPS) {
      store_release(l.handed + sm_index() * 32, (u32)l.epoch + index + 1);
    }
  }
  // Adds what the SMs behind this one have of its last group: they have had it for long.
  DEVICE void collect(const Instruction& i, const Launch& l, const Portion& p, const Portions& portions, u32 index, u32 rows) {
    const Strip& s = i.strip[p.strip];
    const u32 begin = portions.strip_begin + p.group * portions.whole;
    const u32 border = begin + portions.gate, end = begin + portions.whole;
    for (u32 sm = sm_index() + 1; sm < sm_count(); ++sm) {
      const Range range = i.ranges[sm];
      if (range.start >= end) break;
      if (range.start == range.stop) continue;
      if ((thread_index() & 31) == 0) {
        Patience patience;
        while ((i32)(load_relaxed(l.handed + sm * 32) - ((u32)l.epoch + index + 1)) < 0) poll(patience, l, AT_HANDED);
        fence_gpu();
      }
      sync_warp();
#pragma unroll
      for (u32 half = 0; half < 2; ++half) {
        if (s.matrices == 2 && (half ? range.stop <= border : range.start >= border)) continue;
#pragma unroll
        for (u32 c = 0; c < MINE; ++c)
          if (column(c) < rows) outputs[half][c] += load_fresh(sums_of(l, sm, half, column(c)));
      }
    }
  }

  // The outputs of a group are whole. Here too every column is computed, and only rows are stored.
  DEVICE void conclude(const Instruction& i, const Portion& p, u32 rows, u32 length) {
    const Strip& s = i.strip[p.strip];
    switch (i.kind) {
      case PROJECT: project(s, p.group, rows, length); break;
      case HEAD: head(i, s, p.group, rows); break;
      case RESIDUAL: residual(i, p.group, rows); break;
      case GATE_UP: gate_up(i, p.group < s.rows / 32, p.group, rows);
    }
  }

  DEVICE void project(const Strip& s, u32 group, u32 rows, u32 length) {
    const u32 lane = thread_index() & 31, size = (u32)s.row_tiles * 16;
    float* to = s.target + s.column + group * size + lane;
    const u32 room = (u32)s.rows - group * size < size ? (u32)s.rows - group * size : size;
#pragma unroll
    for (u32 c = 0; c < MINE; ++c) {
      const u32 row = column(c);
      if (row >= rows) continue;
      float* at = to + (s.ring ? (length + row) % RING : row) * s.stride;
      if (lane < room) at[0] = outputs[0][c] * factor[c];
      if (lane + 32 < room) at[32] = outputs[1][c] * factor[c];
    }
  }

  DEVICE void head(const Instruction& i, const Strip& s, u32 group, u32 rows) {
    const u32 lane = thread_index() & 31, size = (u32)s.row_tiles * 16;
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
      const u32 output = group * size + half * 32 + lane;
      const bool there = half * 32 + lane < size && output < s.rows;
#pragma unroll
      for (u32 c = 0; c < MINE; ++c) {
        const float y = outputs[half][c] * factor[c];
        if (i.logits && there && column(c) < rows) i.logits[(u64)column(c) * VOCAB + output] = y;
        const bool better = there && y > kept[c];
        kept[c] = better ? y : kept[c];
        best_at[c] = better ? output : best_at[c];
      }
    }
  }

  DEVICE void gate_up(const Instruction& i, bool there, u32 group, u32 rows) {
#pragma unroll
    for (u32 first = 0; first < MINE; first += BATCH) {
      float y[BATCH];
#pragma unroll
      for (u32 c = 0; c < BATCH; ++c) {
        const float gate = outputs[0][first + c] * factor[first + c], up = outputs[1][first + c] * factor[first + c];
        y[c] = there ? gate / (1 + exponential(-gate)) * up : 0;
      }
      hand_on_blocks(i.output, group, rows, first, y);
    }
  }

  // 32 outputs of columns `first` .. as blocks of int8.
  DEVICE static void hand_on_blocks(const Int8Rows& to, u32 block, u32 rows, u32 first, const float (&y)[BATCH]) {
    const u32 lane = thread_index() & 31;
    Quantised q[BATCH];
#pragma unroll
    for (u32 c = 0; c < BATCH; ++c) q[c] = quantised(y[c]);
#pragma unroll
    for (u32 c = 0; c < BATCH; ++c) {
      if (column(first + c) >= rows) continue;
      const u32 at = block * rows + column(first + c);
      to.values[at * 32 + place(lane)] = (i8)q[c].value;
      if (lane == 0) {
        to.scales[at] = q[c].scale;
        to.sums[at] = split_sum(q[c].scale * (float)q[c].sum);
      }
    }
  }

  DEVICE void fetch_residual(const Instruction& i, u32 block, u32 rows) {
    const u32 output = block * 32 + (thread_index() & 31);
    const bool there = output < HIDDEN;
    next_norm = there ? i.norm[output] : 0;
#pragma unroll
    for (u32 c = 0; c < MINE; ++c)
      kept[c] = there && i.add && column(c) < rows ? load_fresh(i.x + column(c) * HIDDEN + output) : 0;
  }

  DEVICE void residual(const Instruction& i, u32 block, u32 rows) {
    const u32 lane = thread_index() & 31, output = block * 32 + lane;
    const bool there = output < HIDDEN;
#pragma unroll
    for (u32 first = 0; first < MINE; first += BATCH) {
      float x[BATCH], weighted[BATCH], squares[BATCH];
#pragma unroll
      for (u32 c = 0; c < BATCH; ++c) {
        x[c] = there ? kept[first + c] + outputs[0][first + c] * factor[first + c] : 0;
        weighted[c] = x[c] * next_norm;
        squares[c] = x[c] * x[c];
      }
#pragma unroll
      for (u32 m = 16; m; m >>= 1)
#pragma unroll
        for (u32 c = 0; c < BATCH; ++c) squares[c] += shuffle_xor(squares[c], m);
      hand_on_blocks(i.output, block, rows, first, weighted);
#pragma unroll
      for (u32 c = 0; c < BATCH; ++c) {
        const u32 row = column(first + c);
        if (row >= rows) continue;
        if (there) i.x[row * HIDDEN + output] = x[c];
        if (lane == 0) i.output_squares[row * (HIDDEN / BLOCK) + block] = squares[c];
        if (i.output_low) low_plane(i, block * rows + row, weighted[c]);
      }
    }
  }

  // What rounding left, with scales over 254. Minima are multiplied by the sum of both planes.
  DEVICE static void low_plane(const Instruction& i, u32 at, float weighted) {
    const u32 lane = thread_index() & 31;
    const Quantised q = quantised(weighted);
    const float rest = weighted - (float)q.value * q.scale, low_scale = q.scale / 254;
    const i32 low = low_scale > 0 ? round_to_int(rest / low_scale) : 0;
    i.output_low[at * 32 + place(lane)] = (i8)low;
    const float sum = q.scale * ((float)q.sum + (float)sum_of_lanes(low) / 254);
    if (lane == 0) i.output.sums[at] = split_sum(sum);
  }

  DEVICE void begin_head(const Instruction& i, u32 rows) {
    const u32 begin = HIDDEN * sm_index() / sm_count(), end = HIDDEN * (sm_index() + 1) / sm_count();
#pragma unroll
    for (u32 c = 0; c < MINE; ++c) {
      const u32 row = column(c);
      if (row >= rows) continue;
      for (u32 k = begin + (thread_index() & 31); k < end; k += 32)
        i.hidden[row * HIDDEN + k] = load_fresh(i.x + row * HIDDEN + k) * factor[c] * i.norm[k];
    }
  }

  // The SM's greatest logit of every row, the first of equals.
  DEVICE void end_head(const Instruction& i, u32 rows) {
#pragma unroll
    for (u32 c = 0; c < MINE; ++c) {
      const u32 row = column(c);
      if (row >= rows) continue;
      float value = kept[c];
      u32 at = best_at[c];
      for (u32 m = 16; m; m >>= 1) {
        const float other = shuffle_xor(value, m);
        const u32 other_at = shuffle_xor(at, m);
        if (other > value || (other == value && other_at < at)) {
          value = other;
          at = other_at;
        }
      }
      if ((thread_index() & 31) == 0) {
        float* to = i.best + (row * sm_count() + sm_index()) * 2;
        to[0] = value;
        to[1] = (float)(i.draft_ids ? i.draft_ids[at] : (i32)at);
      }
    }
  }
};

ROLE u32 finish(const Instruction& i, const Launch& l, u32 index, u32 rows, u32 length, u32 turns) {
  Epilogue epilogue(turns);
  epilogue.finish(i, l, index, rows, length);
  return epilogue.turns();
}
