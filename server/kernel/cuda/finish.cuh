// Epilogue warps: from sums of portions to outputs, in the form that the next instruction reads.

struct Epilogue : Group<MATH_WARPS, EPILOGUE_WARPS> {
  Turn<PARTIAL_SLOTS> partial;
  Turn<WINDOWS> window;
  u32 squares_parity, collected_parity;
  u32 best_at[MINE];  // HEAD: which output of this lane `kept` is
  bool few = false;   // each warp has one row at most: it does without its other columns where that counts

  DEVICE explicit Epilogue(u32 turns) {
    partial.unpack(turns);
    window.unpack(turns >> partial.BITS);
    squares_parity = turns >> 2 * partial.BITS & 1;
    collected_parity = turns >> 2 * partial.BITS + 1 & 1;
  }
  DEVICE u32 turns() const {
    return partial.packed() | window.packed() << partial.BITS |
           (squares_parity | collected_parity << 1) << 2 * partial.BITS;
  }

  DEVICE static u32 thread() { return thread_index() - 32 * MATH_WARPS; }

  DEVICE void finish(const Instruction& i, const Launch& l, u32 index, u32 rows, u32 length) {
    few = rows <= EPILOGUE_WARPS;
    forget(i.kind);
    read_factors(i, l, rows);
    if (i.kind == HEAD) begin_head(i, rows);
    const Windowing w(i, rows);
    u32 current = ~0u;
    const u32 portions = portion_count(i);
    for (u32 n = 0; n < portions; ++n) {
      const Portion p = portion(i, index, n);
      pass_windows(i, l, index, w, p, current);
      if (all_lanes(n == 0 || p.opens())) clear_outputs();
      // What lies in global memory is asked for while the tiles are still multiplied.
      if (all_lanes(i.kind == RESIDUAL && !p.foreign)) fetch_residual(i, p.group, rows);
      if (all_lanes(ends_on_all_warps(i, p, rows))) {
        end_on_all_warps(l, index, p, rows);
        continue;
      }
      gather(i, l, p);
      if (all_lanes(p.sharers != 0)) {
        await_collected(l);
        add_collected<MINE>();
      }
      if (p.last) stamp(l, index, MULTIPLIED);
      if (all_lanes(!p.closes && !p.last)) continue;
      if (all_lanes(p.foreign)) hand_on(l, index, rows);
      else conclude(i, p, rows, length);
    }
    if (i.kind == HEAD) end_head(i, rows);
  }

  // factor = 1 / sqrt(mean of x^2 + eps), of each row; of rows with several norms to shared memory.
  DEVICE void read_factors(const Instruction& i, const Launch& l, u32 rows) {
    if (!i.squares) return;
    barrier_wait(Barriers::squares_full(), squares_parity, l, AT_SQUARES);
    squares_parity ^= 1;
    const u32 lane = thread_index() & 31, blocks = (u32)i.blocks, segments = (u32)i.segments, part = blocks / segments;
    const float* squares = shared<float>(SQUARES_OFFSET);
    const float width = (float)(u32)i.segment_width;
    if (segments == 1) {
#pragma unroll
      for (u32 c = 0; c < MINE; ++c) {
        float sum = 0;
        for (u32 b = lane; b < blocks; b += 32) sum += squares[column(c) * blocks + b];
        factor[c] = sum;
      }
#pragma unroll
      for (u32 m = 16; m; m >>= 1)
#pragma unroll
        for (u32 c = 0; c < MINE; ++c) factor[c] += shuffle_xor(factor[c], m);
#pragma unroll
      for (u32 c = 0; c < MINE; ++c) factor[c] = inverse_root(factor[c] / width + EPS);
      return;
    }
    float* factors = shared<float>(FACTORS_OFFSET);
    for (u32 segment = thread(); segment < segments; segment += 32 * EPILOGUE_WARPS)
      for (u32 row = 0; row < rows; ++row) {
        float sum = 0;
        for (u32 b = 0; b < part; ++b) sum += squares[row * blocks + segment * part + b];
        factors[segment * COLUMNS + row] = inverse_root(sum / width + EPS);
      }
    sync_threads(8, 32 * EPILOGUE_WARPS);
  }

  // Keeps step with the windows that a portion needs; where rows have several norms, multiplies their factors in.
  DEVICE void pass_windows(const Instruction& i, const Launch& l, u32 index, const Windowing& w, const Portion& p,
                           u32& current) {
    const u32 last = w.of_tile(p, p.last_tile());
    for (u32 number = w.of_tile(p, p.first); number <= last; ++number) {
      if (number == current) continue;
      const bool first = current == ~0u;
      current = number;
      if (has_factors(i)) {
        barrier_wait(Barriers::window_full(window.slot), window.parity, l, AT_WINDOW_FULL);
        scale_window(i, w, number);
        sync_warp();
        if ((thread_index() & 31) == 0) barrier_arrive(Barriers::window_ready(window.slot));
        if (first) {
          stamp(l, index, FED);
          meet_first_window(i);
        }
      } else if ((thread_index() & 31) == 0) {
        barrier_arrive(Barriers::window_ready(window.slot));  // nobody waits for it, but it keeps step too
      }
      window.next();
    }
  }

  // All columns of a block at once, also those that are no rows.
  DEVICE void scale_window(const Instruction& i, const Windowing& w, u32 number) {
    const u32 start = w.offset(window.slot), part = (u32)i.blocks / (u32)i.segments;
    float* scales = shared<float>(start + w.scales());
    u32* sums = shared<u32>(start + w.sums());
    const float* factors = shared<float>(FACTORS_OFFSET);
    const u32 begin = number * w.size, blocks = (u32)i.blocks - begin < w.size ? (u32)i.blocks - begin : w.size;
    for (u32 block = thread(); block < blocks; block += 32 * EPILOGUE_WARPS) {
      const u32 segment = (begin + block) / part;
#pragma unroll
      for (u32 c = 0; c < COLUMNS; c += 4) {
        float* scale = scales + block * COLUMNS + c;
        u32* sum = sums + block * COLUMNS + c;
        const Quad f = load_quad(factors + segment * COLUMNS + c), old = load_quad(scale);
        const WordQuad was = load_quad(sum);
        store_quad(scale, old.v[0] * f.v[0], old.v[1] * f.v[1], old.v[2] * f.v[2], old.v[3] * f.v[3]);
        u32 now[4];
#pragma unroll
        for (u32 n = 0; n < 4; ++n)
          now[n] = split_sum((as_float(was.v[n] << 16) + as_float(was.v[n] & 0xFFFF0000)) * f.v[n]);
        store_quad(sum, now[0], now[1], now[2], now[3]);
      }
    }
  }

  // Nothing lives on from the instruction before: registers are short.
  DEVICE void forget(u64 kind) {
    clear_outputs();
#pragma unroll
    for (u32 c = 0; c < MINE; ++c) {
      factor[c] = 1;
      kept[c] = kind == HEAD ? -as_float(0x7F800000) : 0;
      best_at[c] = 0;
    }
    next_norm = 0;
  }

  // Adds the math warps' sums of a portion, in the order of its tiles' warps.
  DEVICE void gather(const Instruction& i, const Launch& l, const Portion& p) {
    barrier_wait(Barriers::partial_full(partial.slot), partial.parity, l, AT_PARTIAL_FULL);
    const float* from = shared<float>(PARTIALS_OFFSET) + partial.slot * MATH_WARPS * PARTIAL_WARP;
    if (all_lanes(few)) gather_columns<1>(p, from);
    else gather_columns<MINE>(p, from);
    sync_warp();
    if ((thread_index() & 31) == 0) barrier_arrive(Barriers::partial_empty(partial.slot));
    partial.next();
  }

  // To the SM that began this SM's first group.
  DEVICE void hand_on(const Launch& l, u32 index, u32 rows) {
#pragma unroll
    for (u32 half = 0; half < 2; ++half)
#pragma unroll
      for (u32 c = 0; c < MINE; ++c)
        if (column(c) < rows) *sums_of(l, sm_index(), half, column(c)) = outputs[half][c];
    sync_threads(8, 32 * EPILOGUE_WARPS);
    if (thread_index() == 32 * MATH_WARPS) store_release(l.handed + sm_index() * 32, (u32)l.epoch + index + 1);
  }
  DEVICE void await_collected(const Launch& l) {
    barrier_wait(Barriers::collected(), collected_parity, l, AT_COLLECTED);
    collected_parity ^= 1;
  }

  // Leaves the last group to the math warps, with what is here of it before its last portion comes.
  DEVICE void end_on_all_warps(const Launch& l, u32 index, const Portion& p, u32 rows) {
    sync_threads(8, 32 * EPILOGUE_WARPS);  // both have read the squares
    const Parked parked;
#pragma unroll
    for (u32 c = 0; c < MINE; ++c) parked.put(column(c), outputs[0][c], outputs[1][c], kept[c], factor[c]);
    if (warp() == 0) *parked.norm = next_norm;
    if (p.sharers) await_collected(l);
    meet_at_the_end(12);
    stamp(l, index, MULTIPLIED);
    meet_at_the_end(13);
    if ((thread_index() & 31) == 0) barrier_arrive(Barriers::partial_empty(partial.slot));
    partial.next();
  }

  // The outputs of a group are whole. Here too columns that are no rows are computed, and only rows are stored.
  DEVICE void conclude(const Instruction& i, const Portion& p, u32 rows, u32 length) {
    const Strip& s = i.strip[p.strip];
    switch (i.kind) {
      case PROJECT: project(s, p, rows, length); break;
      case HEAD: head(i, s, p, rows); break;
      case RESIDUAL:
        if (all_lanes(few)) residual<1>(i, p.group, rows);
        else residual<MINE>(i, p.group, rows);
        break;
      case GATE_UP:
        if (all_lanes(few)) gate_up<1>(i, p.group < s.rows / 32, p.group, rows);
        else gate_up<MINE>(i, p.group < s.rows / 32, p.group, rows);
    }
  }

  DEVICE void project(const Strip& s, const Portion& p, u32 rows, u32 length) {
    const u32 lane = thread_index() & 31, size = p.row_tiles * 16;
    float* to = s.target + s.column + p.group * size + lane;
    const u32 room = (u32)s.rows - p.group * size < size ? (u32)s.rows - p.group * size : size;
#pragma unroll
    for (u32 c = 0; c < MINE; ++c) {
      const u32 row = column(c);
      if (row >= rows) continue;
      float* at = to + (s.ring ? (length + row) % RING : row) * s.stride;
      if (lane < room) at[0] = outputs[0][c] * factor[c];
      if (lane + 32 < room) at[32] = outputs[1][c] * factor[c];
    }
  }

  // What isn't a number exceeds all that is, so that the host sees it.
  DEVICE static bool exceeds(float a, float b) { return b == b && !(a <= b); }
  DEVICE void head(const Instruction& i, const Strip& s, const Portion& p, u32 rows) {
    const u32 lane = thread_index() & 31, size = p.row_tiles * 16;
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
      const u32 output = p.group * size + half * 32 + lane;
      const bool there = half * 32 + lane < size && output < s.rows;
#pragma unroll
      for (u32 c = 0; c < MINE; ++c) {
        const float y = outputs[half][c] * factor[c];
        if (i.logits && there && column(c) < rows) i.logits[(u64)column(c) * VOCAB + output] = y;
        const bool better = there && exceeds(y, kept[c]);
        kept[c] = better ? y : kept[c];
        best_at[c] = better ? output : best_at[c];
      }
    }
  }

  DEVICE void fetch_residual(const Instruction& i, u32 block, u32 rows) {
    const u32 output = block * 32 + (thread_index() & 31);
    const bool there = output < HIDDEN;
    next_norm = there ? i.norm[output] : 0;
#pragma unroll
    for (u32 c = 0; c < MINE; ++c)
      kept[c] = there && i.add && column(c) < rows ? load_fresh(i.x + column(c) * HIDDEN + output) : 0;
  }

  DEVICE void begin_head(const Instruction& i, u32 rows) {
    const u32 begin = HIDDEN * sm_index() / sm_count(), end = HIDDEN * (sm_index() + 1) / sm_count();
#pragma unroll
    for (u32 c = 0; c < MINE; ++c) {
      const u32 row = column(c);
      if (row >= rows) continue;
      for (u32 k = begin + (thread_index() & 31); k < end; k += 32)
        i.hidden[row * HIDDEN + k] = load_fresh(i.x + row * HIDDEN + k) * factor[c] * i.norm[k];
    }
  }

  // The SM's greatest logit of every row, the first of equals.
  DEVICE void end_head(const Instruction& i, u32 rows) {
#pragma unroll
    for (u32 c = 0; c < MINE; ++c) {
      const u32 row = column(c);
      if (row >= rows) continue;
      float value = kept[c];
      u32 at = best_at[c];
      for (u32 m = 16; m; m >>= 1) {
        const float other = shuffle_xor(value, m);
        const u32 other_at = shuffle_xor(at, m);
        if (exceeds(other, value) || (other == value && other_at < at)) {
          value = other;
          at = other_at;
        }
      }
      if ((thread_index() & 31) == 0) {
        float* to = i.best + (row * sm_count() + sm_index()) * 2;
        to[0] = value;
        to[1] = (float)(i.draft_ids ? i.draft_ids[at] : (i32)at);
      }
    }
  }
};

// By the math warps: the last group of an instruction's outputs, when an instruction ends on all warps. turns: theirs.
ROLE void finish_last(const Instruction& i, const Portion& p, u32 rows, u32 turns) {
  Turn<PARTIAL_SLOTS> next;
  next.unpack(turns >> Turn<STAGES>::BITS);
  const float* from = shared<float>(PARTIALS_OFFSET) + (next.slot + PARTIAL_SLOTS - 1) % PARTIAL_SLOTS * MATH_WARPS * PARTIAL_WARP;
  meet_at_the_end(12);
  LastGroup group;
  const u32 last_column = group.column(group.MINE - 1);
  if (all_lanes(last_column < rows)) group.finish<LastGroup::MINE>(i, p, from, rows);
  else if (all_lanes(group.column(0) < rows)) group.finish<1>(i, p, from, rows);
  meet_at_the_end(13);
}

ROLE u32 finish(const Instruction& i, const Launch& l, u32 index, u32 rows, u32 length, u32 turns) {
  Epilogue epilogue(turns);
  epilogue.finish(i, l, index, rows, length);
  return epilogue.turns();
}
