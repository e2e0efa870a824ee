// Attention in parts (Attention). An item is a key head's chunk of positions,
// read once for all rows and query heads.
//
// Warps 0..3 score: each has 16 of the 64 positions of a tile, all dims of them in registers, against all queries. Warps
// 4..11 sum values: each has 32 dims for all positions. So a tile is scored while the one before it is summed, and the
// next tile's keys and values are under way. Queries and weights are rounded to half precision, as keys and values are;
// sums are float32.
//
// Tensor cores want pairs of k in fixed places; which dim (of keys) or column (of values) stands where is ours to choose,
// so that every lane loads whole 16 or 8 bytes straight from the cache:
// - scores, A = queries, B = keys: in a segment of 32 dims, lane 4g + t has dims 8t .. 8t + 7 of position g. Products of
//   dims 8t .. 8t + 3 are the first step, the others the second.
// - values, A = weights, B = values: lane 4g + t has dims 4g .. 4g + 3 of positions 2t, 2t + 1, 2t + 8, 2t + 9; dim
//   4g + j is column g of product j.

struct Attention {
  const Instruction& i;
  QueryArea& area;

  // ---- keys and values on their way

  template <u32 m> struct Keys { u32 words[STAGED_SEGMENTS<m>][2][4]; };  // [segment][8 positions]
  typedef u32 Values[STAGED_STEPS][4][2];                                   // [16 positions][4 of them]
  // `from`: this lane's place in the chunk's first position.
  DEVICE static const u8* keys_of(const Instruction& i, const Pass& p) {
    return (const u8*)(i.cache_k + p.cached(i, p.start) + lane_index() % 4 * 8);
  }
  DEVICE static const u8* values_of(const Instruction& i, const Pass& p) {
    return (const u8*)(i.cache_v + p.cached(i, p.start) + (worker_warp() - SCORING_WARPS) * 32 + lane_index() / 4 * 4);
  }
  // Behind the chunk's end its last position is read instead.
  DEVICE static u32 offset(u32 at, u32 positions) { return (at < positions ? at : positions - 1) * (HEAD_DIM * 2); }
  template <u32 m> DEVICE static void load_keys(Keys<m>& to, const u8* from, u32 positions, u32 segment, u32 tile) {
#pragma unroll
    for (u32 n = 0; n < 2; ++n) {
      const u32 at = tile * TILE + worker_warp() * 16 + n * 8 + lane_index() / 4;
      const Words4 w = fresh_words4(from + offset(at, positions) + segment * 64);
      u32* words = to.words[segment % STAGED_SEGMENTS<m>][n];
      words[0] = w.x, words[1] = w.y, words[2] = w.z, words[3] = w.w;
    }
  }
  DEVICE static void load_values(Values& to, const u8* from, u32 positions, u32 step, u32 tile) {
#pragma unroll
    for (u32 n = 0; n < 4; ++n) {
      const u32 at = tile * TILE + step * 16 + n / 2 * 8 + lane_index() % 4 * 2 + n % 2;
      const Words2 w = fresh_words2(from + offset(at, positions));
      u32* words = to[step][n];
      words[0] = w.x, words[1] = w.y;
    }
  }
  // A tile of the chunk's keys or values from device memory to the L2 cache: by a warp.
  DEVICE void bring_ahead(const u16* cache, u32 tile) const {
    const Pass& p = area.pass;
    const u32 begin = p.start + tile * TILE;
    if (begin < p.stop) prefetch(cache + p.cached(i, begin), (p.stop - begin < TILE ? p.stop - begin : TILE) * HEAD_DIM * 2);
  }

  // ---- scores

  template <u32 m> DEVICE void score() const {
    const Pass& p = area.pass;
    const u8* from = keys_of(i, p);
    const u32 positions = p.positions();
    Keys<m> keys;
#pragma unroll
    for (u32 segment = 0; segment < STAGED_SEGMENTS<m>; ++segment) load_keys(keys, from, positions, segment, 0);
    constexpr u32 SETS = (16 * m + 31) / 32;  // query n is lane n % 32 of set n / 32
    const u32 lane = lane_index(), g = lane / 4, t = lane % 4, warp = worker_warp();
    float greatest[SETS], sum[m][2];
#pragma unroll
    for (u32 set = 0; set < SETS; ++set) greatest[set] = negative_infinity();
#pragma unroll
    for (u32 q = 0; q < m; ++q)
#pragma unroll
      for (u32 upper = 0; upper < 2; ++upper) sum[q][upper] = 0.0f;
    const u32 last = p.tiles();
    for (u32 tile = 0; tile < last; ++tile) {
      if (warp < 2) bring_ahead(warp == 0 ? i.cache_k : i.cache_v, tile + TILES_AHEAD);
      float score[m][2][4];
#pragma unroll
      for (u32 q = 0; q < m; ++q)
#pragma unroll
        for (u32 n = 0; n < 2; ++n)
#pragma unroll
          for (u32 c = 0; c < 4; ++c) score[q][n][c] = 0.0f;
#pragma unroll STAGED_SEGMENTS<m>
      for (u32 segment = 0; segment < SEGMENTS; ++segment) {
#pragma unroll
        for (u32 half = 0; half < 2; ++half)
#pragma unroll
          for (u32 q = 0; q < m; ++q) {
            const Words4 a = shared_words4(AREA_OFFSET + ((q * 2 * SEGMENTS + 2 * segment + half) * 32 + lane) * 16);
#pragma unroll
            for (u32 n = 0; n < 2; ++n) {
              const u32* b = keys.words[segment % STAGED_SEGMENTS<m>][n] + half * 2;
              mma_half(score[q][n], a.x, a.y, a.z, a.w, b[0], b[1]);
            }
          }
        const u32 ahead = segment + STAGED_SEGMENTS<m>;
        if (ahead < SEGMENTS) load_keys(keys, from, positions, ahead, tile);
        else if (tile + 1 < last) load_keys(keys, from, positions, ahead % SEGMENTS, tile + 1);
      }
      const u32 base = tile * TILE + warp * 16 + 2 * t;
#pragma unroll
      for (u32 q = 0; q < m; ++q)
#pragma unroll
        for (u32 upper = 0; upper < 2; ++upper) {
          const u32 limit = area.limits[16 * q + 8 * upper + g];
          float most = negative_infinity();
#pragma unroll
          for (u32 n = 0; n < 2; ++n)
#pragma unroll
            for (u32 c = 0; c < 2; ++c) {
              float& s = score[q][n][2 * upper + c];
              s = base + 8 * n + c < limit ? s : negative_infinity();
              most = maximum(most, s);
            }
          most = maximum(most, shuffle_xor(most, 1));
          most = maximum(most, shuffle_xor(most, 2));
          if (t == 0) area.greatest[warp][16 * q + 8 * upper + g] = most;
        }
      sync_threads(3, 32 * SCORING_WARPS);
      float factor[SETS];
#pragma unroll
      for (u32 set = 0; set < SETS; ++set) {
        float most = greatest[set];
#pragma unroll
        for (u32 w = 0; w < SCORING_WARPS; ++w) most = maximum(most, area.greatest[w][32 * set + lane]);
        factor[set] = exponential(greatest[set] - most);
        greatest[set] = most;
        if (warp == 0 && 32 * set + lane < 16 * m) area.rescale[tile % 2][32 * set + lane] = factor[set];
      }
#pragma unroll
      for (u32 q = 0; q < m; ++q)
#pragma unroll
        for (u32 upper = 0; upper < 2; ++upper) {
          const u32 at = 16 * q + 8 * upper;
          const float most = shuffle(greatest[at / 32], at % 32 + g), scale = shuffle(factor[at / 32], at % 32 + g);
          float& total = sum[q][upper];
          total = total * scale;
#pragma unroll
          for (u32 n = 0; n < 2; ++n)
#pragma unroll
            for (u32 c = 0; c < 2; ++c) {
              float& s = score[q][n][2 * upper + c];
              s = exponential(s - most);
              total = total + s;
            }
        }
#pragma unroll
      for (u32 q = 0; q < m; ++q) {
        const auto& s = score[q];
        store_quad(area.weights[tile % 2][warp][q][lane], float_to_half2(s[0][0], s[0][1]), float_to_half2(s[0][2], s[0][3]),
                   float_to_half2(s[1][0], s[1][1]), float_to_half2(s[1][2], s[1][3]));
      }
      sync_threads(4, WORKERS);
    }
#pragma unroll
    for (u32 q = 0; q < m; ++q)
#pragma unroll
      for (u32 upper = 0; upper < 2; ++upper) {
        float total = sum[q][upper];
        total += shuffle_xor(total, 1);
        total += shuffle_xor(total, 2);
        if (t == 0) area.sums[warp][16 * q + 8 * upper + g] = total;
      }
    sync_threads(3, 32 * SCORING_WARPS);
    if (warp != 0) return;
#pragma unroll
    for (u32 set = 0; set < SETS; ++set) {
      const u32 n = 32 * set + lane;
      if (!p.seen(n)) continue;
      float total = 0.0f;
#pragma unroll
      for (u32 w = 0; w < SCORING_WARPS; ++w) total += area.sums[w][n];
      float* stats = i.stats + p.part_of(n) * 2;
      stats[0] = greatest[set];
      stats[1] = total;
    }
  }

  // ---- values

  template <u32 m> DEVICE void sum_values() const {
    const Pass& p = area.pass;
    const u8* from = values_of(i, p);
    Values values;
    const u32 lane = lane_index(), g = lane / 4, t = lane % 4, segment = worker_warp() - SCORING_WARPS;
    if (segment >= SEGMENTS) {
      for (u32 tile = 0; tile < p.tiles(); ++tile) sync_threads(4, WORKERS);
      return;
    }
#pragma unroll
    for (u32 step = 0; step < STAGED_STEPS; ++step) load_values(values, from, p.positions(), step, 0);
    float out[m][4][4];
#pragma unroll
    for (u32 q = 0; q < m; ++q)
#pragma unroll
      for (u32 j = 0; j < 4; ++j)
#pragma unroll
        for (u32 c = 0; c < 4; ++c) out[q][j][c] = 0.0f;
    for (u32 tile = 0; tile < p.tiles(); ++tile) {
      sync_threads(4, WORKERS);
#pragma unroll
      for (u32 q = 0; q < m; ++q)
#pragma unroll
        for (u32 upper = 0; upper < 2; ++upper) {
          const float factor = area.rescale[tile % 2][16 * q + 8 * upper + g];
#pragma unroll
          for (u32 j = 0; j < 4; ++j)
#pragma unroll
            for (u32 c = 0; c < 2; ++c) out[q][j][2 * upper + c] *= factor;
        }
#pragma unroll
      for (u32 step = 0; step < STAGED_STEPS; ++step) {
#pragma unroll
        for (u32 q = 0; q < m; ++q) {
          const WordQuad a = load_quad(area.weights[tile % 2][step][q][lane]);
#pragma unroll
          for (u32 j = 0; j < 4; ++j) {
            const u32 pair = j % 2 == 0 ? 0x5410 : 0x7632;
            const u32(&v)[4][2] = values[step];
            mma_half(out[q][j], a.v[0], a.v[1], a.v[2], a.v[3], permute(v[0][j / 2], v[1][j / 2], pair),
                     permute(v[2][j / 2], v[3][j / 2], pair));
          }
        }
        if (tile + 1 < p.tiles()) load_values(values, from, p.positions(), step, tile + 1);
      }
    }
#pragma unroll
    for (u32 q = 0; q < m; ++q)
#pragma unroll
      for (u32 upper = 0; upper < 2; ++upper) {
        const u32 n = 16 * q + 8 * upper + g, c = 2 * upper;
        if (!p.seen(n)) continue;
        float* to = i.parts + (u64)p.part_of(n) * HEAD_DIM + segment * 32 + 8 * t;
        store_quad(to, out[q][0][c], out[q][1][c], out[q][2][c], out[q][3][c]);
        store_quad(to + 4, out[q][0][c + 1], out[q][1][c + 1], out[q][2][c + 1], out[q][3][c + 1]);
      }
  }
};

template <u32 m> DEVICE void attend_pass(const Attention& a) {
  if (worker_warp() < SCORING_WARPS) a.score<m>();
  else a.sum_values<m>();
}

DEVICE Progress run_pass(const Instruction& i, const Pass& pass) {
  QueryArea& area = *shared<QueryArea>(AREA_OFFSET);
  const Pass& p = area.pass;
  if (thread_index() == 0) area.pass = pass;
  sync_threads(2, WORKERS);
  Preparation{i, area}.prepare();
  sync_threads(2, WORKERS);
  if (i.queries != 0) {
    const Attention a = {i, area};
    const u32 tiles = (p.count * GROUP + 15) / 16;
    if (tiles == 1) attend_pass<1>(a);
    if constexpr (QUERY_TILES >= 2)
      if (tiles == 2) attend_pass<2>(a);
    if constexpr (QUERY_TILES >= 3)
      if (tiles == 3) attend_pass<3>(a);
  }
  const Progress next = p.next;
  sync_threads(2, WORKERS);
  return next;
}

// Rows from `at.first` on whose chunks have the same size, as many as fit. Without queries one pass has no rows, and only
// leaves what is new.
DEVICE Progress attend_rows(const Instruction& i, const Launch& l, u32 rows, Progress at) {
  Pass p;
  p.key_head = at.item / PARTS, p.part = at.item % PARTS, p.first = at.first, p.count = 0, p.rows = rows;
  p.row_zero = row_zero_position(i);
  p.behind = i.rows_kind == ROWS_BEHIND;
  const u32 queries = i.queries < rows ? (u32)i.queries : rows, top = p.behind ? p.row_zero : p.row_zero + rows - 1;
  const u32 first_new = top + 1 - rows, fresh = at.first == 0 ? first_new : at.fresh;
  const u32 chunk = chunk_positions(queries == 0 ? top : p.row_zero + at.first);
  while (at.first + p.count < queries && p.count < PASS_ROWS && chunk_positions(p.row_zero + at.first + p.count) == chunk)
    ++p.count;
  const u32 seen = p.behind || queries == 0 ? top : p.row_zero + at.first + p.count - 1;
  p.start = p.part * chunk;
  p.stop = p.start + chunk < seen + 1 ? p.start + chunk : seen + 1;
  p.new_start = fresh > p.start ? fresh : p.start;
  // A later pass over the same chunks finds what this one has left in the cache; its new positions come behind.
  p.next.item = at.item;
  p.next.first = at.first + p.count;
  p.next.fresh = chunk_positions(p.row_zero + p.next.first) == chunk ? seen + 1 : first_new;
  if (p.next.first >= queries) p.next.item = at.item + 1, p.next.first = 0;
  return p.start < p.stop ? run_pass(i, p) : p.next;
}

ROLE void attention(const Instruction& i, const Launch& l, u32 rows) {
  Progress at = {my_range(i).start, 0, 0};
  while (at.item < my_range(i).stop) at = attend_rows(i, l, rows, at);
}
