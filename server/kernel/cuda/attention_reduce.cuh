// The parts of a head together, in order of positions, times sigmoid(gate) (AttentionReduce).

ROLE void attention_reduce(const Instruction& i, const Launch& l, u32 rows) {
  constexpr u32 SETS = (PARTS + 31) / 32, AHEAD = PARTS <= 40 ? PARTS : 32;
  const Range range = my_range(i);
  const u32 zero = row_zero_position(i), jobs = (range.stop - range.start) * rows, lane = lane_index();
  for (u32 job = worker_warp(); job < jobs; job += WORKER_WARPS) {
    const u32 block = range.start + job / rows, row = job % rows, column = block * BLOCK + lane;
    const u32 head = block * BLOCK / HEAD_DIM, position = zero + row, chunk = chunk_positions(position);
    const u32 parts = (position + chunk) / chunk;
    const u64 at = ((u64)row * HEADS + head) * PARTS;
    const float* stats = i.stats + at * 2;
    const float* values = i.parts + at * HEAD_DIM + column % HEAD_DIM;
    const float gate = load_fresh(i.qkv + row * QKV_WIDTH + (2 * head + 1) * HEAD_DIM + column % HEAD_DIM);
    float most[SETS], sums[SETS], factor[SETS], value[AHEAD];
#pragma unroll
    for (u32 set = 0; set < SETS; ++set) {
      const u32 p = 32 * set + lane;
      most[set] = p < parts ? load_fresh(stats + 2 * p) : negative_infinity();
      sums[set] = p < parts ? load_fresh(stats + 2 * p + 1) : 0.0f;
    }
#pragma unroll
    for (u32 p = 0; p < AHEAD; ++p) value[p] = p < parts ? load_fresh(values + p * HEAD_DIM) : 0.0f;
    float greatest = negative_infinity(), total = 0.0f, sum = 0.0f;
#pragma unroll
    for (u32 set = 0; set < SETS; ++set) greatest = maximum(greatest, most[set]);
    greatest = warp_max(greatest);
#pragma unroll
    for (u32 set = 0; set < SETS; ++set) {
      factor[set] = exponential(most[set] - greatest);
      sum = multiply_add(factor[set], sums[set], sum);
    }
    sum = warp_sum(sum);
#pragma unroll
    for (u32 begin = 0; begin < PARTS; begin += AHEAD) {
      if (begin >= parts) break;
#pragma unroll
      for (u32 p = 0; p < AHEAD; ++p)
        if (begin + p < PARTS) total = multiply_add(shuffle(factor[(begin + p) / 32], (begin + p) % 32), value[p], total);
      const u32 next = begin + AHEAD;
#pragma unroll
      for (u32 p = 0; p < AHEAD; ++p)
        if (next + p < PARTS) value[p] = next + p < parts ? load_fresh(values + (next + p) * HEAD_DIM) : 0.0f;
    }
    quantise_block(total / sum * sigmoid(gate), i.output, block, row, rows);
  }
}
