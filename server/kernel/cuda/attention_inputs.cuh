// What comes before attention: queries, normed and rotated, to shared memory as operands of tensor cores; new keys and
// values to the cache. And what the warps of an SM share meanwhile.

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
  // As the operand A of a product: [16 queries][segment and step][lane][4 words].
  alignas(16) u32 queries[m][2 * SEGMENTS][32][4];
  union {
    alignas(16) u32 weights[2][SCORING_WARPS][m][32][4];  // of two tiles; the same of 16 positions
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
// On their way from the L2 cache: a warp's share of a tile; of keys half of it where 16 m queries need the registers. From
// device memory to there they are brought TILES_AHEAD tiles before.
template <u32 m> constexpr u32 STAGED_SEGMENTS = m > 1 && SEGMENTS > 4 && SEGMENTS % 2 == 0 ? SEGMENTS / 2 : SEGMENTS;
constexpr u32 STAGED_STEPS = TILE / 16;
constexpr u32 TILES_AHEAD = 2;
static_assert(sizeof(QueryArea) <= AREA_BYTES, "attention must fit into the activations' shared memory");

// Positions of each part of a row's context: see chunk_positions in instructions.py.
DEVICE u32 chunk_positions(u32 position) { return KV_GRANULE * ((position + KV_GRANULE * PARTS) / (KV_GRANULE * PARTS)); }

DEVICE u32 row_zero_position(const Instruction& i) { return length_of(i) + (u32)i.step; }

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

// ---- preparation

struct Preparation {
  const Instruction& i;
  QueryArea& area;

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

  // Query n of the pass into its place as an operand.
  DEVICE void keep_query(const Vector& x, u32 n) const {
    const u32 upper = n / 8 % 2, g = n % 8;
#pragma unroll
    for (u32 e = 0; e < (HEAD_DIM + 63) / 64; ++e) {
      const u32 d = dim(e);
      if (d >= HEAD_DIM) continue;
      const u32 step = d / 32 * 2 + d / 4 % 2, lane = 4 * g + d / 8 % 4, word = d / 2 % 2 * 2 + upper;
      area.queries[n / 16][step][lane][word] = float_to_half2(x.v[e][0] * SCORE_SCALE, x.v[e][1] * SCORE_SCALE);
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
};
