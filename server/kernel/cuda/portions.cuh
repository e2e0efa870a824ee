// Phases that stream matrices: what all four kinds of warps must agree on. Each walks an SM's tiles in the same order, and
// meets the same windows of the input.
//
// The producer and the loader bring tiles and input (stream.cuh). Math warps take the tiles in turn and leave their sums of
// a portion in a slot (multiply.cuh). Epilogue warps add the slots up, finish groups of outputs, and hand them on
// (finish.cuh).

DEVICE bool streams(const Instruction& i) { return i.kind >= PROJECT && i.kind <= HEAD; }

DEVICE constexpr u32 tile_bytes(u32 type) {
  return type == Q4_K ? 2368 : type == Q5_K ? 2880 : type == Q6_K ? 3360 : type == Q8_0 ? 4352 : 4096;
}
// Blocks of 32 columns in a tile.
DEVICE constexpr u32 tile_blocks(u32 type) { return type == F32 ? 2 : type == F16 || type == BF16 ? 4 : 8; }

// Consecutive tiles of one matrix in one group. The host has worked them out (server/kernel/portions.py).
struct Portion {
  u32 offset;        // of its first tile among the matrix' tiles, in units of 16 bytes
  u32 group;
  u32 first, count;  // tiles within the matrix' part of the group
  u32 type, strip, matrix, row_tiles;
  u32 turn;          // the math warp that has its first tile
  bool closes;       // its last tile is the group's last
  bool foreign;      // another SM began the group, and finishes it
  bool last;         // of this SM
  u32 sharers;       // SMs behind this one up to the last one that has tiles of this last group

  DEVICE explicit Portion(const Words4& w)
      : offset(w.x), group(w.y), first(w.z & 0xFFFF), count(w.z >> 16), type(w.w & 7), strip(w.w >> 3 & 3),
        matrix(w.w >> 5 & 1), row_tiles(w.w >> 6 & 7), turn(w.w >> 12 & 15), closes((w.w >> 9 & 1) != 0),
        foreign((w.w >> 10 & 1) != 0), last((w.w >> 11 & 1) != 0), sharers(w.w >> 16) {}
  DEVICE bool opens() const { return first == 0 && matrix == 0; }  // the group begins with it
  DEVICE u32 tile_shift() const { return row_tiles >> 1; }         // 1, 2, 4 row tiles
  DEVICE u32 block_of(u32 tile) const { return (tile >> tile_shift()) * tile_blocks(type); }
  DEVICE u32 last_tile() const { return first + count - 1; }
};

// An SM's portions of an instruction that lies in shared memory: number `index`.
DEVICE u32 portion_count(const Instruction& i) { return my_range(i).stop - my_range(i).start; }
DEVICE Portion portion(const Instruction& i, u32 index, u32 n) {
  if (all_lanes(n < HELD_PORTIONS)) return Portion(shared_words4(portions_at(index) + n * sizeof(PackedPortion)));
  return Portion(fresh_words4(i.portions + my_range(i).start + n));
}

// Sums of a group that another SM began: [half or matrix][column][32 outputs].
DEVICE float* sums_of(const Launch& l, u32 sm, u32 half, u32 column) {
  return l.sums + ((u64)(sm * 2 + half) * MAX_ROWS + column) * 32 + (thread_index() & 31);
}

// How an instruction's input is cut into windows.
struct Windowing {
  u32 rows, blocks, size;  // blocks of a window: a multiple of 8
  bool low;

  DEVICE Windowing(const Instruction& i, u32 rows) : rows(rows), low(i.input_low != nullptr) {
    blocks = ((u32)i.blocks + 7) / 8 * 8;
    const u32 bytes = block_bytes();
    size = blocks * bytes <= AREA_BYTES ? blocks : WINDOW_BYTES / bytes / 8 * 8;
  }
  DEVICE u32 block_bytes() const { return rows * (low ? 64 : 32) + COLUMNS * 8; }
  // In a window: values, scales, sums, the second plane.
  DEVICE u32 scales() const { return size * rows * 32; }
  DEVICE u32 sums() const { return scales() + size * COLUMNS * 4; }
  DEVICE u32 low_values() const { return scales() + size * COLUMNS * 8; }
  DEVICE u32 offset(u32 slot) const { return AREA_OFFSET + (size == blocks ? 0 : slot * WINDOW_BYTES); }
  // The window that a tile's columns are in.
  DEVICE u32 of_tile(const Portion& p, u32 tile) const { return size == blocks ? 0 : p.block_of(tile) / size; }
};
