// Phases that stream matrices: what all four kinds of warps must agree on. Each walks an SM's tiles in the same order, and
// meets the same windows of the input.
//
// The producer and the loader bring tiles and input (stream.cuh). Math warps take the tiles in turn and leave their sums of
// a portion in a slot (multiply.cuh). Epilogue warps add the slots up, finish groups of outputs, and hand them on
// (finish.cuh).

DEVICE bool streams(const Instruction& i) { return i.kind >= PROJECT && i.kind <= HEAD; }

// Consecutive tiles of one matrix in one group.
struct Portion {
  u32 strip, matrix, group;
  u32 first, count;  // tiles within the matrix' part of the group
  u32 before;        // tiles of the range before it
  bool closes;       // its last tile is the group's last
};

// An SM's portions of an instruction, in order.
struct Portions {
  const Instruction* i;
  u32 start, at, stop;
  u32 strip = 0, strip_begin = 0, group = 0;
  u32 rest = 0, after = 0;  // tiles of the group before the newest portion, and with it
  u32 whole = 0, gate = 0;  // tiles of a group, and of its first matrix

  DEVICE Portions(const Instruction* i, Range range) : i(i), start(range.start), at(range.start), stop(range.stop) {
    if (at >= stop) return;
    measure();
    while (at >= strip_begin + whole * (u32)i->strip[strip].groups) next_strip();
    group = (at - strip_begin) / whole;
    after = at - strip_begin - group * whole;
  }

  DEVICE static u32 group_tiles(const Strip& s, u32 matrix) { return (u32)(s.row_tiles * s.matrix[matrix].column_tiles); }
  DEVICE void measure() {
    const Strip& s = i->strip[strip];
    gate = group_tiles(s, 0);
    whole = gate + (s.matrices == 2 ? group_tiles(s, 1) : 0);
  }
  DEVICE void next_strip() {
    strip_begin += whole * (u32)i->strip[strip].groups;
    ++strip;
    group = 0;
    measure();
  }

  DEVICE bool next(Portion& p) {
    if (at >= stop) return false;
    if (after == whole) {
      after = 0;
      if (++group == i->strip[strip].groups) next_strip();
    }
    rest = after;
    p.strip = strip;
    p.group = group;
    p.before = at - start;
    p.matrix = rest >= gate;
    p.first = p.matrix ? rest - gate : rest;
    const u32 room = (p.matrix ? whole : gate) - rest;
    p.count = room < stop - at ? room : stop - at;
    after = rest + p.count;
    p.closes = after == whole;
    at += p.count;
    return true;
  }
};

// An SM's last group, where it began it and others have the rest of it.
struct SharedGroup {
  bool there = false;
  u32 border, end;  // tiles of the instruction before its second matrix, and behind it
  bool two;         // matrices

  DEVICE SharedGroup(const Instruction& i, Range range) {
    if (range.start == range.stop) return;
    const Portions last(&i, {range.stop - 1, range.stop});
    const u32 begin = last.strip_begin + last.group * last.whole;
    border = begin + last.gate;
    end = begin + last.whole;
    two = i.strip[last.strip].matrices == 2;
    there = begin >= range.start && end > range.stop;
  }
};

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
    size = blocks * bytes <= AREA_BYTES ? blocks : AREA_BYTES / WINDOWS / bytes / 8 * 8;
  }
  DEVICE u32 block_bytes() const { return rows * (low ? 64 : 32) + COLUMNS * 8; }
  // In a window: values, scales, sums, the second plane.
  DEVICE u32 scales() const { return size * rows * 32; }
  DEVICE u32 sums() const { return scales() + size * COLUMNS * 4; }
  DEVICE u32 low_values() const { return scales() + size * COLUMNS * 8; }
  DEVICE u32 offset(u32 slot) const { return AREA_OFFSET + (size == blocks ? 0 : slot * (AREA_BYTES / WINDOWS)); }
  // The window that a tile's columns are in.
  DEVICE u32 of_tile(const Strip& s, u32 matrix, u32 tile) const {
    return size == blocks ? 0 : (tile >> ((u32)s.row_tiles >> 1)) * (u32)s.matrix[matrix].tile_blocks / size;
  }
};
