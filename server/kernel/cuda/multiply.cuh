// Math warps: tiles times activations, summed up for a portion, warp by warp.

struct Math {
  Turn<STAGES> stage;
  Turn<PARTIAL_SLOTS> partial;
  Turn<WINDOWS> window;  // the one that is held, or the next one
  bool holds = false;
  const u32 warp = uniform(thread_index() / 32);
  Constants constants;

  DEVICE explicit Math(u32 turns) {
    turns = uniform(turns);
    stage.unpack(turns);
    partial.unpack(turns >> stage.BITS);
    window.unpack(turns >> 2 * stage.BITS);
  }
  // Where the next instruction goes on.
  DEVICE u32 turns() const {
    return stage.packed() | partial.packed() << stage.BITS | window.packed() << 2 * stage.BITS;
  }

  DEVICE void multiply(const Instruction& i, const Launch& l, u32 number, u32 rows) {
    const Windowing w(i, rows);
    Window x;
    x.rows = rows;
    const u32 portions = portion_count(i);
    u32 current = ~0u;
    for (u32 n = 0; n < portions; ++n) {
      const Portion p = portion(i, number, n);
      const u32 first = w.of_tile(p, p.first);
      if (all_lanes(first != current)) {
        if (all_lanes(current == ~0u)) {
          meet_first_window(i);
          enter(w, first, x);
        } else {
          advance(i, l, w, first, x);
        }
        current = first;
      }
      Products sums;
      clear(sums);
      // A vote for each type, the usual ones first: see take_tiles.
#if HAS_Q4_K
      if (all_lanes(p.type == Q4_K)) take<Q4_K>(i, l, w, p, x, current, sums);
#endif
#if HAS_Q6_K
      if (all_lanes(p.type == Q6_K)) take<Q6_K>(i, l, w, p, x, current, sums);
#endif
#if HAS_Q5_K
      if (all_lanes(p.type == Q5_K)) take<Q5_K>(i, l, w, p, x, current, sums);
#endif
#if HAS_Q8_0
      if (all_lanes(p.type == Q8_0)) take<Q8_0>(i, l, w, p, x, current, sums);
#endif
#if HAS_F16
      if (all_lanes(p.type == F16)) take<F16>(i, l, w, p, x, current, sums);
#endif
#if HAS_BF16
      if (all_lanes(p.type == BF16)) take<BF16>(i, l, w, p, x, current, sums);
#endif
#if HAS_F32
      if (all_lanes(p.type == F32)) take<F32>(i, l, w, p, x, current, sums);
#endif
      leave(sums, l);
    }
    if (all_lanes(holds)) release();
  }

  template <u32 type>
  DEVICE void take(const Instruction& i, const Launch& l, const Windowing& w, const Portion& p, Window& x, u32& current,
                   Products& sums) {
    if (all_lanes(w.low)) take_planes<type, true>(i, l, w, p, x, current, sums);
    else take_planes<type, false>(i, l, w, p, x, current, sums);
  }
  template <u32 type, bool two_planes>
  DEVICE void take_planes(const Instruction& i, const Launch& l, const Windowing& w, const Portion& p, Window& x,
                          u32& current, Products& sums) {
    if (all_lanes(w.size == w.blocks)) take_tiles<type, two_planes, true>(i, l, w, p, x, current, sums);
    else take_tiles<type, two_planes, false>(i, l, w, p, x, current, sums);
  }

  // This warp's tiles of a portion: the warps take an SM's tiles in turn. whole: the window is the whole input. A branch
  // that depends on a vote costs less than one that the compiler thinks the lanes may disagree about.
  template <u32 type, bool two_planes, bool whole>
  DEVICE void take_tiles(const Instruction& i, const Launch& l, const Windowing& w, const Portion& p, Window& x,
                         u32& current, Products& sums) {
    constexpr u32 bytes = tile_bytes(type), most = STAGE_BYTES / bytes;
    static_assert(most <= MATH_WARPS, "a warp has a tile of a stage at most");
    const u32 count = p.count, first = p.first, tile_shift = p.tile_shift();
    u32 mine = warp >= p.turn ? warp - p.turn : warp + MATH_WARPS - p.turn;
    for (u32 begin = 0; begin < count; begin += most) {
      const u32 end = begin + most < count ? begin + most : count;
      // Windows are given up by warps that have no tile there, too: the loader waits for all of them, and a ring of few
      // tiles for those that wait for the loader.
      if (!whole) reach(i, l, w, (first + begin >> tile_shift) * tile_blocks(type), current, x);
      barrier_wait(Barriers::stage_full(stage.slot), stage.parity, l, AT_STAGE_FULL);
      if (all_lanes(mine < end)) {
        const u32 block = (first + mine >> tile_shift) * tile_blocks(type);
        if (!whole) reach(i, l, w, block, current, x);
        add_tile<type, two_planes>(sums, RING_OFFSET + stage.slot * STAGE_BYTES + (mine - begin) * bytes, x,
                                   whole ? block : block - x.block, constants, Barriers::stage_empty(stage.slot));
        mine += MATH_WARPS;
      } else {
        arrive_together(Barriers::stage_empty(stage.slot));
      }
      stage.next();
    }
    if (whole) return;
    const u32 last = w.of_tile(p, p.last_tile());
    while (all_lanes(current < last)) advance(i, l, w, ++current, x);
  }

  // To the window that a block is in.
  DEVICE void reach(const Instruction& i, const Launch& l, const Windowing& w, u32 block, u32& current, Window& x) {
    while (all_lanes(block - x.block >= w.size)) advance(i, l, w, ++current, x);
  }

  // To the next window of the input: number `index` of the row.
  DEVICE void advance(const Instruction& i, const Launch& l, const Windowing& w, u32 index, Window& x) {
    if (all_lanes(holds)) release();
    if (all_lanes(has_factors(i))) barrier_wait(Barriers::window_ready(window.slot), window.parity, l, AT_WINDOW_READY);
    else barrier_wait(Barriers::window_full(window.slot), window.parity, l, AT_WINDOW_FULL);
    enter(w, index, x);
  }

  DEVICE void enter(const Windowing& w, u32 index, Window& x) {
    const u32 at = w.offset(window.slot);
    x.block = index * w.size;
    const u32 lane = thread_index() & 31;
    x.values = at + lane * 8;
    x.scales = at + w.scales() + (lane & 3) * 8;
    x.sums = at + w.sums() + (lane >> 2) * 4;
    x.low = at + w.low_values() + lane * 8;
    holds = true;
  }

  DEVICE void release() {
    sync_warp();
    if ((thread_index() & 31) == 0) barrier_arrive(Barriers::window_empty(window.slot));
    window.next();
    holds = false;
  }

  // The warp's sums of a portion into its part of a slot: [column][16 rows].
  DEVICE void leave(const Products& sums, const Launch& l) {
    const u32 lane = thread_index() & 31, g = lane >> 2, t = lane & 3;
    barrier_wait(Barriers::partial_empty(partial.slot), partial.parity ^ 1, l, AT_PARTIAL_EMPTY);
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
    if (lane == 0) barrier_arrive(Barriers::partial_full(partial.slot));
    partial.next();
  }
};

ROLE u32 multiply(const Instruction& i, const Launch& l, u32 number, u32 rows, u32 turns) {
  Math math(turns);
  math.multiply(i, l, number, rows);
  return math.turns();
}
