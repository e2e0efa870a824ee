// The two warps that bring things: the producer streams tiles into the ring, over the phases of the whole launch, and
// waits for nothing but room. The loader waits for the other SMs, lets this SM's warps in, brings each phase's input in
// windows of columns, the next instruction, and states and keys to the L2 cache.

// A lane has one of 32 portions, read before they are wanted.
struct Ahead {
  u32 count = 0, rest = 0;  // of the 32, and behind them
  const u8* tiles = nullptr;
  u32 bytes = 0, tile_count = 0;

  DEVICE void read(const Instruction& i, u32 begin) {
    const Range range = i.ranges[sm_index()];
    const u32 left = range.stop - range.start - begin, lane = thread_index() & 31;
    count = left < 32 ? left : 32;
    rest = left - count;
    if (lane >= count) return;
    const Portion p(fresh_words4(i.portions + range.start + begin + lane));
    tiles = i.strip[p.strip].tiles[p.matrix] + (u64)p.offset * 16;
    bytes = tile_bytes(p.type);
    tile_count = p.count;
  }
};

ROLE void produce(const Launch& l) {
  Turn<STAGES> turn;
  const u64 policy = stream_policy();
  Ahead next;
  u32 index = 0, begin = 0;  // of what is read next
  const auto read = [&] {
    if (next.rest) begin += 32;
    else {
      begin = 0;
      do ++index;
      while (index < l.count && !streams(l.instructions[index]));
    }
    next = Ahead();
    if (index < l.count) next.read(l.instructions[index], begin);
  };
  index = ~0u;
  read();
  while (index < l.count) {
    const Ahead now = next;
    read();
    for (u32 n = 0; n < now.count; ++n) {
      const u32 tile_bytes = shuffle(now.bytes, n), most = STAGE_BYTES / tile_bytes;
      const u8* from = (const u8*)shuffle((u64)now.tiles, n);
      for (u32 left = shuffle(now.tile_count, n); left;) {
        const u32 tiles = left < most ? left : most, bytes = tiles * tile_bytes;
        barrier_wait(Barriers::stage_empty(turn.slot), turn.parity ^ 1, l, AT_STAGE_EMPTY);
        load_begin(Barriers::stage_full(turn.slot), bytes);
        load_stream(RING_OFFSET + turn.slot * STAGE_BYTES, from, bytes, Barriers::stage_full(turn.slot), policy);
        load_end(Barriers::stage_full(turn.slot));
        turn.next();
        from += bytes;
        left -= tiles;
      }
    }
  }
}

constexpr u32 PREFETCH_BYTES = 65536;  // of keys and of values for one item

// The windows of its input that an SM's tiles need, in their order.
struct WindowWalk {
  const Instruction& i;
  Windowing w;
  u32 index, portions, n = 0;
  u32 window = ~0u, last = 0;

  DEVICE WindowWalk(const Instruction& i, u32 index, u32 rows)
      : i(i), w(i, rows), index(index), portions(portion_count(i)) {}
  DEVICE bool next() {
    if (window != ~0u && w.size == w.blocks) return false;  // it is the whole input
    if (window != ~0u && window < last) {
      ++window;
      return true;
    }
    while (n < portions) {
      const Portion p = portion(i, index, n++);
      const u32 first = w.of_tile(p, p.first);
      last = w.of_tile(p, p.last_tile());
      if (first == window && first == last) continue;
      window = first == window ? first + 1 : first;
      return true;
    }
    return false;
  }
};

struct Loader {
  Turn<WINDOWS> turn;

  // Room for a window, and how much will come.
  DEVICE void announce(const WindowWalk& walk, const Launch& l) const {
    barrier_wait(Barriers::window_empty(turn.slot), turn.parity ^ 1, l, AT_WINDOW_EMPTY);
    load_begin(Barriers::window_full(turn.slot), blocks(walk) * walk.w.block_bytes());
  }
  DEVICE void load_window(const Instruction& i, const WindowWalk& walk) {
    const Windowing& w = walk.w;
    const u32 begin = walk.window * w.size, to = w.offset(turn.slot), full = Barriers::window_full(turn.slot);
    load(to, i.input.values + (u64)begin * w.rows * 32, blocks(walk) * w.rows * 32, full);
    load(to + w.scales(), i.input.scales + begin * COLUMNS, blocks(walk) * COLUMNS * 4, full);
    load(to + w.sums(), i.input.sums + begin * COLUMNS, blocks(walk) * COLUMNS * 4, full);
    if (w.low) load(to + w.low_values(), i.input_low + (u64)begin * w.rows * 32, blocks(walk) * w.rows * 32, full);
    load_end(full);
    turn.next();
  }
  DEVICE static u32 blocks(const WindowWalk& walk) {
    const u32 left = walk.w.blocks - walk.window * walk.w.size;
    return left < walk.w.size ? left : walk.w.size;
  }

  // Everything that doesn't need the other SMs is done before they are waited for.
  DEVICE void load_input(const Instruction& i, const Launch& l, u32 index, u32 rows) {
    WindowWalk walk(i, index, rows);
    bool more = walk.next();
    if (more) announce(walk, l);
    wait_for_others(l, index);
    const u32 first = turn.slot, parity = turn.parity;
    if (more) load_window(i, walk);
    if (i.squares) {  // not announced before: the last ones may still be on their way
      const u32 square_bytes = (rows * (u32)i.blocks * 4 + 15) / 16 * 16;
      load_begin(Barriers::squares_full(), square_bytes);
      load(SQUARES_OFFSET, i.squares, square_bytes, Barriers::squares_full());
      load_end(Barriers::squares_full());
    }
    if (more && !has_factors(i)) {
      barrier_wait(Barriers::window_full(first), parity, l, AT_WINDOW_FULL);
      stamp(l, index, FED, 32 * LOADER_WARP);
      meet_first_window(i);
    }
    while (more && walk.next()) {
      announce(walk, l);
      load_window(i, walk);
    }
  }

  // Until all SMs have finished the instruction before; then this SM's warps are let in.
  DEVICE static void wait_for_others(const Launch& l, u32 index) {
    if ((thread_index() & 31) == 0) wait_for_count(l.barrier, ((u32)l.epoch + index) * sm_count(), l, AT_GRID);
    sync_warp();
    fence_loads();
    if ((thread_index() & 31) == 0) barrier_arrive(Barriers::go());
  }
};

// What the SMs behind this one have of its last group, added up in their order: they have had it for long when it is asked
// for, so it is brought while the tiles are multiplied.
DEVICE void collect(const Instruction& i, const Launch& l, u32 index, u32 rows) {
  if (portion_count(i) == 0) return;
  const u32 sharers = portion(i, index, portion_count(i) - 1).sharers;
  if (sharers == 0) return;
  float sums[2][COLUMNS];
#pragma unroll
  for (u32 half = 0; half < 2; ++half)
#pragma unroll
    for (u32 c = 0; c < COLUMNS; ++c) sums[half][c] = 0;
  for (u32 sm = sm_index() + 1; sm <= sm_index() + sharers; ++sm) {
    const Range range = i.ranges[sm];
    if (range.start == range.stop) continue;
    if ((thread_index() & 31) == 0) wait_for_count(l.handed + sm * 32, (u32)l.epoch + index + 1, l, AT_HANDED);
    sync_warp();
#pragma unroll
    for (u32 half = 0; half < 2; ++half)
#pragma unroll
      for (u32 c = 0; c < COLUMNS; ++c)
        if (c < rows) sums[half][c] += load_fresh(sums_of(l, sm, half, c));
  }
  float* to = shared<float>(COLLECTED_OFFSET) + (thread_index() & 31);
#pragma unroll
  for (u32 half = 0; half < 2; ++half)
#pragma unroll
    for (u32 c = 0; c < COLUMNS; ++c) to[(half * COLUMNS + c) * 32] = sums[half][c];
  sync_warp();
  if ((thread_index() & 31) == 0) barrier_arrive(Barriers::collected());
}

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

// Instruction `index` to shared memory. The one before the last one lay there; this SM has finished it.
DEVICE void copy_instruction(const Launch& l, u32 index, u32 length, u32 fold) {
  if (index >= l.count) return;
  const Instruction& from = l.instructions[index];
  Here& to = here(index);
  for (u32 word = thread_index() & 31; word < sizeof(Instruction) / 8; word += 32)
    ((u64*)&to.instruction)[word] = ((const u64*)&from)[word];
  const u32 lane = thread_index() & 31;
  const Range range = from.ranges[sm_index()];
  if (streams(from) && lane < range.stop - range.start)
    ((Words4*)to.portions)[lane] = fresh_words4(from.portions + range.start + lane);
  if (lane == 0) {
    to.range = range;
    to.length = length;
    to.fold = fold;
  }
  sync_warp();
  if ((thread_index() & 31) == 0) barrier_arrive(Barriers::copied(index & 1));
}

ROLE void bring(const Launch& l, u32 behind, u32 length, u32 fold) {
  Loader loader;
  copy_instruction(l, 0, length, fold);
  for (u32 index = 0; index < l.count; ++index) {
    const Instruction& i = here(index).instruction;
    if (streams(i)) loader.load_input(i, l, index, row_count(i, behind));
    else Loader::wait_for_others(l, index);
    copy_instruction(l, index + 1, length, fold);
    if (index + 1 < l.count) prefetch_state(here(index + 1).instruction, length);
    if (streams(i)) collect(i, l, index, row_count(i, behind));
  }
}
