// The two warps that bring things: the producer streams tiles into the ring, over the phases of the whole launch, and
// waits for nothing but room; the loader brings each phase's input, in windows of columns.

ROLE void produce(const Launch& l) {
  Barriers& b = barriers();
  Turn<STAGES> turn;
  const u64 policy = stream_policy();
  for (u32 index = 0; index < l.count; ++index) {
    const Instruction& i = l.instructions[index];
    if (!streams(i)) continue;
    Portions portions(&i, i.ranges[sm_index()]);
    Portion p;
    while (portions.next(p)) {
      const Strip& s = i.strip[p.strip];
      const Matrix& m = s.matrix[p.matrix];
      const u32 tile_bytes = (u32)m.tile_bytes, most = STAGE_BYTES / tile_bytes;
      const u8* from = m.tiles + ((u64)p.group * Portions::group_tiles(s, p.matrix) + p.first) * tile_bytes;
      for (u32 left = p.count; left;) {
        const u32 tiles = left < most ? left : most, bytes = tiles * tile_bytes;
        barrier_wait(&b.stage_empty[turn.slot], turn.parity ^ 1, l, AT_STAGE_EMPTY);
        load_begin(&b.stage_full[turn.slot], bytes);
        load_stream(shared<u8>(RING_OFFSET + turn.slot * STAGE_BYTES), from, bytes, &b.stage_full[turn.slot], policy);
        load_end(&b.stage_full[turn.slot]);
        turn.next();
        from += bytes;
        left -= tiles;
      }
    }
  }
}

constexpr u32 PREFETCH_BYTES = 65536;  // of keys and of values for one item

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
    load_begin(full, blocks * w.block_bytes());
    load(to, i.input.values + (u64)begin * w.rows * 32, blocks * w.rows * 32, full);
    load(to + w.scales(), i.input.scales + begin * COLUMNS, blocks * COLUMNS * 4, full);
    load(to + w.sums(), i.input.sums + begin * COLUMNS, blocks * COLUMNS * 4, full);
    if (w.low) load(to + w.low_values(), i.input_low + (u64)begin * w.rows * 32, blocks * w.rows * 32, full);
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
