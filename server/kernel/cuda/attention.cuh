// Attention in parts (Attention) and the parts together (AttentionReduce). An item is a key head's chunk of positions,
// read once for all rows and query heads.
//
// Warps 0..3 score: each has 16 of the 64 positions of a tile, all dims of them in registers, against all queries. Warps
// 4..11 sum values: each has 32 dims for all positions. So a tile is scored while the one before it is summed, and the
// next tile's keys and values are under way. Queries and weights are two halves each (high and what it left), so products
// with the halves of the cache are as good as float32's.
//
// Tensor cores want pairs of k in fixed places; which dim (of keys) or column (of values) stands where is ours to choose,
// so that every lane loads whole 16 or 8 bytes straight from the cache:
// - scores, A = queries, B = keys: in a segment of 32 dims, lane 4g + t has dims 8t .. 8t + 7 of position g. Products of
//   dims 8t .. 8t + 3 are the first step, the others the second.
// - values, A = weights, B = values: lane 4g + t has dims 4g .. 4g + 3 of positions 2t, 2t + 1, 2t + 8, 2t + 9; dim
//   4g + j is column g of product j.

constexpr u32 GROUP = HEADS / KV_HEADS;           // query heads of a key head
constexpr u32 SEGMENTS = HEAD_DIM / 32;
constexpr u32 TILE = 64, SCORING_WARPS = 4, SUMMING_WARPS = 8;
constexpr u32 QKV_WIDTH = (2 * HEADS + 2 * KV_HEADS) * HEAD_DIM;
constexpr u32 ROPE_HALF = ROPE_DIMS / 2;
constexpr float SCORE_SCALE = (float)inverse_square_root(HEAD_DIM);
static_assert(HEAD_DIM % 32 == 0 && SEGMENTS <= SUMMING_WARPS, "a summing warp has 32 dims");
static_assert(KV_GRANULE == TILE, "chunks are whole tiles");

// Where an SM is: row `first` of item `item` comes next, and `fresh` is the first position that isn't in the cache yet.
struct Progress {
  u32 item, first, fresh;
};

// Some rows and a key head's chunk of positions.
struct Pass {
  Progress next;
  u32 key_head, part;
  u32 first, count;      // rows that attend
  u32 rows;              // of the launch
  u32 row_zero;          // position of row 0
  bool behind;           // rows go back
  u32 start, stop;       // positions of the chunk that these rows see
  u32 new_start;         // from here on keys and values are new: from this launch

  DEVICE u32 position(u32 row) const { return behind ? row_zero - row : row_zero + row; }
  DEVICE u32 row_of(u32 position) const { return behind ? row_zero - position : position - row_zero; }
  DEVICE u32 positions() const { return stop - start; }
  DEVICE u32 tiles() const { return (stop - start + TILE - 1) / TILE; }
  DEVICE bool has_new() const { return new_start < stop; }
  DEVICE u64 cached(const Instruction& i, u32 position) const {
    return ((u64)key_head * i.capacity + position) * HEAD_DIM;
  }
  // Query n: head n % GROUP of row first + n / GROUP. Whether the chunk has positions that it sees.
  DEVICE bool seen(u32 n) const { return n < count * GROUP && start <= position(first + n / GROUP); }
  DEVICE u32 part_of(u32 n) const {
    return ((first + n / GROUP) * HEADS + key_head * GROUP + n % GROUP) * PARTS + part;
  }
};

// Shared memory with room for 16 m queries.
template <u32 m> struct AttentionArea {
  // As the operand A of a product: [16 queries][segment and step][high, low][lane][4 words].
  alignas(16) u32 queries[m][2 * SEGMENTS][2][32][4];
  union {
    alignas(16) u32 weights[2][SCORING_WARPS][m][2][32][4];  // of two tiles; the same of 16 positions
    struct {
      float cosine[MAX_ROWS][ROPE_HALF], sine[MAX_ROWS][ROPE_HALF];
      float vector[SCORING_WARPS + SUMMING_WARPS][ROPE_DIMS];
    } rotation;
  };
  float rescale[2][16 * m];
  float greatest[SCORING_WARPS][64];
  float sums[SCORING_WARPS][64];
  u32 limits[16 * m];  // of the chunk's positions, how many a query sees (if any: else nobody asks)
  Pass pass;
};
// Queries of a pass: as many times 16 as there is room for, three at most (their sums stand in registers).
constexpr u32 MOST_TILES = GROUP < 3 ? GROUP : 3;
constexpr u32 QUERY_TILES = sizeof(AttentionArea<MOST_TILES>) <= AREA_BYTES ? MOST_TILES
                            : GROUP >= 2 && sizeof(AttentionArea<2>) <= AREA_BYTES ? 2 : 1;
constexpr u32 PASS_ROWS = 16 * QUERY_TILES / GROUP < MAX_ROWS ? 16 * QUERY_TILES / GROUP : MAX_ROWS;
typedef AttentionArea<QUERY_TILES> QueryArea;
// Keys and values on their way from the L2 cache: half of a warp's share of a tile. From device memory to there they are
// brought TILES_AHEAD tiles before.
constexpr u32 STAGED_SEGMENTS = SEGMENTS > 4 && SEGMENTS % 2 == 0 ? SEGMENTS / 2 : SEGMENTS;
constexpr u32 STAGED_STEPS = 2;
constexpr u32 TILES_AHEAD = 2;
static_assert(sizeof(QueryArea) <= AREA_BYTES, "attention must fit into the activations' shared memory");

// Positions of each part of a row's context: see chunk_positions in instructions.py.
DEVICE u32 chunk_positions(u32 position) { return KV_GRANULE * ((position + KV_GRANULE * PARTS) / (KV_GRANULE * PARTS)); }

// ---- rotation

DEVICE constexpr double natural_log(double x) {
  int twos = 0;
  for (; x > 1.5; x /= 2) ++twos;
  const double z = (x - 1) / (x + 1);
  double sum = 0, power = z;
  for (int n = 1; n < 60; n += 2, power *= z * z) sum += power / n;
  return 2 * sum + twos * 0.693147180559945309417;
}
DEVICE constexpr double exponential_of(double x) {  // x <= 0
  int twos = 0;
  for (; x < -0.35; x += 0.693147180559945309417) ++twos;
  double sum = 1, term = 1;
  for (int n = 1; n < 30; ++n) sum += term *= x / n;
  for (; twos > 0; --twos) sum /= 2;
  return sum;
}
// base^(-2^bit / half)
template <u32 bit> DEVICE double frequency_factor(u32 j) {
  constexpr double factor = exponential_of(-(double)(1u << bit) / ROPE_HALF * natural_log(ROPE_BASE));
  return (j >> bit & 1) != 0 ? factor : 1.0;
}
// Positions reach 2^18, so angles need more than a float until they are less than a turn.
DEVICE void rotation_of(u32 position, u32 j, float* sine, float* cosine) {
  const double frequency = frequency_factor<0>(j) * frequency_factor<1>(j) * frequency_factor<2>(j) *
                           frequency_factor<3>(j) * frequency_factor<4>(j) * frequency_factor<5>(j) *
                           frequency_factor<6>(j);
  const double angle = (double)position * frequency;
  const u32 quarters = (u32)(angle * 0.636619772367581343076 + 0.5);
  const float x = (float)(angle - (double)quarters * 1.57079632679489661923), z = x * x;
  float s = multiply_add(z, 1.0f / 362880, -1.0f / 5040);
  s = multiply_add(z, s, 1.0f / 120);
  s = multiply_add(z, s, -1.0f / 6);
  s = multiply_add(z * s, x, x);
  float c = multiply_add(z, -1.0f / 3628800, 1.0f / 40320);
  c = multiply_add(z, c, -1.0f / 720);
  c = multiply_add(z, c, 1.0f / 24);
  c = multiply_add(z, c, -0.5f);
  c = multiply_add(z, c, 1.0f);
  const bool odd = (quarters & 1) != 0;
  *sine = (quarters & 2) != 0 ? -(odd ? c : s) : (odd ? c : s);
  *cosine = ((quarters + 1) & 2) != 0 ? -(odd ? s : c) : (odd ? s : c);
}

// ---- one key head's chunk for some rows

struct Attention {
  const Instruction& i;
  QueryArea& area;

  // ---- keys and values on their way

  typedef u32 Keys[STAGED_SEGMENTS][2][4];  // [segment][8 positions]
  typedef u32 Values[STAGED_STEPS][4][2];   // [16 positions][4 of them]
  // `from`: this lane's place in the chunk's first position.
  DEVICE static const u8* keys_of(const Instruction& i, const Pass& p) {
    return (const u8*)(i.cache_k + p.cached(i, p.start) + lane_index() % 4 * 8);
  }
  DEVICE static const u8* values_of(const Instruction& i, const Pass& p) {
    return (const u8*)(i.cache_v + p.cached(i, p.start) + (worker_warp() - SCORING_WARPS) * 32 + lane_index() / 4 * 4);
  }
  // Behind the chunk's end its last position is read instead.
  DEVICE static u32 offset(u32 at, u32 positions) { return (at < positions ? at : positions - 1) * (HEAD_DIM * 2); }
  DEVICE static void load_keys(Keys& to, const u8* from, u32 positions, u32 segment, u32 tile) {
#pragma unroll
    for (u32 n = 0; n < 2; ++n) {
      const u32 at = tile * TILE + worker_warp() * 16 + n * 8 + lane_index() / 4;
      const Words4 w = fresh_words4(from + offset(at, positions) + segment * 64);
      u32* words = to[segment % STAGED_SEGMENTS][n];
      words[0] = w.x, words[1] = w.y, words[2] = w.z, words[3] = w.w;
    }
  }
  DEVICE static void load_values(Values& to, const u8* from, u32 positions, u32 step, u32 tile) {
#pragma unroll
    for (u32 n = 0; n < 4; ++n) {
      const u32 at = tile * TILE + step * 16 + n / 2 * 8 + lane_index() % 4 * 2 + n % 2;
      const Words2 w = fresh_words2(from + offset(at, positions));
      u32* words = to[step % STAGED_STEPS][n];
      words[0] = w.x, words[1] = w.y;
    }
  }
  // A tile of the chunk's keys or values from device memory to the L2 cache: by a warp.
  DEVICE void bring_ahead(const u16* cache, u32 tile) const {
    const Pass& p = area.pass;
    const u32 begin = p.start + tile * TILE;
    if (begin < p.stop) prefetch(cache + p.cached(i, begin), (p.stop - begin < TILE ? p.stop - begin : TILE) * HEAD_DIM * 2);
  }

  // ---- preparation: queries to shared memory, new keys and values to the cache

  // A lane has dims 2 lane + 64 e, and the next one.
  struct Vector {
    float v[(HEAD_DIM + 63) / 64][2];
  };
  DEVICE static u32 dim(u32 e) { return 2 * lane_index() + 64 * e; }
  DEVICE static void load_vector(Vector& x, const float* from) {
#pragma unroll
    for (u32 e = 0; e < (HEAD_DIM + 63) / 64; ++e) {
      Words2 w = {0, 0};
      if (dim(e) < HEAD_DIM) w = fresh_words2(from + dim(e));
      x.v[e][0] = as_float(w.x), x.v[e][1] = as_float(w.y);
    }
  }

  DEVICE void norm_and_rotate(Vector& x, const Vector& query_weight, const Vector& key_weight, bool query, u32 row) const {
    float squares = 0.0f;
#pragma unroll
    for (u32 e = 0; e < (HEAD_DIM + 63) / 64; ++e)
#pragma unroll
      for (u32 k = 0; k < 2; ++k) squares = multiply_add(x.v[e][k], x.v[e][k], squares);
    const float factor = inverse_root(warp_sum(squares) / (float)HEAD_DIM + EPS);
    float* vector = area.rotation.vector[worker_warp()];
    sync_warp();
#pragma unroll
    for (u32 e = 0; e < (HEAD_DIM + 63) / 64; ++e)
#pragma unroll
      for (u32 k = 0; k < 2; ++k) {
        const u32 d = dim(e) + k;
        x.v[e][k] = x.v[e][k] * factor * (query ? query_weight : key_weight).v[e][k];
        if (d < ROPE_DIMS) vector[d] = x.v[e][k];
      }
    sync_warp();
#pragma unroll
    for (u32 e = 0; e < (ROPE_DIMS + 63) / 64; ++e)
#pragma unroll
      for (u32 k = 0; k < 2; ++k) {
        const u32 d = dim(e) + k;
        if (d >= ROPE_DIMS) continue;
        const bool second = d >= ROPE_HALF;
        const u32 j = second ? d - ROPE_HALF : d;
        const float other = vector[second ? j : d + ROPE_HALF];
        const float sine = area.rotation.sine[row][j], cosine = area.rotation.cosine[row][j];
        x.v[e][k] = multiply_add(other, second ? sine : -sine, x.v[e][k] * cosine);
      }
  }

  // Query n of the pass into its place as an operand: high half, and the half of what that left.
  DEVICE void keep_query(const Vector& x, u32 n) const {
    const u32 upper = n / 8 % 2, g = n % 8;
#pragma unroll
    for (u32 e = 0; e < (HEAD_DIM + 63) / 64; ++e) {
      const u32 d = dim(e);
      if (d >= HEAD_DIM) continue;
      const float a = x.v[e][0] * SCORE_SCALE, b = x.v[e][1] * SCORE_SCALE;
      const u32 high = float_to_half2(a, b);
      const u32 low = float_to_half2(a - half_to_float((u16)high), b - half_to_float((u16)(high >> 16)));
      const u32 step = d / 32 * 2 + d / 4 % 2, lane = 4 * g + d / 8 % 4, word = d / 2 % 2 * 2 + upper;
      area.queries[n / 16][step][0][lane][word] = high;
      area.queries[n / 16][step][1][lane][word] = low;
    }
  }

  DEVICE static void keep_new(const Vector& x, u16* to) {
#pragma unroll
    for (u32 e = 0; e < (HEAD_DIM + 63) / 64; ++e)
      if (dim(e) < HEAD_DIM) *(u32*)(to + dim(e)) = float_to_half2(x.v[e][0], x.v[e][1]);
  }

  // Vectors to prepare: queries of the pass, then the new keys, then the new values. The next one of a warp is always on
  // its way.
  DEVICE u32 vectors() const { return area.pass.count * GROUP + 2 * new_keys(); }
  DEVICE u32 new_keys() const { return area.pass.has_new() ? area.pass.stop - area.pass.new_start : 0; }
  DEVICE void load_vector_of(Vector& x, u32 n) const {
    const Pass& p = area.pass;
    const u32 queries = p.count * GROUP, key = n - queries;
    u32 row = 0, column = 0;  // of nothing that counts, when there are no more
    if (n >= vectors()) {
    } else if (n < queries) {
      row = p.first + n / GROUP;
      column = (p.key_head * GROUP + n % GROUP) * 2 * HEAD_DIM;
    } else {
      row = p.row_of(p.new_start + (key < new_keys() ? key : key - new_keys()));
      column = (2 * HEADS + (key < new_keys() ? 0 : KV_HEADS) + p.key_head) * HEAD_DIM;
    }
    load_vector(x, i.qkv + row * QKV_WIDTH + column);
  }
  DEVICE void prepare() const {
    const Pass& p = area.pass;
    if (thread_index() < 16 * QUERY_TILES) {
      const u32 row = thread_index() / GROUP, end = row < p.count ? p.position(p.first + row) + 1 : p.stop;
      area.limits[thread_index()] = (end < p.stop ? end : p.stop) - p.start;
    }
    Vector x, next, query_weight, key_weight;
    load_vector(query_weight, i.queries != 0 ? i.q_norm : i.k_norm);
    load_vector(key_weight, i.k_norm);
    load_vector_of(x, worker_warp());
    load_vector_of(next, worker_warp() + WORKER_WARPS);
    prepare_rotations(p);
    sync_threads(2, WORKERS);
#pragma unroll 1
    for (u32 n = worker_warp(); n < vectors(); n += WORKER_WARPS) {
      const u32 queries = p.count * GROUP, key = n - queries;
      const u32 row = n < queries ? p.first + n / GROUP : p.row_of(p.new_start + key);
      if (n < queries + new_keys()) norm_and_rotate(x, query_weight, key_weight, n < queries, row);
      if (n < queries) keep_query(x, n);
      else if (key < new_keys()) keep_new(x, i.cache_k + p.cached(i, p.new_start + key));
      else keep_new(x, i.cache_v + p.cached(i, p.new_start + key - new_keys()));
      x = next;
      load_vector_of(next, n + 2 * WORKER_WARPS);
    }
  }

  DEVICE void prepare_rotations(const Pass& p) const {
    const u32 from = p.has_new() ? 0 : p.first, to = p.has_new() ? p.rows : p.first + p.count;
    for (u32 n = thread_index(); n < (to - from) * ROPE_HALF; n += WORKERS) {
      const u32 row = from + n / ROPE_HALF, j = n % ROPE_HALF;
      rotation_of(p.position(row), j, &area.rotation.sine[row][j], &area.rotation.cosine[row][j]);
    }
  }

  // ---- scores

  template <u32 m> DEVICE void score() const {
    const Pass& p = area.pass;
    const u8* from = keys_of(i, p);
    const u32 positions = p.positions();
    Keys keys;
#pragma unroll
    for (u32 segment = 0; segment < STAGED_SEGMENTS; ++segment) load_keys(keys, from, positions, segment, 0);
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
#pragma unroll
      for (u32 segment = 0; segment < SEGMENTS; ++segment) {
#pragma unroll
        for (u32 half = 0; half < 2; ++half)
#pragma unroll
          for (u32 q = 0; q < m; ++q) {
#pragma unroll
            for (u32 part = 0; part < 2; ++part) {
              const Words4 a = shared_words4(AREA_OFFSET + (((q * 2 * SEGMENTS + 2 * segment + half) * 2 + part) * 32 + lane) * 16);
#pragma unroll
              for (u32 n = 0; n < 2; ++n) {
                const u32* b = keys[segment % STAGED_SEGMENTS][n] + half * 2;
                mma_half(score[q][n], a.x, a.y, a.z, a.w, b[0], b[1]);
              }
            }
          }
        const u32 ahead = segment + STAGED_SEGMENTS;
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
        u32 high[4], low[4];
#pragma unroll
        for (u32 word = 0; word < 4; ++word) {
          const float a = score[q][word / 2][word % 2 * 2], b = score[q][word / 2][word % 2 * 2 + 1];
          high[word] = float_to_half2(a, b);
          low[word] = float_to_half2(a - half_to_float((u16)high[word]), b - half_to_float((u16)(high[word] >> 16)));
        }
        store_quad(area.weights[tile % 2][warp][q][0][lane], high[0], high[1], high[2], high[3]);
        store_quad(area.weights[tile % 2][warp][q][1][lane], low[0], low[1], low[2], low[3]);
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
      for (u32 step = 0; step < TILE / 16; ++step) {
#pragma unroll
        for (u32 q = 0; q < m; ++q) {
#pragma unroll
          for (u32 part = 0; part < 2; ++part) {
            const WordQuad a = load_quad(area.weights[tile % 2][step][q][part][lane]);
#pragma unroll
            for (u32 j = 0; j < 4; ++j) {
              const u32 pair = j % 2 == 0 ? 0x5410 : 0x7632;
              const u32(&v)[4][2] = values[step % STAGED_STEPS];
              mma_half(out[q][j], a.v[0], a.v[1], a.v[2], a.v[3], permute(v[0][j / 2], v[1][j / 2], pair),
                       permute(v[2][j / 2], v[3][j / 2], pair));
            }
          }
        }
        const u32 ahead = step + STAGED_STEPS;
        if (ahead < TILE / 16) load_values(values, from, p.positions(), ahead, tile);
        else if (tile + 1 < p.tiles()) load_values(values, from, p.positions(), ahead % (TILE / 16), tile + 1);
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
  const Attention a = {i, area};
  a.prepare();
  sync_threads(2, WORKERS);
  if (i.queries != 0) {
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

DEVICE u32 row_zero_position(const Instruction& i, const Launch& l) { return (u32)l.counts[LENGTH] + (u32)i.step; }

// Rows from `at.first` on whose chunks have the same size, as many as fit. Without queries one pass has no rows, and only
// leaves what is new.
DEVICE Progress attend_rows(const Instruction& i, const Launch& l, u32 rows, Progress at) {
  Pass p;
  p.key_head = at.item / PARTS, p.part = at.item % PARTS, p.first = at.first, p.count = 0, p.rows = rows;
  p.row_zero = row_zero_position(i, l);
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

// ---- the parts together

ROLE void attention_reduce(const Instruction& i, const Launch& l, u32 rows) {
  constexpr u32 SETS = (PARTS + 31) / 32, AHEAD = PARTS <= 40 ? PARTS : 32;
  const Range range = my_range(i);
  const u32 zero = row_zero_position(i, l), jobs = (range.stop - range.start) * rows, lane = lane_index();
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
