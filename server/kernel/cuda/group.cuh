// Sums of a group of outputs as a set of warps has them: each warp has every so many columns (rows of activations), its
// lanes are outputs. What becomes of them in RESIDUAL and GATE_UP, whose outputs are rounded for the next matrix.
template <u32 FIRST_WARP, u32 WARPS> struct Group {
  static constexpr u32 MINE = (COLUMNS + WARPS - 1) / WARPS;  // columns of a warp at most
  static constexpr u32 BATCH = MINE < 4 ? MINE : 4;           // of them are finished side by side
  static_assert(MINE % BATCH == 0, "columns are finished in whole batches");

  float factor[MINE];      // of the input's norm
  float outputs[2][MINE];  // gate and up; or outputs 0 .. 31 and 32 .. 63
  float kept[MINE];        // RESIDUAL: x before it. HEAD: the greatest logit of this lane's outputs so far
  float next_norm;

  DEVICE static u32 warp() { return thread_index() / 32 - FIRST_WARP; }
  DEVICE static u32 column(u32 c) { return warp() + WARPS * c; }

  DEVICE void clear_outputs() {
#pragma unroll
    for (u32 c = 0; c < MINE; ++c) outputs[0][c] = outputs[1][c] = 0;
  }

  template <u32 used> DEVICE void gather_columns(const Portion& p, const float* from) {
    if (all_lanes(p.row_tiles == 2)) gather_tiles<2, used>(p, from);
    else if (all_lanes(p.row_tiles == 4)) gather_tiles<4, used>(p, from);
    else gather_tiles<1, used>(p, from);
  }
  // Tile n of a portion is row tile (first + n) % tiles, and (turn + n) % MATH_WARPS is its warp. The first `used` columns
  // are added up, also those that are no rows: what one does while it waits, the others can use.
  template <u32 tiles, u32 used> DEVICE void gather_tiles(const Portion& p, const float* from) {
    const u32 lane = thread_index() & 31;
#pragma unroll
    for (u32 half = 0; half < (tiles == 4 ? 2 : 1); ++half) {
      const u32 tile = 2 * half + lane / 16, first = (tile + tiles - p.first % tiles + p.turn % tiles) % tiles;
#pragma unroll
      for (u32 c = 0; c < used; ++c) {
        const float* at = from + first * PARTIAL_WARP + column(c) * PARTIAL_STRIDE + (lane & 15);
        float sum = at[0];
#pragma unroll
        for (u32 w = tiles; w < MATH_WARPS; w += tiles) sum += at[w * PARTIAL_WARP];
        if (half || p.matrix) outputs[1][c] += sum;
        else outputs[0][c] += sum;
      }
    }
  }

  // Adds what the SMs behind this one have of its last group; the loader has brought it.
  template <u32 used> DEVICE void add_collected() {
    const float* from = shared<float>(COLLECTED_OFFSET) + (thread_index() & 31);
#pragma unroll
    for (u32 half = 0; half < 2; ++half)
#pragma unroll
      for (u32 c = 0; c < used; ++c) outputs[half][c] += from[(half * COLUMNS + column(c)) * 32];
  }

  template <u32 used> DEVICE void gate_up(const Instruction& i, bool there, u32 group, u32 rows) {
    constexpr u32 batch = used < BATCH ? used : BATCH;
#pragma unroll
    for (u32 first = 0; first < used; first += batch) {
      float y[batch];
#pragma unroll
      for (u32 c = 0; c < batch; ++c) {
        const float gate = outputs[0][first + c] * factor[first + c], up = outputs[1][first + c] * factor[first + c];
        y[c] = there ? gate / (1 + exponential(-gate)) * up : 0;
      }
      hand_on_blocks(i.output, group, rows, first, y);
    }
  }

  // 32 outputs of columns `first` .. as blocks of int8.
  template <u32 batch>
  DEVICE static void hand_on_blocks(const Int8Rows& to, u32 block, u32 rows, u32 first, const float (&y)[batch]) {
    const u32 lane = thread_index() & 31;
    Quantised q[batch];
#pragma unroll
    for (u32 c = 0; c < batch; ++c) q[c] = quantised(y[c]);
#pragma unroll
    for (u32 c = 0; c < batch; ++c) {
      if (column(first + c) >= rows) continue;
      const u32 at = block * COLUMNS + column(first + c);
      to.values[(block * rows + column(first + c)) * 32 + place(lane)] = (i8)q[c].value;
      if (lane == 0) {
        to.scales[at] = q[c].scale;
        to.sums[at] = split_sum(q[c].scale * (float)q[c].sum);
      }
    }
  }

  template <u32 used> DEVICE void residual(const Instruction& i, u32 block, u32 rows) {
    constexpr u32 batch = used < BATCH ? used : BATCH;
    const u32 lane = thread_index() & 31, output = block * 32 + lane;
    const bool there = output < HIDDEN;
#pragma unroll
    for (u32 first = 0; first < used; first += batch) {
      float x[batch], weighted[batch], squares[batch];
#pragma unroll
      for (u32 c = 0; c < batch; ++c) {
        x[c] = there ? kept[first + c] + outputs[0][first + c] * factor[first + c] : 0;
        weighted[c] = x[c] * next_norm;
        squares[c] = x[c] * x[c];
      }
#pragma unroll
      for (u32 m = 16; m; m >>= 1)
#pragma unroll
        for (u32 c = 0; c < batch; ++c) squares[c] += shuffle_xor(squares[c], m);
      hand_on_blocks(i.output, block, rows, first, weighted);
#pragma unroll
      for (u32 c = 0; c < batch; ++c) {
        const u32 row = column(first + c);
        if (row >= rows) continue;
        if (there) i.x[row * HIDDEN + output] = x[c];
        if (lane == 0) i.output_squares[row * (HIDDEN / BLOCK) + block] = squares[c];
        if (i.output_low) low_plane(i, block, row, rows, weighted[c]);
      }
    }
  }

  // What rounding left, with scales over 254. Minima are multiplied by the sum of both planes.
  DEVICE static void low_plane(const Instruction& i, u32 block, u32 row, u32 rows, float weighted) {
    const u32 lane = thread_index() & 31;
    const Quantised q = quantised(weighted);
    const float rest = weighted - (float)q.value * q.scale, low_scale = q.scale / 254;
    const i32 low = low_scale > 0 ? round_to_int(rest / low_scale) : 0;
    i.output_low[(block * rows + row) * 32 + place(lane)] = (i8)low;
    const float sum = q.scale * ((float)q.sum + (float)sum_of_lanes(low) / 254);
    if (lane == 0) i.output.sums[block * COLUMNS + row] = split_sum(sum);
  }
};

// Where an instruction has several rows, the end of its last group would be work for two warps while twelve have none. So
// those finish it, a column each; what the epilogue warps have of it by then is parked in shared memory.
DEVICE bool ends_on_all_warps(const Instruction& i, const Portion& p, u32 rows) {
  return p.last && !p.foreign && rows > EPILOGUE_WARPS && (i.kind == RESIDUAL || i.kind == GATE_UP);
}
DEVICE bool ends_on_all_warps(const Instruction& i, u32 index, u32 rows) {
  const u32 portions = portion_count(i);
  return portions && ends_on_all_warps(i, portion(i, index, portions - 1), rows);
}
DEVICE void meet_at_the_end(u32 barrier) { sync_threads(barrier, 32 * (MATH_WARPS + EPILOGUE_WARPS)); }

struct Parked {
  float* lanes = shared<float>(SQUARES_OFFSET) + (thread_index() & 31);  // [outputs' two halves, kept][COLUMNS][32]
  float* norm = lanes + 3 * COLUMNS * 32;                               // [32] the next norm's weights
  float* factors = shared<float>(SQUARES_OFFSET) + (3 * COLUMNS + 1) * 32;  // [COLUMNS]

  DEVICE void put(u32 column, float first, float second, float kept, float factor) const {
    lanes[column * 32] = first;
    lanes[(COLUMNS + column) * 32] = second;
    lanes[(2 * COLUMNS + column) * 32] = kept;
    factors[column] = factor;
  }
};

struct LastGroup : Group<0, MATH_WARPS> {
  // from: the math warps' sums of the last portion.
  template <u32 used> DEVICE void finish(const Instruction& i, const Portion& p, const float* from, u32 rows) {
    const Parked parked;
    next_norm = *parked.norm;
#pragma unroll
    for (u32 c = 0; c < used; ++c) {
      outputs[0][c] = parked.lanes[column(c) * 32];
      outputs[1][c] = parked.lanes[(COLUMNS + column(c)) * 32];
      kept[c] = parked.lanes[(2 * COLUMNS + column(c)) * 32];
      factor[c] = parked.factors[column(c)];
    }
    gather_columns<used>(p, from);
    if (all_lanes(p.sharers != 0)) add_collected<used>();
    if (all_lanes(i.kind == RESIDUAL)) residual<used>(i, p.group, rows);
    else gate_up<used>(i, p.group < i.strip[p.strip].rows / 32, p.group, rows);
  }
};
