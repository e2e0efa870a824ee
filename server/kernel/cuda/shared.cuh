// A block's shared memory: the ring of weights, the activations of the phase at hand, partial sums, barriers.

constexpr u32 COLUMNS = 8 * ROW_TILES;         // rows of activations are columns of a tensor-core product; see Int8Rows
constexpr u32 PARTIAL_STRIDE = 20;             // floats: 16 rows of a tile and 4, so that a warp's stores meet no bank twice
constexpr u32 PARTIAL_WARP = COLUMNS * PARTIAL_STRIDE;
constexpr u32 PARTIAL_SLOTS = 2;
constexpr u32 WIDEST_SQUARES = 2 * HIDDEN > VALUE_HEADS * STATE ? 2 * HIDDEN / BLOCK : VALUE_HEADS * STATE / BLOCK;

constexpr u32 RING_OFFSET = 0;
constexpr u32 AREA_OFFSET = RING_OFFSET + STAGES * STAGE_BYTES;
constexpr u32 PARTIALS_OFFSET = AREA_OFFSET + AREA_BYTES;
constexpr u32 SQUARES_OFFSET = PARTIALS_OFFSET + PARTIAL_SLOTS * MATH_WARPS * PARTIAL_WARP * 4;
// Sums of squares of the input are read when an instruction begins; when it ends, their place is where the last group is
// parked (see Parked).
constexpr u32 SQUARES_BYTES = COLUMNS * WIDEST_SQUARES * 4, PARKED_BYTES = COLUMNS * (3 * 32 + 1) * 4 + 32 * 4;
constexpr u32 FACTORS_OFFSET =
    SQUARES_OFFSET + ((SQUARES_BYTES > PARKED_BYTES ? SQUARES_BYTES : PARKED_BYTES) + 15) / 16 * 16;  // [segments][COLUMNS]
constexpr u32 COLLECTED_OFFSET = FACTORS_OFFSET + COLUMNS * (VALUE_HEADS > 2 ? VALUE_HEADS : 2) * 4;  // [2][COLUMNS][32]
constexpr u32 BARRIERS_OFFSET = COLLECTED_OFFSET + 2 * COLUMNS * 32 * 4;
constexpr u32 WINDOWS = 3;  // of activations, that fill the area unless one holds all of them
constexpr u32 WINDOW_BYTES = AREA_BYTES / WINDOWS / 16 * 16;
constexpr u32 BARRIERS = 2 * STAGES + 2 * PARTIAL_SLOTS + 3 * WINDOWS + 5;
constexpr u32 INSTRUCTIONS_OFFSET = (BARRIERS_OFFSET + 8 * BARRIERS + 15) / 16 * 16;

// An instruction with this SM's share of it and the counts that the launch began with, copied to shared memory one
// instruction ahead: waiting for other SMs empties the L1 cache, and all warps read it again and again.
constexpr u32 HELD_PORTIONS = 32;
struct Here {
  Instruction instruction;
  Range range;
  u32 length, fold;
  alignas(16) PackedPortion portions[HELD_PORTIONS];  // the first ones; further ones are read from global memory
};
constexpr u32 SHARED_TOTAL = INSTRUCTIONS_OFFSET + 2 * sizeof(Here);
DEVICE Here& here(u32 index) { return shared<Here>(INSTRUCTIONS_OFFSET)[index & 1]; }
// This SM's items of an instruction that lies in shared memory.
DEVICE Range my_range(const Instruction& i) { return ((const Here*)&i)->range; }
// Rows of an instruction; behind: those that the MTP head has to catch up with.
DEVICE u32 row_count(const Instruction& i, u32 behind) {
  return i.rows_kind == ROWS_BEHIND ? behind : i.rows_kind == ROWS_ONE ? 1 : (u32)i.rows_limit;
}
DEVICE u32 length_of(const Instruction& i) { return ((const Here*)&i)->length; }
DEVICE u32 fold_of(const Instruction& i) { return ((const Here*)&i)->fold; }
// Where instruction `index` has its portions.
constexpr u32 PORTIONS_IN_HERE = sizeof(Here) - HELD_PORTIONS * sizeof(PackedPortion);
DEVICE u32 portions_at(u32 index) { return INSTRUCTIONS_OFFSET + (index & 1) * (u32)sizeof(Here) + PORTIONS_IN_HERE; }

// Where the barriers stand.
struct Barriers {
  DEVICE static constexpr u32 at(u32 n) { return BARRIERS_OFFSET + 8 * n; }
  DEVICE static u32 stage_full(u32 stage) { return at(stage); }
  DEVICE static u32 stage_empty(u32 stage) { return at(STAGES + stage); }
  DEVICE static u32 partial_full(u32 slot) { return at(2 * STAGES + slot); }
  DEVICE static u32 partial_empty(u32 slot) { return at(2 * STAGES + PARTIAL_SLOTS + slot); }
  static constexpr u32 OTHERS = 2 * STAGES + 2 * PARTIAL_SLOTS;
  DEVICE static u32 window_full(u32 window) { return at(OTHERS + window); }  // loaded
  // norm factors multiplied in, where rows have several
  DEVICE static u32 window_ready(u32 window) { return at(OTHERS + WINDOWS + window); }
  DEVICE static u32 window_empty(u32 window) { return at(OTHERS + 2 * WINDOWS + window); }
  DEVICE static u32 squares_full() { return at(OTHERS + 3 * WINDOWS); }
  DEVICE static u32 go() { return at(OTHERS + 3 * WINDOWS + 1); }  // all SMs have finished the instruction before
  DEVICE static u32 copied(u32 which) { return at(OTHERS + 3 * WINDOWS + 2 + which); }  // an instruction is in shared memory
  DEVICE static u32 collected() { return at(OTHERS + 3 * WINDOWS + 4); }  // what other SMs have of the last group
};

DEVICE void init_barriers() {
  for (u32 s = 0; s < STAGES; ++s) {
    load_barrier_init(Barriers::stage_full(s));
    barrier_init(Barriers::stage_empty(s), MATH_WARPS);
  }
  for (u32 s = 0; s < PARTIAL_SLOTS; ++s) {
    barrier_init(Barriers::partial_full(s), MATH_WARPS);
    barrier_init(Barriers::partial_empty(s), EPILOGUE_WARPS);
  }
  for (u32 w = 0; w < WINDOWS; ++w) {
    load_barrier_init(Barriers::window_full(w));
    barrier_init(Barriers::window_ready(w), EPILOGUE_WARPS);
    barrier_init(Barriers::window_empty(w), MATH_WARPS);
  }
  load_barrier_init(Barriers::squares_full());
  barrier_init(Barriers::go(), 1);
  barrier_init(Barriers::copied(0), 1);
  barrier_init(Barriers::copied(1), 1);
  barrier_init(Barriers::collected(), 1);
  fence_barrier_init();
}

// An instruction's first window is there, which takes as long as the slowest SM: who brings it and the math warps meet at
// a barrier that costs no polling.
DEVICE bool has_factors(const Instruction& i) { return i.segments > 1; }
DEVICE void meet_first_window(const Instruction& i) {
  sync_threads(11, 32 * (MATH_WARPS + (has_factors(i) ? EPILOGUE_WARPS : 1)));
}

// Why a launch was given up, the fault word's low byte: mostly where a wait that took too long stood.
enum Where : u32 { AT_STAGE_FULL = 1, AT_STAGE_EMPTY, AT_PARTIAL_FULL, AT_PARTIAL_EMPTY, AT_WINDOW_FULL, AT_WINDOW_READY,
                   AT_WINDOW_EMPTY, AT_SQUARES, AT_GO, AT_GRID, AT_HANDED, AT_COPIED, AT_COLLECTED,
                   AT_SHARED_BASE };

// TIMED: by one thread of the SM, where it stands in an instruction.
enum Stamp : u32 { BEGUN, LET_IN, FED, MULTIPLIED, COMPUTED, ARRIVED, STAMPS };
DEVICE void stamp(const Launch& l, u32 index, u32 which, u32 by = 32 * MATH_WARPS) {
  if (TIMED && thread_index() == by) l.times[(index * sm_count() + sm_index()) * STAMPS + which] = nanoseconds();
}

// A place in a sequence of phases of `slots` barriers: which barrier, and the parity of its phase.
template <u32 slots> struct Turn {
  u32 slot = 0, parity = 0;
  DEVICE void next() {
    if (++slot == slots) {
      slot = 0;
      parity ^= 1;
    }
  }
  // As the lowest bits of one word, and back: what a warp keeps between instructions must not cost registers.
  static constexpr u32 BITS = 5;
  static_assert(slots <= 16, "a slot's number has four bits");
  DEVICE u32 packed() const { return slot << 1 | parity; }
  DEVICE void unpack(u32 word) {
    parity = word & 1;
    slot = word >> 1 & 15;
  }
};
